"""What one queue or subscription has to give out, and who is to get it next.

`pick` takes the first stretch by priority and position that anybody with room wants, and names one consumer for the
part of it that lies in one batch, whole if anyone has room for it. So plain messages cost by batches; only selectors
and groups look at single ones.

Messages of a group whose owner has no room are parked with the owner, so that they hold up nobody else: at most
`PARKED_MAX`, which is how far a look beyond them goes. So are, apart from any owner, those of a group that is held up
by one that came back and waits for its time.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from alphorn.message_manager.backlog import Backlog, within
from alphorn.message_manager.consumers import Consumer
from alphorn.message_manager.contents import Contents
from alphorn.message_manager.filters import Budget, Filter
from alphorn.message_manager.groups import Delayed, Groups
from alphorn.message_manager.queue import Queue
from alphorn.message_manager.ready import PRIORITY_MAX, Stretch, ranked
from alphorn.message_manager.segments import Run
from alphorn.message_manager.selector import Selector
from alphorn.message_manager.topic import Topic
from alphorn.model.ranges import Range, RangeSet

PARKED_MAX = 10_000


class Pick(NamedTuple):
    """The first `size` messages of a run go to this consumer."""

    consumer: Consumer
    run: Run
    size: int


class Supply:
    """Messages that may be given out, seen by each filter, and the consumers that have room."""

    __slots__ = (
        "_contents",
        "_filters",
        "_parked",
        "_source",
        "_subscription",
        "delayed",
        "groups",
        "is_stalled",
        "is_unfinished",
    )

    def __init__(self, source: Queue | Topic, subscription: int, contents: Contents) -> None:
        self._source = source
        self.groups = Groups() if self.has_groups else None
        self.is_unfinished = False  # the budget did not suffice
        self.is_stalled = False  # what comes next cannot be read now
        self._subscription = subscription
        self._contents = contents
        self._filters: dict[str, Filter] = {}  # by selector; whose turn it is comes first
        self._parked = 0
        self.delayed = Delayed()
        self.find_delayed()

    @property
    def has_groups(self) -> bool:
        """Whether messages of one key go to one consumer; where one consumer gets everything that says no more."""
        return self._source.policy.groups and not self._source.policy.exclusive

    @property
    def backlog(self) -> Backlog:
        """What is pending; nothing where the subscription has ended, of which no word came yet."""
        backlog = self._source.backlog_of(self._subscription)
        return Backlog() if backlog is None else backlog

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing that anybody here could get."""
        return not self._parked and not any(self._filters.values())

    def open(self, selector: Selector | None, free: Callable[[], Iterable[Range]], holders: Iterable[Consumer]) -> str:
        """One more uses the filter of this selector; gives its name.

        A new one has all that is free and not parked with one of the holders.
        """
        name = "" if selector is None else selector.text
        if name not in self._filters:
            made = self._filters[name] = self._make_filter(selector)
            for first, last in free():
                for stretch in ranked(first, last, self.backlog.priorities):
                    made.add(stretch)
            for stretch in [*self.delayed.behind, *(stretch for holder in holders for stretch in holder.parked)]:
                made.remove(stretch.first, stretch.last)
        self._filters[name].users += 1
        return name

    def close(self, name: str) -> None:
        """One less uses this filter; without any it is forgotten."""
        self._filters[name].users -= 1
        if not self._filters[name].users:
            del self._filters[name]

    def seat(self, consumer: Consumer) -> None:
        """This consumer has room and gets its turns."""
        self._filters[consumer.selector].ring.setdefault(consumer)

    def unseat(self, consumer: Consumer) -> None:
        """This consumer gets no turns."""
        self._filters[consumer.selector].ring.pop(consumer, None)

    def pass_turn(self, consumer: Consumer) -> None:
        """This consumer got something: it comes last now, or not at all if it has no more room."""
        ring = self._filters[consumer.selector].ring
        if consumer.room <= 0:
            del ring[consumer]
        elif len(ring) > 1:
            del ring[consumer]
            ring[consumer] = None

    @property
    def seated(self) -> list[Consumer]:
        """Those with room."""
        return [consumer for filter_ in self._filters.values() for consumer in filter_.ring]

    def clear_seats(self) -> None:
        """Nobody gets turns."""
        for filter_ in self._filters.values():
            filter_.ring.clear()

    def offer(self, first: int, last: int) -> None:
        """These may be given out."""
        if self._filters:
            for stretch in ranked(first, last, self.backlog.priorities):
                for filter_ in self._filters.values():
                    filter_.add(stretch)

    def withdraw(self, first: int, last: int) -> None:
        """These may not be given out any more, or were."""
        for filter_ in self._filters.values():
            filter_.remove(first, last)

    def delay(self, first: int, last: int) -> None:
        """These came back, and are given out again later: what is to follow them in their groups waits for them."""
        self.withdraw(first, last)
        if self._source.policy.groups and isinstance(self._source, Queue):
            for position in within(self._source.keys, first, last):
                rank = PRIORITY_MAX - self.backlog.priority_of(position)
                self.delayed.add(position, self._source.keys[position], rank)

    def end_delay(self, first: int, last: int) -> None:
        """These may be given out again, or are gone; so what waited for them is in its turn."""
        if self.delayed:
            self._add_all(self.delayed.end(first, last))

    def find_delayed(self) -> None:
        """Looks up in the backlog which groups are held up, or lets go of all where groups do not matter any more."""
        backlog = self.backlog
        if not self._source.policy.groups:
            self._add_all(self.delayed.end_all())
            return
        for position in backlog.counts if backlog.deferred else ():
            if position in backlog.deferred:
                self.delay(position, position)

    def _add_all(self, stretches: Iterable[Stretch]) -> None:
        for stretch in stretches:
            for filter_ in self._filters.values():
                filter_.add(stretch)

    def withdraw_parked(self, first: int, last: int, holders: Iterable[Consumer]) -> None:
        """These may not be given out any more, not even to whom they are parked with."""
        self.delayed.withdraw(first, last)
        if self._parked and self.groups is not None:
            self.groups.loose(first, last)
            for holder in holders:
                self._parked -= holder.parked.remove(first, last)

    def begin(self, consumers: Iterable[Consumer]) -> None:
        """A round of picks begins: these consumers may get as much of what is parked with them as they have room."""
        self.is_unfinished = self.is_stalled = False
        if self._parked:
            for consumer in consumers:
                self.unpark(consumer, consumer.room)

    def unpark(self, owner: Consumer, count: int) -> None:
        """The first of what was parked with an owner may be given out; as long as it stays, to none but it."""
        for stretch in owner.parked.take(count):
            self._parked -= stretch.last - stretch.first + 1
            if self.groups is not None:
                self.groups.loose(stretch.first, stretch.last)
            for filter_ in self._filters.values():
                filter_.add(stretch)

    def bind_held(self, first: int, last: int, owner: Consumer) -> None:
        """The groups of what a consumer holds are its own."""
        if self.groups is not None and isinstance(self._source, Queue):
            for position in range(first, last + 1):
                self._bind(position, 1, owner, self._source.keys.get(position))

    def take_refused(self) -> RangeSet:
        """What was found not to be for this subscription at all."""
        filters = list(self._filters.values())
        return filters[0].take_refused() if self._subscription and filters else RangeSet()

    def pick(self, budget: Budget) -> Pick | None:
        """Who is to get what next; None for nothing, or nothing that could be found out now."""
        while (found := self._next(budget)) is not None:
            filter_, head = found
            run = next(self._source.segments.runs(head.first, head.last))
            if self.groups is None and not self.delayed:
                consumer = filter_.choose(run.count)
                return Pick(consumer, run, min(run.count, consumer.room))
            is_known, pick = self._pick_grouped(filter_, head, run, budget)
            if pick is not None or not is_known:
                return pick
        return None

    def _make_filter(self, selector: Selector | None) -> Filter:
        if isinstance(self._source, Queue):
            return Filter(selector)
        subscription = self._source.subscriptions[self._subscription]
        return Filter(
            subscription.selector,
            no_local=subscription.no_local,
            below=subscription.selected_from,
            is_final=True,
        )

    def _next(self, budget: Budget) -> tuple[Filter, Stretch] | None:
        """The first stretch that anybody with room wants. Of those who want the same, each has its turn."""
        name, best = "", None
        for candidate, filter_ in self._filters.items():
            if filter_.ring:
                head = self._head(filter_, budget)
                if head is not None and (best is None or head[:2] < best[:2]):
                    name, best = candidate, head
        if best is None:
            return None
        filter_ = self._filters[name]
        if len(self._filters) > 1:
            del self._filters[name]
            self._filters[name] = filter_
        return filter_, best

    def _head(self, filter_: Filter, budget: Budget) -> Stretch | None:
        head = filter_.head(self._source.segments, self._contents, budget)
        if head is None:
            self.is_stalled = self.is_stalled or filter_.is_stalled
            self.is_unfinished = self.is_unfinished or filter_.is_unfinished
        return head

    def _pick_grouped(self, filter_: Filter, head: Stretch, run: Run, budget: Budget) -> tuple[bool, Pick | None]:
        """Who gets the next messages with one key, or without one; nobody if they had to be parked.

        The first value is False where that cannot be found out now.
        """
        assert isinstance(self._source, Queue)
        if budget.left <= 0:
            self.is_unfinished = True
            return False, None
        key, count = _same_key(run, self._source.keys, budget.left)
        budget.left -= count
        stretch = Stretch(head.rank, run.position, run.position + count - 1)
        if key is not None and self.delayed.holds_up(stretch, key):
            return self._set_aside(stretch, key), None
        owner = None if key is None or self.groups is None else self.groups.owner_of(key)
        if owner is not None and owner.is_attached and self._filters[owner.selector] is not filter_:
            is_wanted = self._is_wanted(owner, head, run)
            if is_wanted is None:
                self.is_stalled = True
                return False, None
            count = 1
            if not is_wanted:  # what its selector refuses is free for others
                key = None
        if key is None or owner is None:
            owner = filter_.choose(count)
        if not owner.is_attached or owner.room <= 0:
            return self._park(stretch._replace(last=run.position + count - 1), owner, key), None
        count = min(count, owner.room)
        self._bind(run.position, count, owner, key)
        return True, Pick(owner, run, count)

    def _is_wanted(self, owner: Consumer, head: Stretch, run: Run) -> bool | None:
        batch = self._contents.batch(run)
        return None if batch is None else self._filters[owner.selector].takes(batch, run.index, head.priority)

    def _set_aside(self, stretch: Stretch, key: str) -> bool:
        rank, first, last = stretch
        last = min(last, first + self._parking - 1)
        if last < first:
            return False
        self.withdraw(first, last)
        self.delayed.set_aside(Stretch(rank, first, last), key)
        owner = self.groups.owner_of(key) if self.groups is not None else None
        if owner is not None:  # what was parked with it behind these may be of other groups
            self.unpark(owner, min(owner.room, last - first + 1))
        return True

    @property
    def _parking(self) -> int:
        """How many more may be set aside."""
        return PARKED_MAX - self._parked - self.delayed.count

    def _park(self, stretch: Stretch, owner: Consumer, key: str | None) -> bool:
        rank, first, last = stretch
        last = min(last, first + self._parking - 1)
        if last < first:
            return False
        self.withdraw(first, last)
        owner.parked.add(Stretch(rank, first, last))
        self._parked += last - first + 1
        self._bind(first, last - first + 1, owner, key)
        return True

    def _bind(self, first: int, count: int, owner: Consumer, key: str | None) -> None:
        if key is not None and self.groups is not None:
            for position in range(first, first + count):
                self.groups.bind(position, key, owner)


def _same_key(run: Run, keys: Mapping[int, str], limit: int) -> tuple[str | None, int]:
    """The key of a run's first message, and how many messages have the same or also none; not more than the limit."""
    key = keys.get(run.position)
    count = 1
    while count < min(run.count, limit) and keys.get(run.position + count) == key:
        count += 1
    return key, count
