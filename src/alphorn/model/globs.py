"""Globs: how one is compared with a name, and which of many match a name.

Most globs have a piece of plain text that few others have. Each is shelved under one such piece, the one that the
fewest others are shelved under; a name is then looked up by its own pieces of those lengths, which does not depend on
how many globs there are. What is found so is compared in full.
"""

from collections import Counter
from collections.abc import Iterator


class Glob:
    """One glob, taken apart. `*` stands for any characters, also none, `?` for one."""

    __slots__ = ("_parts", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self._parts = text.split("*")

    @property
    def prefix(self) -> str:
        """The plain text that every name begins with that matches."""
        return self._parts[0].partition("?")[0]

    @property
    def pieces(self) -> list[str]:
        """All of its plain text, longest first."""
        found = [piece for part in self._parts for piece in part.split("?") if piece]
        return sorted(found, key=len, reverse=True)

    def matches(self, name: str) -> bool:
        """Whether the whole name matches. Each part is taken where it fits first, so nothing is tried twice."""
        first, *middle = self._parts
        if not middle:
            return len(name) == len(first) and _fits(name, first, 0)
        last = middle.pop()
        place, end = len(first), len(name) - len(last)
        if place > end or not _fits(name, first, 0) or not _fits(name, last, end):
            return False
        for part in middle:
            place = _find(name, part, place, end)
            if place < 0:
                return False
            place += len(part)
        return True


class GlobShelf:
    """Globs with at least one piece of plain text, found by name."""

    __slots__ = ("_lengths", "_pieces", "_shelves")

    def __init__(self) -> None:
        self._shelves: dict[str, dict[str, Glob]] = {}  # piece → glob by its text
        self._pieces: dict[str, str] = {}  # of each glob
        self._lengths: Counter[int] = Counter()  # of those pieces

    def add(self, glob: Glob) -> None:
        """Takes one in."""
        piece = min(glob.pieces, key=lambda piece: len(self._shelves.get(piece, ())))
        if piece not in self._shelves:
            self._lengths[len(piece)] += 1
        self._shelves.setdefault(piece, {})[glob.text] = glob
        self._pieces[glob.text] = piece

    def remove(self, text: str) -> None:
        """Takes one off that is there."""
        piece = self._pieces.pop(text)
        del self._shelves[piece][text]
        if not self._shelves[piece]:
            del self._shelves[piece]
            self._lengths[len(piece)] -= 1
            self._lengths += Counter()  # drops a length that nobody has any more

    def match(self, name: str) -> Iterator[str]:
        """The texts of all that match, each once."""
        shelves = self._shelves
        for length in self._lengths:
            # In the order of the name, so that the same names are found in the same order in every run.
            for piece in dict.fromkeys(name[start : start + length] for start in range(len(name) - length + 1)):
                for glob in shelves.get(piece, {}).values():
                    if glob.matches(name):
                        yield glob.text


def _fits(name: str, part: str, start: int) -> bool:
    if "?" not in part:
        return name.startswith(part, start)
    return len(name) - start >= len(part) and all(
        wanted in ("?", name[start + place]) for place, wanted in enumerate(part)
    )


def _find(name: str, part: str, start: int, end: int) -> int:
    if "?" not in part:
        return name.find(part, start, end)
    return next((place for place in range(start, end - len(part) + 1) if _fits(name, part, place)), -1)
