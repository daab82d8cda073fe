"""LIKE patterns, matched in one pass over the text whatever the pattern is.

`%` cuts a pattern into segments of fixed length. The first stands at the start of the text and the last at its end;
those between are found one after the other, each as far left as it can be, which never spoils a later one. So no
character is looked at again once a segment was found beyond it. A segment without `_` is left to `str.find`; one with
`_` is followed at all its possible starts at once, as the bits of one integer (the Shift-And search).
"""

from collections.abc import Callable
from itertools import groupby

Match = Callable[[str], bool]

_Segment = list[str | None]  # one item a character; None is `_`, which stands for any
_Find = Callable[[str, int, int], int]  # text, start, end -> where the segment ends at its leftmost, or -1


def compile_like(pattern: str, escape: str | None) -> Match:
    """The question whether a text is like the pattern.

    Raises `ValueError` for an escape character that precedes neither `%`, `_` nor itself, as SQL-92 does.
    """
    segments = _segments_of(pattern, escape)
    if len(segments) == 1:
        is_whole = _compile_at(segments[0])
        length = len(segments[0])
        return lambda text: len(text) == length and is_whole(text, 0)
    begins, ends = _compile_at(segments[0]), _compile_at(segments[-1])
    head, tail = len(segments[0]), len(segments[-1])
    between = [_compile_find(segment) for segment in segments[1:-1] if segment]

    def match(text: str) -> bool:
        end = len(text) - tail
        if end < head or not begins(text, 0) or not ends(text, end):
            return False
        place = head
        for find in between:
            place = find(text, place, end)
            if place < 0:
                return False
        return True

    return match


def _segments_of(pattern: str, escape: str | None) -> list[_Segment]:
    segments: list[_Segment] = [[]]
    characters = iter(enumerate(pattern))
    for place, character in characters:
        if character == escape:
            _, escaped = next(characters, (0, ""))
            if escaped not in ("%", "_", escape):
                raise ValueError(f"an escape character that escapes nothing, at {place} of {pattern!r}")
            segments[-1].append(escaped)
        elif character == "%":
            segments.append([])
        else:
            segments[-1].append(None if character == "_" else character)
    return segments


def _compile_at(segment: _Segment) -> Callable[[str, int], bool]:
    """The question whether a segment stands at a place of a text that is long enough for it."""
    runs: list[tuple[int, str]] = []
    offset = 0
    for is_run, characters in groupby(segment, key=lambda character: character is not None):
        run = list(characters)
        if is_run:
            runs.append((offset, "".join(filter(None, run))))
        offset += len(run)
    if len(runs) == 1:
        ((skip, only),) = runs
        return lambda text, place: text.startswith(only, place + skip)
    return lambda text, place: all(text.startswith(letters, place + skip) for skip, letters in runs)


def _compile_find(segment: _Segment) -> _Find:
    letters = [character for character in segment if character is not None]
    return _find_letters("".join(letters)) if len(letters) == len(segment) else _find_with_gaps(segment)


def _find_letters(letters: str) -> _Find:
    length = len(letters)

    def find(text: str, start: int, end: int) -> int:
        found = text.find(letters, start, end)
        return found + length if found >= 0 else -1

    return find


def _find_with_gaps(segment: _Segment) -> _Find:
    """Bit i of `alive` says that the last i + 1 characters read are the segment's first i + 1."""
    length = len(segment)
    any_letter = sum(1 << place for place, character in enumerate(segment) if character is None)
    accepting: dict[str, int] = {}
    for place, character in enumerate(segment):
        if character is not None:
            accepting[character] = accepting.get(character, any_letter) | 1 << place

    def find(text: str, start: int, end: int) -> int:
        alive = 0
        for place in range(start, end):
            alive = (alive << 1 | 1) & accepting.get(text[place], any_letter)
            if alive.bit_length() == length:
                return place + 1
        return -1

    return find
