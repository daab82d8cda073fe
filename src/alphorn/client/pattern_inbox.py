"""What a consumer of a pattern has received: the inboxes of all destinations that match, used as one.

Each member is an inbox of its own for the core: it holds, acknowledges, returns and resumes by itself. Here is only who
comes next. Members take turns by arrivals, so that no destination waits behind another that always has more.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from operator import length_hint

from alphorn.client.inbox import AckMode, Inbox
from alphorn.client.message import Arrival, Message
from alphorn.model.conversation import Consume, ConsumePattern
from alphorn.model.errors import Error, InvalidDestination


class PatternInbox(Inbox):
    """Members by number, those with something to hand out, and those with something in hand."""

    __slots__ = ("_arrived", "_guard", "_nobody", "_turn", "_used", "is_settled", "members", "on_failed", "wish")

    def __init__(self, wish: ConsumePattern, mode: AckMode) -> None:
        consume = Consume(0, wish.session, wish.watch, 0, wish.prefetch)
        self._nobody = Inbox(consume=consume, destination=wish.pattern, mode=mode)
        self._turn = self._nobody  # whose messages are being handed out
        self._arrived: dict[int, Inbox] = {}  # have arrivals, the longest waiting first
        self._used: dict[int, Inbox] = {}  # have something in hand, or something to tell
        self.members: dict[int, Inbox] = {}
        self.wish = wish
        self.is_settled = False  # every destination of the beginning has joined
        self.on_failed: Callable[[Error], None] = lambda error: None  # a member was refused
        super().__init__(consume=consume, destination=wish.pattern, mode=mode)

    def join(self, member: Inbox) -> None:
        """A destination matches."""
        self.members[member.number] = member
        member.guard = self._guard
        member.on_wish = self._tell_wish
        member.on_arrival = partial(self._on_arrival, member)

    def _tell_wish(self) -> None:
        self.on_wish()

    def _on_arrival(self, member: Inbox) -> None:
        if member.is_open:
            self._arrived[member.number] = member
            self.on_arrival()
        else:
            self._leave(member, member.failure)

    def _leave(self, member: Inbox, error: Error | None) -> None:
        """A destination is gone, which ends nothing; any other reason is one for the program."""
        for shelf in (self.members, self._arrived, self._used):
            shelf.pop(member.number, None)
        if self._turn is member:
            self._turn = self._nobody
        if error is not None and not isinstance(error, InvalidDestination):
            self.on_failed(error)

    # What consumers use, by the member whose turn it is.

    @property
    def ready(self) -> Iterator[Message]:
        """What can be handed out without a turn."""
        return self._turn.ready

    @ready.setter
    def ready(self, ready: Iterator[Message]) -> None:
        self._turn.ready = ready

    @property
    def in_hand(self) -> int:
        """So many of the last ones handed out are still being used."""
        return self._turn.in_hand

    @in_hand.setter
    def in_hand(self, count: int) -> None:
        self._turn.in_hand = count

    @property
    def guard(self) -> AbstractContextManager[object]:
        """The owner's lock, for all members."""
        return self._guard

    @guard.setter
    def guard(self, guard: AbstractContextManager[object]) -> None:
        self._guard = guard
        for member in self.members.values():
            member.guard = guard

    @property
    def has_prefetched(self) -> bool:
        """Whether a message can be handed out."""
        return length_hint(self.ready) > 0 or bool(self._arrived)

    @property
    def has_wishes(self) -> bool:
        """Whether a member has something to tell the server."""
        return any(member.has_wishes for member in self._used.values())

    @property
    def is_urgent(self) -> bool:
        """Whether the server should hear it at once."""
        return any(member.is_urgent for member in self._used.values())

    def turn(self) -> bool:
        """Unpacks the next arrival of whoever waits longest; False when there is none."""
        while self._arrived:
            number = next(iter(self._arrived))
            member = self._arrived.pop(number)
            if member.turn():
                self._turn = self._used[number] = member
                if member.has_arrivals:
                    self._arrived[number] = member  # the others come first
                return True
        return False

    def finish(self) -> None:
        """The program is done with all that is in hand, where going on says so."""
        for member in self._used.values():
            member.finish()
        self._used = {
            number: member for number, member in self._used.items() if member.has_wishes or member is self._turn
        }

    def unhand(self, *, is_closing: bool = False) -> None:
        """What is in hand was not used: it is returned, not acknowledged."""
        for member in self._used.values():
            member.unhand(is_closing=is_closing)

    def give_back(self, arrival: Arrival, index: int, *, delay_ms: int = -1, is_dead: bool = False) -> None:
        """One message comes back, to the destination that it came from."""
        keeper = arrival.keeper
        assert isinstance(keeper, Inbox)
        keeper.give_back(arrival, index, delay_ms=delay_ms, is_dead=is_dead)

    def close(self) -> None:
        """Hands out nothing more."""
        self.is_open = False
        self._arrived.clear()
        self._turn = self._nobody
