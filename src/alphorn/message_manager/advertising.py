"""Destinations advertise themselves: Client Managers with patterns hear of each that comes or goes.

A pattern's consumer is to receive all that is published to a topic that is created while it is there. Only a Client
Manager knows its patterns, so whoever created a topic is answered after all Client Managers that watch have noted it,
which they do once their consumers have subscribed. Nobody can publish to a topic before that, because nobody knows its
number. One whose link is lost is waited for as well, because it comes back and watches again, until it has left the
group; and nobody is waited for longer than `WAIT_S`.

The group strikes whomever it has not heard for a while. One that was only slow still has its link and does not watch
again: it hears on meanwhile, and is waited for again from the entry on with which it joins, or once it notes something.

Like all that the primary alone knows this is soft: after a change of primary each Client Manager watches anew, and
until all of them have spoken, answers wait for them too.
"""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice

import msgspec

from alphorn.message_manager.effects import Created, Deleted, Effect
from alphorn.message_manager.engine import Engine
from alphorn.model.commands import AnyCommand, CreateDestination
from alphorn.model.destinations import DestinationKind
from alphorn.model.frame_kinds import Told
from alphorn.model.link import Advertised, Answered, Noted, Watch

WAIT_S = 5.0  # how long the answer to whoever created a topic waits for Client Managers
LISTED_MAX = 10_000  # destinations in one frame

_NEVER = float("inf")


class _Held(msgspec.Struct, gc=False):
    turn: int
    until: float
    tell: Callable[[], None]


class Advertising:
    """Who watches, up to which turn each of them has noted, and the answers that wait for that.

    A Client Manager is known by its origin, and reached by its link of the moment.
    """

    __slots__ = ("_away", "_engine", "_held", "_is_complete", "_links", "_log", "_noted", "_tell", "_turn")

    def __init__(
        self,
        engine: Engine,
        tell: Callable[[int, Told], None],
        log: Callable[[str, str, str], None],
        *,
        is_complete: bool = True,
    ) -> None:
        self._engine = engine
        self._tell = tell
        self._log = log
        self._turn = 0
        self._noted: dict[bytes, int] = {}  # by origin
        self._links: dict[bytes, int] = {}  # by origin, of some of these
        self._away: set[bytes] = set()  # of those with links: no members at present, and not waited for
        self._held: deque[_Held] = deque()
        self._is_complete = is_complete  # whether every Client Manager has spoken since the change of primary

    def on_asked(self, link: int, origin: bytes, frame: Watch | Noted) -> None:
        """A Client Manager watches, or has noted what it was told."""
        if isinstance(frame, Noted):
            if self._links.get(origin) == link:
                self._away.discard(origin)
                self._noted[origin] = max(self._noted[origin], min(frame.turn, self._turn))
        elif frame.is_on:
            for known in [known for known, its_link in self._links.items() if its_link == link]:
                self.leave(known)  # the same one, which has joined under another origin
            self._away.discard(origin)
            self._links[origin], self._noted[origin] = link, -1
            self._list(link, frame.request)
        else:
            self.leave(origin)
            self._tell(link, Answered(frame.request))

    def lose(self, link: int) -> None:
        """A link is lost; whoever watched there is to watch again."""
        for origin in [origin for origin, known in self._links.items() if known == link]:
            if origin in self._away:
                self.leave(origin)
            else:
                del self._links[origin]
                self._noted[origin] = -1

    def on_left(self, origin: bytes) -> None:
        """A Client Manager has left the group, or nobody there heard it for a while: it is waited for no more."""
        if origin in self._links:
            self._away.add(origin)
        else:
            self.leave(origin)

    def on_joined(self, origin: bytes) -> None:
        """A Client Manager is a member, for the first time or again."""
        self._away.discard(origin)

    def leave(self, origin: bytes) -> None:
        """A Client Manager watches no more."""
        self._noted.pop(origin, None)
        self._links.pop(origin, None)
        self._away.discard(origin)

    def on_effects(self, effects: Sequence[Effect]) -> None:
        """What came and went is advertised."""
        if not self._noted:
            return
        made, gone = [], []
        for effect in effects:
            if isinstance(effect, Created) and not effect.destination.is_temporary:
                made.append((effect.number, effect.destination))
            elif isinstance(effect, Deleted) and not effect.destination.is_temporary:
                gone.append(effect.number)
        if made or gone:
            self._turn += 1
            frame = Advertised(self._turn, made, gone)
            for link in self._links.values():
                self._tell(link, frame)

    def answer(self, command: AnyCommand, tell: Callable[[], None], now: float) -> None:
        """Tells an outcome; where a topic was created, after all who watch have noted it."""
        is_topic = isinstance(command, CreateDestination) and command.destination.kind is DestinationKind.TOPIC
        if is_topic and not self._is_noted(self._turn):
            self._held.append(_Held(self._turn, now + WAIT_S, tell))
        else:
            tell()

    def release(self, *, is_complete: bool) -> None:
        """Tells what needs to wait no longer."""
        self._is_complete = is_complete
        while self._held and self._is_noted(self._held[0].turn):
            self._held.popleft().tell()

    def on_time(self, now: float) -> None:
        """Those that were waited for in vain are waited for no longer."""
        while self._held and self._held[0].until <= now:
            held = self._held.popleft()
            silent = [origin for origin in self._noted if not self._has_noted(origin, held.turn)]
            names = ",".join(origin.hex() for origin in silent) or "of those that have not spoken"
            self._log("warning", "topic_not_noted", f"client_managers={names!r}")
            for origin in silent:
                if origin not in self._links:
                    self.leave(origin)
            held.tell()

    def next_deadline(self) -> float:
        """When an answer has waited long enough."""
        return self._held[0].until if self._held else _NEVER

    def _is_noted(self, turn: int) -> bool:
        return self._is_complete and all(self._has_noted(origin, turn) for origin in self._noted)

    def _has_noted(self, origin: bytes, turn: int) -> bool:
        return self._noted[origin] >= turn or origin in self._away

    def _list(self, link: int, request: int) -> None:
        listed = (
            (number, found.destination)
            for number, found in self._engine.destinations.items()
            if not found.destination.is_temporary
        )
        self._tell(link, Advertised(self._turn, list(islice(listed, LISTED_MAX))))
        while part := list(islice(listed, LISTED_MAX)):
            self._tell(link, Advertised(self._turn, part))
        self._tell(link, Answered(request))
