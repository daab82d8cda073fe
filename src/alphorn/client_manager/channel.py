"""One channel as a Client Manager sees it: what is to be ordered, what is under way, and who its primary is.

No clock makes anybody wait to fill a batch: whatever was wanted within a turn is one log entry. What is wanted while
one is under way waits for that, unless it is much, and shares the next; an entry costs every member the same work
whatever is in it, so that where messages come one by one each of them is sooner through. What nobody waits for, an
acknowledgement, does so for a moment even if none is under way. What is wanted while the bus takes nothing more becomes
larger entries afterwards. Commands leave in the order in which they were wanted.

Bulk, which is fragments and what must come after them, has entries and a queue of its own: only so much of it is under
way at a time, whoever it is from, and everything else passes by. Whatever is not bulk is durable only behind the bulk
that is under way when it leaves, so that is less while there is such traffic.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from alphorn.client_manager.cache import ReceiveCache
from alphorn.model.commands import (
    Abandon,
    Acknowledge,
    AnyCommand,
    CreateDestination,
    Entry,
    Forget,
    Fragment,
    Move,
    Publish,
    Subscribe,
    connection_of,
    encode_entry,
)
from alphorn.model.errors import Misuse
from alphorn.model.link import Answered
from alphorn.model.messages import BATCH_BYTES_MAX, Flag

ENTRY_BYTES = 512 << 10  # an entry is closed when it has become this large
LITTLE_BYTES = 16 << 10  # commands that take less wait for the entry that is under way
BULK_BYTES_MAX = 3 << 20  # of fragments under way, of all clients,
BULK_BYTES_SHARED = 512 << 10  # and where something else has left within
QUIET_S = 1.0
_COMMAND_BYTES = 64
POSITION_BYTES = 9  # at most


def bytes_of(positions: list[int]) -> int:
    """What positions may take in an entry."""
    return POSITION_BYTES * len(positions)


def always() -> bool:
    """Of a command: it is wanted whatever has become of whoever asked for it."""
    return True


def owner_of(command: AnyCommand) -> bytes:
    """The connection whose end undoes what a command has done; nothing where none does."""
    match command:
        case Publish() | Fragment() | Abandon():
            return connection_of(command.producer)
        case Subscribe():
            return connection_of(command.consumer)
        case CreateDestination():
            return command.owner
    return b""


class Pending(msgspec.Struct, gc=False):
    """A request whose outcome the primary tells.

    A command in the log is ordered again when the primary changes; what was asked on the link is `lost`, and so is the
    command of a connection that has ended, and one that nobody wants any more.
    """

    answer: Callable[[Answered], None]
    command: AnyCommand | None = None
    lost: Callable[[], None] | None = None
    members: Sequence[AnyCommand] = ()  # that must stand behind the command, in the same entry
    size: int = 0
    is_wanted: Callable[[], bool] = always


class Channel:
    """The way into one log."""

    __slots__ = (
        "_bulk",
        "_bulk_bytes",
        "_bulk_in_flight",
        "_commands",
        "_handle",
        "_little_at",
        "_refused",
        "_request",
        "_requests",
        "_sealed",
        "_size",
        "_then",
        "_until",
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
        self._refused: list[tuple[Pending, Answered]] = []  # to be told at the end of the turn
        self.in_flight: dict[int, list[Callable[[], None]]] = {}
        self.waiting: deque[tuple[bytes, list[Callable[[], None]]]] = deque()
        self._bulk: deque[tuple[bytes, list[Callable[[], None]]]] = deque()
        self._bulk_bytes = 0
        self._bulk_in_flight: dict[int, int] = {}  # by handle: bytes
        self._little_at = -math.inf  # when something else has left
        self._commands: list[AnyCommand] = []
        self._requests: list[int] = []
        self._then: list[Callable[[], None]] = []
        self._size = 0
        self._sealed = 0  # commands before this place belong to somebody's transaction: nothing joins them
        self._until = 0.0  # all of these commands may wait so long for others
        self._waiting_bytes = 0
        self._handle = 0
        self._request = 0

    def want(
        self, command: AnyCommand, then: Callable[[], None] | None = None, *, size: int = 0, until: float = 0.0
    ) -> None:
        """Orders a command; `then` is called once it is committed and all before it has been heard.

        It may wait for others until a time.
        """
        self._add(command, 0, then, size, until)

    def join(self, command: Acknowledge, *, until: float = 0.0) -> bool:
        """Lets an acknowledgement join the one before, where that is of the same consumer; False where it is not."""
        if self._size + bytes_of(command.positions) >= ENTRY_BYTES:
            return False
        last = self._commands[-1] if len(self._commands) > self._sealed else None
        if not isinstance(last, Acknowledge) or last.consumer != command.consumer:
            return False
        last.positions.extend(command.positions)
        self._size += bytes_of(command.positions)
        self._until = min(self._until, until)
        return True

    def request(
        self,
        command: AnyCommand,
        answer: Callable[[Answered], None],
        *,
        size: int = 0,
        members: Sequence[AnyCommand] = (),
        lost: Callable[[], None] | None = None,
        is_wanted: Callable[[], bool] = always,
    ) -> int:
        """Orders a command whose outcome the primary tells; its `members` stand behind it, in the same entry.

        `lost` is called instead of `answer` where its connection has ended before, or it would have to be ordered again
        and is not wanted any more. What is more than the bus takes is refused by itself: in an entry it would take
        along what others want.
        """
        self._request += 1
        size = size or len(encode_entry(Entry([command])))
        pending = Pending(answer, command, lost, members, size, is_wanted)
        if size > BATCH_BYTES_MAX:
            reason = f"what is asked takes {size} bytes; at most {BATCH_BYTES_MAX} go at once"
            self._refused.append((pending, Answered(self._request, 0, Misuse.__name__, reason)))
            return self._request
        self.pending[self._request] = pending
        self._repeat(self._request, pending)
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

    def _repeat(self, request: int, pending: Pending) -> None:
        """Orders a command with its members, be it again."""
        assert pending.command is not None
        if pending.members and self._size + pending.size >= ENTRY_BYTES:
            self._close_entry()  # both together might be more than the bus takes
        if not pending.members:
            self._add(pending.command, request, None, pending.size, 0.0)
            return
        self._until = 0.0
        self._commands += [pending.command, *pending.members]
        self._requests += [request, *(0 for _ in pending.members)]
        self._sealed = len(self._commands)
        self._size += pending.size + _COMMAND_BYTES * (1 + len(pending.members))
        if self._size >= ENTRY_BYTES:
            self._close_entry()

    def _add(self, command: AnyCommand, request: int, then: Callable[[], None] | None, size: int, until: float) -> None:
        if self.is_removed:
            return
        if isinstance(command, Forget):
            self._drop_requests(command.connection)
        if self._goes_with_bulk(command):
            payload = encode_entry(Entry([command], [request] if request else []))
            self._bulk.append((payload, [] if then is None else [then]))
            self._bulk_bytes += len(payload)
            return
        self._until = min(self._until, until) if self._commands else until
        self._commands.append(command)
        self._requests.append(request)
        if then is not None:
            self._then.append(then)
        self._size += size + _COMMAND_BYTES
        if self._size >= ENTRY_BYTES or isinstance(command, Move):
            # What follows a move is refused where the destination was: so that everybody can tell by the number of the
            # entry, a move is the last command of its own.
            self._close_entry()

    def _drop_requests(self, connection: bytes) -> None:
        """Nobody waits for these any more, and ordered again after the end of their connection they would be new."""
        for request, pending in list(self.pending.items()):
            if pending.command is not None and owner_of(pending.command) == connection:
                del self.pending[request]
                if pending.lost is not None:
                    pending.lost()

    def _goes_with_bulk(self, command: AnyCommand) -> bool:
        """Fragments, and what would make no sense before those that wait."""
        if isinstance(command, Publish):
            return bool(command.flags & Flag.STREAM)
        return isinstance(command, Fragment | Abandon) or (isinstance(command, Forget) and bool(self._bulk))

    def repeat_requests(self) -> None:
        """The primary that was to answer is gone: every command without an answer is ordered again.

        Each of them changes nothing when it is applied twice, as long as whoever asked for it waits: who went on
        elsewhere has asked there. What was asked on the link is lost.
        """
        for request, pending in list(self.pending.items()):
            if pending.command is not None and pending.is_wanted():
                self._repeat(request, pending)
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
            self._commands, self._requests, self._then, self._size, self._sealed = [], [], [], 0, 0

    def take_entries(self, now: float) -> list[tuple[int, bytes]]:
        """What is to be ordered now, with handles."""
        refused, self._refused = self._refused, []
        for pending, answer in refused:
            pending.answer(answer)
        if self._may_leave and self._leaves_at <= now:
            self._close_entry()
        taken = []
        while self.is_open and (self.waiting or self._has_room_for_bulk(now)):
            is_bulk = not self.waiting
            payload, then = (self._bulk if is_bulk else self.waiting).popleft()
            self._handle += 1
            self.in_flight[self._handle] = then
            if is_bulk:
                self._bulk_bytes -= len(payload)
                self._bulk_in_flight[self._handle] = len(payload)
            else:
                self._waiting_bytes -= len(payload)
                self._little_at = now
            taken.append((self._handle, payload))
        return taken

    def next_deadline(self) -> float:
        """When what waits for others has waited long enough, or somebody is to be told of a refusal."""
        if self._refused:
            return 0.0
        return self._leaves_at if self._may_leave else math.inf

    @property
    def _may_leave(self) -> bool:
        return bool(self._commands) and self.is_open and not self._waits_for_others

    @property
    def _leaves_at(self) -> float:
        return self._until if self._size < LITTLE_BYTES else 0.0

    @property
    def _waits_for_others(self) -> bool:
        return self._size < LITTLE_BYTES and len(self.in_flight) > len(self._bulk_in_flight)

    def _has_room_for_bulk(self, now: float) -> bool:
        limit = BULK_BYTES_MAX if now - self._little_at >= QUIET_S else BULK_BYTES_SHARED
        return bool(self._bulk) and sum(self._bulk_in_flight.values()) < limit

    @property
    def unordered_bytes(self) -> int:
        """What clients wanted and the bus has not taken yet.

        Bulk counts for a quarter: many clients may have their windows of it here before nobody is read any more.
        """
        return self._waiting_bytes + self._size + self._bulk_bytes // 4

    def committed(self, handle: int, sequence: int) -> None:
        """An own entry is in the log under this number, and all before it has been heard."""
        self.committing = sequence
        self._bulk_in_flight.pop(handle, None)
        for then in self.in_flight.pop(handle, ()):
            then()

    def lost(self, handle: int) -> None:
        """Nobody knows what became of an own entry."""
        self._bulk_in_flight.pop(handle, None)
        self.in_flight.pop(handle, None)

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
            "bulk_waiting": len(self._bulk),
            "requests": len(self.pending),
            "cache": self.cache.describe(),
        }
