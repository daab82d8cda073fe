import pytest

from alphorn.io.control import BatchesOrdered, BatchRefused, LoadStarted, LoadStopped, StartLoad
from alphorn.model.errors import Misuse
from alphorn.node.load import Load
from alphorn.node.tally import HEAD
from tests.io.loops import run, until


class Bus:
    """Takes batches and keeps them; hears what the load says."""

    def __init__(self) -> None:
        self.counters: list[int] = []
        self.said: list[object] = []

    def order(self, payload: bytes) -> int:
        self.counters.append(HEAD.unpack_from(payload)[1])
        return len(self.counters)

    def of(self, kind: type) -> list[object]:
        return [event for event in self.said if isinstance(event, kind)]


def start(bus: Bus, **asked: object) -> Load:
    return Load(StartLoad(**{"size": 20, "in_flight": 3, **asked}), order=bus.order, say=bus.said.append)


def test_batches_are_numbered_and_bounded():
    async def test():
        bus = Bus()
        start(bus)
        assert bus.counters == [1, 2, 3]
        assert isinstance(bus.said[0], LoadStarted)

    run(test)


def test_answers_of_one_turn_are_one_event_and_make_room_for_more():
    async def test():
        bus = Bus()
        load = start(bus)
        load.on_ordered(1)
        load.on_ordered(2)
        await until(lambda: len(bus.counters) == 5)
        (event,) = bus.of(BatchesOrdered)
        assert (event.first, event.last) == (1, 2)

    run(test)


def test_a_refused_batch_is_told_and_never_sent_again():
    async def test():
        bus = Bus()
        load = start(bus)
        load.on_refused(2, "no room", is_unknown=False)
        load.on_ordered(1)
        load.on_ordered(3)
        await until(lambda: len(bus.counters) == 6)
        assert bus.of(BatchRefused) == [BatchRefused(counter=2, reason="no room", is_unknown=False)]
        assert [(event.first, event.last) for event in bus.of(BatchesOrdered)] == [(1, 1), (3, 3)]
        assert bus.counters == [1, 2, 3, 4, 5, 6]

    run(test)


def test_a_closed_window_holds_batches_back():
    async def test():
        bus = Bus()
        load = start(bus)
        load.on_window(is_open=False)
        load.on_ordered(1)
        await until(lambda: bool(bus.of(BatchesOrdered)))
        assert len(bus.counters) == 3
        load.on_window(is_open=True)
        assert len(bus.counters) == 4

    run(test)


def test_an_end_waits_for_the_last_answer():
    async def test():
        bus = Bus()
        load = start(bus)
        load.end()
        assert not bus.of(LoadStopped)
        load.on_ordered(1)
        load.on_refused(2, "no", is_unknown=True)
        load.on_ordered(3)
        await until(lambda: bool(bus.of(LoadStopped)))
        assert bus.of(LoadStopped) == [LoadStopped(ordered=2, refused=1)]
        assert len(bus.counters) == 3

    run(test)


def test_a_load_of_a_given_count_ends_by_itself():
    async def test():
        bus = Bus()
        load = start(bus, count=4)
        for handle in range(1, 5):
            load.on_ordered(handle)
            await until(lambda: not load._answered)
        assert bus.counters == [1, 2, 3, 4]
        assert bus.of(LoadStopped) == [LoadStopped(ordered=4, refused=0)]

    run(test)


def test_a_quiet_load_tells_only_the_sum():
    async def test():
        bus = Bus()
        load = start(bus, count=2, is_quiet=True)
        load.on_ordered(1)
        load.on_ordered(2)
        await until(lambda: bool(bus.of(LoadStopped)))
        assert not bus.of(BatchesOrdered)

    run(test)


def test_a_rate_holds_batches_back_until_they_are_due():
    async def test():
        bus = Bus()
        load = start(bus, per_s=0.001)
        assert bus.counters == [1]
        load.abandon()

    run(test)


def test_a_batch_too_small_for_its_number_is_refused():
    async def test():
        with pytest.raises(Misuse, match="make it 16 or more"):
            start(Bus(), size=15)

    run(test)
