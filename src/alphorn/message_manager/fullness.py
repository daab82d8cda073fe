"""Which destinations are full, as the primary tells Client Managers, and whether this replica's disk has room.

Theory of operation. The engine never lets a destination that blocks grow beyond `max_length`; what does not fit is
postponed and stays with its producer. Telling producers early only saves them the trip: a destination is called full
when it reaches its limit (the high mark), and is called so until it has fallen to the low mark, so that one message
consumed does not wake every producer for one place. A disk has no such judge behind it, so its high mark lies below
the limit by as much as may be under way when it is reached (`reserve`), and nobody is let in before the low mark.
What prepared transactions may bring or give back counts as if it were there, until they are decided.

All of it is soft. Only destinations with a limit are looked at, and only when something happened to them.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from alphorn.message_manager.effects import Created, Deleted, Effect, Finished, Gone, Left, Unsubscribed
from alphorn.message_manager.publishing import fullness_of
from alphorn.message_manager.queue import Queue
from alphorn.message_manager.topic import Topic
from alphorn.model.commands import AnyCommand, Publish
from alphorn.model.destinations import Policy

_SLACK = 8  # a destination is free again when it has fallen by this part of its limit, and a disk too
_UNMEASURED_BYTES = 1 << 20  # of the log may always come before a disk is measured again,
_UNMEASURED_SHARE = 64  # and this part of what is let in still


class Sources(Protocol):
    """The engine, as far as fullness needs it."""

    @property
    def destinations(self) -> Mapping[int, Queue | Topic]:
        """All queues and topics by number."""

    def occupied(self, number: int) -> int:
        """Messages that count against a destination's limit."""


class Space(msgspec.Struct, frozen=True, kw_only=True):
    """A replica's disk, in bytes."""

    used: int
    limit: int
    reserve: int  # what may still come when nobody is let in any more, and what the replica itself needs
    left: int | None = None  # on its file system, where that and not the store's own limit says how far it may grow

    @property
    def high(self) -> int:
        """From here on no messages are let in."""
        return self.limit - self.reserve

    @property
    def low(self) -> int:
        """From here down they are again."""
        return self.high - self.limit // _SLACK

    @property
    def unmeasured_max(self) -> int:
        """How much of the log may come before it is measured again: the less, the nearer the high mark is.

        Pages of tables take more than what is in them, even many times as much where that is little.
        """
        return max(_UNMEASURED_BYTES, (self.high - self.used) // _UNMEASURED_SHARE)


def low_mark(limit: int) -> int:
    """How far a full destination must have fallen before it is called free."""
    return limit - max(1, limit // _SLACK)


class Fullness:
    """One primary's view of its destinations. `take_changes` gives what is news."""

    __slots__ = ("_bounded", "_changes", "_full", "_sources")

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._bounded: set[int] = set()
        self._full: dict[int, str] = {}
        self._changes: dict[int, str] = {}
        for number, source in sources.destinations.items():
            self._notice(number, source.policy)
        self._look(list(self._bounded))

    @property
    def reasons(self) -> dict[int, str]:
        """All that are full, with the reason."""
        return self._full

    def on_applied(self, commands: Sequence[AnyCommand], effects: Sequence[Effect]) -> None:
        """The engine has applied commands, with these effects. Not every message that comes in is an arrival."""
        touched: dict[int, None] = {}
        if self._bounded:
            touched = {c.destination: None for c in commands if type(c) is Publish and c.destination in self._bounded}
        for effect in effects:
            match effect:
                case Created():
                    self._notice(effect.number, effect.policy)
                    touched[effect.number] = None
                case Deleted() | Left():
                    self._bounded.discard(effect.number)
                    self._free(effect.number)
                case Finished() | Gone() | Unsubscribed() if effect.destination in self._bounded:
                    touched[effect.destination] = None
        if touched:
            self._look(touched)

    def take_changes(self) -> list[tuple[int, str]]:
        """Destinations that became full, with the reason, or free, without one."""
        changes, self._changes = self._changes, {}
        return list(changes.items())

    def _notice(self, number: int, policy: Policy) -> None:
        if policy.max_length and policy.overflow == "block":
            self._bounded.add(number)
        else:
            self._bounded.discard(number)

    def _look(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            source = self._sources.destinations.get(number)
            if source is None or number not in self._bounded:
                self._free(number)
                continue
            limit, count = source.policy.max_length, self._sources.occupied(number)
            if number in self._full:
                if count <= low_mark(limit):
                    self._free(number)
            elif count >= limit:
                self._full[number] = self._changes[number] = fullness_of(source, count)

    def _free(self, number: int) -> None:
        if self._full.pop(number, None) is not None:
            self._changes[number] = ""


class Waiting:
    """How many producers wait, as Client Managers say; for people to see."""

    __slots__ = ("_of",)

    def __init__(self) -> None:
        self._of: dict[int, dict[int, int]] = {}  # link → destination → producers

    def on_told(self, number: int, producers: Iterable[tuple[int, int]]) -> None:
        """A Client Manager tells what has changed."""
        mine = self._of.setdefault(number, {})
        for destination, count in producers:
            if count:
                mine[destination] = count
            else:
                mine.pop(destination, None)

    def leave(self, number: int) -> None:
        """A Client Manager's link is gone."""
        self._of.pop(number, None)

    def count(self, destination: int) -> int:
        """All producers that wait for a destination."""
        return sum(counts.get(destination, 0) for counts in self._of.values())


def _reason(name: str, space: Space) -> str:
    in_use = f"the store of {name} has {space.used >> 20} MiB of {space.limit >> 20} MiB in use"
    if space.left is None:
        return f"{in_use}; it waits until messages are consumed, or for a larger store_bytes_max"
    return (
        f"{in_use}, its disk has {space.left >> 20} MiB left and {space.reserve >> 20} MiB are kept for what is under "
        "way; it waits until messages are consumed, or for more space on the disk"
    )


class DiskGauge:
    """Whether a replica's disk has room for messages, between two marks."""

    __slots__ = ("reason", "space")

    def __init__(self) -> None:
        self.reason = ""  # why not
        self.space = Space(used=0, limit=0, reserve=0)

    def measure(self, name: str, space: Space) -> bool:
        """Takes in a measurement of the Message Manager of this name; says whether the answer changed."""
        self.space = space
        before = bool(self.reason)
        if space.used >= space.high:
            self.reason = _reason(name, space)
        elif space.used <= space.low:
            self.reason = ""
        return bool(self.reason) is not before
