"""The dispatcher: what the primary alone knows and decides, who gets which messages.

Consumers attach; what the engine brings about is told by `on_effects`; `take_deliveries` gives out what can be given
out now, by reference. All its state is soft: it is made empty when a member becomes primary and thrown away when it is
not any more. What must survive that (messages came back, are not wanted) goes into the log, by commands that the caller
is given to order.

Promises: a message is with one consumer at a time; nobody has more than its prefetch; messages go out by priority and
position; nothing that can be given out waits while a consumer that wants it has room, but for what outlet.py holds back
for the sake of order. A message that may have been delivered before says so in its delivery count.

Only queues and subscriptions that something happened to are looked at, so idle ones cost nothing.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Protocol

import msgspec

from alphorn.message_manager.consumers import Consumer
from alphorn.message_manager.contents import Contents, Read
from alphorn.message_manager.effects import (
    Arrived,
    Created,
    Deferred,
    Deleted,
    Effect,
    Gone,
    Landed,
    Lapsed,
    Left,
    Settled,
    Unsubscribed,
)
from alphorn.message_manager.filters import Budget
from alphorn.message_manager.grace import Grace
from alphorn.message_manager.moves import Lent, Moves
from alphorn.message_manager.outlet import Outlet
from alphorn.message_manager.places import Places
from alphorn.message_manager.queue import Queue
from alphorn.message_manager.selector import Selector, parse
from alphorn.message_manager.slowness import Slowness
from alphorn.message_manager.tick_names import Names, names_of
from alphorn.message_manager.topic import Topic
from alphorn.model import link
from alphorn.model.commands import Acknowledge, Return, connection_of
from alphorn.model.destinations import Destination
from alphorn.model.errors import InvalidDestination, Misuse, Moved
from alphorn.model.link import Deliver, Detached
from alphorn.model.ranges import Range, RangeSet

LOOKS_MAX = 2_000  # messages looked into by one `take_deliveries`
DESCRIBED_MAX = 100  # destinations, for people


class Sources(Protocol):
    """The engine, as far as the dispatcher needs it."""

    @property
    def destinations(self) -> Mapping[int, Queue | Topic]:
        """All queues and topics by number."""

    @property
    def moves(self) -> Moves:
        """Destinations that leave or have come."""


class Delivery(msgspec.Struct, frozen=True, gc=False):
    """A delivery and the Client Manager it goes to."""

    client_manager: int
    deliver: Deliver


class Dispatcher:
    """One primary's consumers. `client_managers` were there at the change of primary and are to attach again.

    `is_doubtful` says that one may have left just before, whose consumers nobody speaks for.
    """

    __slots__ = (
        "_contents",
        "_dirty",
        "_engine",
        "_grace",
        "_notices",
        "_outlets",
        "_places",
        "_refused",
        "_slowness",
        "_stalled",
        "lent",
    )

    def __init__(
        self, engine: Sources, read: Read, client_managers: Iterable[int] = (), *, is_doubtful: bool = False
    ) -> None:
        self._engine = engine
        self._contents = Contents(read)
        self._outlets: dict[int, dict[int, Outlet]] = {}  # destination → subscription →
        self._places = Places()
        self._dirty: dict[Outlet, None] = {}  # to be looked at
        self._stalled: dict[Outlet, None] = {}  # to be looked at again when something else is
        self._notices: list[tuple[int, Detached | link.Lapsed]] = []
        self._refused: list[Acknowledge | Return] = []
        self._slowness = Slowness()
        waited_for = set(client_managers)
        newest = _newest(engine) if waited_for or is_doubtful else {}
        self._grace = Grace(waited_for, newest, is_doubtful=is_doubtful)
        self.lent: dict[int, Lent] = {}  # of destinations that have left: what consumers had
        for number in engine.moves.landing:
            self._land(number)
        if self._grace.is_over:
            self._find_lapsed()

    @property
    def has_more(self) -> bool:
        """Whether `take_deliveries` has something to look at."""
        return bool(self._dirty)

    @property
    def missing(self) -> list[int]:
        """The Client Managers whose consumers are not attached again yet."""
        return self._grace.missing

    @property
    def is_doubtful(self) -> bool:
        """Whether one left at the change of primary without a word of what its consumers had."""
        return self._grace.is_doubtful

    def attach(
        self,
        consumer: bytes,
        *,
        client_manager: int,
        destination: int,
        subscription: int,
        selector: str,
        prefetch: int,
        held: list[int],
    ) -> None:
        """A consumer wants messages; what it has already (`held`, flat pairs) is its own if nobody else has it.

        A consumer that is attached is attached anew: what it held and does not name is free. The selector counts for
        queues only; that of a subscription is the engine's. Raises `InvalidDestination`, `InvalidSelector` and
        `Misuse`, and then changes nothing.
        """
        source = self._engine.destinations.get(destination)
        if source is None:
            if self._engine.moves.home_of(destination) is not None:
                raise Moved(f"destination {destination} is on another channel now, or on its way there; try again")
            raise InvalidDestination(f"destination {destination} is not there (any more); look its name up again")
        if source.backlog_of(subscription) is None:
            raise InvalidDestination(
                f"destination {destination} has no subscription {subscription} (any more); subscribe again"
            )
        understood = _understand(selector) if subscription == 0 else None
        claimed = _check_held(held, prefetch)
        outlet = self._outlet(destination, subscription, source)
        if outlet.is_single and any(key != consumer for key in outlet.consumers):
            raise Misuse(
                f"subscription {subscription} of destination {destination} has an active consumer and is not shared; "
                "close that one first, or share the subscription"
            )
        attached = self._enter(consumer, outlet)
        attached.client_manager = client_manager
        attached.prefetch = prefetch
        attached.is_blocked = False  # whoever is says so after this,
        self._settle_all(self._slowness.end(connection_of(consumer)))  # and whose client is slow
        outlet.attach(attached, understood, claimed)
        self._lapse(outlet, claimed)

    def detach(self, consumer: bytes, seen: RangeSet | None = None) -> list[Return]:
        """A consumer wants no more; the commands give back what it held. One that is not attached holds nothing.

        `seen` are the positions that its program was given; None where nobody can tell, so that all of them count.
        """
        outlet = self._places.pop(consumer)
        if outlet is None:
            return []
        commands = outlet.detach(outlet.consumers[consumer], seen)
        self._settle(outlet)
        return commands

    def consumers_of(self, connection: bytes, client_manager: int) -> list[bytes]:
        """The attached consumers of a connection that are reached through a Client Manager."""
        return self._places.reached(client_manager, [connection])

    def consumers_at(self, client_manager: int) -> list[bytes]:
        """The attached consumers that are reached through a Client Manager."""
        return self._places.reached(client_manager, self._places)

    def users(self, destination: int, subscription: int, besides: bytes = b"") -> list[bytes]:
        """The consumers that are attached there, but for this one."""
        outlet = self._find(destination, subscription)
        return [] if outlet is None else [key for key in outlet.consumers if key != besides]

    def pause(self, key: bytes) -> None:
        """This one recovers: it gets nothing until it attaches again, and then first what came back from it."""
        outlet = self._places.get(key)
        if outlet is not None:
            outlet.pause(outlet.consumers[key])

    def suspend(self, consumers: Iterable[bytes]) -> None:
        """These keep what they hold, and get nothing more until they attach again."""
        for key in consumers:
            outlet = self._places.get(key)
            if outlet is not None:
                outlet.suspend(outlet.consumers[key])

    def regulate(self, consumers: Iterable[bytes], *, is_blocked: bool) -> None:
        """These get nothing for now, so that others get it, or (not blocked) again; what they hold they keep."""
        for key in consumers:
            outlet = self._places.get(key)
            if outlet is not None:
                consumer = outlet.consumers[key]
                consumer.is_blocked = is_blocked
                outlet.seat(consumer)
                self._settle(outlet)

    def regulate_client(self, connection: bytes, client_manager: int, *, is_slow: bool) -> None:
        """All consumers of a client get nothing for now, until they may again or one of them is attached."""
        if is_slow:
            self._slowness.begin(connection, client_manager)
        else:
            self._settle_all(self._slowness.end(connection, client_manager))

    def leave(self, number: int) -> None:
        """A Client Manager is gone: what it had not claimed at a change of primary may have been given out by it."""
        self._settle_all(self._slowness.leave(number))
        if self._grace.leave({number}):
            self._end_grace()

    def introduce(self, number: int) -> None:
        """A Client Manager has attached all the consumers it had at the change of primary."""
        if self._grace.answer(number):
            self._end_grace()

    def doubt(self, destination: int, subscription: int, positions: list[int]) -> None:
        """Consumers had these (flat pairs) that are gone; what is with nobody now may have been used."""
        source = self._engine.destinations.get(destination)
        if source is not None and source.backlog_of(subscription) is not None:
            outlet = self._outlet(destination, subscription, source)
            for first, last in _pairs(positions):
                outlet.doubt(first, last)
            self._settle(outlet)

    def on_effects(self, effects: Sequence[Effect]) -> None:
        """The engine has applied commands, with these effects."""
        deleted: dict[int, Destination] | None = None  # worked out when a subscription ends
        for effect in effects:
            match effect:
                case Arrived():
                    outlet = self._find(effect.destination, effect.subscription)
                    if outlet is not None:
                        outlet.arrive(effect.first, effect.last, effect.consumer)
                        self._settle(outlet)
                case Gone():
                    outlet = self._find(effect.destination, effect.subscription)
                    if outlet is not None:
                        for first, last in _pairs(effect.positions):
                            outlet.gone(first, last)
                        self._settle(outlet)
                case Deferred():
                    outlet = self._find(effect.destination, effect.subscription)
                    if outlet is not None:
                        for first, last in _pairs(effect.positions):
                            outlet.defer(first, last, effect.consumer)
                        self._settle(outlet)
                case Lapsed():
                    outlet = self._find(effect.destination, effect.subscription)
                    if outlet is not None:
                        self._lapse(outlet, RangeSet.from_flat(effect.positions))
                case Created():
                    for outlet in self._outlets.get(effect.number, {}).values():
                        outlet.refresh()
                        self._dirty[outlet] = None
                case Deleted():
                    reason = f"{effect.destination} was deleted; create it again to go on"
                    for subscription in list(self._outlets.get(effect.number, {})):
                        self._close(effect.number, subscription, reason)
                case Left():
                    self._leave(effect.number)
                case Landed():
                    self._land(effect.number)
                case Settled():
                    for outlet in list(self._outlets.get(effect.number, {}).values()):
                        outlet.follow()
                        self._settle(outlet)
                case Unsubscribed():
                    if deleted is None:
                        deleted = {gone.number: gone.destination for gone in effects if isinstance(gone, Deleted)}
                    reason = f"subscription {effect.subscription} has ended; subscribe again to go on"
                    if effect.destination in deleted:
                        reason = f"{deleted[effect.destination]} was deleted; create it again to go on"
                    self._close(effect.destination, effect.subscription, reason)

    def take_deliveries(self) -> list[Delivery]:
        """Gives out what can be given out now. Where that takes much looking into messages, `has_more` says so."""
        budget = Budget(LOOKS_MAX)
        looked: list[Outlet] = []
        waiting: list[Outlet] = []
        outlets = {**self._stalled, **self._dirty} if self._stalled else self._dirty
        self._dirty, self._stalled = {}, {}
        deliveries = []
        for outlet in outlets:
            before = budget.left
            if self._slowness:
                self._slowness.pass_over(outlet)
            for consumer in outlet.give(budget):
                deliver = Deliver(consumer.key, outlet.destination, consumer.runs)
                deliveries.append(Delivery(consumer.client_manager, deliver))
                consumer.runs = []
            self._refused += outlet.take_refused()
            if outlet.is_unfinished:
                (looked if budget.left < before else waiting).append(outlet)
            elif outlet.is_stalled:
                self._stalled[outlet] = None
        self._dirty = dict.fromkeys(waiting + looked)  # who had no turn comes first
        return deliveries

    def names_of(self, expiring: Mapping[int, RangeSet]) -> tuple[Names, Names]:
        """Those of these that consumers may have had, and those that they have, as a `Tick` names them."""
        return names_of(expiring, self._outlets, self._engine.destinations, self._grace)

    def take_refused(self) -> list[Acknowledge | Return]:
        """Commands to order for what subscriptions turned out not to want in a replay, and for what lapsed."""
        refused, self._refused = self._refused, []
        return refused

    def take_notices(self) -> list[tuple[int, Detached | link.Lapsed]]:
        """Consumers that get nothing any more, or whose messages are out of time, each with its Client Manager."""
        notices, self._notices = self._notices, []
        return notices

    def outlets(self, destination: int) -> Collection[Outlet]:
        """Where its messages are given out now: a queue has one at most, a topic one for each subscription."""
        return self._outlets.get(destination, {}).values()

    def describe(self) -> dict[str, Any]:
        """What it knows, printable; of many destinations only some."""
        return {
            "missing": self._grace.missing,
            "destinations": {
                number: {subscription: outlet.describe() for subscription, outlet in outlets.items()}
                for number, outlets in islice(self._outlets.items(), DESCRIBED_MAX)
            },
        }

    def _find(self, destination: int, subscription: int) -> Outlet | None:
        outlets = self._outlets.get(destination)
        return None if outlets is None else outlets.get(subscription)

    def _outlet(self, destination: int, subscription: int, source: Queue | Topic) -> Outlet:
        outlet = self._find(destination, subscription)
        if outlet is not None:
            return outlet
        outlet = Outlet(destination, subscription, source, self._contents)
        newest = self._grace.newest_of((destination, subscription))
        if newest >= 0:
            outlet.withhold(newest)
            if self._grace.is_over:
                outlet.release(is_doubtful=self._grace.is_doubtful)
                self._grace.forget((destination, subscription))
        self._outlets.setdefault(destination, {})[subscription] = outlet
        return outlet

    def _enter(self, key: bytes, outlet: Outlet) -> Consumer:
        """The consumer with this key: the one that is here, or a new one, which is nowhere else then."""
        earlier = self._places.get(key)
        if earlier is outlet:
            return outlet.consumers[key]
        if earlier is not None:
            earlier.abandon(earlier.consumers[key])
            self._settle(earlier)
        self._places.put(key, outlet)
        return Consumer(key)

    def _settle_all(self, outlets: list[Outlet]) -> None:
        for outlet in outlets:
            if self._find(outlet.destination, outlet.subscription) is outlet:
                self._settle(outlet)

    def _settle(self, outlet: Outlet) -> None:
        """Something happened to it: it is to be looked at, or to be forgotten."""
        if outlet.is_idle:
            self._drop(outlet)
        elif not outlet.is_empty:
            self._dirty[outlet] = None

    def _drop(self, outlet: Outlet) -> None:
        outlets = self._outlets[outlet.destination]
        del outlets[outlet.subscription]
        if not outlets:
            del self._outlets[outlet.destination]
        self._dirty.pop(outlet, None)
        self._stalled.pop(outlet, None)

    def _close(self, destination: int, subscription: int, reason: str) -> None:
        self._grace.forget((destination, subscription))
        outlet = self._find(destination, subscription)
        if outlet is None:
            return
        for key, consumer in outlet.consumers.items():
            self._places.pop(key)
            self._notices.append((consumer.client_manager, Detached(key, InvalidDestination.__name__, reason)))
        self._drop(outlet)

    def _lapse(self, outlet: Outlet, positions: RangeSet) -> None:
        """Who has any of these whose time is over is told so; what of it nobody has is looked for."""
        for consumer, theirs in outlet.lapsed(positions):
            self._notices.append((consumer.client_manager, link.Lapsed(consumer.key, theirs.flat())))
        self._dirty[outlet] = None

    def _find_lapsed(self) -> None:
        """All who could say so have said what they have: what lapsed and is with nobody is to be found."""
        for number, source in self._engine.destinations.items():
            self._find_lapsed_of(number, source)

    def _find_lapsed_of(self, number: int, source: Queue | Topic) -> None:
        for subscription, backlog in source.backlogs():
            if backlog.lapsed:
                self._dirty[self._outlet(number, subscription, source)] = None

    def _leave(self, number: int) -> None:
        """A destination has left: its consumers turn elsewhere, and what they may have had is told there."""
        leaving = self._engine.moves.leaving
        source = leaving[number].source if number in leaving else None
        if source is None:
            return
        self.lent = {known: lent for known, lent in self.lent.items() if known in leaving}
        self.lent[number] = lent = Lent({}, {})
        for subscription, backlog in source.backlogs():
            place = (number, subscription)
            outlet = self._find(*place)
            newest = self._grace.newest_of(place)
            if outlet is not None:
                lent.given[subscription], lent.unclear[subscription] = outlet.given, outlet.withheld
            elif newest >= 0:
                found = lent.given if self._grace.is_over else lent.unclear
                found[subscription] = RangeSet(backlog.pending.intersection(0, newest))
            self._grace.forget(place)
        for outlet in list(self._outlets.get(number, {}).values()):
            for key in outlet.consumers:
                self._places.pop(key)
            self._drop(outlet)

    def _land(self, number: int) -> None:
        """A destination has come: what its consumers have is given to nobody else before they have followed."""
        source = self._engine.destinations.get(number)
        if source is None or number not in self._engine.moves.landing:
            return
        for subscription, lent in self._engine.moves.landing[number].lent.doubted().given.items():
            if lent and source.backlog_of(subscription) is not None:
                self._outlet(number, subscription, source).lend(lent)
        self._find_lapsed_of(number, source)

    def unclaimed(self, number: int) -> dict[int, RangeSet]:
        """Of a destination that has come: what consumers had there and nobody has here, by subscription."""
        outlets = self._outlets.get(number, {})
        return {subscription: outlet.unclaimed for subscription, outlet in outlets.items() if outlet.unclaimed}

    def _end_grace(self) -> None:
        self._find_lapsed()
        for outlets in list(self._outlets.values()):
            for outlet in list(outlets.values()):
                if self._grace.newest_of((outlet.destination, outlet.subscription)) >= 0:
                    outlet.release(is_doubtful=self._grace.is_doubtful)
                    self._grace.forget((outlet.destination, outlet.subscription))
                    self._settle(outlet)
        if not self._grace.is_doubtful:
            self._grace.forget_all()


def _newest(engine: Sources) -> dict[tuple[int, int], int]:
    return {
        (number, subscription): backlog.pending.last
        for number, source in engine.destinations.items()
        for subscription, backlog in source.backlogs()
        if backlog.pending
    }


def _pairs(flat: list[int]) -> Iterable[Range]:
    return zip(flat[::2], flat[1::2], strict=False)


def _understand(selector: str) -> Selector | None:
    return parse(selector) if selector.strip() else None


def _check_held(held: list[int], prefetch: int) -> RangeSet:
    if prefetch < 0:
        raise Misuse(f"a prefetch of {prefetch} is not possible; 0 or more messages can be asked for")
    pairs = list(_pairs(held))
    if len(held) % 2 or any(not 0 <= first <= last for first, last in pairs):
        raise Misuse("the positions that a consumer says it holds are no pairs of first and last")
    return RangeSet(pairs)  # more than the prefetch where acknowledgements are still on their way
