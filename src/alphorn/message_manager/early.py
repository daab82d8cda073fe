"""What Client Managers said that is ahead of the log here: it waits for that, and what they said after it waits too."""

from collections import deque
from collections.abc import Iterator

from alphorn.model.link import AnyAsked, Attach


class Early:
    """Frames by link, in order."""

    __slots__ = ("_frames",)

    def __init__(self) -> None:
        self._frames: dict[int, deque[AnyAsked]] = {}

    def add(self, number: int, frame: AnyAsked) -> None:
        """A Client Manager said something."""
        self._frames.setdefault(number, deque()).append(frame)

    def take(self, sequence: int) -> Iterator[tuple[int, AnyAsked]]:
        """What can be served now that the log has come so far, each with its link."""
        for number in list(self._frames):
            frames = self._frames[number]
            while frames and not (isinstance(frames[0], Attach) and frames[0].heard > sequence):
                yield number, frames.popleft()
            if not frames:
                self._frames.pop(number, None)

    def forget(self, number: int) -> None:
        """A link is gone."""
        self._frames.pop(number, None)

    def clear(self) -> None:
        """Everything will be said again."""
        self._frames.clear()
