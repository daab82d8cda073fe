"""Named readers of the log: how far each has come, so that people see who lags behind.

Nothing depends on it: a reader knows itself what it has read. At most `READERS_MAX` are remembered, the latest ones.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from alphorn.message_manager.effects import Effect
from alphorn.model.commands import NoteReader
from alphorn.model.errors import PeerViolation

if TYPE_CHECKING:
    from alphorn.message_manager.state import State

READERS_MAX = 1000
NAME_MAX = 255
DESTINATIONS_MAX = 10_000


class Reader(msgspec.Struct, frozen=True, array_like=True):
    """One reader on this channel."""

    name: str
    destinations: list[int]
    sequence: int  # it comes to this one next


class Readers:
    """All of them, whoever said something last at the end."""

    __slots__ = ("_by_name",)

    def __init__(self) -> None:
        self._by_name: dict[str, Reader] = {}

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[Reader]:
        return iter(self._by_name.values())

    def note(self, reader: Reader) -> None:
        """A reader has come so far, be it forward or back."""
        self._by_name.pop(reader.name, None)
        self._by_name[reader.name] = reader
        if len(self._by_name) > READERS_MAX:
            del self._by_name[next(iter(self._by_name))]


def note_reader(state: "State", command: NoteReader, place: int, effects: list[Effect]) -> None:
    """Applies `NoteReader`."""
    if not 0 < len(command.name) <= NAME_MAX or len(command.destinations) > DESTINATIONS_MAX:
        raise PeerViolation("a reader has a name of 1 to 255 characters and reads at most 10,000 destinations by it")
    state.readers.note(Reader(command.name, command.destinations, command.sequence))
