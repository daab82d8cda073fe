"""The simulated disk: what a crash keeps, and what ends a node. tests/io runs the common check of storages on it."""

import random

from alphorn.bus.machine import Persist, PutEntry
from alphorn.testing.disk import SimulatedDisk
from alphorn.testing.schedule import Schedule


class Bench:
    """A disk, what became durable and what went wrong."""

    def __init__(self, seed: int = 1) -> None:
        self.schedule = Schedule(random.Random(seed))
        self.durable: list[int] = []
        self.errors: list[str] = []
        self.disk = SimulatedDisk(
            self.schedule,
            random.Random(seed),
            on_durable=lambda done: self.durable.extend(persist.token for persist in done),
            on_error=self.errors.append,
        )

    def put(self, *numbers: int) -> None:
        for number in numbers:
            self.disk.persist(Persist(number, [PutEntry(number, b"entry %d" % number, number)]))


def test_what_is_handed_over_can_be_read_before_it_is_durable() -> None:
    bench = Bench()
    bench.put(1)
    assert bench.disk.entry(1) == b"entry 1"
    assert bench.durable == []


def test_a_crash_loses_what_no_sync_covered() -> None:
    bench = Bench()
    bench.put(1)
    bench.schedule.run_until(1.0)
    bench.put(2)
    bench.disk.crash(keeps_prefix=False, tears=False)
    assert bench.disk.entry(1) == b"entry 1"
    assert bench.disk.entry(2) is None


def test_a_crash_may_keep_a_prefix_of_what_was_being_synced() -> None:
    kept = set()
    for seed in range(20):
        bench = Bench(seed)
        bench.put(1)  # its sync begins at once
        bench.schedule.run_until(1.0)
        bench.put(2, 3)
        survivors = bench.disk.crash(keeps_prefix=True, tears=False)
        kept.add(len(survivors))
        assert [persist.token for persist in survivors] == list(range(2, 2 + len(survivors)))
    assert kept == {0, 1}


def test_one_sync_covers_all_that_was_handed_over_before_it() -> None:
    bench = Bench()
    bench.put(1, 2, 3)
    bench.schedule.run_until(1.0)
    assert bench.durable == [1, 2, 3]
    assert bench.disk.syncs == 2


def test_a_failed_sync_is_reported_and_makes_nothing_durable() -> None:
    bench = Bench()
    bench.disk.is_failing = True
    bench.put(1)
    bench.schedule.run_until(1.0)
    assert bench.errors == ["fsync failed"]
    bench.disk.crash(keeps_prefix=False, tears=False)
    assert bench.disk.entry(1) is None


def test_an_old_image_forgets_what_came_after_it() -> None:
    bench = Bench()
    bench.put(1)
    bench.schedule.run_until(1.0)
    image = bench.disk.durable.copy()
    bench.put(2)
    bench.schedule.run_until(2.0)
    bench.disk.restore(image)
    assert bench.disk.entry(1) == b"entry 1"
    assert bench.disk.entry(2) is None
