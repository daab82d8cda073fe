"""One member's shared ground for tests of single roles: a real station on a storage in memory, driven by hand."""

import random
from typing import TypeVar

import msgspec

from alphorn.bus.config import Budget, GroupConfig, Role, Timing
from alphorn.bus.entries import Assignment, Member, MemberJoined, SystemEntry, digest_of, encode_system, make_epoch
from alphorn.bus.frames import Body, Data, Frame, decode_all
from alphorn.bus.ledger import Ledger
from alphorn.bus.machine import Output, Send, Write
from alphorn.bus.restore import restore
from alphorn.bus.station import Station
from alphorn.io.memory_storage import MemoryStorage
from alphorn.model.ids import GlobalId, Kind, Origin, make_id, make_origin
from tests.bus.group import make_config

EPOCH = make_epoch(1, 1)
NEXT_EPOCH = make_epoch(2, 2)
SENDER = make_origin(bytes([10, 0, 0, 99]), 9000, 1)
B = TypeVar("B", bound=Data | Body)
T = TypeVar("T", bound=Output)


def origin_of_member(number: int) -> Origin:
    """The first run of a member."""
    return make_origin(bytes([10, 0, 0, number]), 7000, 1)


def batch_id(counter: int, origin: Origin = SENDER) -> GlobalId:
    """The counter-th batch of a sender."""
    return make_id(origin, Kind.BATCH, counter)


def payload_of(counter: int) -> bytes:
    """What the counter-th batch says."""
    return b"batch %d" % counter


def numbered(counter: int, epoch: int = EPOCH, timestamp: int = 0) -> Assignment:
    """A number's meaning: the counter-th batch."""
    payload = payload_of(counter)
    return Assignment(epoch, batch_id(counter), timestamp, digest_of(payload), len(payload))


def system(entry: SystemEntry, epoch: int = EPOCH) -> Assignment:
    """A number's meaning: a command of the group itself."""
    return Assignment(epoch, make_id(SENDER, Kind.NODE, 1), system=encode_system(entry))


def joined(config: GroupConfig, number: int, origin: bytes | None = None, incarnation: int = 1) -> MemberJoined:
    """A configured member's run becomes part of the group."""
    found = next(member for member in config.members if member.number == number)
    origin = origin or origin_of_member(number)
    roles = int(found.roles)
    return MemberJoined(Member(number, found.name, found.address, roles, found.rank, found.tag, origin, incarnation))


class Bench:
    """A station, what it said, and its disk."""

    def __init__(
        self,
        config: GroupConfig | None = None,
        number: int = 1,
        *,
        storage: MemoryStorage | None = None,
        founding: bool = True,
        roles: Role | None = None,
        reads: bool = True,
        timing: Timing | None = None,
        budget: Budget | None = None,
        unix_s: float = 1_750_000_000.0,
    ) -> None:
        self.config = config or make_config()
        self.storage = storage or MemoryStorage(on_durable=lambda token: None)
        me = next(member for member in self.config.members if member.number == number)
        me = me if roles is None else msgspec.structs.replace(me, roles=roles)
        self.restored = restore(
            config=self.config,
            me=me,
            storage=self.storage,
            host=bytes([10, 0, 0, number]),
            port=7000,
            unix_s=unix_s,
            founding=founding,
            reads=reads,
            timing=timing or Timing(),
            budget=budget or Budget(datagram_bytes=1200),
            random=random.Random(number),
            is_tracing=False,
        )
        self.station: Station = self.restored.station
        self.station.nonce = 0  # as `joined` has it

    @property
    def ledger(self) -> Ledger:
        return self.station.ledger

    def fold(self, *assignments: Assignment) -> None:
        """Appends and commits."""
        for assignment in assignments:
            self.station.ledger.append(assignment)
        self.station.ledger.commit(self.station.ledger.last)

    def join(self, *numbers: int) -> None:
        """These members are live, in their first run; this one in the run it has."""
        for number in numbers:
            origin = self.station.origin if number == self.station.number else None
            self.fold(system(joined(self.config, number, origin)))

    def hold(self, *counters: int) -> None:
        """Batches are here, whole."""
        for counter in counters:
            payload = payload_of(counter)
            assert self.station.holdings.put(batch_id(counter), payload, 0, digest_of(payload)) is not None

    def hand_over(self) -> tuple[int, list[Write]]:
        """Ends a turn's writes without their being durable: the token, and what was written."""
        self.station.write_meta(stored=0)
        persist = self.station.journal.take()
        self.storage.submit(persist)
        return persist.token, persist.writes

    def settle(self) -> list[Write]:
        """Ends a turn's writes, and they are durable."""
        token, writes = self.hand_over()
        self.station.journal.on_durable(token)
        return writes

    def sent(self, kind: type[B]) -> list[tuple[str, B]]:
        """Frames of this kind said so far, with where they went; forgets all others."""
        outbox, self.station.outbox = self.station.outbox, []
        found = [(item.to, decode_all(b"".join(item.parts))[0].body) for item in outbox if isinstance(item, Send)]
        local = [(self.station.address, frame.body) for frame in self.station.local]
        self.station.local = []
        return [(to, body) for to, body in found + local if isinstance(body, kind)]

    def outputs(self, kind: type[T]) -> list[T]:
        """Outputs of this kind so far; forgets all others."""
        outbox, self.station.outbox = self.station.outbox, []
        return [item for item in outbox if isinstance(item, kind)]

    def frame(self, number: int, body: Data | Body, epoch: int = EPOCH, origin: bytes | None = None) -> Frame:
        """Something another member says."""
        return Frame(self.config.group, epoch, number, origin or origin_of_member(number), body)
