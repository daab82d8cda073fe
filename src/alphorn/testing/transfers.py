"""Transfers between accounts: the workload that shows whether transactions are all or nothing.

Accounts are queues, spread over the channels; money is messages, one for each unit. A program receives units from some
accounts and sends the same units to others, all in one transaction, and commits it or rolls it back. The book knows
what it was told of each transaction. In the end every unit is in exactly one account.
"""

import enum
import random
from collections.abc import Callable, Iterable, Sequence

import msgspec

from alphorn.client import transactions
from alphorn.client.core import State
from alphorn.client.flow import SessionState
from alphorn.client.inbox import AckMode, Inbox
from alphorn.client.message import Message
from alphorn.client.outbox import Outbox
from alphorn.client.packing import pack_body
from alphorn.client.requests import Answer
from alphorn.message_manager.queue import Queue
from alphorn.model.commands import Publish, decode_entry, key_of
from alphorn.model.conversation import Consume, Resolve
from alphorn.model.errors import Error, TransactionRolledBack
from alphorn.testing.client_life import ClientLife, Door
from alphorn.testing.model_channels import Tell
from alphorn.testing.node import UNIX_START_S
from alphorn.testing.streams import SimulatedStreams
from alphorn.testing.watch import Violation

PREFETCH = 4
ROLL_BACK_SHARE = 0.15
CLOSE_SHARE = 0.05

MessageName = tuple[bytes, int]  # producer and counter


class Told(enum.Enum):
    """What a program knows of a transaction."""

    OPEN = "open"
    DONE = "done"
    ROLLED_BACK = "rolled back"
    UNKNOWN = "unknown"  # its program died, or could not find out


class Move(msgspec.Struct):
    """One unit on its way: the message that carries it on, and the one that it came by."""

    unit: int
    source: MessageName | None
    told: Told = Told.OPEN
    is_received: bool = False


class TransferBook:
    """All messages that programs sent, and what they were told of them."""

    def __init__(self) -> None:
        self.moves: dict[MessageName, Move] = {}
        self.counts = dict.fromkeys(Told, 0)
        self.receipts = 0

    def send(self, name: MessageName, unit: int, source: MessageName | None) -> None:
        """A program sends a unit."""
        self.moves[name] = Move(unit, source)

    def receive(self, name: MessageName, unit: int) -> None:
        """A program is handed a unit."""
        self.receipts += 1
        move = self.moves.get(name)
        if move is None or move.unit != unit or move.told is Told.ROLLED_BACK:
            raise Violation("rolled back is never seen", f"unit {unit} came by {_text(name)}, and the book has {move}")
        move.is_received = True

    def tell(self, names: Iterable[MessageName], told: Told) -> None:
        """A program hears what became of its transaction."""
        self.counts[told] += 1
        for name in names:
            move = self.moves[name]
            move.told = told
            if told is Told.ROLLED_BACK and move.is_received:
                raise Violation(
                    "rolled back is never seen", f"unit {move.unit} was received before {_text(name)} failed"
                )

    def check(self, found: list[tuple[str, MessageName, int]], units: int) -> None:
        """In the end: these are all messages in all accounts. Raises `Violation`."""
        accounts: dict[int, str] = {}
        for account, name, unit in found:
            if unit in accounts:
                raise Violation("no unit is created", f"unit {unit} is in {accounts[unit]} and in {account}")
            accounts[unit] = account
            if self.moves[name].told is Told.ROLLED_BACK:
                raise Violation("rolled back is never seen", f"unit {unit} is in {account} by {_text(name)}")
        missing = sorted(set(range(units)) - set(accounts))
        if missing:
            raise Violation("no unit is lost", f"units {missing} are in no account")
        left = {name for _, name, _ in found}
        for name, move in self.moves.items():
            if move.told is Told.DONE and move.source in left:
                raise Violation("told is done", f"unit {move.unit} went on by {_text(name)} and is where it was")


class TransferClient(ClientLife):
    """A client that moves units."""

    def __init__(
        self,
        name: str,
        *,
        place: int,
        accounts: list[str],
        managers: Sequence[Door],
        streams: SimulatedStreams,
        stream: random.Random,
        book: TransferBook,
        tell: Tell,
    ) -> None:
        super().__init__(name, place=place, managers=managers, streams=streams, stream=stream, tell=tell)
        self._accounts = accounts
        self._book = book

    def _begin(self) -> None:
        self._session: SessionState = self.core.open_session(AckMode.TRANSACTED)
        self._outboxes: dict[str, Outbox] = {}
        self._inboxes: dict[str, Inbox | None] = {}
        self._sent: list[MessageName] = []  # in the open transaction
        self._is_committing = False
        self._leaving = 0  # consumers that are being closed
        for account in self._accounts:
            self._find(self._run, account)

    def _die(self) -> None:
        if self._sent:
            self._book.tell(self._sent, Told.UNKNOWN if self._is_committing else Told.ROLLED_BACK)

    def fund(self, units: int) -> bool:
        """Puts all units into accounts, in one transaction; False while that cannot be."""
        if len(self._outboxes) < len(self._accounts):
            return False
        for unit in range(units):
            self._send(self._stream.choice(self._accounts), unit, None)
        self._commit()
        return True

    def find_unfinished(self) -> str:
        """What is still to be done, in words; nothing when all is well."""
        if self.core.state is not State.OPEN:
            return f"{self.name} is {self.core.state.value}"
        if self._inboxes or self._leaving:
            return f"{self.name} still receives"
        return f"{self.name} is committing" if self._is_committing else ""

    # --- the program ---

    def _find(self, run: int, account: str) -> None:
        def on_answer(answer: Answer | Error) -> None:
            if run != self._run:
                return
            if isinstance(answer, Error):
                raise Violation("clients are served", f"{self.name} cannot have {account}: {answer}")
            place = self.core.remember_place(account, answer)
            self._outboxes[account] = self.core.open_outbox(self._session, place, is_persistent=True)

        self.core.request(lambda number: Resolve(number, account), on_answer)

    def _act(self) -> None:
        if self._is_committing:
            return
        if self.is_calm:
            self._roll_back()
            self._close_all()
            return
        if len(self._outboxes) < len(self._accounts):
            return
        for account in self._accounts:
            if account not in self._inboxes:
                self._open(self._run, account)
        for account, inbox in list(self._inboxes.items()):
            if inbox is None or self._stream.random() < 0.5:
                continue
            for message in inbox.take(self._stream.randint(0, 2)):
                self._move(message)
            if not inbox.is_open or self._stream.random() < CLOSE_SHARE:
                self._close(account, inbox)
        if self._stream.random() < ROLL_BACK_SHARE:
            self._roll_back()
        elif self._sent:
            self._commit()

    def _close_all(self) -> None:
        for account, inbox in list(self._inboxes.items()):
            if inbox is not None:
                self._close(account, inbox)

    def _close(self, account: str, inbox: Inbox) -> None:
        run = self._run
        del self._inboxes[account]
        self._leaving += 1

        def on_answer(answer: Answer | Error) -> None:
            self._leaving -= run == self._run

        self.core.close_inbox(inbox, on_answer)

    def _open(self, run: int, account: str) -> None:
        self._inboxes[account] = None

        def on_answer(answer: Answer | Error) -> None:
            if run == self._run and not isinstance(answer, Error):
                self._inboxes[account] = inbox
            elif run == self._run:
                self._inboxes.pop(account, None)

        consume = Consume(0, 0, 0, self._outboxes[account].place, PREFETCH)
        inbox = self.core.open_inbox(self._session, consume, account, on_answer)

    def _move(self, message: Message) -> None:
        arrival = message._arrival
        name = (arrival.producer, arrival.counter + message._index)
        self._book.receive(name, message.body)
        self._send(self._stream.choice(self._accounts), message.body, name)

    def _send(self, account: str, unit: int, source: MessageName | None) -> None:
        outbox = self._outboxes[account]
        counter = outbox.add_plain(pack_body(unit))
        name = (key_of(self.core.connection, outbox.number), counter)
        self._book.send(name, unit, source)
        self._sent.append(name)

    def _roll_back(self) -> None:
        transactions.roll_back(self.core, self._session)
        if self._sent:
            self._book.tell(self._sent, Told.ROLLED_BACK)
            self._sent = []

    def _commit(self) -> None:
        run, sent = self._run, self._sent
        self._is_committing = True
        self._tell(self.name, f"commits {len(sent)} units")

        def on_answer(answer: Answer | Error) -> None:
            if run != self._run:
                return
            self._is_committing = False
            self._sent = []
            self._tell(self.name, f"hears {answer}")
            self._book.tell(sent, _told(answer))

        transactions.commit(self.core, self._session, int((UNIX_START_S + self._now) * 1000), on_answer)
        self._flush()


def units_of(queue: Queue, read: Callable[[int], bytes | None]) -> list[tuple[MessageName, int]]:
    """The units that an account holds, by the messages that carry them; `read` gives log entries."""
    found = []
    for first, last in queue.backlog.pending:
        for run in queue.segments.runs(first, last):
            payload = read(run.sequence)
            if payload is None:
                raise Violation("no unit is lost", f"log entry {run.sequence} of {queue.destination} is gone")
            batch = decode_entry(payload).commands[run.command]
            assert isinstance(batch, Publish)
            bodies = [message[0] for message in msgspec.msgpack.decode(batch.blob)]
            places = range(run.index, run.index + run.count)
            found += [((batch.producer, batch.counter + index), bodies[index]) for index in places]
    return found


def _told(answer: Answer | Error) -> Told:
    if isinstance(answer, TransactionRolledBack):
        return Told.ROLLED_BACK
    return Told.UNKNOWN if isinstance(answer, Error) else Told.DONE


def _text(name: MessageName) -> str:
    return f"message {name[0].hex()}:{name[1]}"
