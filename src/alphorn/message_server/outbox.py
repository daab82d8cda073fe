"""What a work process wants to say, until that is over, and who waits to hear of it. Bounded, whoever waits."""

import heapq
from collections import deque
from collections.abc import Iterator

from alphorn.message_server.happenings import size_of
from alphorn.model.events import Event

OVERHEAD_BYTES = 200  # of a message without a body
OUTBOX_BYTES_MAX = 32 << 20
OUTBOX_MAX = 50_000
WINDOW_BYTES = 512 << 10  # of one sequence that are on their way
WINDOW = 1_000


class Message:
    """One message, or event. It has a number from when it was first said."""

    __slots__ = ("body", "deadline", "event", "handle", "number", "size", "to")

    def __init__(self, to: str, body: bytes, event: Event | None, handle: int, deadline: float) -> None:
        self.to = to
        self.body = body
        self.event = event
        self.handle = handle  # who waits for an answer; 0 for nobody
        self.deadline = deadline
        self.number = 0
        self.size = OVERHEAD_BYTES + (len(body) if event is None else size_of(event))


class Outbox:
    """All messages of a process that are not over."""

    __slots__ = ("_deadlines", "_serial", "bytes", "count")

    def __init__(self) -> None:
        self._deadlines: list[tuple[float, int, Message]] = []  # a heap, also of some that are over
        self._serial = 0
        self.bytes = 0
        self.count = 0

    def has_room(self, message: Message) -> bool:
        """Whether one more fits."""
        return self.count < OUTBOX_MAX and self.bytes + message.size <= OUTBOX_BYTES_MAX

    def add(self, message: Message) -> None:
        """One more."""
        self.count += 1
        self.bytes += message.size
        self._serial += 1
        heapq.heappush(self._deadlines, (message.deadline, self._serial, message))
        if len(self._deadlines) > 2 * OUTBOX_MAX:
            self._deadlines = [it for it in self._deadlines if it[2].size]
            heapq.heapify(self._deadlines)

    def remove(self, message: Message) -> None:
        """It is over, and takes no memory any more."""
        self.count -= 1
        self.bytes -= message.size
        message.size, message.body, message.event = 0, b"", None

    def overdue(self, now: float) -> Iterator[Message]:
        """What is not over and whose time is up, each once."""
        while self._deadlines and self._deadlines[0][0] <= now:
            message = heapq.heappop(self._deadlines)[2]
            if message.size:
                yield message

    def next_deadline(self) -> float:
        """Of what is not over."""
        while self._deadlines and not self._deadlines[0][2].size:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else float("inf")


class Sequence:
    """Messages one after the other: what waits, and what was said, with numbers without a gap, and is not confirmed."""

    __slots__ = ("_bytes", "said", "waiting")

    def __init__(self) -> None:
        self.waiting: dict[int, Message] = {}  # by id, oldest first
        self.said: deque[Message] = deque()
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self.said or self.waiting)

    def add(self, message: Message) -> None:
        """One more that waits."""
        self.waiting[id(message)] = message

    def advance(self, last: int) -> Iterator[Message]:
        """What may be said now for the first time, with numbers that go on from the last one."""
        while self.waiting:
            key, message = next(iter(self.waiting.items()))
            if self.said and (len(self.said) >= WINDOW or self._bytes + message.size > WINDOW_BYTES):
                return
            del self.waiting[key]
            last += 1
            message.number = last
            self.said.append(message)
            self._bytes += message.size
            yield message

    def confirm(self, through: int) -> Iterator[Message]:
        """What is over, now that everything through this number is confirmed."""
        while self.said and self.said[0].number <= through:
            message = self.said.popleft()
            self._bytes -= message.size
            yield message
