"""What a work process has said, until everybody whom it concerned has it, and what its program waits to hear of it."""

import heapq
from collections.abc import Iterator

from alphorn.model.internal import Report, Say

OVERHEAD_BYTES = 200  # of a message without a body


class Sent:
    """One message or event. It stays here after its answer, until it is settled."""

    __slots__ = ("deadline", "frame", "handle", "has_left", "size")

    def __init__(self, frame: Say | Report, handle: int, deadline: float) -> None:
        self.frame = frame
        self.handle = handle  # who waits for an answer; 0 for nobody
        self.deadline = deadline
        self.has_left = False  # some server may have it
        self.size = OVERHEAD_BYTES + (len(frame.body) if isinstance(frame, Say) else 0)


class Outbox:
    """By number, oldest first."""

    __slots__ = ("_deadlines", "_sent", "bytes")

    def __init__(self) -> None:
        self._sent: dict[int, Sent] = {}
        self._deadlines: list[tuple[float, int]] = []  # a heap, with numbers that are not here any more
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._sent)

    def __iter__(self) -> Iterator[Sent]:
        return iter(list(self._sent.values()))

    def add(self, sent: Sent) -> None:
        """One more; numbers grow."""
        self._sent[sent.frame.number] = sent
        self.bytes += sent.size
        heapq.heappush(self._deadlines, (sent.deadline, sent.frame.number))
        if len(self._deadlines) > 2 * len(self._sent) + 1000:
            self._deadlines = [(sent.deadline, number) for number, sent in self._sent.items()]
            heapq.heapify(self._deadlines)

    def find(self, number: int) -> Sent | None:
        """What has this number."""
        return self._sent.get(number)

    def remove(self, number: int) -> Sent | None:
        """It is settled, or given up."""
        sent = self._sent.pop(number, None)
        if sent is not None:
            self.bytes -= sent.size
        return sent

    def next_deadline(self) -> float:
        """When something here has waited for long enough."""
        while self._deadlines and self._deadlines[0][1] not in self._sent:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else float("inf")

    def overdue(self, now: float) -> list[int]:
        """Numbers that have waited for long enough; each is told once."""
        found: list[int] = []
        while self.next_deadline() <= now:
            found.append(heapq.heappop(self._deadlines)[1])
        return found
