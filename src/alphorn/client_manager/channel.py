"""One channel as a Client Manager sees it: what is to be ordered, what is under way, and who its primary is.

No clock makes anybody wait to fill a batch: whatever was wanted within a turn is one log entry. What is wanted while
one is under way waits for that, unless it is much, and shares the next; an entry costs every member the same work
whatever is in it, so that where messages come one by one each of them is sooner through. What nobody waits for, an
acknowledgement, does so for a moment even if none is under way. What is wanted while the bus takes nothing more becomes
larger entries afterwards.

Commands of one connection leave in the order in which they were wanted, and those of all do while they fit into the
next entry. What does not waits in lines, one for each connection, from which further entries are filled in turn
(turns.py). Only so much work is under way at a time, be it many bytes or many commands, so one who wants very much
keeps others waiting for no more than that.

Bulk, which is fragments and what must come after them, has entries and lines of its own: only so much of it is under
way at a time, whoever it is from, and everything else passes by. Whatever is not bulk is durable only behind the bulk
that is under way when it leaves, so that is less while there is such traffic.
"""

import math
from collections.abc import Callable, Sequence

from alphorn.client_manager.cache import ReceiveCache
from alphorn.client_manager.forsaking import Forsaking, Owned
from alphorn.client_manager.turns import Turns
from alphorn.client_manager.wishes import Pending, Then, Wish, always, is_own, owner_of, speaker_of
from alphorn.model.commands import (
    Abandon,
    Acknowledge,
    AnyCommand,
    Entry,
    Forget,
    Fragment,
    Move,
    Publish,
    connection_of,
    encode_entry,
)
from alphorn.model.errors import Misuse
from alphorn.model.link import Answered
from alphorn.model.messages import BATCH_BYTES_MAX, Flag

ENTRY_BYTES = 512 << 10  # an entry is closed when it has become this large,
ENTRY_WORK = 2 << 20  # or is so much work (wishes.py): a replica does nothing else while it applies it
LITTLE_BYTES = 16 << 10  # commands that take less wait for the entry that is under way
UNDER_WAY_MAX = 8 << 20  # of work that is not committed, when the next entry leaves: more than the bus has under way
BULK_BYTES_MAX = 3 << 20  # of fragments under way, of all clients, before the next one leaves,
BULK_BYTES_SHARED = 512 << 10  # and where something else has left within
QUIET_S = 1.0
_COMMAND_BYTES = 64
POSITION_BYTES = 9  # at most


def bytes_of(positions: list[int]) -> int:
    """What positions may take in an entry."""
    return POSITION_BYTES * len(positions)


class Channel:
    """The way into one log."""

    __slots__ = (
        "_bulk",
        "_bulk_in_flight",
        "_commands",
        "_entry_work",
        "_forsaking",
        "_goes_first",
        "_handle",
        "_is_full",
        "_lines",
        "_little_at",
        "_own",
        "_refused",
        "_request",
        "_requests",
        "_sealed",
        "_shares",
        "_size",
        "_then",
        "_under_way",
        "_under_way_max",
        "_until",
        "_work",
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
        "repeats",
    )

    def __init__(
        self,
        *,
        cache_bytes: int,
        is_removed: bool = False,
        entry_work: int = ENTRY_WORK,
        under_way_max: int = UNDER_WAY_MAX,
    ) -> None:
        self._entry_work = entry_work
        self._under_way_max = under_way_max
        self.is_removed = is_removed  # nobody is there any more: nothing is ordered
        self.cache = ReceiveCache(cache_bytes)
        self.primary = ""  # name of the Message Manager that serves, "" while none is known
        self.epoch = 0
        self.committing = 0  # number of the own entry whose outcome is just being told
        self.heard = 0  # the newest entry of the log that has come
        self.repeats = 0  # how often what had no answer was ordered again
        self.links: set[str] = set()
        self.is_open = True
        self.pending: dict[int, Pending] = {}
        self._refused: list[tuple[Pending, Answered]] = []  # to be told at the end of the turn
        self.in_flight: dict[int, list[Then]] = {}
        self._forsaking = Forsaking()
        self._under_way: dict[int, int] = {}  # by handle, of what is no bulk: work
        self._lines: Turns[Wish] = Turns()  # what does not fit into the next entry
        self._bulk: Turns[tuple[bytes, Wish]] = Turns()  # as entries; a Forget is none yet
        self._bulk_in_flight: dict[int, int] = {}  # by handle: bytes
        self._goes_first: set[int] = set()  # handles of what is little, for which the next fragment waits
        self._little_at = -math.inf  # when something else has left
        self._begin_entry()
        self._until = 0.0  # all of these commands may wait so long for others
        self._handle = 0
        self._request = 0

    def _begin_entry(self) -> None:
        """The next entry, which is filled; what does not fit any more waits in lines."""
        self._commands: list[AnyCommand] = []
        self._requests: list[int] = []
        self._then: list[Then] = []
        self._own: list[Owned] = []
        self._size = 0
        self._work = 0
        self._shares: dict[bytes, int] = {}  # whose bytes these are
        self._sealed = 0  # commands before this place belong to somebody's transaction: nothing joins them
        self._is_full = False

    def want(
        self,
        command: AnyCommand,
        then: Then | None = None,
        *,
        size: int = 0,
        until: float = 0.0,
        whose: bytes = b"",
    ) -> None:
        """Orders a command; `then` is called once it is committed and all before it has been heard.

        It may wait for others until a time. It is `whose` connection's turn, where the command itself does not say.
        """
        self._add(Wish(command, size + _COMMAND_BYTES, 0, then, until), whose)

    def want_last(self, command: AnyCommand, then: Then) -> None:
        """Orders a command in such a way that `then` is called once all that was wanted before is committed."""
        lines = {*self._lines, b""}
        left = len(lines)

        def on_committed() -> None:
            nonlocal left
            left -= 1
            if not left:
                then()

        for whose in lines:
            self.want(command, on_committed, whose=whose)

    def join(self, command: Acknowledge, *, until: float = 0.0) -> bool:
        """Lets an acknowledgement join the one before, where that is of the same consumer; False where it is not."""
        size = bytes_of(command.positions)
        if self._lines and (line := self._lines.last_of(connection_of(command.consumer))) is not None:
            return self._join_line(line, command, size)
        if self._size + size >= ENTRY_BYTES:
            return False
        last = self._commands[-1] if len(self._commands) > self._sealed else None
        if not isinstance(last, Acknowledge) or last.consumer != command.consumer:
            return False
        last.positions.extend(command.positions)
        self._size += size
        whose = connection_of(command.consumer)
        self._shares[whose] = self._shares.get(whose, 0) + size
        self._until = min(self._until, until)
        return True

    def _join_line(self, wish: Wish, command: Acknowledge, size: int) -> bool:
        last = wish.command
        if not isinstance(last, Acknowledge) or last.consumer != command.consumer or wish.size + size >= ENTRY_BYTES:
            return False
        last.positions.extend(command.positions)
        self._lines.grow_last(connection_of(command.consumer), size)
        return True

    def request(
        self,
        command: AnyCommand,
        answer: Callable[[Answered], None],
        *,
        size: int = 0,
        members: Sequence[AnyCommand] = (),
        lost: Then | None = None,
        whose: bytes = b"",
        is_wanted: Callable[[], bool] = always,
    ) -> int:
        """Orders a command whose outcome the primary tells; its `members` stand behind it, in the same entry.

        `lost` is called instead of `answer` where its connection has ended before, or it would have to be ordered again
        and is not wanted any more. What is more than the bus takes is refused by itself: in an entry it would take
        along what others want.
        """
        self._request += 1
        size = size or len(encode_entry(Entry([command])))
        pending = Pending(answer, command, lost, members, size, whose, is_wanted)
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

    def ask(self, answer: Callable[[Answered], None], lost: Then | None = None) -> int:
        """A number for a request to the primary on the link; `lost` is called when that primary is gone."""
        self._request += 1
        self.pending[self._request] = Pending(answer, None, lost)
        return self._request

    def _repeat(self, request: int, pending: Pending) -> None:
        """Orders a command with its members, be it again."""
        assert pending.command is not None
        pending.has_left = False
        size = pending.size + _COMMAND_BYTES * (1 + len(pending.members))
        self._add(Wish(pending.command, size, request, members=pending.members), pending.whose)

    def _add(self, wish: Wish, whose: bytes) -> None:
        if self.is_removed:
            return
        if self._forsaking.is_under_way:
            self._forsaking.keep(wish, whose)
            return
        command = wish.command
        whose = whose or speaker_of(command)
        if isinstance(command, Forget):
            self._drop_requests(command.connection)
        if self._goes_with_bulk(command, whose):
            self._add_bulk(wish, whose)
        elif self._lines or not self._fits(wish):
            self._lines.add(whose, wish, size=wish.size, work=wish.work)
        else:
            self._put(wish, whose)

    def _add_bulk(self, wish: Wish, whose: bytes) -> None:
        payload = b""
        if not isinstance(wish.command, Forget):
            payload = encode_entry(Entry([wish.command], [wish.request] if wish.request else []))
        self._bulk.add(whose, (payload, wish), size=len(payload), work=len(payload))

    def _fits(self, wish: Wish) -> bool:
        """Whether it may go into the next entry; with its members it might become more than the bus takes."""
        if wish.members and self._commands and self._size + wish.size >= ENTRY_BYTES:
            self._is_full = True
        return not self._is_full

    def _put(self, wish: Wish, whose: bytes) -> None:
        """Puts a command into the next entry."""
        self._until = min(self._until, wish.until) if self._commands else wish.until
        self._commands.append(wish.command)
        self._requests.append(wish.request)
        if wish.members:
            self._commands += wish.members
            self._requests += [0] * len(wish.members)
            self._sealed = len(self._commands)
        if wish.then is not None:
            self._then.append(wish.then)
        if is_own(wish, whose):
            self._own.append((wish, whose))
        self._size += wish.size
        self._work += wish.work
        self._shares[whose] = self._shares.get(whose, 0) + wish.size
        # What follows a move is refused where the destination was: so that everybody can tell by the number of the
        # entry, a move is the last command of its own.
        is_large = self._size >= ENTRY_BYTES or self._work >= self._entry_work
        self._is_full = is_large or isinstance(wish.command, Move)

    def _fill(self) -> None:
        """Puts into the next entry what waits in lines, in turn, as far as it fits."""
        lines = self._lines
        while lines and self._fits(lines.first()):
            whose, wish = lines.take()
            if self._is_wanted(wish):
                self._put(wish, whose)

    def _is_wanted(self, wish: Wish) -> bool:
        """Whether whoever asked for it still waits; who has gone on elsewhere has asked there."""
        pending = self.pending.get(wish.request) if wish.request else None
        if pending is None or pending.is_wanted():
            return True
        del self.pending[wish.request]
        pending.lose()
        return False

    def _drop_requests(self, connection: bytes) -> None:
        """Nobody waits for these any more, and ordered again after the end of their connection they would be new."""
        for request, pending in list(self.pending.items()):
            if pending.command is not None and owner_of(pending.command) == connection:
                del self.pending[request]
                pending.lose()

    def _goes_with_bulk(self, command: AnyCommand, whose: bytes) -> bool:
        """Fragments, and what would make no sense before those that wait."""
        if isinstance(command, Publish):
            return bool(command.flags & Flag.STREAM)
        is_last = isinstance(command, Forget) and bool(self._bulk) and self._bulk.last_of(whose) is not None
        return is_last or isinstance(command, Fragment | Abandon)

    def repeat_requests(self) -> None:
        """The primary that was to answer is gone: every command that has left without an answer is ordered again.

        Each of them changes nothing when it is applied twice, as long as whoever asked for it waits: who went on
        elsewhere has asked there. What was asked on the link is lost.
        """
        self.repeats += 1
        for request, pending in list(self.pending.items()):
            if pending.command is not None and not pending.has_left:
                continue
            if pending.command is not None and pending.is_wanted():
                self._repeat(request, pending)
                continue
            del self.pending[request]
            pending.lose()

    def take_entries(self, now: float) -> list[tuple[int, bytes]]:
        """What is to be ordered now, with handles."""
        refused, self._refused = self._refused, []
        for pending, answer in refused:
            pending.answer(answer)
        for wish, whose in self._forsaking.take(self.pending) if self._forsaking.is_under_way else ():
            self._add(wish, whose)
        taken = self._take_little(now) if self._commands else []
        has_ended = False
        while self._bulk and self._has_room_for_bulk(now):
            _, (payload, wish) = self._bulk.take()
            if payload:
                taken.append(self._depart(payload, [wish.request], [] if wish.then is None else [wish.then], []))
                self._bulk_in_flight[self._handle] = len(payload)
            else:  # a connection has ended, and this comes after all that it wanted
                self._add(wish, b"")
                has_ended = True
        return taken + self._take_little(now) if has_ended else taken

    def _take_little(self, now: float) -> list[tuple[int, bytes]]:
        """What is no bulk."""
        taken = []
        is_alone = not self._under_way
        while self._may_leave(is_alone=is_alone) and self._leaves_at <= now:
            taken.append(self._leave(now))
            self._fill()
        return taken

    def _leave(self, now: float) -> tuple[int, bytes]:
        requests = self._requests if any(self._requests) else []
        payload = encode_entry(Entry(self._commands, requests))
        taken = self._depart(payload, requests, self._then, self._own)
        self._under_way[self._handle] = self._work
        self._little_at = now
        self._begin_entry()
        return taken

    def _depart(self, payload: bytes, requests: list[int], then: list[Then], own: list[Owned]) -> tuple[int, bytes]:
        for request in requests:
            if request and (pending := self.pending.get(request)) is not None:
                pending.has_left = True
        self._handle += 1
        self.in_flight[self._handle] = then
        self._forsaking.depart(self._handle, requests, own)
        return self._handle, payload

    def next_deadline(self) -> float:
        """When what waits for others has waited long enough, or somebody is to be told of a refusal."""
        if self._refused or self._forsaking.is_under_way:
            return 0.0
        return self._leaves_at if self._may_leave(is_alone=not self._under_way) else math.inf

    def _may_leave(self, *, is_alone: bool) -> bool:
        """Whether the next entry may; what is little waits for others, unless none were under way."""
        if not self._commands or not self.is_open:
            return False
        is_much = self._is_full or self._size >= LITTLE_BYTES
        return (is_alone or is_much) and sum(self._under_way.values()) < self._under_way_max

    @property
    def _leaves_at(self) -> float:
        return self._until if self._size < LITTLE_BYTES and not self._is_full else 0.0

    def _has_room_for_bulk(self, now: float) -> bool:
        if self._goes_first:
            return False
        limit = BULK_BYTES_MAX if now - self._little_at >= QUIET_S else BULK_BYTES_SHARED
        return self.is_open and sum(self._bulk_in_flight.values()) < limit

    @property
    def unordered_bytes(self) -> int:
        """What clients wanted and the bus has not taken yet.

        Bulk counts for a quarter: many clients may have their windows of it here before nobody is read any more.
        """
        return self._lines.size + self._size + self._bulk.size // 4

    def is_over(self, whose: bytes, bytes_max: int) -> bool:
        """Whether so much waits here, and of this connection no less than its share of it."""
        return self.unordered_bytes >= bytes_max and self.unordered_of(whose) >= self.share_of(bytes_max)

    def share_of(self, bytes_max: int) -> int:
        """What of so many bytes is one connection's share, among those that have something waiting, about.

        It is asked for often while there is much to do, so who waits in several places is not told from others.
        """
        return bytes_max // max(1, self._lines.count, self._bulk.count, len(self._shares))

    def unordered_of(self, whose: bytes) -> int:
        """What a connection wanted and the bus has not taken yet."""
        return self._lines.size_of(whose) + self._shares.get(whose, 0) + self._bulk.size_of(whose) // 4

    def greedy(self, bytes_max: int) -> list[bytes]:
        """The connections that have more waiting than their share of so many bytes, while that much waits."""
        if self.unordered_bytes < bytes_max:
            return []
        share, waiting = self.share_of(bytes_max), {*self._lines, *self._bulk, *self._shares}
        return [whose for whose in waiting if self.unordered_of(whose) >= share]

    def committed(self, handle: int, sequence: int) -> None:
        """An own entry is in the log under this number, and all before it has been heard."""
        self.committing = sequence
        for then in self._landed(handle):
            then()

    def lost(self, handle: int) -> None:
        """Nobody knows what became of an own entry."""
        self._landed(handle)

    def forsake(self, handle: int, reason: str) -> None:
        """An own entry is never ordered (forsaking.py), nor is what waits here for clients; these must be gone."""
        over = self._forsaking.lose(handle)
        self._landed(handle)
        if not self._forsaking.is_under_way:
            over += [
                request for request, each in self.pending.items() if each.command is not None and not each.has_left
            ]
            self._forsaking.begin(self._take_waiting())
        self._forsaking.settle(self.pending, over, reason)

    def _take_waiting(self) -> list[Owned]:
        """Lets go of all that has not left; gives what of it could be wanted again."""
        waiting = self._own
        self._begin_entry()
        while self._lines:
            whose, wish = self._lines.take()
            waiting.append((wish, whose))
        while self._bulk:
            whose, (_, wish) = self._bulk.take()
            waiting.append((wish, whose))
        return waiting

    def _landed(self, handle: int) -> list[Then]:
        self._forsaking.landed(handle)
        self._under_way.pop(handle, None)
        self._goes_first.discard(handle)
        if self._bulk_in_flight.pop(handle, None) is not None and sum(self._under_way.values()) < BULK_BYTES_SHARED:
            # It was behind this fragment and is all but done: the next one would take the processors from it. Only what
            # is under way when a fragment ends goes first, and none leaves meanwhile, so they do not wait for ever;
            # where there is more work under way than a fragment's, nobody counts milliseconds, and they do not wait.
            self._goes_first.update(self._under_way)
        return self.in_flight.pop(handle, [])

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
            "waiting": len(self._lines),
            "bulk_waiting": len(self._bulk),
            "requests": len(self.pending),
            "cache": self.cache.describe(),
        }
