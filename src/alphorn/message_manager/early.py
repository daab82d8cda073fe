"""What Client Managers said before the log has come as far here as they had heard it."""

from collections import deque
from collections.abc import Callable

from alphorn.model.link import AnyAsked, Attach


class Early:
    """Frames by link, in order, from an `Attach` on that is ahead of the log."""

    __slots__ = ("_frames",)

    def __init__(self) -> None:
        self._frames: dict[int, deque[AnyAsked]] = {}

    def add(self, link: int, frame: AnyAsked) -> None:
        """A Client Manager said this."""
        self._frames.setdefault(link, deque()).append(frame)

    def serve(self, sequence: int, serve: Callable[[int, AnyAsked], None]) -> None:
        """Serves what was said, as far as the log has come: to this number."""
        for link in list(self._frames):
            frames = self._frames.get(link)
            while frames:
                if isinstance(frames[0], Attach) and frames[0].heard > sequence:
                    break
                serve(link, frames.popleft())
            if not frames:
                self._frames.pop(link, None)

    def drop(self, link: int) -> None:
        """A Client Manager's link is gone."""
        self._frames.pop(link, None)

    def clear(self) -> None:
        """All links begin anew."""
        self._frames.clear()
