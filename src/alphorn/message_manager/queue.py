"""A queue: each message to one consumer. It knows what is pending and where that is in the log.

Keys are known where the policy asks for them (groups, last value), histories where messages came here dead. Segments
that nobody needs any more are swept when they have doubled, which nobody can tell from outside.

In a queue of last values a newer message takes the place of an older one, whoever may have that. A program that was
handed the older one has received it: a transaction may still consume it, once.

Where its policy retains, all messages from one position on can be read in the log, whatever became of them. Nobody is
given any of them again: what is given out is what is pending, here as in any other queue.
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
REPLACED_MAX = 10_000  # intervals of messages that are known to have been replaced


class Queue:
    """One queue of a channel."""

    __slots__ = (
        "_sweep_at",
        "backlog",
        "destination",
        "has_clock",
        "histories",
        "is_retaining",
        "kept_from",
        "keys",
        "latest",
        "next_position",
        "number",
        "owner",
        "policy",
        "producers",
        "replaced",
        "retained_bytes",
        "retained_from",
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
        self.replaced = RangeSet()  # what newer messages took the place of, and nobody has consumed since; the newest
        self.histories = Histories()
        self.timeline = Timeline()
        self.is_retaining = False  # whether messages are kept for readers of the log, whoever has consumed them
        self.retained_from = 1  # where it is: from this position on
        self.retained_bytes = 0
        self.kept_from = 0  # of what arrived with this log entry or later, nothing that was kept is kept no more
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
        if not policy.last_value:
            self.replaced = RangeSet()
        is_retaining = policy.retain_s > 0 or policy.retain_bytes > 0
        if not is_retaining:
            self.outgrow(self.next_position)
        elif not self.is_retaining:
            self.retained_from = self.next_position  # of what came before, some was consumed
        self.is_retaining = is_retaining
        self.has_clock = policy.ttl > 0 or is_retaining  # whether it matters when messages came

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
    def span_ms(self) -> int:
        """The shortest time for which it matters when a message came; 0 where it is no time that matters."""
        return int(min((span for span in (self.policy.ttl, self.policy.retain_s) if span > 0), default=0.0) * 1000)

    @property
    def retained(self) -> RangeSet:
        """What is kept for readers of the log."""
        last = self.next_position - 1
        return RangeSet([(self.retained_from, last)] if self.is_retaining and self.retained_from <= last else [])

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
        if self.is_retaining:
            self.retained_bytes += run.size
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
        if self.replaced:
            self.replaced.remove(first, last)
        if self.is_retaining:
            self._notice_unreadable(removed)
        if self.keys:
            for start, end in removed:
                self._forget_keys(start, end)
        return removed

    def note_replaced(self, positions: RangeSet) -> None:
        """Newer messages have taken the place of these, which consumers may have."""
        self.replaced.update(positions)
        while self.replaced.intervals > REPLACED_MAX:
            self.replaced.remove(*next(iter(self.replaced)))

    def drop_outdated(self) -> list[Range]:
        """Where a queue has become one of last values, only the newest message of a key stays; gives what was let go.

        So no key is there twice, and what follows from the keys after a restore is what was there before.
        """
        if len(self.keys) == len(self.latest) or not self.policy.last_value:
            return []
        outdated = sorted(position for position, key in self.keys.items() if self.latest[key] != position)
        removed = [part for position in outdated for part in self.remove(0, position, position)]
        self.note_replaced(RangeSet(removed))
        return removed

    def reserve(self, subscription: int, first: int, last: int) -> tuple[list[Piece], list[tuple[int, str]]]:
        """A prepared transaction consumes these; gives what is known of them, and their keys."""
        assert subscription == 0
        keys = sorted((position, self.keys[position]) for position in within(self.keys, first, last))
        pieces = self.backlog.reserve(first, last)
        self.replaced.remove(first, last)
        if self.is_retaining:
            self._notice_unreadable([(piece.first, piece.last) for piece in pieces])
        self._forget_keys(first, last)
        return pieces, keys

    def restore_keys(self, keys: list[tuple[int, str]]) -> None:
        """Reserved messages are back. Where a newer value came meanwhile, the older one is outdated."""
        for position, key in keys:
            if self.policy.last_value and key in self.latest:
                self.remove(0, position, position)
            elif position in self.backlog.pending:
                self.set_key(position, key)

    def readable(self, first: int, last: int) -> list[Range]:
        """Those of these that readers of the log may have: what is pending, and what is kept for them."""
        if not self.is_retaining:
            return self.backlog.pending.intersection(first, last)
        found = self.backlog.pending.intersection(first, min(last, self.retained_from - 1))
        return found + self.retained.intersection(first, last)

    def outgrow(self, through: int) -> None:
        """Messages through this position were kept long enough; of them, only what is pending can still be read."""
        through = min(through, self.next_position - 1)
        if not self.is_retaining or through < self.retained_from:
            return
        gone, pending = through, self.backlog.pending.intersection(self.retained_from, through)
        if pending and pending[-1][1] == through:
            gone = pending[-1][0] - 1
        if gone >= self.retained_from:
            self._miss(gone)
        self.retained_bytes -= self._size_of(self.retained_from, through)
        self.retained_from = through + 1

    def let_go_of_bytes(self) -> None:
        """Lets go of the oldest batches until the rest is as small as the policy says."""
        excess = self.retained_bytes - self.policy.retain_bytes
        if self.policy.retain_bytes <= 0 or excess <= 0:
            return
        through = 0
        for run in self.segments.runs(self.retained_from, self.next_position - 1):
            through, excess = run.position + run.count - 1, excess - run.size
            if excess <= 0:
                break
        self.outgrow(through)

    def count_bytes(self) -> None:
        """Counts what is kept anew, where it lies in other batches than before."""
        self.retained_bytes = sum(self._size_of(*part) for part in self.retained)

    def needed(self) -> list[RangeSet]:
        """What may still be given out, or read in the log."""
        return [self.backlog.pending, self.retained] if self.is_retaining else [self.backlog.pending]

    def holds(self, first: int, last: int) -> bool:
        """Whether any of these may still be given out."""
        return bool(self.backlog.kept.intersection(first, last))

    def history_of(self, position: int) -> bytes:
        """Why this message is dead, as consumers see it; empty for one that is not."""
        history = self.histories.find(position)
        return history.encode() if history else b""

    def sweep(self) -> None:
        """Lets go of what belongs to no message that is pending or kept."""
        kept = self.backlog.kept
        self.segments.sweep([kept, self.retained] if self.is_retaining else [kept])
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
            "retained": len(self.retained),
            "segments": len(self.segments),
            "bytes": self.segments.size,
            "next_position": self.next_position,
            "temporary": bool(self.owner),
        }

    def _notice_unreadable(self, parts: list[Range]) -> None:
        """These are pending no more; what was not kept either is missing from now on to whoever has not read it."""
        for first, last in reversed(parts):
            if first < self.retained_from:
                self._miss(min(last, self.retained_from - 1))
                return

    def _miss(self, position: int) -> None:
        """A message could be read until now, and whoever reads the log later has missed it."""
        run = self.segments.find(position)
        assert run is not None, "what can be read is never swept"
        self.kept_from = max(self.kept_from, run.arrival + 1)

    def _size_of(self, first: int, last: int) -> int:
        return sum(run.size for run in self.segments.runs(first, last))

    def _forget_keys(self, first: int, last: int) -> None:
        for position in within(self.keys, first, last):
            key = self.keys.pop(position)
            if self.latest.get(key) == position:
                del self.latest[key]

    @property
    def bytes(self) -> int:
        """Bytes of the batches that hold messages pending or kept; costs by segments."""
        self.sweep()
        return self.segments.size
