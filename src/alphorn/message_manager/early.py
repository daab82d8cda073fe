"""What Client Managers said that is ahead of the log here: it waits, and everything they said after it."""

from collections import deque
from collections.abc import Iterator

from alphorn.model.link import AnyAsked, Attach


class Early:
    """Frames by link, in the order in which they came."""

    __slots__ = ("_of",)

    def __init__(self) -> None:
        self._of: dict[int, deque[AnyAsked]] = {}

    def add(self, number: int, frame: AnyAsked) -> None:
        """A Client Manager said something."""
        self._of.setdefault(number, deque()).append(frame)

    def take(self, sequence: int) -> Iterator[tuple[int, AnyAsked]]:
        """What may be served now that the log has come to this number; taken out as it is given."""
        for number in list(self._of):
            frames = self._of[number]
            while frames and not _is_ahead(frames[0], sequence):
                yield number, frames.popleft()
            if not frames:
                self._of.pop(number, None)

    def forget(self, number: int) -> None:
        """A link is gone."""
        self._of.pop(number, None)


def _is_ahead(frame: AnyAsked, sequence: int) -> bool:
    return isinstance(frame, Attach) and frame.heard > sequence
