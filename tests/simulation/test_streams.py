"""Simulated streams: ordered and whole until they break; cut links hold them back."""

import random

from alphorn.testing.network import SimulatedNetwork
from alphorn.testing.schedule import Schedule
from alphorn.testing.streams import NOTICE_S_MAX, PATIENCE_S, SimulatedStreams, StreamEnd


class Wire:
    """A stream between the processes A and B, at the places 0 and 1."""

    def __init__(self) -> None:
        self.schedule = Schedule(random.Random(1))
        self.network = SimulatedNetwork(self.schedule, random.Random(2), lambda index, data: None)
        for _ in range(2):
            self.network.add_member()
        self.streams = SimulatedStreams(self.schedule, self.network, random.Random(3), lambda data: None, [])
        self.ends: list[StreamEnd | None] = []
        self.heard: list[bytes] = []
        self.closed: list[str] = []

    def accept(self, end: StreamEnd) -> bool:
        end.on_frame = self.heard.append
        end.on_closed = lambda reason: self.closed.append(f"B: {reason}")
        self.ends.append(end)
        return True

    def connect(self) -> StreamEnd:
        self.streams.connect((0, "A"), (1, "B"), self.accept, self.ends.append)
        self.run(0.1)
        end = self.ends[-1]
        assert end is not None
        end.on_closed = lambda reason: self.closed.append(f"A: {reason}")
        return end

    def run(self, seconds: float) -> None:
        self.schedule.run_until(self.schedule.now + seconds)


def _frames(count: int) -> list[bytes]:
    return [bytes((number,)) for number in range(count)]


def test_frames_arrive_in_order_and_a_close_comes_last() -> None:
    wire = Wire()
    end = wire.connect()
    for frame in _frames(50):
        end.send(frame)
    end.close()
    end.send(b"too late")
    wire.run(1.0)
    assert wire.heard == _frames(50)
    assert wire.closed == ["B: closed by the other end"]
    assert len(wire.streams) == 0


def test_a_cut_link_holds_frames_back_until_it_is_mended() -> None:
    wire = Wire()
    end = wire.connect()
    wire.network.cut([(0, 1)])
    for frame in _frames(5):
        end.send(frame)
    wire.run(PATIENCE_S[0] / 2)
    assert wire.heard == []
    wire.network.mend([(0, 1)])
    wire.run(1.0)
    assert wire.heard == _frames(5)


def test_a_link_that_stays_cut_breaks_the_stream_at_both_ends() -> None:
    wire = Wire()
    end = wire.connect()
    wire.network.cut([(0, 1)])
    end.send(b"lost")
    wire.run(PATIENCE_S[1] + NOTICE_S_MAX + 1.0)
    assert wire.heard == []
    assert sorted(wire.closed) == ["A: timed out", "B: timed out"]


def test_the_end_of_a_process_breaks_its_streams_and_only_the_other_end_hears_of_it() -> None:
    wire = Wire()
    end = wire.connect()
    end.send(b"on its way")
    wire.streams.break_of("A", "crash")
    wire.run(1.0)
    assert (wire.heard, wire.closed) == ([], ["B: crash"])


def test_nobody_connects_across_a_cut_or_to_one_who_does_not_listen() -> None:
    wire = Wire()
    wire.network.cut([(1, 0)])
    wire.streams.connect((0, "A"), (1, "B"), wire.accept, wire.ends.append)
    wire.run(1.0)
    wire.network.mend([(1, 0)])
    wire.streams.connect((0, "A"), (1, "B"), lambda end: False, wire.ends.append)
    wire.run(1.0)
    assert wire.ends == [None, None]


def test_both_ends_notice_when_all_streams_of_a_process_that_goes_on_break() -> None:
    wire = Wire()
    end = wire.connect()
    end.send(b"on its way")
    wire.streams.break_all("B")
    wire.run(NOTICE_S_MAX + 0.1)
    assert wire.heard == []
    assert sorted(wire.closed) == ["A: reset", "B: reset"]
