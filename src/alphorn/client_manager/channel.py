"""One channel as a Client Manager sees it: what is to be ordered, what is under way, and who its primary is.

Nobody waits to fill a batch: whatever was wanted within a turn is one log entry, and what is wanted while the bus takes
nothing more becomes larger entries afterwards. Commands leave in the order in which they were wanted.
"""

from collections import deque
from collections.abc import Callable

import msgspec

from alphorn.client_manager.cache import ReceiveCache
from alphorn.model.commands import Acknowledge, AnyCommand, Entry, Move, Publish, encode_entry
from alphorn.model.link import Answered

ENTRY_BYTES = 256 << 10  # an entry is closed when it has become this large
_COMMAND_BYTES = 64
_POSITION_BYTES = 9  # at most


def bytes_of(positions: list[int]) -> int:
    """What positions may take in an entry."""
    return _POSITION_BYTES * len(positions)


class Pending(msgspec.Struct, gc=False):
    """A request whose outcome the primary tells.

    A command in the log is ordered again when the primary changes; what was asked on the link is `lost`.
    """

    answer: Callable[[Answered], None]
    command: AnyCommand | None = None
    lost: Callable[[], None] | None = None


class Channel:
    """The way into one log."""

    __slots__ = (
        "_commands",
        "_handle",
        "_request",
        "_requests",
        "_size",
        "_then",
        "_waiting_bytes",
        "cache",
        "committing",
        "epoch",
        "heard",
        "in_flight",
        "is_open",
        "is_removed",
        "links",
        "pending",
        "primary",
        "waiting",
    )

    def __init__(self, *, cache_bytes: int, is_removed: bool = False) -> None:
        self.is_removed = is_removed  # nobody is there any more: nothing is ordered
        self.cache = ReceiveCache(cache_bytes)
        self.primary = ""  # name of the Message Manager that serves, "" while none is known
        self.epoch = 0
        self.committing = 0  # number of the own entry whose outcome is just being told
        self.heard = 0  # the newest entry of the log that has come
        self.links: set[str] = set()
        self.is_open = True
        self.pending: dict[int, Pending] = {}
        self.in_flight: dict[int, list[Callable[[], None]]] = {}
        self.waiting: deque[tuple[bytes, list[Callable[[], None]]]] = deque()
        self._commands: list[AnyCommand] = []
        self._requests: list[int] = []
        self._then: list[Callable[[], None]] = []
        self._size = 0
        self._waiting_bytes = 0
        self._handle = 0
        self._request = 0

    def want(self, command: AnyCommand, then: Callable[[], None] | None = None, *, size: int = 0) -> None:
        """Orders a command; `then` is called once it is committed and all before it has been heard."""
        if self.is_removed:
            return
        self._commands.append(command)
        self._requests.append(0)
        if then is not None:
            self._then.append(then)
        self._size += size + _COMMAND_BYTES
        if self._size >= ENTRY_BYTES:
            self._close_entry()

    def join(self, command: Acknowledge) -> bool:
        """Lets an acknowledgement join the one before, where that is of the same consumer; False where it is not."""
        last = self._commands[-1] if self._commands else None
        if not isinstance(last, Acknowledge) or last.consumer != command.consumer:
            return False
        last.positions.extend(command.positions)
        self._size += bytes_of(command.positions)
        return True

    def request(self, command: AnyCommand, answer: Callable[[Answered], None], *, size: int = 0) -> int:
        """Orders a command whose outcome the primary tells."""
        self._request += 1
        self.pending[self._request] = Pending(answer, command)
        self._want_request(self._request, command, size)
        return self._request

    def number(self) -> int:
        """A number for a request."""
        self._request += 1
        return self._request

    def ask(self, answer: Callable[[Answered], None], lost: Callable[[], None] | None = None) -> int:
        """A number for a request to the primary on the link; `lost` is called when that primary is gone."""
        self._request += 1
        self.pending[self._request] = Pending(answer, None, lost)
        return self._request

    def _want_request(self, request: int, command: AnyCommand, size: int) -> None:
        if self.is_removed:
            return
        self._commands.append(command)
        self._requests.append(request)
        self._size += size + _COMMAND_BYTES
        if self._size >= ENTRY_BYTES or isinstance(command, Move):
            # What follows a move is refused where the destination was: so that everybody can tell by the number of the
            # entry, a move is the last command of its own.
            self._close_entry()

    def repeat_requests(self) -> None:
        """The primary that was to answer is gone: every command without an answer is ordered again.

        Each of them changes nothing when it is applied twice. What was asked on the link is lost.
        """
        for request, pending in list(self.pending.items()):
            if pending.command is not None:
                size = len(pending.command.blob) if isinstance(pending.command, Publish) else 0
                self._want_request(request, pending.command, size)
                continue
            del self.pending[request]
            if pending.lost is not None:
                pending.lost()

    def _close_entry(self) -> None:
        if self._commands:
            requests = self._requests if any(self._requests) else []
            payload = encode_entry(Entry(self._commands, requests))
            self.waiting.append((payload, self._then))
            self._waiting_bytes += len(payload)
            self._commands, self._requests, self._then, self._size = [], [], [], 0

    def take_entries(self) -> list[tuple[int, bytes]]:
        """What is to be ordered now, with handles."""
        if self._commands and self.is_open:
            self._close_entry()
        taken = []
        while self.waiting and self.is_open:
            payload, then = self.waiting.popleft()
            self._waiting_bytes -= len(payload)
            self._handle += 1
            self.in_flight[self._handle] = then
            taken.append((self._handle, payload))
        return taken

    @property
    def unordered_bytes(self) -> int:
        """What clients wanted and the bus has not taken yet."""
        return self._waiting_bytes + self._size

    def committed(self, handle: int, sequence: int) -> None:
        """An own entry is in the log under this number, and all before it has been heard."""
        self.committing = sequence
        for then in self.in_flight.pop(handle, ()):
            then()

    def answered(self, answer: Answered) -> None:
        """The primary tells an outcome; one that nobody waits for is old news."""
        pending = self.pending.pop(answer.request, None)
        if pending is not None:
            pending.answer(answer)

    def describe(self) -> dict[str, object]:
        """For people."""
        return {
            "primary": self.primary,
            "links": sorted(self.links),
            "in_flight": len(self.in_flight),
            "waiting": len(self.waiting),
            "requests": len(self.pending),
            "cache": self.cache.describe(),
        }
