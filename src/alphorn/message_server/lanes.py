"""What a process says to all, and what it hears that others say to all.

Invariants:

- Its own lane is numbered without a gap, at the first saying. What is not taken is said again to a new home, in order
  and before anything new; the home hears at which number that begins. So is what a server took while it was without
  the other one, for a minute: processes that only the other one reaches have not heard it.
- Of another's lane it takes what has a higher number than all before. Whatever connection it comes on, what a process
  does not have comes there in order, so what it skips it does not want, or was told that it missed.
- It tells a new home what its owner has taken of each lane. What the owner was handed and has not taken comes again
  there, is not handed out twice, and is confirmed there when the owner has it.
"""

from collections import OrderedDict, deque
from collections.abc import Iterator
from itertools import dropwhile
from typing import NamedTuple

from alphorn.message_server.outbox import Message, Sequence
from alphorn.model.internal import LANES_MAX, Lanes, ProcessFrame, Report, SayAll

KEPT_S = 60.0
KEPT_BYTES_MAX = 4 << 20


class _Kept(NamedTuple):
    at: float
    number: int
    size: int
    frame: ProcessFrame
    by: bytes  # the run of the server


class OwnLane(Sequence):
    """What this process says to all, and reports."""

    __slots__ = ("_kept", "_kept_bytes", "last")

    def __init__(self) -> None:
        super().__init__()
        self.last = 0
        self._kept: deque[_Kept] = deque()  # taken by a server that was alone
        self._kept_bytes = 0

    def to_say_again(self, server: bytes) -> tuple[int, list[ProcessFrame]]:
        """What a new home is to hear, this run of a server: everything that not both have, and it may not have."""
        kept = list(dropwhile(lambda kept: kept.by == server, self._kept))
        frames = [each.frame for each in kept] + [_frame(message) for message in self.said]
        return self.last + 1 - len(frames), frames

    def is_said(self, message: Message) -> bool:
        """Whether it is on its way, and not taken."""
        return bool(self.said) and message.number >= self.said[0].number

    def take(self, through: int, held: int, server: bytes, now: float) -> Iterator[Message]:
        """A server has everything through one number, and the other one through another. Gives what is over."""
        for message in self.confirm(through):
            self._kept.append(_Kept(now, message.number, message.size, _frame(message), server))
            self._kept_bytes += message.size
            yield message
        while self._kept and (self._kept[0].number <= held or self._kept_bytes > KEPT_BYTES_MAX):
            self._kept_bytes -= self._kept.popleft().size

    def forget(self, now: float) -> None:
        """What was taken long ago is not kept."""
        while self._kept and now - self._kept[0].at > KEPT_S:
            self._kept_bytes -= self._kept.popleft().size

    def say_more(self) -> list[ProcessFrame]:
        """What may be said now for the first time."""
        frames = []
        for message in self.advance(self.last):
            self.last = message.number
            frames.append(_frame(message))
        return frames


def _frame(message: Message) -> ProcessFrame:
    if message.event is None:
        return SayAll(message.number, message.body)
    return Report(message.number, message.event)


class _Lane:
    """Another's lane."""

    __slots__ = ("last", "untaken")

    def __init__(self) -> None:
        self.last = 0  # that was handed to the owner, or gone by
        self.untaken: dict[int, int] = {}  # number → position at the home; 0 where it did not come from there

    @property
    def through(self) -> int:
        """The owner has everything through this number."""
        return next(iter(self.untaken)) - 1 if self.untaken else self.last


class Listening:
    """Everybody's lanes, and the ring of the home. Of very many lanes the one silent for longest is forgotten."""

    __slots__ = ("_has_begun", "_lanes", "_last", "_told", "_untaken")

    def __init__(self) -> None:
        self._lanes: OrderedDict[bytes, _Lane] = OrderedDict()
        self._has_begun = False
        self._untaken: dict[int, None] = {}  # positions at the home that the owner has not taken
        self._last = self._told = 0  # positions: the last one that came, and what was confirmed

    def begin(self, lanes: Lanes) -> None:
        """The first server has welcomed it: it begins behind these numbers. Another one changes nothing."""
        if not self._has_begun:
            self._has_begun = True
            self.go_by(lanes)

    def come_home(self) -> Lanes:
        """It has a new home. What is to be said there."""
        self._untaken, self._last, self._told = {}, 0, 0
        for lane in self._lanes.values():
            for number in lane.untaken:
                lane.untaken[number] = 0
        return [(run, lane.through) for run, lane in self._lanes.items()]

    def hear(self, run: bytes, number: int, position: int) -> bool:
        """Whether this is for the owner. The position is 0 where it does not come from the home."""
        lane = self._lane(run)
        is_new = number > lane.last
        if is_new:
            lane.last = number
        if is_new:
            lane.untaken[number] = 0
        if position and number in lane.untaken:
            self._untaken.pop(lane.untaken[number], None)
            lane.untaken[number] = position
            self._untaken[position] = None
        self._last = max(self._last, position)
        return is_new

    def take(self, run: bytes, number: int) -> None:
        """The owner has this."""
        lane = self._lanes.get(run)
        if lane is not None:
            self._untaken.pop(lane.untaken.pop(number, 0), None)

    def go_by(self, lanes: Lanes) -> None:
        """Nothing of these lanes is still to come through these numbers."""
        for run, number in lanes:
            lane = self._lane(run)
            lane.last = max(lane.last, number)

    def confirmation(self) -> int:
        """The position to confirm to the home now; 0 where there is nothing new."""
        through = next(iter(self._untaken)) - 1 if self._untaken else self._last
        if through <= self._told:
            return 0
        self._told = through
        return through

    def _lane(self, run: bytes) -> _Lane:
        lane = self._lanes.get(run)
        if lane is None:
            lane = self._lanes[run] = _Lane()
            if len(self._lanes) > LANES_MAX:
                _, forgotten = self._lanes.popitem(last=False)
                for position in forgotten.untaken.values():
                    self._untaken.pop(position, None)
        else:
            self._lanes.move_to_end(run)
        return lane
