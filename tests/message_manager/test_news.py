"""What a replica tells the cluster of, and what it keeps to itself."""

import pytest

from alphorn.message_manager.core import MessageManager
from alphorn.message_manager.fullness import Space
from alphorn.message_manager.machine import Committed, Demoted, Following, Happen, Measured, Promoted
from alphorn.message_manager.news import BURST, LAGGING_S, PER_S
from alphorn.message_manager.status import About
from alphorn.model.commands import (
    AnyCommand,
    CreateDestination,
    DeleteDestination,
    Entry,
    SetPolicy,
    encode_entry,
)
from alphorn.model.destinations import Policy, parse_destination
from alphorn.model.events import KINDS, Event


class Replica:
    """One Message Manager, and what it has told."""

    def __init__(self, name: str = "mm1") -> None:
        about = About(name=name, pid=1, address="", channel="main", run=name.encode())
        self.entries: dict[int, bytes] = {}
        self.manager = MessageManager(about, wall_ms=lambda now: int(now * 1000), read=self.entries.get)
        self.now = 0.0
        self.told: list[Event] = []

    def receive(self, item: object) -> None:
        self.manager.receive(item, self.now)  # type: ignore[arg-type]
        self.take()

    def take(self) -> None:
        self.told += [output.event for output in self.manager.take_outputs() if isinstance(output, Happen)]
        for event in self.told:
            KINDS.check(event.kind)

    def follow(self) -> "Replica":
        self.receive(Following(True))
        self.told.clear()
        return self

    def apply(self, *commands: AnyCommand, epoch: int = 7) -> None:
        sequence = len(self.entries) + 1
        self.entries[sequence] = encode_entry(Entry(list(commands)))
        self.receive(Committed(sequence, b"x" * 10, self.entries[sequence], epoch))

    def pass_time(self, seconds: float) -> None:
        until = self.now + seconds
        while (due := self.manager.next_deadline()) <= until:
            self.now = max(self.now, due)
            self.manager.on_time(self.now)
            self.take()
        self.now = until

    def kinds(self) -> list[str]:
        return [event.kind for event in self.told]


def create(name: str = "queue:q", owner: bytes = b"") -> CreateDestination:
    return CreateDestination(parse_destination(name), Policy(), owner)


def test_destinations_that_come_and_go_are_told_of_alike_by_every_replica() -> None:
    replicas = [Replica(name).follow() for name in ("mm1", "mm2")]
    for replica in replicas:
        replica.apply(create())
        replica.apply(SetPolicy(1, Policy(ttl=5.0)))
        replica.apply(DeleteDestination(1))
    one, two = (replica.told for replica in replicas)
    assert [event.kind for event in one] == ["destination_created", "destination_deleted"]
    assert [(event.channel, event.epoch, event.number) for event in one] == [("main", 7, 1), ("main", 7, 3)]
    assert [event.details for event in one] == [{"destination": "queue:q"}] * 2
    assert [event.name for event in one] == [event.name for event in two]
    assert [event.node for event in two] == ["mm2", "mm2"], "whoever noticed it is no part of the name"


def test_two_destinations_of_one_entry_are_two_events() -> None:
    replica = Replica().follow()
    replica.apply(create("queue:a"), create("queue:b"))
    assert len({event.name for event in replica.told}) == 2


def test_what_is_temporary_is_nobodys_news() -> None:
    replica = Replica().follow()
    replica.apply(create("queue:temporary.a", b"c" * 16))
    assert len(replica.manager.engine.destinations) == 1
    replica.apply(DeleteDestination(1))
    assert not replica.manager.engine.destinations
    assert replica.told == []


def test_the_past_that_a_replica_hears_when_it_starts_is_no_news() -> None:
    replica = Replica()
    replica.receive(Demoted(1, "mm2"))
    replica.apply(create())
    assert replica.told == []
    replica.receive(Following(True))
    replica.apply(create("queue:b"))
    assert replica.kinds() == ["backup_synchronised", "destination_created"]


def test_a_change_of_primary_is_told_by_whoever_becomes_it_and_whoever_follows() -> None:
    new, other, starting = Replica("mm2"), Replica("mm3").follow(), Replica("mm1")
    new.receive(Promoted(9, b"m" * 10, ()))
    for replica in (other, starting):
        replica.receive(Demoted(9, "mm2"))
    [one], [two] = new.told, other.told
    assert (one.kind, one.node, one.channel, one.epoch) == ("primary_changed", "mm2", "main", 9)
    assert one.name == two.name
    assert starting.told == []


def test_a_backup_that_falls_behind_says_so_when_that_lasts_and_when_it_is_back() -> None:
    replica = Replica().follow()
    replica.receive(Following(False))
    replica.pass_time(LAGGING_S / 2)
    replica.receive(Following(True))
    replica.pass_time(2 * LAGGING_S)
    assert replica.told == [], "a takeover is no news of its backups"
    replica.receive(Following(False))
    replica.pass_time(3 * LAGGING_S)
    replica.receive(Following(True))
    assert replica.kinds() == ["backup_lagging", "backup_synchronised"]
    assert len({event.name for event in replica.told}) == 2
    assert {(event.node, event.run) for event in replica.told} == {("mm1", b"mm1")}


def test_a_primary_is_no_backup() -> None:
    replica = Replica()
    replica.receive(Promoted(9, b"m" * 10, ()))
    replica.receive(Following(True))
    replica.receive(Following(False))
    replica.pass_time(3 * LAGGING_S)
    assert replica.kinds() == ["primary_changed"]


def test_a_disk_without_room_and_one_with_room_again_are_told_once() -> None:
    replica = Replica()
    full = Space(used=100, limit=100, reserve=10)
    for space in (full, full, Space(used=0, limit=100, reserve=10)):
        replica.receive(Measured(space))
    assert replica.kinds() == ["disk_low", "disk_ok"]


@pytest.mark.parametrize("waited_s", [0.0, 1.0])
def test_a_flood_of_destinations_is_told_of_within_bounds(waited_s: float) -> None:
    replica = Replica().follow()
    for number in range(BURST + 5):
        replica.apply(create(f"queue:{number}"))
    assert len(replica.told) == BURST
    replica.now += waited_s
    for number in range(200):
        replica.apply(create(f"queue:more.{number}"))
    assert len(replica.told) == BURST + PER_S * waited_s
