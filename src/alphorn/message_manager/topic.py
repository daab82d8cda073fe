"""A topic: each message to all its subscriptions, and for as long as its policy keeps it to later ones too.

Positions are of the topic; each subscription has its own backlog of them. Messages that no subscription wants and no
policy keeps are not stored.
"""

from alphorn.message_manager.backlog import Backlog, Piece
from alphorn.message_manager.kept import KeptParticulars
from alphorn.message_manager.moments import Moments
from alphorn.message_manager.producers import Producers
from alphorn.message_manager.segments import Run, Segments
from alphorn.message_manager.selector import Selector
from alphorn.message_manager.timeline import Timeline
from alphorn.model.destinations import Destination, Policy
from alphorn.model.messages import Flag
from alphorn.model.ranges import Range, RangeSet

SEGMENTS_MIN = 1024  # fewer are not worth a sweep


class Subscription:
    """What one subscriber, or several that share a name, receive of a topic.

    The engine applies selector and no_local to messages from `selected_from` on. Earlier ones, which a new
    subscription got for replay, are in the backlog unseen: whoever gives them out must look and acknowledge those
    that do not match.
    """

    __slots__ = (
        "backlog",
        "client",
        "consumers",
        "is_durable",
        "is_shared",
        "made_at",
        "name",
        "no_local",
        "number",
        "selected_from",
        "selector",
        "selector_text",
    )

    def __init__(
        self,
        number: int,
        name: str,
        client: str,
        selector: Selector | None,
        *,
        is_durable: bool,
        is_shared: bool,
        no_local: bytes,
        selected_from: int,
        made_at: int,
    ) -> None:
        self.number = number
        self.name = name
        self.client = client
        self.selector = selector
        self.selector_text = selector.text if selector else ""
        self.is_durable = is_durable
        self.is_shared = is_shared
        self.no_local = no_local
        self.selected_from = selected_from
        self.made_at = made_at  # number of the log entry, of the channel where that was
        self.consumers: list[bytes] = []  # keys, newest last; a volatile one lives as long as any
        self.backlog = Backlog()

    @property
    def consumer(self) -> bytes:
        """The key of the consumer that subscribed last."""
        return self.consumers[-1] if self.consumers else b""

    @property
    def priorities(self) -> dict[int, RangeSet]:
        """The pending positions of other than the default priority."""
        return self.backlog.priorities

    def describe(self) -> dict[str, object]:
        """Figures for people."""
        return {
            "number": self.number,
            "name": self.name,
            "client": self.client,
            "selector": self.selector_text,
            "durable": self.is_durable,
            "shared": self.is_shared,
            "depth": self.backlog.count,
        }


class Topic:
    """One topic of a channel."""

    __slots__ = (
        "_own",
        "_selective_count",
        "_sweep_at",
        "destination",
        "kept_from",
        "moments",
        "next_position",
        "next_subscription",
        "number",
        "owner",
        "particulars",
        "policy",
        "producers",
        "retained",
        "retained_bytes",
        "segments",
        "selective",
        "subscriptions",
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
        self.subscriptions: dict[int, Subscription] = {}
        self.next_subscription = 1
        self._own: dict[bytes, int] = {}  # volatile subscriptions that nobody shares, by their consumers
        self.selective = False  # whether any subscription leaves something out
        self._selective_count = 0
        self.retained = RangeSet()  # kept for later subscriptions
        self.retained_bytes = 0
        self.particulars = KeptParticulars()  # of those that are retained
        self.kept_from = 0  # what arrived with this log entry or later is kept, unless it has expired
        self.timeline = Timeline()
        self.moments = Moments()
        self._sweep_at = SEGMENTS_MIN
        self.set_policy(policy)

    def set_policy(self, policy: Policy) -> None:
        """What holds for messages from now on; limits hold for all."""
        self.policy = policy
        watched = Flag.EXPIRATION | Flag.DELAY
        if policy.priority is None:
            watched |= Flag.PRIORITY
        self.watched = int(watched)  # batches with other flags only are plain here
        if not self.is_retaining:
            self.outgrow(self.next_position)

    @property
    def is_retaining(self) -> bool:
        """Whether messages are kept for later subscriptions."""
        return self.policy.retain_s > 0 or self.policy.retain_bytes > 0

    @property
    def retained_from(self) -> int:
        """No message before this position is kept for later subscriptions."""
        return self.retained.first if self.retained else self.next_position

    @property
    def count(self) -> int:
        """Messages that are pending, in the subscription that has the most."""
        return max((subscription.backlog.count for subscription in self.subscriptions.values()), default=0)

    @property
    def occupied(self) -> int:
        """Messages that count against its limit, without those that prepared transactions will bring."""
        return max((subscription.backlog.occupied for subscription in self.subscriptions.values()), default=0)

    @property
    def has_clock(self) -> bool:
        """Whether it matters when messages came."""
        return self.policy.ttl > 0 or self.is_retaining

    @property
    def span_ms(self) -> int:
        """The shortest time for which it matters when a message came; 0 where it is no time that matters."""
        return int(min((span for span in (self.policy.ttl, self.policy.retain_s) if span > 0), default=0.0) * 1000)

    def backlog_of(self, subscription: int) -> Backlog | None:
        """What is still to be given out to a subscription."""
        found = self.subscriptions.get(subscription)
        return found.backlog if found else None

    def backlogs(self) -> list[tuple[int, Backlog]]:
        """All backlogs with their subscriptions."""
        return [(number, subscription.backlog) for number, subscription in sorted(self.subscriptions.items())]

    def add(self, subscription: Subscription) -> None:
        """A new subscription, under `next_subscription`."""
        self.subscriptions[subscription.number] = subscription
        self.next_subscription = subscription.number + 1
        self._notice_selective(subscription, 1)

    def drop(self, number: int) -> Subscription:
        """A subscription and all that it had not consumed are gone."""
        dropped = self.subscriptions.pop(number)
        self._notice_selective(dropped, -1)
        if self._own.get(dropped.consumer) == number:
            del self._own[dropped.consumer]
        return dropped

    def notice_consumer(self, subscription: Subscription) -> None:
        """It is known who has a subscription."""
        if not subscription.is_durable and not subscription.is_shared:
            self._own[subscription.consumer] = subscription.number

    def own_of(self, consumer: bytes) -> Subscription | None:
        """A consumer's own subscription: volatile, and shared with nobody."""
        number = self._own.get(consumer)
        return None if number is None else self.subscriptions[number]

    def store(self, run: Run) -> int:
        """New messages, after all others; gives the last one's position. Backlogs take them up one by one."""
        if len(self.segments) >= self._sweep_at:  # before the new ones, which no backlog has yet
            self.sweep()
            self._sweep_at = 2 * len(self.segments) + SEGMENTS_MIN
        self.next_position = run.position + run.count
        self.segments.append(run)
        return self.next_position - 1

    def retain(self, run: Run, time_ms: int) -> None:
        """These messages, which were sent then, are kept for later subscriptions."""
        self.retained.add(run.position, run.position + run.count - 1)
        self.moments.note(run.position, time_ms)
        self.retained_bytes += run.size

    def let_go(self, first: int, last: int) -> None:
        """These messages are not kept for later subscriptions any more."""
        for start, end in self.retained.cut(first, last):
            self.retained_bytes -= self._size_of(start, end)
            self.particulars.forget(start, end)
        if self.retained:
            self.moments.drop(self.retained.first)
        else:
            self.retained_bytes = 0
            self.moments.clear()

    def count_bytes(self) -> None:
        """Counts what is kept anew, where it lies in other batches than before."""
        self.retained_bytes = sum(self._size_of(*part) for part in self.retained)

    def outgrow(self, through: int) -> None:
        """Messages through this position were kept long enough; whoever reads the log later has missed them."""
        for start, end in self.retained.intersection(0, through):
            for run in self.segments.runs(start, end):
                self.kept_from = max(self.kept_from, run.arrival + 1)
        self.let_go(0, through)

    def let_go_of_bytes(self) -> None:
        """Lets go of the oldest batches until the rest is as small as the policy says."""
        while self.retained and 0 < self.policy.retain_bytes < self.retained_bytes:
            self.outgrow(self.segments.end_of(self.retained.first))

    def readable(self, first: int, last: int) -> list[Range]:
        """Those of these that readers of the log may have: what is kept."""
        return self.retained.intersection(first, last)

    def start_at(self, time_ms: int) -> int:
        """The first position whose message was sent at this time or later, as far back as that is known exactly.

        None is before what had come by then, whatever its sender's clock says.
        """
        exact = self.moments.first_from(time_ms, end=self.next_position)
        return max(exact, self.timeline.first_from(time_ms))

    def start_after(self, sequence: int) -> int:
        """The first kept position that arrived with this log entry or later."""
        for first, last in self.retained:
            for run in self.segments.runs(first, last):
                if run.arrival >= sequence:
                    return run.position
        return self.next_position

    def remove(self, subscription: int, first: int, last: int) -> list[Range]:
        """These are done with for a subscription; gives those that were pending."""
        return self.subscriptions[subscription].backlog.remove(first, last)

    def reserve(self, subscription: int, first: int, last: int) -> tuple[list[Piece], list[tuple[int, str]]]:
        """A prepared transaction consumes these; gives what is known of them. A topic knows no keys."""
        return self.subscriptions[subscription].backlog.reserve(first, last), []

    def holds(self, first: int, last: int) -> bool:
        """Whether any of these may still be given out, to whomever."""
        return any(positions.intersection(first, last) for positions in self.needed())

    def history_of(self, position: int) -> bytes:
        """A topic holds no dead messages."""
        return b""

    def sweep(self) -> None:
        """Lets go of what nobody needs."""
        self.segments.sweep(self.needed())

    def restore(self) -> None:
        """Works out what follows from the rest, after a checkpoint was read."""
        self._own, self._selective_count = {}, 0
        for subscription in self.subscriptions.values():
            subscription.backlog.restore()
            self._notice_selective(subscription, 1)
            self.notice_consumer(subscription)

    def describe(self) -> dict[str, object]:
        """Figures for people."""
        self.sweep()
        return {
            "name": str(self.destination),
            "number": self.number,
            "depth": self.count,
            "retained": len(self.retained),
            "segments": len(self.segments),
            "bytes": self.segments.size,
            "next_position": self.next_position,
            "temporary": bool(self.owner),
            "subscriptions": [subscription.describe() for _, subscription in sorted(self.subscriptions.items())],
        }

    def needed(self) -> list[RangeSet]:
        """What may still be given out, to whomever."""
        return [self.retained, *(subscription.backlog.kept for subscription in self.subscriptions.values())]

    def _size_of(self, first: int, last: int) -> int:
        return sum(run.size for run in self.segments.runs(first, last))

    def _notice_selective(self, subscription: Subscription, change: int) -> None:
        """A subscription has come or gone: what it leaves out stays the same meanwhile."""
        if subscription.selector or subscription.no_local:
            self._selective_count += change
            self.selective = self._selective_count > 0

    @property
    def bytes(self) -> int:
        """Bytes of the batches that hold messages pending or kept; costs by segments."""
        self.sweep()
        return self.segments.size
