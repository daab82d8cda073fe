"""Goal: a snapshot is the state of the moment it was made at, whatever is applied before its last piece is taken.

Method: random commands of all kinds go to an engine. At random moments a snapshot is made, and its pieces, here of one
record each, are taken between further commands. It must be what an engine writes at once that was given the log up
to that moment and nothing after it.
"""

from operator import attrgetter
from random import Random

import pytest

from alphorn.message_manager.engine import Engine
from alphorn.message_manager.section import PIECE_BYTES
from alphorn.message_manager.snapshot import Snapshot
from alphorn.message_manager.topic import Topic
from alphorn.model.commands import Entry
from tests.message_manager.bench import ALICE, Bench
from tests.message_manager.test_determinism import checkpoint_of
from tests.message_manager.world import World

MARKS = 4


class Channel:
    """An engine in its world, with its log."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.world = World(self.random)
        self.entries: dict[int, Entry] = {}
        self.effects: list[object] = []
        self.engine = Engine().read_with(self.entries.get)

    def go_on(self, count: int) -> None:
        for _ in range(count):
            sequence = self.engine.sequence + 1
            self.entries[sequence] = self.world.entry(self.engine)
            self.effects += self.engine.apply(sequence, self.entries[sequence])

    def twin(self) -> tuple[Engine, list[object]]:
        """An engine that is given the log as it is now, and no snapshot is ever made of it."""
        made, effects = Engine().read_with(self.entries.get), list[object]()
        for sequence, entry in list(self.entries.items()):
            effects += made.apply(sequence, entry)
        return made, effects

    def take(self, snapshot: Snapshot) -> bytes:
        """All pieces, with other things going on between them."""
        taken = bytearray()
        while True:
            for _ in range(self.random.choice([0, 1, 1, 2, 5, 20])):
                piece = next(snapshot, None)
                if piece is None:
                    return bytes(taken)
                taken += piece
            self.go_on(self.random.choice([0, 1, 1, 2]))


def kinds_of(engine: Engine) -> set[str]:
    """What occurs in a state that is easily missed."""
    moves, destinations = engine.moves, engine.destinations.values()
    backlogs = [backlog for found in destinations for _, backlog in found.backlogs()]
    figures = engine.describe()
    seen = {name for name in ("gone", "came", "leaving", "incoming", "landing") if getattr(moves, name)}
    notes = ("reserved", "deferred", "lapsed", "counts", "priorities")
    seen |= {name for name in notes if any(map(attrgetter(name), backlogs))}
    kept = [found.particulars for found in destinations if isinstance(found, Topic)]
    seen |= {f"kept {name}" for name in ("priorities", "delays") if any(map(attrgetter(name), kept))}
    seen |= {name for name in ("writers", "readers", "transactions") if figures[name]}
    seen |= {"streams"} if any(figures["streams"].values()) else set()  # type: ignore[attr-defined]
    return seen | {"counts for itself" for found in destinations if found.producers is not None}


@pytest.mark.parametrize("seed", range(120))
@pytest.mark.requirement("HA-1", "HA-3")
def test_a_snapshot_is_the_state_of_its_moment_whatever_is_applied_meanwhile(seed: int) -> None:
    channel = Channel(seed)
    for _ in range(MARKS):
        channel.go_on(channel.random.randint(20, 60))
        expected, _ = channel.twin()
        snapshot = channel.engine.snapshot(piece_bytes=1)
        assert channel.take(snapshot) == checkpoint_of(expected)
        assert snapshot.needed() == expected.retained()
    twin, effects = channel.twin()
    assert channel.effects == effects
    assert checkpoint_of(channel.engine) == checkpoint_of(twin)


def test_this_world_reaches_what_a_snapshot_must_keep() -> None:
    """The test above is worth something only if what it compares occurs, and changes while a snapshot is open."""
    seen: set[str] = set()
    for seed in range(20):
        channel = Channel(seed)
        for _ in range(50):
            channel.go_on(5)
            seen |= kinds_of(channel.engine)
        seen |= {type(effect).__name__ for effect in channel.effects}
    assert seen >= {"Arrived", "Gone", "Created", "Deleted", "Subscribed", "Unsubscribed", "Deferred", "Left", "Landed"}
    assert seen >= {"reserved", "deferred", "lapsed", "counts", "priorities", "counts for itself"}
    assert seen >= {"kept priorities", "kept delays"}
    assert seen >= {"gone", "came", "leaving", "incoming", "landing", "writers", "readers", "transactions", "streams"}


def test_a_snapshot_that_nobody_takes_any_more_is_let_go() -> None:
    bench = Bench()
    queue = bench.create("queue:q")
    abandoned = bench.engine.snapshot()
    next(abandoned)
    abandoned.close()
    bench.publish(queue, "a")
    assert list(abandoned) == []
    assert b"".join(bench.engine.snapshot()) == checkpoint_of(bench.engine)


def test_one_snapshot_is_open_at_a_time_and_does_not_keep_others_from_looking() -> None:
    bench = Bench()
    queue = bench.create("queue:q")
    before = checkpoint_of(bench.engine)
    snapshot = bench.engine.snapshot()
    with pytest.raises(AssertionError, match="one snapshot"):
        bench.engine.snapshot()
    bench.publish(queue, "a", connection=ALICE)
    assert checkpoint_of(bench.engine) != before
    assert b"".join(snapshot) == before


def test_what_a_snapshot_needs_is_what_was_needed_then() -> None:
    bench = Bench()
    queue = bench.create("queue:q")
    bench.publish(queue, "a")
    snapshot = bench.engine.snapshot()
    bench.acknowledge(queue, 1, 1)
    bench.publish(queue, "b")
    for _ in snapshot:
        pass
    assert snapshot.needed().flat() == [2, 2]


def test_pieces_hold_a_part_of_many_destinations() -> None:
    bench = Bench()
    for number in range(500):
        bench.publish(bench.create(f"queue:q{number}"), "a", number=number)
    sizes = [len(piece) for piece in bench.engine.snapshot()]
    assert max(sizes) < 2 * PIECE_BYTES
    assert len(sizes) > 10
