"""What is known of messages from outside: what programs sent, heard and received, and what the log says of it.

A *source* is where a program's consumer receives from: a queue, or one subscription to a topic. Every message's body is
a token that no other has, so that a receipt is recognised whatever the cluster says about it. Checkers add themselves
to the lists of callbacks.
"""

from collections.abc import Callable
from functools import partial

import msgspec

from alphorn.bus.machine import Deliver
from alphorn.model.commands import (
    Acknowledge,
    DeleteDestination,
    Entry,
    Move,
    MoveStage,
    Publish,
    Tick,
    after_group,
    decode_heeded,
)
from alphorn.model.ranges import RangeSet
from alphorn.testing.node import SimulatedNode
from alphorn.testing.watch import Watch


class Sent(msgspec.Struct):
    """One message as its sender knows it."""

    token: int
    destination: str
    producer: bytes
    counter: int
    at: float
    is_confirmed: bool = False


class Receipt(msgspec.Struct, frozen=True):
    """One message as a program was handed it."""

    source: str
    destination: str
    consumer: bytes
    token: int
    position: int
    delivery_count: int
    producer: bytes
    counter: int


class Book:
    """Everything of one run. Consumers and producers are known by their keys."""

    __slots__ = (
        "_entries",
        "_leaving",
        "acknowledged",
        "bodies",
        "by_counter",
        "consumers",
        "covered",
        "dead",
        "on_acknowledged",
        "on_body",
        "on_confirmed",
        "on_entry",
        "on_receipt",
        "published",
        "receipts",
        "sent",
        "settled",
        "sources",
        "ticks",
        "wished",
    )

    def __init__(self, *watches: Watch) -> None:
        """`watches` are those of all channels."""
        self._entries: dict[tuple[int, int], Entry] = {}  # by channel and number
        self._leaving: dict[tuple[int, int], MoveStage] = {}  # channel and number of what leaves, or has left
        self.sent: dict[int, Sent] = {}
        self.bodies: dict[int, bytes] = {}  # token → what was streamed
        self.by_counter: dict[tuple[bytes, int], Sent] = {}
        self.receipts: dict[tuple[str, int], list[Receipt]] = {}  # by source and token
        self.sources: dict[bytes, str] = {}  # of consumers
        self.consumers: dict[str, int] = {}  # source → how many consumers it has had
        self.covered: dict[str, float] = {}  # source → messages sent after this moment belong to it
        self.dead: set[tuple[str, int]] = set()  # source and position: a program wanted it dead
        self.wished: dict[bytes, RangeSet] = {}  # consumer → what its client acknowledged
        self.published: dict[bytes, RangeSet] = {}  # producer → counters that are in the log
        self.acknowledged: dict[bytes, RangeSet] = {}  # consumer → what the log says it acknowledged
        self.settled: dict[str, RangeSet] = {}  # source → positions acknowledged in the log
        self.ticks: list[int] = []  # the times that logs were told
        self.on_receipt: list[Callable[[Receipt], None]] = []
        self.on_confirmed: list[Callable[[Sent], None]] = []
        self.on_acknowledged: list[Callable[[bytes, list[int]], None]] = []  # a client heard that it is done
        self.on_body: list[Callable[[int, bytes], None]] = []
        self.on_entry: list[Callable[[Entry], None]] = []
        for channel, watch in enumerate(watches):
            watch.delivered.append(partial(self._on_delivered, channel))

    def send(self, destination: str, producer: bytes, counter: int, at: float) -> int:
        """Notes a message, and gives its token, which is its body."""
        sent = Sent(len(self.sent) + 1, destination, producer, counter, at)
        self.sent[sent.token] = self.by_counter[producer, counter] = sent
        return sent.token

    def confirm(self, producer: bytes, counter: int) -> None:
        """Its sender was told that it is committed."""
        sent = self.by_counter[producer, counter]
        if not sent.is_confirmed:
            sent.is_confirmed = True
            for callback in self.on_confirmed:
                callback(sent)

    def open(self, consumer: bytes, source: str) -> None:
        """A consumer begins to receive."""
        self.sources[consumer] = source
        self.consumers[source] = self.consumers.get(source, 0) + 1

    def cover(self, source: str, at: float) -> None:
        """A source is there: from now on every message to its destination belongs to it."""
        self.covered.setdefault(source, at)

    def receive(self, receipt: Receipt) -> None:
        """A program was handed a message."""
        for callback in self.on_receipt:
            callback(receipt)
        self.receipts.setdefault((receipt.source, receipt.token), []).append(receipt)

    def read(self, token: int, data: bytes) -> None:
        """A program has read the body of a message to its end."""
        for callback in self.on_body:
            callback(token, data)

    def wish(self, consumer: bytes, positions: list[int]) -> None:
        """A client acknowledges these."""
        _add(self.wished.setdefault(consumer, RangeSet()), positions)

    def acknowledge(self, consumer: bytes, positions: list[int]) -> None:
        """A client was told that these are consumed."""
        for callback in self.on_acknowledged:
            callback(consumer, positions)

    def confirmed(self) -> list[Sent]:
        """All messages that their senders know to be committed."""
        return [sent for sent in self.sent.values() if sent.is_confirmed]

    def _on_delivered(self, channel: int, node: SimulatedNode, output: Deliver) -> None:
        if (channel, output.sequence) in self._entries:
            return
        entry = self._entries[channel, output.sequence] = without_transactions(
            decode_heeded(bytes(output.payload), output.assignment.epoch)
        )
        for command in entry.commands:
            if isinstance(command, Publish):
                counters = self.published.setdefault(command.producer, RangeSet())
                counters.add(command.counter, command.counter + command.count - 1)
            elif isinstance(command, Move | DeleteDestination):
                self._on_leaving((channel, command.destination), command)
            elif isinstance(command, Acknowledge):
                if self._leaving.get((channel, command.destination)) is MoveStage.BEGUN:
                    continue  # it is refused here
                _add(self.acknowledged.setdefault(command.consumer, RangeSet()), command.positions)
                source = self.sources.get(command.consumer, "")
                _add(self.settled.setdefault(source, RangeSet()), command.positions)
            elif isinstance(command, Tick):
                self.ticks.append(command.now_ms)
        for callback in self.on_entry:
            callback(entry)

    def _on_leaving(self, place: tuple[int, int], command: Move | DeleteDestination) -> None:
        """What is planned may begin, unless it was cancelled or is not there any more."""
        if isinstance(command, DeleteDestination) or command.stage is MoveStage.CANCELLED:
            if self._leaving.get(place) is MoveStage.PLANNED:
                del self._leaving[place]
        elif command.stage is MoveStage.PLANNED:
            self._leaving.setdefault(place, MoveStage.PLANNED)
        elif command.stage is MoveStage.BEGUN and place in self._leaving:
            self._leaving[place] = MoveStage.BEGUN


def without_transactions(entry: Entry) -> Entry:
    """An entry's other commands; what tellers do has a book of its own (transfers.py)."""
    inside = {place for start in range(len(entry.commands)) for place in range(start + 1, after_group(entry, start))}
    return Entry([command for place, command in enumerate(entry.commands) if place not in inside])


def _add(ranges: RangeSet, positions: list[int]) -> None:
    for first, last in zip(positions[::2], positions[1::2], strict=True):
        ranges.add(first, last)
