"""What all replicas of a channel agree on, and the few changes that several commands share.

Nothing here asks the clock: `now_ms` is the time of the last Tick. What must be counted from "now" (a delay, the
arrival of a message that lives for a while) waits for the next Tick, because the last one may be long ago.
"""

from collections.abc import Callable, Iterable, Iterator, MutableMapping

from alphorn.message_manager.backlog import Backlog
from alphorn.message_manager.effects import Created, Deleted, Effect, Unsubscribed
from alphorn.message_manager.guarded import Guarded
from alphorn.message_manager.moves import Moves, SubscriptionName
from alphorn.message_manager.producers import Producers
from alphorn.message_manager.queue import Queue
from alphorn.message_manager.readers import Readers
from alphorn.message_manager.schedule import Item, Kind, Schedule
from alphorn.message_manager.segments import Segments
from alphorn.message_manager.streams import Streams
from alphorn.message_manager.timeline import RESOLUTION_MS_MIN
from alphorn.message_manager.topic import Subscription, Topic
from alphorn.message_manager.transaction_state import Transactions
from alphorn.message_manager.writers import Writers
from alphorn.model.commands import Entry, connection_of
from alphorn.model.destinations import Destination, DestinationKind, Policy
from alphorn.model.errors import InvalidDestination, Moved, PeerViolation
from alphorn.model.ranges import Range


class State:
    """Destinations, producers, subscriptions by name, what belongs to whom, and what is to happen when.

    All destinations are in `directory`, to look at. Whoever changes one gets it from `destinations`, every time anew:
    while a snapshot is open, that sees to it that it is in the snapshot as it was before.
    """

    __slots__ = (
        "audited",
        "awaiting",
        "dead_letters",
        "destinations",
        "directory",
        "moves",
        "names",
        "next_number",
        "now_ms",
        "numbers",
        "owned",
        "producers",
        "read",
        "readers",
        "returning",
        "schedule",
        "sequence",
        "signet",
        "streams",
        "transactions",
        "writers",
    )

    def __init__(self) -> None:
        self.sequence = 0  # of the last entry
        self.now_ms = 0  # of the last Tick
        self.next_number = 1
        self.signet = b""  # of the cluster, in the first channel
        self.directory: dict[int, Queue | Topic] = {}
        self.destinations: MutableMapping[int, Queue | Topic] = self.directory
        self.numbers: dict[Destination, int] = {}
        self.names: dict[SubscriptionName, tuple[int, int]] = {}  # → topic and subscription
        self.owned: dict[bytes, set[tuple[int, int]]] = {}  # connection → (temporary, 0), (topic, subscription)
        self.audited: set[int] = set()  # destinations whose policy says so
        self.dead_letters: dict[str, set[int]] = {}  # queue → destinations whose policy says that their dead go there
        self.producers = Producers()
        self.transactions = Transactions()
        self.moves = Moves()
        self.streams = Streams()
        self.writers = Writers()
        self.readers = Readers()
        self.read: Callable[[int], Entry | None] = lambda sequence: (
            None
        )  # this replica's own log; not part of the state
        self.schedule = Schedule(self.is_live)
        self.awaiting: set[int] = set()  # destinations whose newest messages get their time from the next Tick
        self.returning: list[tuple[int, int, int, int]] = []  # number, subscription, first, last: delays to begin

    def guard(self, keep_destination: Callable[[int], None], keep_producers: Callable[[bytes], None]) -> None:
        """From now on these hear of each destination, and of each connection's producers, before it may change."""
        assert self.destinations is self.directory, "one snapshot is open at a time"
        self.destinations = Guarded(self.directory, keep_destination)
        self.producers.guard(keep_producers)

    def unguard(self) -> None:
        """Nobody needs to hear of changes any more."""
        self.destinations = self.directory
        self.producers.unguard()

    def find(self, number: int) -> Queue | Topic:
        """The destination of this number; raises `InvalidDestination`."""
        found = self.destinations.get(number)
        if found is None:
            if self.moves.home_of(number) is not None:
                raise Moved(f"destination {number} is on another channel now, or on its way there; try again")
            raise InvalidDestination(f"there is no destination {number} any more; look up its name again")
        return found

    def find_queue(self, number: int) -> Queue:
        """The queue of this number; raises `InvalidDestination`."""
        found = self.find(number)
        if not isinstance(found, Queue):
            raise InvalidDestination(f"{found.destination} is no queue; name a queue for this")
        return found

    def find_backlog(self, number: int, subscription: int) -> tuple[Queue | Topic, Backlog]:
        """A destination and one of its backlogs; raises `InvalidDestination`."""
        found = self.find(number)
        backlog = found.backlog_of(subscription)
        if backlog is None:
            raise InvalidDestination(
                f"{found.destination} has no subscription {subscription} any more; subscribe again"
            )
        return found, backlog

    def producers_of(self, number: int) -> Producers:
        """The table that has the counters of what is sent to a destination."""
        found = self.destinations.get(number)
        return self.producers if found is None or found.producers is None else found.producers

    def tables(self) -> list[tuple[int, Producers]]:
        """The producers of destinations that count for themselves, by their numbers; to look at, not to change.

        Only what came from another channel does, so nothing else is looked at.
        """
        came = [self.directory[number] for number in sorted(self.moves.came) if number in self.directory]
        return [(found.number, found.producers) for found in came if found.producers is not None]

    def occupied(self, destination: Queue | Topic) -> int:
        """Messages that count against a destination's limit, however prepared transactions are decided."""
        return destination.occupied + self.transactions.staged_for(destination.number)

    def create(self, destination: Destination, policy: Policy, owner: bytes, effects: list[Effect]) -> Queue | Topic:
        """A destination that is not there yet."""
        number = self.next_number
        self.next_number += 1
        is_queue = destination.kind is DestinationKind.QUEUE
        made = (Queue if is_queue else Topic)(number, destination, policy, owner)
        self.add(made)
        effects.append(Created(number, destination, policy, is_new=True, is_temporary=bool(owner)))
        return made

    def add(self, made: Queue | Topic) -> None:
        """Takes a destination into the directory."""
        self.destinations[made.number] = made
        self.numbers[made.destination] = made.number
        if made.owner:
            self.owned.setdefault(made.owner, set()).add((made.number, 0))
        self.notice_policy(made)

    def notice_policy(self, destination: Queue | Topic, before: str | None = None) -> None:
        """A destination's policy says whether it is audited and where its dead messages go, which was `before`."""
        (self.audited.add if destination.policy.audit else self.audited.discard)(destination.number)
        self._forget_dead_letter(before, destination.number)
        if destination.policy.dead_letter is not None:
            self.dead_letters.setdefault(destination.policy.dead_letter, set()).add(destination.number)

    def forget_policy(self, destination: Queue | Topic) -> None:
        """A destination is in the directory no more."""
        self.audited.discard(destination.number)
        self._forget_dead_letter(destination.policy.dead_letter, destination.number)

    def _forget_dead_letter(self, name: str | None, number: int) -> None:
        if name is not None and (known := self.dead_letters.get(name)) is not None:
            known.discard(number)
            if not known:
                del self.dead_letters[name]

    def delete(self, destination: Queue | Topic, effects: list[Effect]) -> None:
        """A destination and all it holds are gone."""
        if isinstance(destination, Topic):
            for number in sorted(destination.subscriptions):
                self.unsubscribe(destination, number, effects)
        del self.destinations[destination.number], self.numbers[destination.destination]
        self.awaiting.discard(destination.number)
        self.forget_policy(destination)
        self.moves.forget(destination.number, destination.destination)
        if destination.owner:
            self.disown(destination.owner, destination.number, 0)
        effects.append(Deleted(destination.number, destination.destination, is_temporary=bool(destination.owner)))

    def subscribe(self, topic: Topic, subscription: Subscription, consumer: bytes) -> None:
        """A consumer has this subscription, which may be new."""
        if subscription.number not in topic.subscriptions:
            topic.add(subscription)
        if subscription.is_durable or subscription.is_shared:
            name = subscription.is_durable, subscription.client, subscription.name
            self.names[name] = topic.number, subscription.number
        if subscription.is_durable:
            subscription.consumers = [consumer]
            return
        subscription.consumers = [key for key in subscription.consumers if key != consumer] + [consumer]
        topic.notice_consumer(subscription)
        self.owned.setdefault(connection_of(consumer), set()).add((topic.number, subscription.number))

    def name(self, topic: Topic, subscription: Subscription) -> None:
        """A subscription that exists is known by its name, or belongs to its consumers' connections."""
        if subscription.is_durable or subscription.is_shared:
            name = subscription.is_durable, subscription.client, subscription.name
            self.names[name] = topic.number, subscription.number
        if not subscription.is_durable:
            for consumer in subscription.consumers:
                self.owned.setdefault(connection_of(consumer), set()).add((topic.number, subscription.number))

    def unname(self, topic: Topic, subscription: Subscription) -> None:
        """Takes `name` back."""
        name = subscription.is_durable, subscription.client, subscription.name
        if self.names.get(name) == (topic.number, subscription.number):
            del self.names[name]
        if not subscription.is_durable:
            for consumer in subscription.consumers:
                self.disown(connection_of(consumer), topic.number, subscription.number)

    def unsubscribe(self, topic: Topic, number: int, effects: list[Effect]) -> None:
        """A subscription and all that it had not consumed are gone."""
        self.unname(topic, topic.drop(number))
        effects.append(Unsubscribed(topic.number, number))

    def disown(self, connection: bytes, number: int, subscription: int) -> None:
        """A connection does not own this any more."""
        mine = self.owned.get(connection, set())
        mine.discard((number, subscription))
        if not mine:
            self.owned.pop(connection, None)

    def defer(self, number: int, subscription: int, backlog: Backlog, ranges: Iterable[Range], due_ms: int) -> None:
        """Pending messages wait until a time, or (below 0) for so long after the next Tick."""
        for first, last in ranges:
            backlog.defer(first, last, due_ms)
            if due_ms < 0:
                self.returning.append((number, subscription, first, last))
            else:
                self.schedule.push(Item(due_ms, Kind.RELEASE, number, subscription, first, last))

    def delay_kept(self, topic: Topic, first: int, last: int, due_ms: int) -> None:
        """Messages that a topic keeps are not given out before this time, whoever subscribes until then."""
        topic.particulars.delay(first, last, due_ms)
        self.schedule.push(Item(due_ms, Kind.END_DELAY, topic.number, 0, first, last))

    def has_streams(self, number: int) -> bool:
        """Whether a message of a destination has its body in fragments, or such a body is just coming."""
        found = self.find(number)
        found.sweep()
        is_coming = any(body.destination == number for body in self.streams.open.values())
        return is_coming or bool(found.segments.among(self.streams.places()))

    def sweep_streams(self) -> None:
        """Lets go of streamed bodies whose messages nobody has any more.

        Where there is no such body, this costs nothing. Where there is any, all destinations are looked at at once.
        """
        self.streams.sweep(self._swept)

    def _swept(self, places: set[tuple[int, int]]) -> Iterator[Segments]:
        """All that is kept, without what nobody needs where it may be one of these batches."""
        for destination in self.directory.values():
            if destination.segments.among(places):
                destination.sweep()
                yield destination.segments
        for kept in self.moves.kept():
            yield kept.segments

    def next_due(self) -> int | None:
        """When a Tick would do something."""
        streams_due = self.streams.next_due(self.now_ms + RESOLUTION_MS_MIN)
        dues = [self.schedule.next_due(), self.producers.next_idle(), self.writers.next_idle(), streams_due]
        dues.append(self.transactions.next_forgotten())
        while self.returning and not self._is_returning(*self.returning[-1]):
            self.returning.pop()
        if self.awaiting or self.returning:
            dues.append(self.now_ms + RESOLUTION_MS_MIN)
        return min((due for due in dues if due is not None), default=None)

    def review_due(self, destination: Queue | Topic) -> int | None:
        """When the next step of a destination's timeline is of age."""
        policy = destination.policy
        spans = [int(span * 1000) for span in (policy.ttl, policy.retain_s) if span > 0]
        times = [(destination.timeline.next_time(self.now_ms - span), span) for span in spans]
        return min((time + span for time, span in times if time is not None), default=None)

    def is_live(self, item: Item) -> bool:
        """Whether something is still to happen."""
        found = self.directory.get(item.number)
        if found is None:
            return False
        match item.kind:
            case Kind.RELEASE:
                backlog = found.backlog_of(item.subscription)
                due = item.due_ms
                return backlog is not None and any(
                    backlog.deferred.get(position) == due for position in range(item.first, item.last + 1)
                )
            case Kind.EXPIRE:
                return found.holds(item.first, item.last)
            case Kind.REVIEW:
                return self.review_due(found) == item.due_ms
            case Kind.END_DELAY:
                kept = found.particulars if isinstance(found, Topic) else None
                return kept is not None and kept.is_delayed(item.first, item.last, item.due_ms)

    def _is_returning(self, number: int, subscription: int, first: int, last: int) -> bool:
        found = self.directory.get(number)
        backlog = found.backlog_of(subscription) if found else None
        return backlog is not None and any(backlog.deferred.get(position, 0) < 0 for position in range(first, last + 1))


def ranges_of(positions: list[int]) -> list[Range]:
    """The flat pairs of a command; raises `PeerViolation`."""
    ranges = list(zip(positions[::2], positions[1::2], strict=False))
    if len(positions) % 2 or any(not 0 <= first <= last for first, last in ranges):
        raise PeerViolation("positions come in pairs, the first not above the last; nothing was changed")
    return ranges
