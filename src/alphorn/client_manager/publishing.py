"""Messages from clients into the log: checked at the door, ordered as they are, confirmed when committed.

A publish is confirmed once its entry is committed and this Client Manager has heard all that precedes it: so a
destination that was deleted before is noticed. Where a publish may be refused by its destination, or where the log may
not agree with the client's counters (after a reconnection), the primary's answer decides instead. What is not let in
(flow.py), or finds its destination full, is postponed: the client sends it again, and nothing after it is heard before.
"""

from functools import partial

import msgspec

from alphorn.client_manager.channel import bytes_of
from alphorn.client_manager.connection import Batch, Connection, Producer
from alphorn.client_manager.desk import Desk
from alphorn.client_manager.finding import Finding
from alphorn.client_manager.flow import FlowControl
from alphorn.client_manager.limits import too_many
from alphorn.client_manager.moving import Moving
from alphorn.model import commands, errors
from alphorn.model.conversation import (
    AbandonStream,
    Confirmed,
    Postponed,
    Publish,
    Refused,
    Retire,
    SendFragment,
    parts_of,
)
from alphorn.model.errors import InvalidDestination, PeerViolation
from alphorn.model.link import Answered
from alphorn.model.messages import BATCH_MESSAGES_MAX, Flag, check_plain, count_of, headers_of

Sent = Publish | SendFragment | AbandonStream  # what has a producer's counter
Counted = commands.Publish | commands.Fragment | commands.Abandon
_DISAGREEING = (errors.Unavailable.__name__, errors.UnknownOutcome.__name__)
UNRETIRED_FACTOR = 4  # times so many as may be open: logs know those that were closed until the client says so


class Publishing:
    """Takes publishes of all clients."""

    __slots__ = ("_desk", "_finding", "_flow", "_moving", "confirmed", "refused")

    def __init__(self, desk: Desk, finding: Finding, flow: FlowControl, moving: Moving) -> None:
        self._desk = desk
        self._moving = moving
        self._finding = finding
        self._flow = flow
        self.confirmed = 0
        self.refused = 0

    def on_publish(self, connection: Connection, frame: Publish) -> None:
        """One batch. A bad one is refused to its sender; counters that do not follow end the connection."""
        self.check(connection, frame)
        command = self.command_of(connection, frame)
        # Whether a streamed body is whole, and still there, only the log knows.
        self.order(connection, frame, command, count=frame.count, is_judged=bool(frame.flags & Flag.STREAM))

    def order(
        self, connection: Connection, frame: Sent, command: Counted, *, count: int = 1, is_judged: bool = False
    ) -> None:
        """Takes the next of a producer's counters, orders the command, and tells the producer its outcome.

        It is the primary's answer that decides where the command `is_judged`, and where the log may say otherwise. What
        is not let in is postponed, and not ordered.
        """
        producer = self._producer_of(connection, frame, count)
        if producer is None:
            return
        size = 0 if isinstance(command, commands.Abandon) else len(command.blob)
        if not self._let_in(connection, producer, frame, size):
            return
        producer.expected = frame.counter + count
        batch = Batch(
            connection, frame.session, frame.producer, producer, frame.place, command, count, is_judged=is_judged
        )
        place = self._moving.current(frame.place)
        if isinstance(command, commands.Publish) and self._desk.auditing.covers(place):
            batch.is_audited = True
            self._desk.auditing.produced(place, command)
        producer.open.append(frame.counter)
        self._moving.when(frame.place, partial(self._order, batch), size)
        self._flow.begin(connection, frame.session, frame.place, size)

    def _order(self, batch: Batch) -> None:
        """Puts a batch into the log that its destination is in. Whoever is gone sends it again elsewhere."""
        if not self._desk.is_there(batch.connection):
            return
        moving, producer = self._moving, batch.state
        place = moving.current(batch.place)
        if batch.is_void or (producer.is_postponed and batch.counter >= producer.expected):
            self._flow.end(batch.connection, batch.session, batch.size)
            return  # it comes again
        listed = self._desk.directory.at(place)
        if listed is None:
            self._finding.find(place, lambda found: None)  # so that the next ones need no answer
        is_first = moving.is_possible and batch.counter > 1 and not producer.has_sent_to(place)
        is_asked = batch.is_judged or listed is None or listed.may_refuse or not producer.is_proven
        if is_asked or producer.unanswered or is_first:
            producer.unanswered[batch.counter] = batch
            answer, again = partial(self._on_answer, batch), partial(self._order_again, batch)
            moving.request(place, partial(self._command, batch), answer, size=batch.size, again=again)
        else:
            then, again = partial(self._on_committed, batch), partial(self._order, batch)
            moving.want(place, partial(self._command, batch), then, size=batch.size, again=again)

    def _order_again(self, batch: Batch) -> None:
        if batch.state.unanswered.get(batch.counter) is batch:
            del batch.state.unanswered[batch.counter]
        self._order(batch)

    def _command(self, batch: Batch, number: int) -> Counted:
        after = batch.command.after
        if self._moving.is_possible:  # what the client knows of channels may be old
            after = batch.state.after(self._moving.current(batch.place), batch.counter, batch.count)
        return msgspec.structs.replace(batch.command, destination=number, after=after)

    def enter(self, connection: Connection, place: int) -> None:
        """A client sends to this destination, and is to hear of its state."""
        self._flow.enter(connection, place)

    def close_session(self, connection: Connection, session: int) -> None:
        """A session has ended, and its producers are forgotten; those with batches under way when these are over.

        The log keeps their counters: what would come again is recognised there, as after a reconnection.
        """
        for number, producer in list(connection.of_session(session).producers.items()):
            self._forget_ended(connection, number, producer)

    def on_retire(self, connection: Connection, frame: Retire) -> None:
        """A client has closed producers: they are forgotten here and in every log, but for what is still under way."""
        if not 0 < frame.through <= commands.NUMBER_MAX or len(frame.used) > commands.USED_MAX:
            raise PeerViolation(f"no client uses {len(frame.used)} numbers through {frame.through}")
        if any(not 0 < number <= frame.through for number in frame.used):
            raise PeerViolation(f"a number that is used through {frame.through} is not above it")
        used = set(frame.used)
        for number, producer in list(connection.producers.items()):
            if number > frame.through or number in used:
                continue
            if producer.is_under_way:
                used.add(number)
            else:
                self._forget(connection, number, producer)
        connection.numbered = len(connection.producers)
        numbers = sorted(used)
        for channel in self._desk.channels:
            channel.want(commands.Retire(connection.id, frame.through, numbers), size=bytes_of(numbers))

    def _forget_ended(self, connection: Connection, number: int, producer: Producer) -> None:
        if producer.session not in connection.sessions and not producer.is_under_way:
            self._forget(connection, number, producer)

    def _forget(self, connection: Connection, number: int, producer: Producer) -> None:
        if connection.producers.get(number) is producer:
            connection.remove_producer(number)
            if self._flow.reason_at(producer.place):
                self._flow.report([producer.place])  # one less waits there

    def _producer_of(self, connection: Connection, frame: Sent, count: int) -> Producer | None:
        """Who sends this, None where there are too many; raises `PeerViolation` where its counter was before."""
        producer = connection.producers.get(frame.producer)
        if producer is None:
            maximum = self._desk.settings.producers_max
            is_less = connection.numbered < UNRETIRED_FACTOR * maximum
            known = len(connection.producers) if is_less else connection.numbered
            if error := too_many(known, maximum, "producers"):
                refused = Refused(frame.producer, frame.counter, count, type(error).__name__, str(error))
                self._desk.reply(connection.stream, refused)
                return None
            is_new = frame.counter == 1 and not connection.is_resumed
            producer = Producer(frame.counter, is_proven=is_new, session=frame.session)
            connection.add_producer(frame.producer, producer)
        if frame.counter < producer.expected:
            raise PeerViolation(
                f"producer {frame.producer} sent counter {frame.counter} where {producer.expected} comes next"
            )
        return producer

    def _let_in(self, connection: Connection, producer: Producer, frame: Sent, size: int) -> bool:
        """Whether this is taken now. What makes room, and has no size, always is."""
        if frame.counter > producer.expected:
            if producer.is_postponed:
                return False  # it was under way, and comes again
            producer.is_proven = False  # what was refused is not sent again; whether that is so, the log knows
        self._flow.enter(connection, frame.place)
        is_new, producer.place = producer.place != frame.place, frame.place
        if size and not self._flow.let_in(connection, frame.session, frame.place, size):
            self._postpone(connection, frame.producer, producer, frame.counter)
            if is_new:
                self._flow.report([frame.place])
            return False
        producer.is_postponed = False
        return True

    def command_of(self, connection: Connection, frame: Publish) -> commands.Publish:
        """The batch as it stands in the log; it outlives the frame."""
        channel, number = parts_of(frame.place)
        return commands.Publish(
            number,
            commands.key_of(connection.id, frame.producer),
            frame.counter,
            frame.count,
            frame.flags,
            frame.timestamp,
            self._desk.dated(connection, channel, frame.flags, frame.blob),
            frame.after,
        )

    def check_sender(self, connection: Connection, frame: Sent) -> None:
        """Raises `PeerViolation` where a frame names what cannot be."""
        if frame.session not in connection.sessions:
            raise PeerViolation(f"session {frame.session} is not open")
        if not 0 <= frame.producer <= commands.NUMBER_MAX or not 0 < frame.counter < commands.COUNTER_MAX:
            raise PeerViolation(f"no producer has the number {frame.producer} and comes to the counter {frame.counter}")
        if not 0 <= parts_of(frame.place)[0] < len(self._desk.channels):
            raise PeerViolation(f"no destination has the place {frame.place}; resolve its name first")

    def check(self, connection: Connection, frame: Publish) -> None:
        """Raises `PeerViolation` for what no correct library sends."""
        settings, size = self._desk.settings, len(frame.blob)
        self.check_sender(connection, frame)
        if not -1 <= frame.after < frame.counter:
            raise PeerViolation(f"the counter {frame.counter} does not come after {frame.after}")
        if size > settings.batch_bytes_max:
            raise PeerViolation(f"a batch of {size} bytes is too large; at most {settings.batch_bytes_max} go at once")
        if not 0 < frame.count <= BATCH_MESSAGES_MAX or count_of(frame.blob) != frame.count:
            raise PeerViolation(f"a batch says it has {frame.count} messages, and that is not so")
        if frame.flags:  # servers will look into it, and must not find surprises there
            headers = headers_of(frame.blob)
            if frame.flags & Flag.STREAM and [header.stream is None for header in headers] != [False]:
                raise PeerViolation("a batch says that its body came in fragments, and is not such a message")
            return
        check_plain(frame.blob)

    def _postpone(
        self, connection: Connection, number: int, producer: Producer, first: int, taken: int | None = None
    ) -> None:
        """The batch that begins with this counter comes again, without what was taken of it, and all after it."""
        counter = first + (taken or 0)
        self._flow.postponed += 1
        producer.postpone(counter, first)
        self._forget_ended(connection, number, producer)
        if self._desk.is_there(connection):
            self._desk.reply(connection.stream, Postponed(number, counter, -1 if taken is None else taken))

    def _on_committed(self, batch: Batch) -> None:
        self._flow.end(batch.connection, batch.session, batch.size)
        producer, listed = batch.state, self._desk.directory.at(self._moving.current(batch.place))
        if producer.is_postponed and batch.counter >= producer.expected:
            return  # it comes again
        if listed is not None and listed.may_refuse:
            # Its policy has changed since: whether the message was taken, the primary says when it comes again.
            self._postpone(batch.connection, batch.producer, producer, batch.counter)
        elif listed is None:
            error = InvalidDestination("the destination was deleted before the message came; create it again")
            self._refuse(batch, type(error).__name__, str(error))
        else:
            self._confirm(batch)

    def _on_answer(self, batch: Batch, answer: Answered) -> None:
        self._flow.end(batch.connection, batch.session, batch.size)
        if batch.is_void:
            return
        batch.state.unanswered.pop(batch.counter, None)
        # Where the log does not know what came before, it takes nothing that comes after it either.
        batch.state.is_proven = answer.error not in _DISAGREEING
        earlier = min(batch.state.unanswered, default=batch.counter)
        if answer.error == errors.Postponed.__name__:
            taken = answer.number - batch.counter if answer.number else 0
            self._postpone(batch.connection, batch.producer, batch.state, batch.counter, taken)
        elif answer.error == errors.Unavailable.__name__ and earlier < batch.counter:
            # One before it was postponed, which a primary that is gone knew. All of them come again from there.
            self._postpone(batch.connection, batch.producer, batch.state, earlier)
        elif answer.error:
            if answer.error == InvalidDestination.__name__:
                self._desk.directory.doubt(self._moving.current(batch.place))
            self._refuse(batch, answer.error, answer.reason)
        else:
            self._confirm(batch)

    def _confirm(self, batch: Batch) -> None:
        self.confirmed += batch.count
        if batch.is_audited:
            key = commands.key_of(batch.connection.id, batch.producer)
            self._desk.auditing.confirmed(self._moving.current(batch.place), key, batch.counter, batch.count)
        self._close(batch, batch.counter + batch.count - 1)

    def _refuse(self, batch: Batch, error: str, reason: str) -> None:
        self.refused += batch.count
        if self._desk.is_there(batch.connection):
            refused = Refused(batch.producer, batch.counter, batch.count, error, reason)
            self._desk.reply(batch.connection.stream, refused)
        self._close(batch, 0)

    def _close(self, batch: Batch, confirmed: int) -> None:
        """Confirms all that has an outcome now; channels may tell it in another order than that of the counters."""
        through = batch.state.close(batch.counter, confirmed)
        self._forget_ended(batch.connection, batch.producer, batch.state)
        if through and self._desk.is_there(batch.connection):
            self._desk.reply(batch.connection.stream, Confirmed(batch.producer, through))

    def senders(self) -> dict[str, list[tuple[str, int]]]:
        """Which sessions have producers that sent to a destination last: connection and session (CM-21)."""
        found: dict[str, list[tuple[str, int]]] = {}
        for connection in self._desk.connections.values():
            for producer in connection.producers.values():
                listed = self._desk.directory.at(self._moving.current(producer.place))
                if listed is not None:
                    found.setdefault(str(listed.destination), []).append((connection.id.hex(), producer.session))
        return found

    def describe(self) -> dict[str, object]:
        """For people."""
        return {"confirmed": self.confirmed, "refused": self.refused, "senders": self.senders()}
