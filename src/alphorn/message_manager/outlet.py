"""Where the messages of one queue, or of one subscription, are given out: who is attached, and who holds what.

What may be given out is in the supply (supply.py), what was given out is in the locks; `arrive` and `gone` keep both in
step with the backlog.

Nothing is given out while older messages may yet turn up, because they would come behind newer ones: while it is not
known who holds what after a change of primary (`withheld`), and, where only one consumer may receive at a time, while
what its predecessor held has not come back (`_leaving`).
"""

from collections.abc import Iterator
from itertools import chain, pairwise
from typing import Any

from alphorn.message_manager.backlog import within
from alphorn.message_manager.consumers import Consumer
from alphorn.message_manager.contents import Contents
from alphorn.message_manager.filters import POSITION_MAX, Budget
from alphorn.message_manager.groups import Groups
from alphorn.message_manager.locks import Locks
from alphorn.message_manager.queue import Queue
from alphorn.message_manager.segments import Run
from alphorn.message_manager.selector import Selector
from alphorn.message_manager.supply import Supply
from alphorn.message_manager.topic import Topic
from alphorn.model.commands import Acknowledge, Return
from alphorn.model.link import DeliveredRun
from alphorn.model.ranges import Range, RangeSet


class Outlet:
    """One queue or subscription with its consumers."""

    __slots__ = (
        "_active",
        "_again",
        "_leaving",
        "_lent",
        "_locks",
        "_maybe",
        "_refused",
        "_source",
        "_stray",
        "_supply",
        "_withheld",
        "consumers",
        "destination",
        "subscription",
    )

    def __init__(self, destination: int, subscription: int, source: Queue | Topic, contents: Contents) -> None:
        self.destination = destination
        self.subscription = subscription
        self.consumers: dict[bytes, Consumer] = {}  # attached, first comes first
        self._source = source
        self._supply = Supply(source, subscription, contents)
        self._locks: Locks[Consumer] = Locks()
        self._leaving: dict[Consumer, None] = {}  # detached, and what they held is not back yet
        self._again: dict[Consumer, RangeSet] = {}  # who recovered: what is theirs, and is to be given to them again
        self._active: Consumer | None = None  # who receives from an exclusive queue
        self._maybe = RangeSet()  # may have been given out before, which no count says
        self._withheld = RangeSet()  # may be with consumers that have not said so yet
        self._lent = RangeSet()  # were with consumers when it left another channel, and they have not followed yet
        self._stray = RangeSet()  # have lapsed and are with nobody: that is on its way into the log
        self._refused: list[Acknowledge | Return] = []  # to be ordered

    @property
    def is_single(self) -> bool:
        """Whether only one consumer may be attached at a time."""
        return isinstance(self._source, Topic) and not self._source.subscriptions[self.subscription].is_shared

    @property
    def is_idle(self) -> bool:
        """Whether nothing is known here that the backlog does not say."""
        known = self.consumers or self._locks or self._maybe or self._withheld or self._lent
        return not (known or self._supply.backlog.lapsed)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to be given out."""
        return self._supply.is_empty

    @property
    def is_unfinished(self) -> bool:
        """Whether the budget of the last `give` did not suffice."""
        return self._supply.is_unfinished

    @property
    def is_stalled(self) -> bool:
        """Whether the last `give` came to messages that cannot be read now."""
        return self._supply.is_stalled

    def attach(self, consumer: Consumer, selector: Selector | None, held: RangeSet) -> None:
        """A consumer comes, or comes again; what it held and does not name is free, and may have been given out."""
        is_new, before = consumer.key not in self.consumers, consumer.selector
        if not is_new:
            self._supply.unseat(consumer)
        self.consumers[consumer.key] = consumer
        consumer.selector = self._supply.open(selector, lambda: self._free(0, POSITION_MAX), self._holders)
        if not is_new:
            self._supply.close(before)
        again, consumer.again = consumer.again, None
        if again:
            self._again[consumer] = again = again.difference(held)
        if not is_new:
            mine = self._locks.of(consumer).difference(held)
            self._take_back(consumer, mine.difference(again) if again else mine)
        for first, last in held:
            for start, end in self._free(first, last):
                self._supply.withdraw_parked(start, end, self._holders)
                self._lock(consumer, start, end)
                self._withheld.remove(start, end)
                self._lent.remove(start, end)
                self._supply.bind_held(start, end, consumer)
        self.seat(consumer)

    def pause(self, consumer: Consumer) -> None:
        """A consumer recovers: what comes back from it is given to it when it attaches again, before anything newer."""
        consumer.again = RangeSet()
        self.suspend(consumer)

    def suspend(self, consumer: Consumer) -> None:
        """A consumer cannot be reached: it gets nothing until it attaches again."""
        consumer.prefetch = 0
        self.seat(consumer)

    def seat(self, consumer: Consumer) -> None:
        """A consumer's room has changed."""
        may_receive = not self._source.policy.exclusive or consumer is self._active
        if may_receive and consumer.room > 0:
            self._supply.seat(consumer)
        else:
            self._supply.unseat(consumer)

    @property
    def seated(self) -> list[Consumer]:
        """Who may be given something."""
        return self._supply.seated

    def detach(self, consumer: Consumer, seen: RangeSet | None) -> list[Return]:
        """A consumer goes. What it holds is given to nobody before the commands that this gives are applied.

        What is not among the `seen` never reached the program, or is settled by a command before these.
        """
        self._remove(consumer)
        held = self._locks.of(consumer)
        if not held:
            self._let_go(consumer)
            return []
        self._leaving[consumer] = None
        unseen = RangeSet() if seen is None else held.difference(seen)
        parts = [(held.difference(unseen), False), (unseen, True)]
        # No delay: nobody refused these messages.
        return [
            Return(self.destination, self.subscription, consumer.key, part.flat(), delay_ms=0, is_unseen=is_unseen)
            for part, is_unseen in parts
            if part
        ]

    def abandon(self, consumer: Consumer) -> None:
        """A consumer turned elsewhere; what it held is free, and may have been given out."""
        self._remove(consumer)
        self._take_back(consumer, self._locks.of(consumer))
        self._let_go(consumer)

    def arrive(self, first: int, last: int, key: bytes) -> None:
        """The backlog has messages that may be given out; `key` had them where they come back."""
        if key:
            self._come_back(first, last, key)
        self._supply.end_delay(first, last)
        for start, end in self._free(first, last):
            self._supply.offer(start, end)

    def defer(self, first: int, last: int, key: bytes) -> None:
        """These came back from `key` and are to be given out later."""
        self._come_back(first, last, key, is_deferred=True)
        self._supply.delay(first, last)

    def gone(self, first: int, last: int) -> None:
        """These are pending no more."""
        released = 0
        for owner, start, end in self._locks.release(first, last):
            released += end - start + 1
            self._unlock(owner, start, end)
        for positions in (self._maybe, self._withheld, self._lent, self._stray):
            if positions:
                positions.remove(first, last)
        if released <= last - first:
            self._supply.withdraw(first, last)
            self._supply.withdraw_parked(first, last, self._holders)
        self._supply.end_delay(first, last)

    def kept(self, positions: RangeSet) -> RangeSet:
        """Those of these that consumers have, or will say to have."""
        found = positions.common(self._withheld)
        found.update(positions.common(self._lent))
        for first, last in positions:
            for _, start, end in self._locks.parts(first, last):
                found.add(start, end)
        return found

    def had(self, positions: RangeSet) -> RangeSet:
        """Those of these that consumers may have had without a count that says so."""
        return positions.common(self._maybe)

    def lapsed(self, positions: RangeSet) -> list[tuple[Consumer, RangeSet]]:
        """Who of those that are attached has any of these whose time is over."""
        found: dict[Consumer, RangeSet] = {}
        for first, last in positions.common(self._supply.backlog.lapsed):
            for owner, start, end in self._locks.parts(first, last):
                if owner.is_attached:
                    found.setdefault(owner, RangeSet()).add(start, end)
        return list(found.items())

    def _take_strays(self) -> None:
        """What has lapsed and is with nobody is given out no more: it comes back at once, which is its end."""
        backlog, strays = self._supply.backlog, RangeSet()
        for first, last in backlog.lapsed:
            for part in backlog.pending.intersection(first, last):
                for start, end in self._locks.free(*part):
                    strays.add(start, end)
                    self._supply.withdraw(start, end)
                    self._supply.withdraw_parked(start, end, self._holders)
        fresh, self._stray = strays.difference(self._stray), strays
        had = fresh.common(self._maybe)
        parts = [(had, False), (fresh.difference(had), True)]
        self._refused += [
            Return(self.destination, self.subscription, b"", part.flat(), delay_ms=0, is_unseen=is_unseen)
            for part, is_unseen in parts
            if part
        ]

    def withhold(self, through: int) -> None:
        """Positions through this one may be with consumers that have not said so yet."""
        self._withheld = RangeSet(self._free(0, through))

    def release(self, *, is_doubtful: bool) -> None:
        """All that could be claimed was claimed; the rest was not given out, or (`is_doubtful`) may have been."""
        if is_doubtful:
            self._maybe.update(self._withheld)
        self._withheld = RangeSet()

    def doubt(self, first: int, last: int) -> None:
        """Of these, what is with nobody may have been given out, which no count says."""
        for start, end in self._free(first, last):
            self._maybe.add(start, end)

    def lend(self, positions: RangeSet) -> None:
        """These were with consumers where the destination came from; who still has them will say so."""
        for first, last in positions:
            for start, end in self._free(first, last):
                self._lent.add(start, end)

    @property
    def unclaimed(self) -> RangeSet:
        """What was lent and nobody has said to have."""
        return self._lent.copy()

    def follow(self) -> None:
        """All consumers have followed; what nobody has said to have has come back by a command."""
        self._lent = RangeSet()

    @property
    def held(self) -> int:
        """How many messages consumers have; costs by intervals."""
        return len(self._locks)

    @property
    def given(self) -> RangeSet:
        """All that consumers have, or may have had as far as anybody can tell."""
        found = RangeSet((start, end) for _, start, end in self._locks.parts(0, POSITION_MAX))
        for positions in (self._maybe, self._lent):
            found.update(positions)
        return found

    @property
    def withheld(self) -> RangeSet:
        """What may be with consumers that have not said so yet."""
        return self._withheld.copy()

    def refresh(self) -> None:
        """The policy may have changed."""
        policy, supply = self._source.policy, self._supply
        if supply.has_groups and supply.groups is None:
            supply.groups = Groups()
            for consumer in self._holders:
                for first, last in self._locks.of(consumer):
                    supply.bind_held(first, last, consumer)
        elif supply.groups is not None and not supply.has_groups:
            for consumer in self._holders:
                supply.unpark(consumer, len(consumer.parked))
            supply.groups = None
        supply.find_delayed()
        if not policy.exclusive:
            self._active = None
        supply.clear_seats()
        for consumer in self.consumers.values():
            self.seat(consumer)

    def give(self, budget: Budget) -> list[Consumer]:
        """Gives out what can be, and gives those who got something; what they got is in their `runs`."""
        self._supply.begin(self.consumers.values())
        is_exclusive = self._source.policy.exclusive
        if self._withheld or self._lent or (self._leaving and (is_exclusive or self.is_single)):
            return []
        if self._supply.backlog.lapsed:
            self._take_strays()
        if is_exclusive and self._active is None and self.consumers:
            holders = [consumer for consumer in self.consumers.values() if consumer.outstanding]
            self._active = holders[0] if holders else next(iter(self.consumers.values()))
            self.seat(self._active)
        served: dict[Consumer, None] = {}
        if self._again:
            self._give_again(served)
        while (pick := self._supply.pick(budget)) is not None:
            self._hand(*pick)
            served[pick.consumer] = None
        return list(served)

    def _give_again(self, served: dict[Consumer, None]) -> None:
        """What came back from those who recovered, in order, before anything newer."""
        recovered, self._again = self._again, {}
        for consumer, positions in recovered.items():
            mine = self._locks.of(consumer) if consumer.is_attached else RangeSet()
            for first, last in positions.difference(positions.difference(mine)):
                for run in self._source.segments.runs(first, last):
                    self._tell_of(consumer, run, run.count)
                    served[consumer] = None

    def take_refused(self) -> list[Acknowledge | Return]:
        """What a subscription was found not to want is done with as if it were consumed; and what lapsed comes back."""
        found, self._refused = self._refused, []
        if refused := self._supply.take_refused():
            found.append(Acknowledge(self.destination, self.subscription, b"", refused.flat()))
        return found

    def describe(self) -> dict[str, Any]:
        """What is known here, printable."""
        groups = self._supply.groups
        return {
            "locked": len(self._locks),
            "withheld": len(self._withheld),
            "lent": len(self._lent),
            "maybe_redelivered": len(self._maybe),
            "groups": 0 if groups is None else len(groups),
            "behind_delayed": self._supply.delayed.count,
            "leaving": [consumer.key.hex() for consumer in self._leaving],
            "consumers": [
                {
                    "key": consumer.key.hex(),
                    "client_manager": consumer.client_manager,
                    "selector": consumer.selector,
                    "prefetch": consumer.prefetch,
                    "outstanding": consumer.outstanding,
                    "is_blocked": consumer.is_blocked or consumer.is_slow,
                    "is_active": not self._source.policy.exclusive or consumer is self._active,
                }
                for consumer in self.consumers.values()
            ],
        }

    @property
    def _holders(self) -> Iterator[Consumer]:
        return chain(self.consumers.values(), self._leaving)  # there may be very many, and mostly nobody looks

    def _free(self, first: int, last: int) -> list[Range]:
        """Those of these that may be given out and are with nobody."""
        ready = self._supply.backlog.ready(first, last)
        return [part for start, end in ready for part in self._locks.free(start, end)] if self._locks else ready

    def _remove(self, consumer: Consumer) -> None:
        self._supply.unseat(consumer)
        del self.consumers[consumer.key]
        consumer.is_attached = False
        if self._active is consumer:
            self._active = None
        self._supply.close(consumer.selector)

    def _lock(self, consumer: Consumer, first: int, last: int) -> None:
        self._supply.withdraw(first, last)
        self._locks.lock(first, last, consumer)
        consumer.outstanding += last - first + 1

    def _unlock(self, owner: Consumer, first: int, last: int) -> None:
        owner.outstanding -= last - first + 1
        if self._supply.groups is not None:
            self._supply.groups.loose(first, last)
        if owner.is_attached:
            self.seat(owner)
        elif owner.outstanding == 0:
            self._let_go(owner)

    def _come_back(self, first: int, last: int, key: bytes, *, is_deferred: bool = False) -> None:
        """Whoever else has some of these by now keeps them."""
        self._withheld.remove(first, last)
        self._lent.remove(first, last)
        for owner, start, end in self._locks.parts(first, last):
            if owner.key == key:
                again = None if is_deferred else self._again_of(owner)
                if again is not None:
                    again.add(start, end)
                else:
                    self._locks.release(start, end)
                    self._unlock(owner, start, end)

    def _again_of(self, owner: Consumer) -> RangeSet | None:
        """What comes back from one that recovers and stays its own.

        In groups it takes its turn, so that what came back before, and perhaps waits for its time, is not overtaken.
        """
        return owner.again if owner.is_attached and not self._source.policy.groups else None

    def _take_back(self, consumer: Consumer, held: RangeSet) -> None:
        for first, last in held:
            self._locks.release(first, last)
            consumer.outstanding -= last - first + 1
            if self._supply.groups is not None:
                self._supply.groups.loose(first, last)
            self._maybe.add(first, last)
            self._supply.offer(first, last)

    def _let_go(self, consumer: Consumer) -> None:
        """One that left holds nothing any more."""
        self._leaving.pop(consumer, None)
        self._supply.unpark(consumer, len(consumer.parked))
        if self._supply.groups is not None:
            self._supply.groups.leave(consumer)

    def _hand(self, consumer: Consumer, run: Run, count: int) -> None:
        self._lock(consumer, run.position, run.position + count - 1)
        self._tell_of(consumer, run, count)
        self._supply.pass_turn(consumer)

    def _tell_of(self, consumer: Consumer, run: Run, count: int) -> None:
        first = run.position
        for start, end, deliveries, history in self._pieces(first, first + count - 1):
            index = run.index + start - first
            consumer.give(DeliveredRun(run.sequence, run.command, index, end - start + 1, start, deliveries, history))

    def _pieces(self, first: int, last: int) -> list[tuple[int, int, int, bytes]]:
        """These positions, cut where the number of deliveries or the history changes."""
        counts, maybe = self._supply.backlog.counts, self._maybe
        histories = self._source.histories if isinstance(self._source, Queue) else None
        if not counts and not maybe and not histories:
            return [(first, last, 1, b"")]
        found = []
        known = histories.split(first, last) if histories else [(first, last, None)]
        for begin, end, history in known:
            told = history.encode() if history else b""
            for start, stop in _cut(begin, end, counts, maybe):
                found.append((start, stop, 1 + counts.get(start, 0) + (start in maybe), told))
        return found


def _cut(first: int, last: int, counts: dict[int, int], maybe: RangeSet) -> list[Range]:
    """A range in parts within which all positions have the same count and are all in the set or all not."""
    borders = {first, last + 1}
    for position in within(counts, first, last):
        if position > first and counts.get(position - 1) != counts[position]:
            borders.add(position)
        if counts.get(position + 1) != counts[position]:
            borders.add(position + 1)
    for start, end in maybe.intersection(first, last):
        borders |= {start, end + 1}
    places = sorted(borders)
    return [(start, after - 1) for start, after in pairwise(places)]
