"""What the primary does for destinations on their way to or from another channel. All of it is soft.

It finds a Client Manager to carry each destination that is to leave, and another one when that is gone. It tells all of
them what has left, after its last delivery, and what has come. When all have attached the consumers that followed, what
nobody has any more comes back, counted as delivered, and the destination is like any other.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from alphorn.message_manager.dispatch import Dispatcher
from alphorn.message_manager.effects import Effect, Landed, Left, Planned
from alphorn.message_manager.engine import Engine
from alphorn.message_manager.exporting import Read, export_page, leaving_source
from alphorn.message_manager.moves import Lent
from alphorn.message_manager.presence import Presence
from alphorn.message_manager.topic import Topic
from alphorn.model import frame_kinds, link, moving_link
from alphorn.model.commands import AnyCommand, Return, Settle
from alphorn.model.destinations import Policy
from alphorn.model.errors import Error, Misuse, Unavailable
from alphorn.model.ranges import RangeSet

NOBODY = b""

Told = dict[int, RangeSet]  # by subscription

_encode = msgspec.msgpack.Encoder().encode


class Travelling:
    """One primary's part. `links` are those of the Client Managers that have introduced themselves, by origin."""

    __slots__ = ("_awaited", "_carriers", "_doubtful", "_excused", "_links", "_order", "_present", "_tell", "_told")

    def __init__(
        self,
        links: Mapping[bytes, int],
        *,
        tell: Callable[[int, frame_kinds.Told], None],
        order: Callable[[AnyCommand], None],
    ) -> None:
        self._links = links
        self._tell = tell
        self._order = order
        self._present: set[bytes] = set()  # origins of Client Managers that are members
        self._carriers: dict[int, bytes] = {}  # destination → origin of who carries it
        self._told: dict[int, tuple[Told, Told]] = {}  # of those: what was never delivered, and what was lost
        self._doubtful: set[int] = set()  # on their way: somebody left who might have had messages of them
        self._excused: set[int] = set()  # of those: all was heard from who left, by this primary
        self._awaited: dict[int, set[bytes]] = {}  # destination that has come → whose consumers have not followed

    def on_promoted(self, engine: Engine, client_managers: Iterable[bytes]) -> None:
        """This replica serves from now on; those who introduce themselves are told of everything."""
        self._present = set(client_managers)
        self._carriers.clear()
        self._told.clear()
        self._doubtful |= self._excused
        self._excused = set()
        self._awaited = {number: set(self._present) for number in engine.moves.landing}

    def on_demoted(self) -> None:
        """Another replica serves; what was heard here is not heard there."""
        self._awaited.clear()

    def on_introduced(self, engine: Engine, origin: bytes) -> None:
        """A Client Manager is linked, maybe again."""
        self._present.add(origin)
        for number in engine.moves.landing:
            self._awaited.setdefault(number, set()).add(origin)
            self._tell(self._links[origin], _landed(engine, number))
        for number, leaving in engine.moves.leaving.items():
            if leaving.source is not None:
                self._tell(self._links[origin], _departed(engine, number))
        for number in _to_be_carried(engine):
            if self._carriers.get(number) == origin:  # it may not have heard; who is on the way passes it over
                self._tell(self._links[origin], _carry(engine, number))
        self.assign(engine)

    def on_left(self, engine: Engine, dispatcher: Dispatcher, origin: bytes) -> None:
        """A Client Manager is no member any more: nobody waits for it."""
        self._present.discard(origin)
        for number, awaited in list(self._awaited.items()):
            if origin in awaited:
                self._doubtful.add(number)
            self._strike(engine, dispatcher, number, origin)
        self.assign(engine)

    def doubt(self, engine: Engine, origin: bytes = NOBODY) -> None:
        """Somebody left, or may have, while destinations were on their way: what it had of them it tells nobody now.

        Every replica keeps this in mind, since any may be the one that has to tell. Only where one that is primary has
        heard all from who left, it goes on as it would.
        """
        heard = {number for number, awaited in self._awaited.items() if origin and origin not in awaited}
        self._excused = heard.difference(self._doubtful)
        self._doubtful = engine.moves.under_way().difference(self._excused)

    def note(self, effects: Sequence[Effect], *, is_doubtful: bool) -> None:
        """On every replica: something left or came, shortly after somebody left (`is_doubtful`) or not."""
        if is_doubtful:
            self._doubtful.update(effect.number for effect in effects if isinstance(effect, Left | Landed))

    def on_effects(self, engine: Engine, dispatcher: Dispatcher, effects: Sequence[Effect]) -> None:
        """Something set out, left or came."""
        for effect in effects:
            if isinstance(effect, Planned):
                self._carriers.pop(effect.number, None)  # of an earlier plan, which was cancelled
                self.assign(engine)
            elif isinstance(effect, Left) and effect.number in engine.moves.leaving:
                for number in self._links.values():
                    self._tell(number, _departed(engine, effect.number))
            elif isinstance(effect, Landed) and effect.number in engine.moves.landing:
                self._awaited[effect.number] = set(self._present)
                for number in self._links.values():
                    self._tell(number, _landed(engine, effect.number))
                self._strike(engine, dispatcher, effect.number, NOBODY)

    def on_followed(self, engine: Engine, dispatcher: Dispatcher, origin: bytes, frame: moving_link.Followed) -> None:
        """A Client Manager has attached all its consumers of a destination that has come."""
        unseen, loose = self._told.setdefault(frame.destination, ({}, {}))
        for told, known in ((frame.unseen, unseen), (frame.loose, loose)):
            for subscription, positions in told:
                known.setdefault(subscription, RangeSet()).update(RangeSet.from_flat(positions))
        self._strike(engine, dispatcher, frame.destination, origin)

    def assign(self, engine: Engine) -> None:
        """Finds somebody for every destination that nobody carries."""
        carriers, wanted = self._carriers, _to_be_carried(engine)
        for number in [number for number in carriers if number not in wanted]:
            del carriers[number]
        origins = sorted(self._links)
        for number in wanted if origins else ():
            if carriers.get(number) not in self._links:
                carriers[number] = origins[number % len(origins)]
                self._tell(self._links[carriers[number]], _carry(engine, number))

    def export(
        self, engine: Engine, dispatcher: Dispatcher, number: int, frame: moving_link.Export, read: Read
    ) -> None:
        """Answers whoever carries a destination."""
        try:
            if not frame.destination:
                self._tell(number, moving_link.Exported(frame.request, record=_encode(inventory(engine))))
                return
            if frame.start >= 0:
                self._tell(number, export_page(engine, frame.destination, frame.start, frame.request, read))
                return
            pieces = list(engine.export(frame.destination, self._lent(engine, dispatcher, frame.destination)))
        except Error as error:
            self._tell(number, link.Answered(frame.request, 0, type(error).__name__, str(error)))
            return
        for place, piece in enumerate(pieces, 1):
            self._tell(number, moving_link.Exported(frame.request, record=piece, is_last=place == len(pieces)))

    def _lent(self, engine: Engine, dispatcher: Dispatcher, number: int) -> Lent:
        """What consumers had when a destination left; raises an `Error` where that cannot be told, or not yet."""
        source = leaving_source(engine, number)
        if number not in engine.moves.under_way():
            raise Misuse(f"{source.destination} has not left; begin its move before the rest of it is exported")
        if dispatcher.missing:
            raise Unavailable("Client Managers have not said yet what their consumers have; ask again")
        lent = dispatcher.lent.get(number)
        if lent is None:  # the primary that knew is gone
            lent = Lent({}, {subscription: backlog.pending for subscription, backlog in source.backlogs()})
        return lent.doubted() if dispatcher.is_doubtful or number in self._doubtful else lent

    def _strike(self, engine: Engine, dispatcher: Dispatcher, number: int, origin: bytes) -> None:
        awaited = self._awaited.get(number)
        if awaited is None:
            return
        awaited.discard(origin)
        if awaited:
            return
        del self._awaited[number]
        if number in engine.moves.landing:
            for subscription, seen in self._seen(engine, dispatcher, number).items():
                self._order(Return(number, subscription, NOBODY, seen.flat(), delay_ms=0))
            self._order(Settle(number))

    def _seen(self, engine: Engine, dispatcher: Dispatcher, number: int) -> Told:
        """All have answered: of what nobody has, what may have been seen by a program."""
        unseen, loose = self._told.pop(number, ({}, {}))
        lent, nothing = engine.moves.landing[number].lent, RangeSet()
        seen: Told = {}
        for subscription, positions in dispatcher.unclaimed(number).items():
            gone = loose.get(subscription, nothing)  # somebody had these, whoever was to be given them after that
            found = positions.difference(unseen.get(subscription, nothing).difference(gone))
            if number not in self._doubtful:  # what was not given out for certain, and nobody lost, was never given out
                never = found.difference(lent.given.get(subscription, nothing))
                found = found.difference(never.difference(gone))
            if found:
                seen[subscription] = found
        return seen


def inventory(engine: Engine) -> list[moving_link.Inventoried]:
    """All destinations that can be moved from here, those that are on their way here, and those that went elsewhere."""
    moves, kept = engine.moves, moving_link.Inventoried
    here = {
        str(found.destination): moves.leaving[number].channel if number in moves.leaving else -1
        for number, found in engine.destinations.items()
        if not found.owner and not found.destination.is_reserved
    }
    coming = {str(incoming.made.destination): -1 for incoming in moves.incoming.values()}
    known = [kept(name, True, channel) for name, channel in {**coming, **here}.items()]
    elsewhere = {str(name): channel for name, (channel, _) in moves.elsewhere.items()}
    return known + [kept(name, False, channel) for name, channel in elsewhere.items() if name not in coming]


def _to_be_carried(engine: Engine) -> dict[int, None]:
    """All that leave, and those that were deleted before: whoever carries one finds that out, and says so there."""
    return dict.fromkeys((*engine.moves.leaving, *engine.moves.recalled))


def _carry(engine: Engine, number: int) -> moving_link.Carry:
    if number in engine.moves.recalled:
        channel, destination = engine.moves.recalled[number]
        return moving_link.Carry(number, destination, Policy(), channel, [])
    leaving = engine.moves.leaving[number]
    source = leaving.source or engine.destinations[number]
    names = []
    if isinstance(source, Topic):
        found = [each for each in source.subscriptions.values() if each.is_durable or each.is_shared]
        names = [(each.is_durable, each.client, each.name) for each in found]
    return moving_link.Carry(number, source.destination, source.policy, leaving.channel, names)


def _departed(engine: Engine, number: int) -> moving_link.Departed:
    home = engine.moves.home_of(number)
    assert home is not None
    return moving_link.Departed(number, moving_link.Home(*home))


def _landed(engine: Engine, number: int) -> moving_link.Landed:
    landing = engine.moves.landing[number]
    return moving_link.Landed(number, *landing.home, landing.begun_at)


def owners_away(effects: Sequence[Effect], engine: Engine, presence: Presence) -> list[bytes]:
    """What came from another channel may belong to connections that nobody has any more; these are they."""
    if not any(isinstance(effect, Landed) for effect in effects):
        return []
    return [connection for connection in sorted(engine.connections()) if not presence.is_here(connection)]
