"""A channel's state at one moment, as bytes that are made little by little, while entries are applied on.

Destinations and producers are most of a large state: they are written in sections (section.py), some rows for each
piece that is taken. What else there is is encoded when the snapshot is made.
"""

from collections.abc import Generator, Iterable, Iterator

from alphorn.message_manager import checkpoint
from alphorn.message_manager.checkpoint_records import End, Record
from alphorn.message_manager.needed import Needed
from alphorn.message_manager.queue import Queue
from alphorn.message_manager.section import PIECE_BYTES, Section
from alphorn.message_manager.state import State
from alphorn.message_manager.topic import Topic
from alphorn.model.ranges import RangeSet


class Snapshot:
    """The pieces, in order, for whoever iterates; `needed` after the last one.

    Where it is not guarded, the state must not change before the last piece is taken.
    """

    __slots__ = ("_awaiting", "_destinations", "_needed", "_pieces", "_producers", "_records", "_state")

    def __init__(self, state: State, *, is_guarded: bool, piece_bytes: int = PIECE_BYTES) -> None:
        """A piece has at least so many bytes of a section, unless it is the last."""
        self._state: State | None = state if is_guarded else None
        self._needed = Needed(state)
        self._awaiting = state.awaiting.copy()
        self._producers = Section(state.producers.plain, checkpoint.records_of_connection, piece_bytes)
        self._destinations = Section(state.directory, self._begin, piece_bytes)
        self._records = 0  # of what is in no section
        head = self._encoded([checkpoint.head_of(state)])
        middle = self._encoded(checkpoint.records_between(state))
        end = self._encoded(checkpoint.records_after(state))
        self._pieces = self._make(head, middle, end)
        if is_guarded:
            state.guard(self._destinations.keep, self._producers.keep)

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        """The next piece, which may be empty. Little work, unless one record is large."""
        return next(self._pieces)

    def needed(self) -> RangeSet:
        """The log entries that the state needs; complete after the last piece."""
        return self._needed.entries

    def close(self) -> None:
        """Nobody takes the rest."""
        self._pieces.close()
        self._let_go()

    def _make(self, head: bytes, middle: bytes, end: bytes) -> Generator[bytes, None, None]:
        yield head
        yield from self._producers.pieces()
        yield middle
        yield from self._destinations.pieces()
        self._let_go()
        yield end
        count = self._records + self._producers.records + self._destinations.records
        yield self._encoded([End(count)])
        for _ in self._needed.steps():
            yield b""

    def _begin(self, destination: Queue | Topic) -> Iterator[Record]:
        destination.sweep()
        self._needed.add(destination)
        return checkpoint.records_of(destination, is_awaiting=destination.number in self._awaiting)

    def _encoded(self, records: Iterable[Record]) -> bytes:
        gathered = bytearray()
        for record in records:
            checkpoint.frame(gathered, record)
            self._records += 1
        return bytes(gathered)

    def _let_go(self) -> None:
        if self._state is not None:
            self._state.unguard()
            self._state = None
