"""The Client Manager as transaction manager: all that a session sent and received is done in every channel, or in none.

One channel: one log entry with everything. Several: each one PREPARES; when all are ready it is DECIDED in the log of
the home channel, the first one, and only then FINISHED in the others; then the client hears of it. Every step may be
repeated, by this Client Manager or another: so a client that was cut off asks again for the same transaction, and a
Message Manager that waits for the end of one asks any Client Manager to see to it (`resolve`), by the same steps.

Nobody waits for a transaction but its own session: other commands go past it, in every log.

What became of a transaction stands in the logs of the places that it names. So one that names a place which its
destination has left is never done: it is rolled back at its home, which knows if it was done before the move.
"""

import enum
from collections.abc import Callable

from alphorn.client_manager.channel import bytes_of
from alphorn.client_manager.connection import Connection, Consumer
from alphorn.client_manager.consuming import Consuming
from alphorn.client_manager.desk import Desk
from alphorn.client_manager.finding import Finding
from alphorn.client_manager.moving import Moving
from alphorn.client_manager.publishing import Publishing
from alphorn.client_manager.runs import pairs_of
from alphorn.model import commands, link
from alphorn.model.conversation import CommitTransaction, Done, Failed, Vanished, parts_of
from alphorn.model.errors import Misuse, PeerViolation, TransactionRolledBack
from alphorn.model.messages import BATCH_BYTES_MAX, Flag

PREPARE_S = 5.0  # a channel that is not ready by then has failed
COMMANDS_MAX = 10_000  # of one transaction
DONE = 1  # the answer of a home channel that has decided so (message_manager/transaction_state.py)
# What tests may watch, at the moment it is noticed: asked by the client, answered by the only channel, and so on.
STEPS = ("asked", "answered", "partly-prepared", "prepared", "decided", "partly-finished", "finished")

Parts = dict[int, list[commands.AnyCommand]]  # by channel


class Step(enum.Enum):
    """How far a transaction has come."""

    WAITING = "waiting"  # for consumers whose subscription is not known yet
    PREPARING = "preparing"  # or, where one channel is involved, being done
    DECIDING = "deciding"
    FINISHING = "finishing"
    OVER = "over"


class Transaction:
    """One transaction on its way. Without a client it is somebody else's that is brought to its end."""

    __slots__ = (
        "channels",
        "connection",
        "consumed",
        "counter",
        "deadline",
        "error",
        "is_commit",
        "is_told",
        "missing",
        "parts",
        "reason",
        "request",
        "session",
        "step",
    )

    def __init__(self, session: bytes, counter: int, channels: list[int]) -> None:
        self.session = session
        self.counter = counter
        self.channels = channels  # that take part; the first one is home
        self.parts: Parts = {}
        self.consumed: list[tuple[Consumer, list[int], int]] = []  # with the channel where they were received
        self.connection: Connection | None = None
        self.request = 0
        self.step = Step.WAITING
        self.missing: set[int] = set()  # channels that have not answered this step
        self.is_commit = True
        self.is_told = False  # its client has heard what becomes of it
        self.error = TransactionRolledBack.__name__  # what its client hears if it is not done
        self.reason = ""  # why
        self.deadline = float("inf")


class Transactions:
    """All transactions under way."""

    __slots__ = ("_consuming", "_desk", "_finding", "_moving", "_open", "_publishing", "counts")

    def __init__(
        self, desk: Desk, publishing: Publishing, consuming: Consuming, finding: Finding, moving: Moving
    ) -> None:
        self._desk = desk
        self._finding = finding
        self._moving = moving
        self._publishing = publishing
        self._consuming = consuming
        self._open: dict[Transaction, None] = {}
        self.counts = {"done": 0, "rolled_back": 0, "resolved": 0}

    # --- what is asked ---

    def on_commit(self, connection: Connection, frame: CommitTransaction) -> None:
        """A client wants its session's transaction done. What it cannot mean is refused, and nothing is done."""
        self._desk.reach("asked")
        try:
            self._check(connection, frame)
        except (Misuse, TransactionRolledBack) as error:
            self._desk.fail(connection.stream, frame.request, error)
            return
        transaction = self._make(connection, frame)
        self._open[transaction] = None
        try:
            self._check_places(connection, frame)
            self._take_consumed(transaction, frame)
        except TransactionRolledBack as error:
            # It may have been done when it was asked for before, so its home has the last word.
            self._fail(transaction, str(error))
        else:
            self._begin_when_known(transaction, frame)

    def resolve(self, frame: link.InDoubt) -> None:
        """A Message Manager waits for the end of a transaction: where nothing was decided, it is rolled back now."""
        known = [t for t in self._open if (t.session, t.counter) == (frame.session, frame.counter)]
        if known or not all(0 <= channel < len(self._desk.channels) for channel in frame.channels):
            return  # it is on its way
        transaction = Transaction(frame.session, frame.counter, list(frame.channels))
        transaction.is_commit = False
        self._open[transaction] = None
        self.counts["resolved"] += 1
        self._desk.log("info", "transaction_resolved", f"session={frame.session.hex()} counter={frame.counter}")
        self._decide(transaction)

    def on_closed(self, connection: Connection) -> None:
        """A client is gone: what has begun goes on without it, what has not is asked again elsewhere."""
        for transaction in [t for t in self._open if t.connection is connection and t.step is Step.WAITING]:
            del self._open[transaction]

    def on_time(self, now: float) -> None:
        """A channel that is not ready in time has failed."""
        for transaction in [t for t in self._open if t.deadline <= now]:
            self._fail(transaction, "a channel was not ready in time; try again")

    def next_deadline(self) -> float:
        """When a transaction has waited long enough."""
        return min((t.deadline for t in self._open), default=float("inf"))

    def describe(self) -> dict[str, object]:
        """For people."""
        return {"open": [f"{t.session.hex()}:{t.counter} {t.step.value}" for t in self._open], **self.counts}

    # --- what is wanted ---

    def _check(self, connection: Connection, frame: CommitTransaction) -> None:
        """Raises what is wrong with it whenever it comes; nothing of it was ever done."""
        if frame.session not in connection.sessions:
            raise Misuse(f"session {frame.session} is not open on this connection; only its own transactions end here")
        if not 0 <= frame.session <= commands.NUMBER_MAX or not 0 < frame.counter < commands.COUNTER_MAX:
            raise Misuse(f"no session has the number {frame.session} and a transaction {frame.counter}")
        size = sum(len(publish.blob) for publish in frame.publishes)
        size += sum(bytes_of(positions) for _, _, positions in frame.consumed)
        if size > BATCH_BYTES_MAX or len(frame.publishes) + len(frame.consumed) > COMMANDS_MAX:
            raise TransactionRolledBack(
                f"a transaction of {size} bytes is too large; at most {BATCH_BYTES_MAX} go at once: commit more often"
            )
        for publish in frame.publishes:
            if publish.session != frame.session:
                raise PeerViolation(f"a transaction of session {frame.session} sends for session {publish.session}")
            if publish.flags & Flag.STREAM:
                raise PeerViolation("bodies that come in fragments are not part of transactions")
            self._publishing.check(connection, publish)
        for _, place, positions in frame.consumed:
            pairs_of(positions)
            if not 0 <= parts_of(place)[0] < len(self._desk.channels):
                raise PeerViolation(f"no destination has the place {place}; resolve its name first")

    def _make(self, connection: Connection, frame: CommitTransaction) -> Transaction:
        places = [publish.place for publish in frame.publishes] + [place for _, place, _ in frame.consumed]
        channels = sorted({parts_of(place)[0] for place in places})
        if self._desk.settings.prepares_all and len(channels) > 1:
            channels = list(self._desk.used)
        transaction = Transaction(commands.key_of(connection.id, frame.session), frame.counter, channels)
        transaction.connection, transaction.request = connection, frame.request
        return transaction

    def _check_places(self, connection: Connection, frame: CommitTransaction) -> None:
        """Raises `TransactionRolledBack` where a destination is not at the place that the client knows."""
        for place in {publish.place for publish in frame.publishes}:
            if self._moving.has_left(place):
                self._desk.reply(connection.stream, Vanished(place))  # it looks for it before it sends there again
                raise TransactionRolledBack("a destination of it has moved to another channel; do it again")
            self._notice(place)
        for number, place, _ in frame.consumed:
            if self._moving.has_left(place):
                raise TransactionRolledBack(
                    f"what consumer {number} receives from has moved to another channel; open the consumer anew"
                )

    def _notice(self, place: int) -> None:
        """The log tells only of destinations that are known here that they move."""
        if self._moving.is_possible and self._desk.directory.at(place) is None:
            self._finding.find(place, lambda found: None)

    def _take_consumed(self, transaction: Transaction, frame: CommitTransaction) -> None:
        """What it consumes is not held any more but on its way; raises `TransactionRolledBack`."""
        assert transaction.connection is not None
        found = [
            (
                self._find_holder(transaction.connection, frame.session, number, place, positions),
                positions,
                parts_of(place)[0],
            )
            for number, place, positions in frame.consumed
        ]
        for consumer, positions, _ in found:
            for first, last in pairs_of(positions):
                consumer.held.remove(first, last)
                consumer.settling.add(first, last)
        transaction.consumed = found

    @staticmethod
    def _find_holder(connection: Connection, session: int, number: int, place: int, positions: list[int]) -> Consumer:
        consumer = connection.consumers.get(number)
        if consumer is None or consumer.session != session or parts_of(place)[0] != consumer.channel:
            raise TransactionRolledBack(f"consumer {number} is not open in this session; receive and commit again")
        for first, last in pairs_of(positions):
            if consumer.held.intersection(first, last) != [(first, last)]:
                raise TransactionRolledBack(f"consumer {number} does not hold all of the messages {first} to {last}")
        return consumer

    def _begin_when_known(self, transaction: Transaction, frame: CommitTransaction) -> None:
        """A consumer that has just come back may not know its subscription yet."""
        unknown = [consumer for consumer, _, _ in transaction.consumed if not consumer.is_attached]
        if unknown:
            unknown[0].postponed.append(lambda: self._begin_when_known(transaction, frame))
        elif transaction in self._open and any(consumer.channel != at for consumer, _, at in transaction.consumed):
            self._fail(transaction, "what one of its consumers receives from has moved; open the consumer anew")
        elif transaction in self._open:
            self._begin(transaction, frame)

    def _begin(self, transaction: Transaction, frame: CommitTransaction) -> None:
        parts = transaction.parts = {channel: [] for channel in transaction.channels}
        for consumer, positions, channel in transaction.consumed:
            parts[channel].append(
                commands.Acknowledge(consumer.destination, consumer.subscription, consumer.key, positions)
            )
        assert transaction.connection is not None
        for publish in frame.publishes:
            self._publishing.enter(transaction.connection, publish.place)
            command = self._publishing.command_of(transaction.connection, publish)
            parts[parts_of(publish.place)[0]].append(command)
        transaction.step = Step.PREPARING
        if not parts:
            self._end(transaction)
        elif len(parts) == 1:
            self._commit_at_once(transaction)
        else:
            self._prepare(transaction)

    # --- one channel ---

    def _commit_at_once(self, transaction: Transaction) -> None:
        [(channel, members)] = transaction.parts.items()
        command = commands.TransactionCommit(transaction.session, transaction.counter, len(members))

        def on_answer(answer: link.Answered) -> None:
            self._desk.reach("answered")
            transaction.is_commit, transaction.reason = not answer.error, answer.reason
            if answer.error == Misuse.__name__:
                transaction.error = answer.error  # it is over since long, and may have been done then
            if answer.error:
                self._give_back(transaction, channel, is_counted=False)
            self._end(transaction)

        def on_lost() -> None:
            transaction.step = Step.OVER
            del self._open[transaction]

        # Who is gone has it done elsewhere, and may have ended since: no log knows it for ever.
        connection = transaction.connection
        self._desk.channels[channel].request(
            command,
            on_answer,
            size=_size_of(members),
            members=members,
            lost=on_lost,
            is_wanted=lambda: connection is not None and self._desk.is_there(connection),
        )

    # --- several channels ---

    def _prepare(self, transaction: Transaction) -> None:
        transaction.missing = set(transaction.channels)
        transaction.deadline = self._desk.now + PREPARE_S
        for channel, members in transaction.parts.items():
            command = commands.TransactionPrepare(
                transaction.session, transaction.counter, transaction.channels, len(members)
            )
            on_answer = self._answer(transaction, Step.PREPARING, channel, self._on_prepared)
            self._desk.channels[channel].request(command, on_answer, size=_size_of(members), members=members)

    def _on_prepared(self, transaction: Transaction, channel: int, answer: link.Answered) -> None:
        if answer.error:
            self._fail(transaction, answer.reason)
        elif not transaction.missing:
            self._desk.reach("prepared")
            self._decide(transaction)
        else:
            self._desk.reach("partly-prepared")

    def _fail(self, transaction: Transaction, reason: str) -> None:
        transaction.is_commit, transaction.reason = False, reason
        self._decide(transaction)

    def _decide(self, transaction: Transaction) -> None:
        transaction.step = Step.DECIDING
        transaction.deadline = float("inf")
        home = transaction.channels[0]
        transaction.missing = {home}
        command = commands.TransactionDecide(
            transaction.session, transaction.counter, transaction.channels, transaction.is_commit
        )
        on_answer = self._answer(transaction, Step.DECIDING, home, self._on_decided)
        self._desk.channels[home].request(command, on_answer)

    def _on_decided(self, transaction: Transaction, home: int, answer: link.Answered) -> None:
        """What stands in the home channel's log is what happens, whatever was wanted."""
        self._desk.reach("decided")
        transaction.is_commit = answer.number == DONE
        transaction.reason = transaction.reason or answer.reason
        transaction.step = Step.FINISHING
        transaction.missing = set(transaction.channels)
        if transaction.is_commit:
            transaction.missing.discard(home)
        else:
            self._tell(transaction)  # no channel can do anything else now, be it out of reach
        for channel in sorted(transaction.missing):
            command = commands.TransactionFinish(transaction.session, transaction.counter, transaction.is_commit)
            on_finished = self._answer(transaction, Step.FINISHING, channel, self._on_finished)
            self._desk.channels[channel].request(command, on_finished)
        if not transaction.missing:
            self._settle(transaction)

    def _on_finished(self, transaction: Transaction, channel: int, answer: link.Answered) -> None:
        if not transaction.is_commit:
            self._give_back(transaction, channel, is_counted=bool(answer.number))
        if not transaction.missing:
            self._desk.reach("finished")
            self._settle(transaction)
        else:
            self._desk.reach("partly-finished")

    def _settle(self, transaction: Transaction) -> None:
        """Nobody waits for this: it lets the home channel forget."""
        if transaction.is_commit:
            home = self._desk.channels[transaction.channels[0]]
            home.want(commands.TransactionSettle(transaction.session, transaction.counter))
        self._end(transaction)

    def _answer(
        self,
        transaction: Transaction,
        step: Step,
        channel: int,
        then: Callable[[Transaction, int, link.Answered], None],
    ) -> Callable[[link.Answered], None]:
        """Goes on with an answer of the step under way; one of a step that is over is old news."""

        def on_answer(answer: link.Answered) -> None:
            if transaction.step is step:
                transaction.missing.discard(channel)
                then(transaction, channel, answer)

        return on_answer

    # --- the end ---

    def _give_back(self, transaction: Transaction, channel: int, *, is_counted: bool) -> None:
        """What was consumed comes back; `is_counted` where the log has it back already, counted as delivered."""
        connection = transaction.connection
        if connection is None or not self._desk.is_there(connection):
            return  # whoever has the client now sees to it, or the primary does when nobody comes back
        for consumer, positions, received_at in transaction.consumed:
            if received_at == channel:
                self._consuming.return_consumed(connection, consumer, positions, is_unseen=is_counted)

    def _end(self, transaction: Transaction) -> None:
        transaction.step = Step.OVER
        del self._open[transaction]
        connection = transaction.connection
        if connection is None:
            return
        self.counts["done" if transaction.is_commit else "rolled_back"] += 1
        if transaction.is_commit:
            for consumer, positions, _ in transaction.consumed:
                consumer.settle(positions)
        self._tell(transaction)

    def _tell(self, transaction: Transaction) -> None:
        connection = transaction.connection
        if connection is None or transaction.is_told or not self._desk.is_there(connection):
            return
        transaction.is_told = True
        if transaction.is_commit:
            self._desk.reply(connection.stream, Done(transaction.request))
        else:
            refused = Failed(transaction.request, transaction.error, transaction.reason)
            self._desk.reply(connection.stream, refused)


def _size_of(members: list[commands.AnyCommand]) -> int:
    return sum(
        len(member.blob) if isinstance(member, commands.Publish) else bytes_of(member.positions)
        for member in members
        if isinstance(member, commands.Publish | commands.Acknowledge)
    )
