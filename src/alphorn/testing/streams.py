"""Simulated streams: ordered connections that lose nothing until they break, as sockets between processes do.

A stream has two ends, each at a place in the network. A cut link holds its frames back; a stream that was held back for
longer than its patience breaks, and so does one whose process ends. A break loses what is on its way, and each end
notices it some time later. An end that closes in good order is heard to the last frame.
"""

import random
from collections import deque
from collections.abc import Callable

from alphorn.testing.network import SimulatedNetwork
from alphorn.testing.schedule import Schedule

STUCK_POLL_S = 0.02
PATIENCE_S = (0.1, 3.0)
NOTICE_S_MAX = 0.2
Said = Callable[[str, str, bytes | None], None]  # from, to, a frame or that it is the last
_STEP_S = 1e-7  # between two frames of one end


class StreamEnd:
    """One end of a stream. Its owner sets `on_frame` and `on_closed`; none of them is called after `close`."""

    __slots__ = (
        "_stream",
        "busy_until",
        "is_open",
        "on_closed",
        "on_frame",
        "place",
        "process",
        "stuck",
        "stuck_since",
        "unread",
    )

    def __init__(self, stream: "SimulatedStream", place: int, process: str) -> None:
        self._stream = stream
        self.place = place
        self.process = process  # its name; several may be at one place
        self.is_open = True
        self.on_frame: Callable[[bytes], None] = lambda data: None
        self.on_closed: Callable[[str], None] = lambda reason: None
        self.busy_until = 0.0  # of what this end sends
        self.stuck: deque[bytes | None] = deque()  # sent from here and held back by a cut; None closes
        self.stuck_since = 0.0
        self.unread = 0  # bytes sent from here that the other end has not read, where that one says what it reads

    def send(self, data: bytes) -> None:
        """Sends one frame; nothing happens where the stream is gone already."""
        if self.is_open:
            self.unread += len(data)
            self._stream.carry(self, data)

    def read(self, size: int) -> None:
        """The owner has read so many bytes of what came."""
        self._stream.other(self).unread -= size

    def close(self) -> None:
        """Closes in good order: the other end hears all that was sent, then that it is over."""
        if self.is_open:
            self.is_open = False
            self._stream.carry(self, None)


class SimulatedStream:
    """Both ends and what is between them."""

    __slots__ = ("_owner", "ends", "is_broken", "patience_s")

    def __init__(
        self, owner: "SimulatedStreams", left: tuple[int, str], right: tuple[int, str], patience_s: float
    ) -> None:
        self._owner = owner
        self.ends = (StreamEnd(self, *left), StreamEnd(self, *right))
        self.is_broken = False
        self.patience_s = patience_s

    def carry(self, end: StreamEnd, data: bytes | None) -> None:
        """Takes a frame, or the end of all frames, on its way."""
        if self.is_broken:
            return
        owner = self._owner
        owner.record(data or b"\0")
        for callback in owner.said:
            callback(end.process, self.other(end).process, data)
        end.busy_until = max(owner.draw_arrival(end.place, self.other(end).place), end.busy_until + _STEP_S)
        owner.schedule.at(end.busy_until, self._arrive, end, data)

    def break_off(self, reason: str, *, at_once: StreamEnd | None = None) -> None:
        """Loses what is on its way; the ends notice one after the other, and a process that ended never."""
        if self.is_broken:
            return
        self.is_broken = True
        self._owner.forget(self)
        for end in self.ends:
            end.stuck.clear()
            if end is not at_once:
                self._owner.schedule.after(self._owner.stream.uniform(0.0, NOTICE_S_MAX), _close, end, reason)
        if at_once is not None:
            at_once.is_open = False

    def other(self, end: StreamEnd) -> StreamEnd:
        """The one across from this."""
        return self.ends[1] if end is self.ends[0] else self.ends[0]

    def _arrive(self, end: StreamEnd, data: bytes | None) -> None:
        if self.is_broken:
            return
        if end.stuck:
            end.stuck.append(data)
        elif self._owner.is_cut(end.place, self.other(end).place):
            end.stuck.append(data)
            end.stuck_since = self._owner.schedule.now
            self._owner.schedule.after(STUCK_POLL_S, self._unstick, end)
        else:
            self._hand_over(end, data)

    def _unstick(self, end: StreamEnd) -> None:
        if self.is_broken:
            return
        if self._owner.is_cut(end.place, self.other(end).place):
            if self._owner.schedule.now - end.stuck_since > self.patience_s:
                self.break_off("timed out")
            else:
                self._owner.schedule.after(STUCK_POLL_S, self._unstick, end)
            return
        held = list(end.stuck)
        end.stuck.clear()
        for data in held:
            if not self.is_broken:
                self._hand_over(end, data)

    def _hand_over(self, end: StreamEnd, data: bytes | None) -> None:
        target = self.other(end)
        if data is None:
            self.is_broken = True
            self._owner.forget(self)
            _close(target, "closed by the other end")
        elif target.is_open:
            target.on_frame(data)


class SimulatedStreams:
    """All streams of one simulation."""

    __slots__ = ("_network", "_open", "_patience_s", "record", "said", "schedule", "stream")

    def __init__(
        self,
        schedule: Schedule,
        network: SimulatedNetwork,
        stream: random.Random,
        record: Callable[[bytes], None],
        said: list[Said],
        *,
        patience_s: tuple[float, float] = PATIENCE_S,
    ) -> None:
        self._patience_s = patience_s
        self.said = said
        self.schedule = schedule
        self.stream = stream
        self.record = record
        self._network = network
        self._open: dict[SimulatedStream, None] = {}

    def __len__(self) -> int:
        return len(self._open)

    def connect(
        self,
        source: tuple[int, str],
        target: tuple[int, str],
        accept: Callable[[StreamEnd], bool],
        done: Callable[[StreamEnd | None], None],
    ) -> None:
        """Tries to connect two processes, each at its place in the network.

        `accept` gets the other end, and says whether somebody is there; `done` gets this one, or None.
        """
        self.schedule.at(self.draw_arrival(source[0], target[0]), self._connect, source, target, accept, done)

    def break_of(self, process: str, reason: str) -> None:
        """A process has ended: every stream of it breaks."""
        for stream in list(self._open):
            for end in stream.ends:
                if end.process == process and not stream.is_broken:
                    stream.break_off(reason, at_once=end)

    def break_all(self, process: str) -> None:
        """Every stream of a process that goes on breaks."""
        for stream in [stream for stream in self._open if any(end.process == process for end in stream.ends)]:
            stream.break_off("reset")

    def break_some(self, share: float) -> int:
        """Breaks a share of all streams; gives how many."""
        chosen = [stream for stream in self._open if self.stream.random() < share]
        for stream in chosen:
            stream.break_off("reset")
        return len(chosen)

    def forget(self, stream: SimulatedStream) -> None:
        """It is over."""
        self._open.pop(stream, None)

    def is_cut(self, source: int, target: int) -> bool:
        """Whether a partition separates these places."""
        return source != target and self._network.links[source][target].cuts > 0

    def draw_arrival(self, source: int, target: int) -> float:
        """When something sent now arrives."""
        link = self._network.links[source][target]
        start = max(self.schedule.now, link.clogged_until)
        return start + link.delay_min + self.stream.expovariate(1.0) * link.delay_mean

    def _connect(
        self,
        source: tuple[int, str],
        target: tuple[int, str],
        accept: Callable[[StreamEnd], bool],
        done: Callable[[StreamEnd | None], None],
    ) -> None:
        if self.is_cut(source[0], target[0]) or self.is_cut(target[0], source[0]):
            done(None)
            return
        stream = SimulatedStream(self, source, target, self.stream.uniform(*self._patience_s))
        if not accept(stream.ends[1]):
            done(None)
            return
        self._open[stream] = None
        done(stream.ends[0])


def _close(end: StreamEnd, reason: str) -> None:
    if end.is_open:
        end.is_open = False
        end.on_closed(reason)
