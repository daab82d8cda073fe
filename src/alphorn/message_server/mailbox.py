"""What waits for one work process until the process says that it has it.

A message that is for many is in the mailbox of each; there is one `Message` of it, which knows whom it waits for.
What a sender says to one process, and what it says to all, are two lanes: a receiver takes of each lane what has a
higher number than all before.
"""

from collections import OrderedDict, deque

from alphorn.model.events import Event
from alphorn.model.internal import Key, Notify, Relay

OVERHEAD_BYTES = 200  # of a message without a body
SENDERS_MAX = 4_000  # whose last numbers are remembered


class Message:
    """What one process said, until everybody whom it concerns has it."""

    __slots__ = (
        "event",
        "frame",
        "is_at_peer",
        "is_copied",
        "is_own",
        "is_own_at_peer",
        "is_taken",
        "number",
        "run",
        "sender",
        "size",
        "to",
        "waiting",
    )

    def __init__(
        self, *, sender: str, run: bytes, number: int, to: str, body: bytes, event: Event | None, is_own: bool
    ) -> None:
        self.sender = sender
        self.run = run
        self.number = number
        self.to = to  # a name; empty for all others, and for events
        self.event = event
        self.is_own = is_own  # its sender said it here; else the peer did
        self.is_own_at_peer = False  # its sender said it there
        self.is_copied = False  # the peer was asked to hold it
        self.is_at_peer = False  # the peer holds it
        self.is_taken = False  # its sender was told that it is safe
        self.size = OVERHEAD_BYTES + len(body)
        self.waiting: set[bytes] = set()  # runs of processes that have not confirmed it
        self.frame: Relay | Notify = (
            Relay(sender, run, number, body, not to) if event is None else Notify(run, number, event)
        )

    @property
    def key(self) -> Key:
        """What tells it from all others."""
        return self.run, self.number

    @property
    def is_for_all(self) -> bool:
        """Its lane."""
        return not self.to

    @property
    def body(self) -> bytes:
        """What was said; an event has none."""
        return self.frame.body if isinstance(self.frame, Relay) else b""


class _Waiting:
    """A message in one mailbox."""

    __slots__ = ("is_active", "is_sent", "message")

    def __init__(self, message: Message) -> None:
        self.message = message
        self.is_active = False  # this server gives it out
        self.is_sent = False  # on the present connection


class Mailbox:
    """What waits for one process, in the order in which it is to be given out."""

    __slots__ = ("_had", "_lanes", "_ready", "_waiting", "bytes")

    def __init__(self) -> None:
        self._waiting: dict[Key, _Waiting] = {}
        self._lanes: dict[tuple[bytes, bool], deque[int]] = {}  # numbers, some of which may wait no more
        self._ready: deque[Key] = deque()  # active, and not given out on this connection
        self._had: OrderedDict[tuple[bytes, bool], int] = OrderedDict()  # through which number it has each lane
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def push(self, message: Message, *, is_active: bool) -> bool:
        """One more; False where the process has it, or what was said after it."""
        key, lane = message.key, (message.run, message.is_for_all)
        if message.number <= self._had.get(lane, 0):
            return False
        if key not in self._waiting:
            self._waiting[key] = _Waiting(message)
            numbers = self._lanes.setdefault(lane, deque())
            numbers.append(message.number)
            if len(numbers) > 1 and numbers[-2] > message.number:
                self._lanes[lane] = deque(sorted(numbers))
            self.bytes += message.size
        if is_active:
            self.activate(key)
        return True

    def activate(self, key: Key) -> None:
        """This server gives it out, after all that it gives out already."""
        waiting = self._waiting.get(key)
        if waiting is not None and not waiting.is_active:
            del self._waiting[key]
            self._waiting[key] = waiting
            waiting.is_active = True
            self._ready.append(key)

    def unsent(self) -> list[Message]:
        """What was not given out on this connection; it is from now on."""
        found: list[Message] = []
        while self._ready:
            waiting = self._waiting.get(self._ready.popleft())
            if waiting is not None and not waiting.is_sent:
                waiting.is_sent = True
                found.append(waiting.message)
        return found

    def was_sent(self, key: Key) -> bool:
        """Whether it was given out."""
        waiting = self._waiting.get(key)
        return waiting is not None and waiting.is_sent

    def begin_anew(self) -> None:
        """There is another connection: nothing was given out on it."""
        self._ready.clear()
        for key, waiting in self._waiting.items():
            waiting.is_sent = False
            if waiting.is_active:
                self._ready.append(key)

    def confirm(self, run: bytes, through: int, *, is_for_all: bool) -> list[Message]:
        """The process has this lane of a sender through this number; gives what waits no more."""
        self._note(run, through, is_for_all=is_for_all)
        numbers = self._lanes.get((run, is_for_all))
        if numbers is None:
            return []
        found: list[Message] = []
        while numbers and numbers[0] <= through:
            message = self._pop((run, numbers.popleft()))
            if message is not None:
                found.append(message)
        if not numbers:
            del self._lanes[run, is_for_all]
        return found

    def remove(self, key: Key) -> Message | None:
        """The process has this one, or will never have it."""
        message = self._pop(key)
        if message is not None:
            self._note(message.run, message.number, is_for_all=message.is_for_all)
            numbers = self._lanes[message.run, message.is_for_all]
            while numbers and (message.run, numbers[0]) not in self._waiting:
                numbers.popleft()
            if not numbers:
                del self._lanes[message.run, message.is_for_all]
        return message

    def messages(self) -> list[Message]:
        """All that waits, in the order in which it is given out."""
        return [waiting.message for waiting in self._waiting.values()]

    def of_sender(self, run: bytes) -> list[Message]:
        """What waits of one sender, in its order."""
        numbers = sorted({*self._lanes.get((run, False), ()), *self._lanes.get((run, True), ())})
        return [self._waiting[run, number].message for number in numbers if (run, number) in self._waiting]

    def empty(self) -> list[Message]:
        """Takes all out."""
        found = self.messages()
        self._waiting.clear()
        self._lanes.clear()
        self._ready.clear()
        self._had.clear()
        self.bytes = 0
        return found

    def _pop(self, key: Key) -> Message | None:
        waiting = self._waiting.pop(key, None)
        if waiting is None:
            return None
        self.bytes -= waiting.message.size
        return waiting.message

    def _note(self, run: bytes, through: int, *, is_for_all: bool) -> None:
        lane = run, is_for_all
        if through > self._had.get(lane, 0):
            self._had[lane] = through
            self._had.move_to_end(lane)
            if len(self._had) > SENDERS_MAX:
                self._had.popitem(last=False)
