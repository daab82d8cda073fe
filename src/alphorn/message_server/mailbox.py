"""What waits for one work process, in the order of each sender, until the process says that it has it.

A message that is for many is in the mailbox of each; there is one `Message` of it, which knows whom it waits for.
"""

from collections import OrderedDict, deque

from alphorn.model.events import Event
from alphorn.model.internal import Notify, Relay

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
        self.is_copied = False  # the peer was asked to hold it
        self.is_at_peer = False  # the peer holds it
        self.is_taken = False  # its sender was told that it is safe
        self.size = OVERHEAD_BYTES + len(body)
        self.waiting: set[bytes] = set()  # runs of processes that have not confirmed it
        self.frame: Relay | Notify = Relay(sender, run, number, body) if event is None else Notify(run, number, event)

    @property
    def key(self) -> tuple[bytes, int]:
        """What tells it from all others."""
        return self.run, self.number

    @property
    def body(self) -> bytes:
        """What was said; an event has none."""
        return self.frame.body if isinstance(self.frame, Relay) else b""


class Mailbox:
    """What waits for one process."""

    __slots__ = ("_last", "_senders", "_sent", "bytes", "count")

    def __init__(self) -> None:
        self._senders: dict[bytes, deque[Message]] = {}  # by the sender's run
        self._sent: dict[bytes, int] = {}  # the last number that was given out on the present connection
        self._last: OrderedDict[bytes, int] = OrderedDict()  # the last number that came
        self.bytes = 0
        self.count = 0

    def push(self, message: Message) -> bool:
        """One more; False where this one, or a later one of its sender, came before."""
        if message.number <= self._last.get(message.run, 0):
            return False
        self._last[message.run] = message.number
        if len(self._last) > SENDERS_MAX:
            self._last.popitem(last=False)
        self._senders.setdefault(message.run, deque()).append(message)
        self.bytes += message.size
        self.count += 1
        return True

    def unsent(self) -> list[Message]:
        """What was not given out on this connection; it is from now on."""
        found: list[Message] = []
        for run, waiting in self._senders.items():
            sent = self._sent.get(run, 0)
            if waiting[-1].number > sent:
                found += waiting if waiting[0].number > sent else [it for it in waiting if it.number > sent]
                self._sent[run] = waiting[-1].number
        return found

    def was_sent(self, message: Message) -> bool:
        """Whether it was given out on this connection."""
        return message.number <= self._sent.get(message.run, 0)

    def begin_anew(self) -> None:
        """There is another connection: nothing was given out on it."""
        self._sent.clear()

    def confirm(self, run: bytes, through: int) -> list[Message]:
        """The process has all of this sender's through this number; gives what waits no more."""
        waiting = self._senders.get(run)
        if waiting is None:
            return []
        found: list[Message] = []
        while waiting and waiting[0].number <= through:
            message = waiting.popleft()
            self.bytes -= message.size
            self.count -= 1
            found.append(message)
        if not waiting:
            del self._senders[run]
        return found

    def messages(self) -> list[Message]:
        """All that waits, in each sender's order."""
        return [message for waiting in self._senders.values() for message in waiting]

    def empty(self) -> list[Message]:
        """Takes all out."""
        found = self.messages()
        self._senders.clear()
        self._sent.clear()
        self._last.clear()
        self.bytes = self.count = 0
        return found
