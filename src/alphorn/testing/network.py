"""The simulated network: lossy datagrams between every pair of members, and streams for what fits no datagram.

Each direction of each pair is a `Link` of its own, so faults can be one-way. A frame to the group is offered to every
other member independently. Streams keep their order and lose nothing, except when the link is cut or either end dies.
A datagram already on its way when a link is cut still arrives, as on a real network.
"""

import random
from collections.abc import Callable, Iterable
from math import log

from alphorn.testing.schedule import Schedule

STREAM_BYTES_PER_S = 50_000_000.0
DatagramArrived = Callable[[int, bytes], None]


class Link:
    """One direction between two members."""

    __slots__ = (
        "clogged_until",
        "cuts",
        "delay_mean",
        "delay_min",
        "duplicate",
        "flip",
        "group_cuts",
        "loss",
        "stream_busy_until",
    )

    def __init__(self, *, delay_min: float, delay_mean: float) -> None:
        self.loss = 0.0
        self.duplicate = 0.0
        self.flip = 0.0
        self.delay_min = delay_min
        self.delay_mean = delay_mean
        self.cuts = 0  # how many partitions separate the two now
        self.group_cuts = 0  # how many faults keep back what is told to the group, and nothing else
        self.clogged_until = 0.0
        self.stream_busy_until = 0.0


class SimulatedNetwork:
    """Every link of a group. Members are indices; `arrived(index, data)` is called for what gets through."""

    __slots__ = (
        "_arrived",
        "_delay_mean",
        "_delay_min",
        "_generation",
        "_rules",
        "_schedule",
        "_stream",
        "bytes_sent",
        "datagrams",
        "links",
    )

    def __init__(
        self,
        schedule: Schedule,
        stream: random.Random,
        arrived: DatagramArrived,
        *,
        delay_min: float = 0.0001,
        delay_mean: float = 0.0005,
    ) -> None:
        self._schedule = schedule
        self._stream = stream
        self._arrived = arrived
        self._delay_min = delay_min
        self._delay_mean = delay_mean
        self._generation: list[int] = []  # grows when a member ends: its streams break
        self._rules: list[Callable[[int, int, bytes], bool]] = []
        self.links: list[list[Link]] = []
        self.datagrams = 0
        self.bytes_sent = 0

    def add_member(self) -> int:
        """A new member's index, connected to all others."""
        index = len(self.links)
        for row in self.links:
            row.append(self._make_link())
        self.links.append([self._make_link() for _ in range(index + 1)])
        self._generation.append(0)
        return index

    def end_member(self, index: int) -> None:
        """Breaks the streams of a member that stopped."""
        self._generation[index] += 1

    def add_rule(self, drops: Callable[[int, int, bytes], bool]) -> None:
        """Drops every datagram and stream frame for which `drops(source, target, data)` is true."""
        self._rules.append(drops)

    def remove_rule(self, drops: Callable[[int, int, bytes], bool]) -> None:
        """Takes back one `add_rule`, unless everything is healed already."""
        if drops in self._rules:
            self._rules.remove(drops)

    def multicast(self, source: int, data: bytes) -> list[tuple[int, str]]:
        """Offers a datagram to every other member. Gives what went wrong for whom."""
        self.bytes_sent += len(data)
        troubles: list[tuple[int, str]] = []
        for target, link in enumerate(self.links[source]):
            if target != source:
                trouble = "cut" if link.group_cuts else self._offer(source, target, link, data)
                if trouble:
                    troubles.append((target, trouble))
        return troubles

    def unicast(self, source: int, target: int, data: bytes) -> list[tuple[int, str]]:
        """Offers a datagram to one member."""
        self.bytes_sent += len(data)
        if source == target:
            self._schedule.after(self._delay_min, self._arrived, target, data)
            return []
        trouble = self._offer(source, target, self.links[source][target], data)
        return [(target, trouble)] if trouble else []

    def stream(self, source: int, target: int, data: bytes) -> list[tuple[int, str]]:
        """Sends a frame over the ordered, lossless connection between two members."""
        self.bytes_sent += len(data)
        link = self.links[source][target]
        if link.cuts or any(drops(source, target, data) for drops in self._rules):
            return [(target, "cut")]
        start = max(self._schedule.now, link.stream_busy_until, link.clogged_until)
        link.stream_busy_until = start + link.delay_min + len(data) / STREAM_BYTES_PER_S
        generations = (self._generation[source], self._generation[target])
        self._schedule.at(link.stream_busy_until, self._arrive_by_stream, source, target, generations, data)
        return []

    def cut(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Separates these (source, target) directions; every cut needs its own `mend`."""
        for source, target in pairs:
            self.links[source][target].cuts += 1

    def mend(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Takes back one `cut` of the same directions; a link healed meanwhile stays whole."""
        for source, target in pairs:
            link = self.links[source][target]
            link.cuts = max(0, link.cuts - 1)

    def cut_group(self, pairs: Iterable[tuple[int, int]]) -> None:
        """What a source tells the group does not reach the target; what it tells the target alone does."""
        for source, target in pairs:
            self.links[source][target].group_cuts += 1

    def mend_group(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Takes back one `cut_group` of the same directions."""
        for source, target in pairs:
            link = self.links[source][target]
            link.group_cuts = max(0, link.group_cuts - 1)

    def repeat(self, target: int, data: bytes, delay_s: float) -> None:
        """A copy of an old datagram arrives, whatever the links are like now: it was under way all the time."""
        self._schedule.after(delay_s, self._arrived, target, data)

    def heal(self) -> None:
        """Makes every link whole and clean."""
        self._rules.clear()
        for row in self.links:
            for link in row:
                link.loss = link.duplicate = link.flip = 0.0
                link.cuts = link.group_cuts = 0
                link.clogged_until = 0.0
                link.delay_min, link.delay_mean = self._delay_min, self._delay_mean

    def _make_link(self) -> Link:
        return Link(delay_min=self._delay_min, delay_mean=self._delay_mean)

    def _offer(self, source: int, target: int, link: Link, data: bytes) -> str:
        if link.cuts:
            return "cut"
        if self._rules and any(drops(source, target, data) for drops in self._rules):
            return "dropped"
        draw = self._stream.random
        self.datagrams += 1
        if link.loss and draw() < link.loss:
            return "lost"
        trouble = ""
        if link.flip and draw() < link.flip:
            data = flip_bit(data, self._stream)
            trouble = "flipped"
        start = max(self._schedule.now, link.clogged_until)
        self._schedule.at(start + link.delay_min - link.delay_mean * log(1.0 - draw()), self._arrived, target, data)
        if link.duplicate and draw() < link.duplicate:
            self._schedule.at(
                start + link.delay_min - 10 * link.delay_mean * log(1.0 - draw()), self._arrived, target, data
            )
            trouble = "doubled"
        return trouble

    def _arrive_by_stream(self, source: int, target: int, generations: tuple[int, int], data: bytes) -> None:
        if self.links[source][target].cuts or generations != (self._generation[source], self._generation[target]):
            return
        self._arrived(target, data)


def flip_bit(data: bytes, stream: random.Random) -> bytes:
    """The same bytes with one bit wrong."""
    place = stream.randrange(len(data))
    flipped = bytearray(data)
    flipped[place] ^= 1 << stream.randrange(8)
    return bytes(flipped)
