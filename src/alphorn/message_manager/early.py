"""What Client Managers said and the log here has not come to yet.

What a consumer holds is true after an entry of the log that its Client Manager has heard. A primary that is slower
attaches it when it has applied as much, and serves what that Client Manager said afterwards behind it.
"""

from collections import deque

from alphorn.model.link import AnyAsked, Attach


class Early:
    """Frames by link, each link's in their order."""

    __slots__ = ("_frames",)

    def __init__(self) -> None:
        self._frames: dict[int, deque[AnyAsked]] = {}

    def add(self, link: int, frame: AnyAsked) -> None:
        """A Client Manager said something."""
        self._frames.setdefault(link, deque()).append(frame)

    def take(self, applied: int) -> list[tuple[int, AnyAsked]]:
        """Takes out and gives what can be served when the log has been applied through this number."""
        taken: list[tuple[int, AnyAsked]] = []
        for link, frames in list(self._frames.items()):
            while frames and not (isinstance(frames[0], Attach) and frames[0].heard > applied):
                taken.append((link, frames.popleft()))
            if not frames:
                del self._frames[link]
        return taken

    def forget(self, link: int) -> None:
        """A link is gone."""
        self._frames.pop(link, None)
