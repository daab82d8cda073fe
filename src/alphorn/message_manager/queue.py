"""A queue: each message to one consumer. It knows what is pending and where that is in the log.

Keys are known where the policy asks for them (groups, last value), histories where messages came here dead. Segments
that nobody needs any more are swept when they have doubled, which nobody can tell from outside.
"""

from alphorn.message_manager.backlog import Backlog, Piece, within
from alphorn.message_manager.histories import Histories
from alphorn.message_manager.producers import Producers
from alphorn.message_manager.segments import Run, Segments
from alphorn.message_manager.timeline import Timeline
from alphorn.model.destinations import Destination, Policy
from alphorn.model.messages import Flag
from alphorn.model.ranges import Range, RangeSet

SEGMENTS_MIN = 1024  # fewer are not worth a sweep


class Queue:
    """One queue of a channel."""

    __slots__ = (
        "_sweep_at",
        "backlog",
        "destination",
        "histories",
        "keys",
        "latest",
        "next_position",
        "number",
        "owner",
        "policy",
        "producers",
        "segments",
        "timeline",
        "watched",
    )

    def __init__(self, number: int, destination: Destination, policy: Policy, owner: bytes = b"") -> None:
        self.number = number
        self.destination = destination
        self.owner = owner  # the connection of a temporary one
        self.producers: Producers | None = None  # of one that came from another channel: counters for it alone
        self.next_position = 1
        self.segments = Segments()
        self.backlog = Backlog()
        self.keys: dict[int, str] = {}  # position → key, of pending messages
        self.latest: dict[str, int] = {}  # key → its newest position, of a last value queue
        self.histories = Histories()
        self.timeline = Timeline()
        self._sweep_at = SEGMENTS_MIN
        self.set_policy(policy)

    def set_policy(self, policy: Policy) -> None:
        """What holds for messages from now on; limits hold for all."""
        self.policy = policy
        watched = Flag.EXPIRATION | Flag.DELAY
        if policy.priority is None:
            watched |= Flag.PRIORITY
        if policy.groups or policy.last_value:
            watched |= Flag.KEY
        self.watched = int(watched)  # batches with other flags only are plain here
        self.latest = {key: position for position, key in sorted(self.keys.items())} if policy.last_value else {}

    @property
    def count(self) -> int:
        """Messages that are pending."""
        return self.backlog.count

    @property
    def occupied(self) -> int:
        """Messages that count against its limit, without those that prepared transactions will bring."""
        return self.backlog.occupied

    @property
    def priorities(self) -> dict[int, RangeSet]:
        """The pending positions of other than the default priority."""
        return self.backlog.priorities

    @property
    def has_clock(self) -> bool:
        """Whether it matters when messages came."""
        return self.policy.ttl > 0

    @property
    def span_ms(self) -> int:
        """How long it matters when a message came."""
        return int(self.policy.ttl * 1000)

    def backlog_of(self, subscription: int) -> Backlog | None:
        """What is still to be given out; a queue has this under 0 only."""
        return None if subscription else self.backlog

    def backlogs(self) -> list[tuple[int, Backlog]]:
        """All backlogs with their subscriptions."""
        return [(0, self.backlog)]

    def store(self, run: Run) -> int:
        """New messages, after all others; gives the last one's position. `run.position` must be `next_position`."""
        self.next_position = run.position + run.count
        self.segments.append(run)
        self.backlog.arrive(run.position, self.next_position - 1)
        if len(self.segments) >= self._sweep_at:
            self.sweep()
            self._sweep_at = 2 * len(self.segments) + SEGMENTS_MIN
        return self.next_position - 1

    def set_key(self, position: int, key: str) -> int | None:
        """Notes a new message's key; gives the position that it takes the place of, in a last value queue."""
        self.keys[position] = key
        if not self.policy.last_value:
            return None
        older = self.latest.get(key)
        self.latest[key] = position
        return older

    def remove(self, subscription: int, first: int, last: int) -> list[Range]:
        """These are done with; gives those that were pending."""
        assert subscription == 0
        removed = self.backlog.remove(first, last)
        if self.keys:
            for start, end in removed:
                self._forget_keys(start, end)
        return removed

    def drop_outdated(self) -> list[Range]:
        """Where a queue has become one of last values, only the newest message of a key stays; gives what was let go.

        So no key is there twice, and what follows from the keys after a restore is what was there before.
        """
        if len(self.keys) == len(self.latest) or not self.policy.last_value:
            return []
        outdated = sorted(position for position, key in self.keys.items() if self.latest[key] != position)
        return [part for position in outdated for part in self.remove(0, position, position)]

    def reserve(self, subscription: int, first: int, last: int) -> tuple[list[Piece], list[tuple[int, str]]]:
        """A prepared transaction consumes these; gives what is known of them, and their keys."""
        assert subscription == 0
        keys = sorted((position, self.keys[position]) for position in within(self.keys, first, last))
        pieces = self.backlog.reserve(first, last)
        self._forget_keys(first, last)
        return pieces, keys

    def restore_keys(self, keys: list[tuple[int, str]]) -> None:
        """Reserved messages are back. Where a newer value came meanwhile, the older one is outdated."""
        for position, key in keys:
            if self.policy.last_value and key in self.latest:
                self.remove(0, position, position)
            elif position in self.backlog.pending:
                self.set_key(position, key)

    def needed(self) -> list[RangeSet]:
        """What may still be given out."""
        return [self.backlog.pending]

    def holds(self, first: int, last: int) -> bool:
        """Whether any of these may still be given out."""
        return bool(self.backlog.kept.intersection(first, last))

    def history_of(self, position: int) -> bytes:
        """Why this message is dead, as consumers see it; empty for one that is not."""
        history = self.histories.find(position)
        return history.encode() if history else b""

    def sweep(self) -> None:
        """Lets go of what belongs to no pending message."""
        kept = self.backlog.kept
        self.segments.sweep([kept])
        if self.histories:
            self.histories.sweep(kept)

    def restore(self) -> None:
        """Works out what follows from the rest, after a checkpoint was read."""
        self.backlog.restore()
        self.set_policy(self.policy)

    def describe(self) -> dict[str, object]:
        """Figures for people."""
        self.sweep()
        return {
            "name": str(self.destination),
            "number": self.number,
            "depth": self.count,
            "deferred": len(self.backlog.deferred),
            "returned": len(self.backlog.counts),
            "segments": len(self.segments),
            "bytes": self.segments.size,
            "next_position": self.next_position,
            "temporary": bool(self.owner),
        }

    def _forget_keys(self, first: int, last: int) -> None:
        for position in within(self.keys, first, last):
            key = self.keys.pop(position)
            if self.latest.get(key) == position:
                del self.latest[key]

    @property
    def bytes(self) -> int:
        """Bytes of the batches that hold pending messages; costs by segments."""
        self.sweep()
        return self.segments.size
