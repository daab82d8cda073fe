"""Checkers of messages: what programs were told is in the log, and what they are handed is what was sent.

A program may be handed a message more than once, and then at most one of these times says that it is the first. Which
was first by the clock is no promise: what two Client Managers hold may reach their clients in either order.
"""

from typing import Any, Protocol

from alphorn.bus.machine import Persist, SealCheckpoint
from alphorn.message_manager.engine import Engine
from alphorn.model.commands import Acknowledge, Entry, connection_of
from alphorn.model.destinations import DEAD_MESSAGES
from alphorn.testing.book import Book, Receipt, Sent
from alphorn.testing.checkers.groups import GroupsKeepOrder
from alphorn.testing.checkers.heeding import EarlierPrimariesAreNotHeeded
from alphorn.testing.checkers.limits import LimitsHold
from alphorn.testing.checkers.retained import RetainedIsRead
from alphorn.testing.checkers.staged import StagedIsSeenOnce
from alphorn.testing.checkers.time import TimeGoesOn
from alphorn.testing.cluster_plan import ACCOUNTS
from alphorn.testing.node import SimulatedNode
from alphorn.testing.rooms import MessageManagerRoom
from alphorn.testing.simulated_cluster import SimulatedCluster
from alphorn.testing.simulator import Simulation
from alphorn.testing.watch import Violation


class MessageChecker(Protocol):
    """Watches one promise from the start of a run."""

    name: str

    def finish(self) -> None:
        """All is quiet: the checks that need everything."""


class Watched(Protocol):
    """A cluster, or one channel of it, as far as checkers need it."""

    @property
    def book(self) -> Book:
        """What programs sent, heard and received."""

    @property
    def simulation(self) -> Simulation:
        """The group that carries the log."""

    @property
    def message_managers(self) -> list[MessageManagerRoom]:
        """All replicas."""

    def engines(self) -> list[Engine]:
        """One replica's state for each channel."""

    def connections(self) -> set[bytes]:
        """Of tellers that run: only these may be owed the locks they hold in accounts."""


class _Checker:
    __slots__ = ("_book", "_cluster")

    def __init__(self, cluster: Watched) -> None:
        self._cluster = cluster
        self._book: Book = cluster.book

    def finish(self) -> None:
        """Nothing to do in the end."""


class ConfirmedIsStored(_Checker):
    """A sender hears that a message is committed only when it is in the log; in the end somebody has consumed it."""

    __slots__ = ()
    name = "confirmed is stored, and consumed in the end"

    def __init__(self, cluster: Watched) -> None:
        super().__init__(cluster)
        self._book.on_confirmed.append(self._on_confirmed)

    def _on_confirmed(self, sent: Sent) -> None:
        counters = self._book.published.get(sent.producer)
        if counters is None or sent.counter not in counters:
            raise Violation(self.name, f"message {sent.token} was confirmed, and it is not in the log")

    def finish(self) -> None:
        """Looks at every confirmed message and every source that it belongs to."""
        dead = 0
        for sent in self._book.confirmed():
            for source in self._sources_of(sent):
                dead += not self._is_acknowledged(source, sent)
        wanted = len(self._book.dead)
        found = self._count_dead()
        if not dead <= found <= wanted:
            raise Violation(
                self.name, f"{dead} messages were not acknowledged, {found} are dead, {wanted} were wanted dead"
            )

    def _sources_of(self, sent: Sent) -> list[str]:
        covered = self._book.covered
        return [
            source
            for source, since in covered.items()
            if source.partition("/")[0] == sent.destination and (source == sent.destination or sent.at > since)
        ]

    def _is_acknowledged(self, source: str, sent: Sent) -> bool:
        receipts = self._book.receipts.get((source, sent.token), [])
        if not receipts:
            raise Violation(self.name, f"message {sent.token} was confirmed, and nobody received it from {source}")
        settled = self._book.settled.get(source)
        if settled is not None and receipts[0].position in settled:
            return True
        if (source, receipts[0].position) not in self._book.dead:
            raise Violation(self.name, f"message {sent.token} is gone from {source}, and nobody acknowledged it")
        return False

    def _count_dead(self) -> int:
        queues = [
            found
            for engine in self._cluster.engines()
            for found in engine.destinations.values()
            if found.destination.name == DEAD_MESSAGES
        ]
        return sum(queue.count for queue in queues)


class ReceivedWasSent(_Checker):
    """What a program is handed was sent to this destination, and each message has one position in it."""

    __slots__ = ("_positions", "_tokens")
    name = "received is what was sent, stored once"

    def __init__(self, cluster: Watched) -> None:
        super().__init__(cluster)
        self._positions: dict[tuple[str, int], int] = {}  # destination and token → position
        self._tokens: dict[tuple[str, int], int] = {}  # destination and position → token
        self._book.on_receipt.append(self._on_receipt)

    def _on_receipt(self, receipt: Receipt) -> None:
        sent = self._book.sent.get(receipt.token)
        if sent is None or (sent.destination, sent.producer, sent.counter) != (
            receipt.destination,
            receipt.producer,
            receipt.counter,
        ):
            raise Violation(self.name, f"{receipt} was received, and sent was {sent}")
        place, token = (receipt.destination, receipt.token), (receipt.destination, receipt.position)
        if self._positions.setdefault(place, receipt.position) != receipt.position:
            raise Violation(
                self.name,
                f"message {receipt.token} is stored in {receipt.destination} at positions {self._positions[place]} "
                f"and {receipt.position}",
            )
        if self._tokens.setdefault(token, receipt.token) != receipt.token:
            raise Violation(self.name, f"position {receipt.position} of {receipt.destination} is two messages")


class RedeliveredIsMarked(_Checker):
    """Of all the times a message is handed to programs of one source, at most one calls itself the first."""

    __slots__ = ()
    name = "a redelivery says so"

    def __init__(self, cluster: Watched) -> None:
        super().__init__(cluster)
        self._book.on_receipt.append(self._on_receipt)

    def _on_receipt(self, receipt: Receipt) -> None:
        if receipt.delivery_count > 1:
            return
        earlier = self._book.receipts.get((receipt.source, receipt.token), [])
        if any(other.delivery_count == 1 for other in earlier):
            raise Violation(
                self.name, f"message {receipt.token} of {receipt.source} came twice as if for the first time"
            )


class OrderIsKept(_Checker):
    """What a source's only consumer is handed for the first time comes in order, and so does each producer's.

    Where there were others, one of them may have been given messages that never reached it, and that come back late.
    """

    __slots__ = ("_counters", "_newest")
    name = "first deliveries to an only consumer come in order"

    def __init__(self, cluster: Watched) -> None:
        super().__init__(cluster)
        self._newest: dict[bytes, int] = {}  # consumer → position
        self._counters: dict[tuple[bytes, bytes], int] = {}  # consumer and producer → counter
        self._book.on_receipt.append(self._on_receipt)

    def _on_receipt(self, receipt: Receipt) -> None:
        if receipt.delivery_count > 1 or self._book.consumers[receipt.source] > 1:
            return
        newest = self._newest.get(receipt.consumer, -1)
        between = (receipt.consumer, receipt.producer)
        counter = self._counters.get(between, 0)
        if receipt.position <= newest or receipt.counter <= counter:
            raise Violation(self.name, f"{receipt} came after position {newest} and counter {counter}")
        self._newest[receipt.consumer] = receipt.position
        self._counters[between] = receipt.counter


class AcknowledgedIsConsumed(_Checker):
    """The log has an acknowledgement before its client hears of it, and none that no client gave."""

    __slots__ = ()
    name = "acknowledged is in the log, as the client said it"

    def __init__(self, cluster: Watched) -> None:
        super().__init__(cluster)
        self._book.on_acknowledged.append(self._on_acknowledged)
        self._book.on_entry.append(self._on_entry)

    def _on_acknowledged(self, consumer: bytes, positions: list[int]) -> None:
        known = self._book.acknowledged.get(consumer)
        for first, last in zip(positions[::2], positions[1::2], strict=True):
            if known is None or known.intersection(first, last) != [(first, last)]:
                raise Violation(
                    self.name, f"positions {first} to {last} are said to be consumed, and the log has them not"
                )

    def _on_entry(self, entry: Entry) -> None:
        for command in entry.commands:
            if not isinstance(command, Acknowledge):
                continue
            wished = self._book.wished.get(command.consumer)
            for first, last in zip(command.positions[::2], command.positions[1::2], strict=True):
                if wished is None or wished.intersection(first, last) != [(first, last)]:
                    raise Violation(self.name, f"the log acknowledges {first} to {last}, and no client did")


class EnginesAgree(_Checker):
    """Checkpoints of the same number are the same bytes on every replica; in the end all states are."""

    __slots__ = ("_digests",)
    name = "engines are equal"

    def __init__(self, cluster: Watched) -> None:
        super().__init__(cluster)
        self._digests: dict[int, int] = {}
        cluster.simulation.watch.persisted.append(self._on_persisted)

    def _on_persisted(self, node: SimulatedNode, persist: Persist) -> None:
        for write in persist.writes:
            if not isinstance(write, SealCheckpoint):
                continue
            if self._digests.setdefault(write.sequence, write.digest) != write.digest:
                raise Violation(self.name, f"{node.name} has another checkpoint at {write.sequence} than the others")

    def finish(self) -> None:
        """Compares all of them."""
        states = {room.node.name: state_of(room) for room in self._cluster.message_managers}
        if len(set(states.values())) > 1:
            raise Violation(self.name, f"the engines of {', '.join(sorted(states))} differ in the end")


class NothingIsLocked(_Checker):
    """When all is acknowledged, the primary's dispatcher holds nothing for anybody."""

    __slots__ = ()
    name = "no lock without a message"

    def finish(self) -> None:
        """Looks at the primary."""
        for room in self._cluster.message_managers:
            dispatcher = room.machine.describe()["dispatcher"]
            if isinstance(dispatcher, dict):
                for number, outlets in dispatcher["destinations"].items():
                    name = str(room.engine.destinations[number].destination)
                    for subscription, outlet in outlets.items():
                        self._look(f"{name}/{subscription}", outlet, is_account=name in ACCOUNTS)

    def _look(self, place: str, outlet: dict[str, Any], *, is_account: bool) -> None:
        kinds = ["withheld", "leaving", *([] if is_account else ["maybe_redelivered"])]
        held = {key: outlet[key] for key in kinds if outlet[key]}
        excused = self._locked_by_the_gone(outlet) if is_account else 0
        if outlet["locked"] > excused:
            held["locked"] = outlet["locked"] - excused
        if held:
            raise Violation(self.name, f"nothing is left in {place}, and the primary has {held}")

    def _locked_by_the_gone(self, outlet: dict[str, Any]) -> int:
        """A teller that has just gone may come back, so what it was given in an account waits for it a while."""
        living = self._cluster.connections()
        keys = [(bytes.fromhex(consumer["key"]), consumer["outstanding"]) for consumer in outlet["consumers"]]
        return sum(outstanding for key, outstanding in keys if connection_of(key) not in living)


class BodiesAreWhole(_Checker):
    """What is read of a streamed body is what was sent, all of it."""

    __slots__ = ()
    name = "bodies are whole"

    def __init__(self, cluster: Watched) -> None:
        super().__init__(cluster)
        self._book.on_body.append(self._on_body)

    def _on_body(self, token: int, data: bytes) -> None:
        if data != self._book.bodies.get(token):
            raise Violation(self.name, f"the body of message {token} has {len(data)} bytes that are not what was sent")


MESSAGE_CHECKERS = (
    ConfirmedIsStored,
    ReceivedWasSent,
    RedeliveredIsMarked,
    OrderIsKept,
    AcknowledgedIsConsumed,
    EnginesAgree,
    NothingIsLocked,
    BodiesAreWhole,
    GroupsKeepOrder,
    EarlierPrimariesAreNotHeeded,
    TimeGoesOn,
)


def state_of(room: MessageManagerRoom) -> bytes:
    """The state of one replica as bytes."""
    return b"".join(room.engine.checkpoint())


def make_message_checkers(cluster: SimulatedCluster) -> list[MessageChecker]:
    """All of them, watching."""
    others: list[MessageChecker] = [StagedIsSeenOnce(cluster), RetainedIsRead(cluster), LimitsHold(cluster)]
    return [*others, *(make(cluster) for make in MESSAGE_CHECKERS)]
