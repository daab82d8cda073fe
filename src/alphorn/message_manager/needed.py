"""Which log entries a state needs: those that hold messages, or fragments of their bodies."""

from collections.abc import Iterator
from itertools import chain
from operator import add

from alphorn.message_manager.queue import Queue
from alphorn.message_manager.state import State
from alphorn.message_manager.topic import Topic
from alphorn.model.ranges import RangeSet

_RANGES = 4096  # of one step


class Needed:
    """Gathers them: what is no destination's at once, the destinations one by one, in any order."""

    __slots__ = ("_fragments", "_numbers", "entries")

    def __init__(self, state: State) -> None:
        state.sweep_streams()
        self.entries = RangeSet()  # complete after the last of `steps`
        self._fragments = state.streams.entries()
        self._numbers = state.writers.sequences() | state.transactions.sequences()
        for destination in state.moves.kept():
            self.add(destination)

    def add(self, destination: Queue | Topic) -> None:
        """A destination, which must be swept before."""
        if len(destination.segments):
            self._numbers |= destination.segments.sequences()

    def steps(self) -> Iterator[None]:
        """Puts together what was gathered, in steps of bounded work."""
        firsts = sorted(chain(self._numbers, *(sequences for sequences, _ in self._fragments)))
        behind = [number + 1 for number in self._numbers]
        ends = sorted(chain(behind, *(map(add, sequences, counts) for sequences, counts in self._fragments)))
        # Each number is as often between a first and its end as before they were sorted, whichever belong together.
        for start in range(0, len(firsts), _RANGES):
            for first, end in zip(firsts[start : start + _RANGES], ends[start : start + _RANGES], strict=True):
                self.entries.add(first, end - 1)
            yield
