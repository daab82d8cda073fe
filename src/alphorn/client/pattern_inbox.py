"""What a consumer of a pattern has received: the inboxes of all destinations that match, used as one.

Each is an inbox of its own for the core: it holds, acknowledges, returns and resumes by itself. Here is only who comes
next. They take turns by arrivals, so that no destination waits behind another that always has more.
"""

from collections.abc import Callable, Iterator
from functools import partial
from operator import length_hint

from alphorn.client.inbox import AckMode, Guard, Inbox
from alphorn.client.message import Arrival, Message
from alphorn.model.conversation import Consume, ConsumePattern
from alphorn.model.errors import Error, InvalidDestination
from alphorn.model.system import whole_of


class PatternInbox(Inbox):
    """Inboxes by number, those with something to hand out, and those with something in hand."""

    __slots__ = ("_arrived", "_guard", "_nobody", "_turn", "_used", "is_settled", "joined", "on_failed", "wish")

    def __init__(self, wish: ConsumePattern, mode: AckMode) -> None:
        consume = Consume(0, wish.session, wish.watch, 0, wish.prefetch)
        name = str(whole_of(wish.pattern) or wish.pattern)
        self._nobody = Inbox(consume=consume, destination=name, mode=mode)
        self._turn = self._nobody  # whose messages are being handed out
        self._arrived: dict[int, Inbox] = {}  # have arrivals, the longest waiting first
        self._used: dict[int, Inbox] = {}  # have something in hand, or something to tell
        self.joined: dict[int, Inbox] = {}
        self.wish = wish
        self.is_settled = False  # every destination of the beginning has joined
        self.on_failed: Callable[[Error], None] = lambda error: None  # a destination refused
        super().__init__(consume=consume, destination=name, mode=mode)

    def join(self, inbox: Inbox) -> None:
        """A destination matches."""
        self.joined[inbox.number] = inbox
        inbox.guard = self._guard
        inbox.on_wish = self._tell_wish
        inbox.on_arrival = partial(self._on_arrival, inbox)

    def _tell_wish(self) -> None:
        self.on_wish()

    def _on_arrival(self, inbox: Inbox) -> None:
        if inbox.is_open:
            self._arrived[inbox.number] = inbox
            self.on_arrival()
        else:
            self._leave(inbox, inbox.failure)

    def _leave(self, inbox: Inbox, error: Error | None) -> None:
        """A destination is gone, which ends nothing; any other reason is one for the program."""
        for shelf in (self.joined, self._arrived, self._used):
            shelf.pop(inbox.number, None)
        if self._turn is inbox:
            self._turn = self._nobody
        if error is not None and not isinstance(error, InvalidDestination):
            self.on_failed(error)

    # What consumers use, by the inbox whose turn it is.

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
    def guard(self) -> Guard:
        """The owner's lock, for all of them."""
        return self._guard

    @guard.setter
    def guard(self, guard: Guard) -> None:
        self._guard = guard
        for inbox in self.joined.values():
            inbox.guard = guard

    @property
    def has_prefetched(self) -> bool:
        """Whether a message can be handed out."""
        return length_hint(self.ready) > 0 or bool(self._arrived)

    @property
    def has_wishes(self) -> bool:
        """Whether a inbox has something to tell the server."""
        return any(inbox.has_wishes for inbox in self._used.values())

    @property
    def is_urgent(self) -> bool:
        """Whether the server should hear it at once."""
        return any(inbox.is_urgent for inbox in self._used.values())

    @property
    def has_consumed(self) -> bool:
        """Whether the program was handed anything that is not settled, of any destination."""
        return any(inbox.has_consumed for inbox in self.joined.values())

    def turn(self) -> bool:
        """Unpacks the next arrival of whoever waits longest; False when there is none."""
        while self._arrived:
            number = next(iter(self._arrived))
            inbox = self._arrived.pop(number)
            if inbox.turn():
                self._turn = self._used[number] = inbox
                if inbox.has_arrivals:
                    self._arrived[number] = inbox  # the others come first
                return True
        return False

    def finish(self) -> None:
        """The program is done with all that is in hand, where going on says so."""
        for inbox in self._used.values():
            inbox.finish()
        self._used = {number: inbox for number, inbox in self._used.items() if inbox.has_wishes or inbox is self._turn}

    def unhand(self, *, is_closing: bool = False) -> None:
        """What is in hand was not used: it is returned, not acknowledged."""
        for inbox in self._used.values():
            inbox.unhand(is_closing=is_closing)

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
