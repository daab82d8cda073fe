"""Which log entries a state needs: those that hold messages, or fragments of their bodies."""

from collections.abc import Iterator
from itertools import islice

from alphorn.message_manager.queue import Queue
from alphorn.message_manager.state import State
from alphorn.message_manager.topic import Topic
from alphorn.model.ranges import RangeSet

_NUMBERS = 4096  # of one step


class Needed:
    """Gathers them: what is no destination's at once, the destinations one by one, in any order."""

    __slots__ = ("_numbers", "_ranges", "entries")

    def __init__(self, state: State) -> None:
        state.sweep_streams()
        self.entries = RangeSet()  # complete after the last of `steps`
        self._ranges = list(state.streams.entries())
        self._numbers = state.writers.sequences() | state.transactions.sequences()
        for destination in state.moves.kept():
            self.add(destination)

    def add(self, destination: Queue | Topic) -> None:
        """A destination, which must be swept before."""
        if len(destination.segments):
            self._numbers |= destination.segments.sequences()

    def steps(self) -> Iterator[None]:
        """Puts together what was gathered, in steps of bounded work."""
        numbers = iter(sorted(self._numbers))
        while some := list(islice(numbers, _NUMBERS)):
            for number in some:
                self.entries.add(number, number)
            yield
        for first, last in self._ranges:
            self.entries.add(first, last)
