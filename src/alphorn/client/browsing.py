"""Looking into a queue: one page at a time, because what comes for it has no number of its own."""

from collections.abc import Callable
from typing import Any

from alphorn.client.inbox import AckMode, Inbox
from alphorn.client.message import Message
from alphorn.client.requests import Answer, OnAnswer
from alphorn.model.conversation import AnyClientFrame, Browse, Consume
from alphorn.model.errors import Error
from alphorn.model.ranges import RangeSet

OnBrowsed = Callable[[Inbox, Answer | Error], None]
Ask = Callable[[Callable[[int], AnyClientFrame], OnAnswer], None]


class Browsing:
    """The page that is under way, if any."""

    __slots__ = ("_ask", "inbox")

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self.inbox: Inbox | None = None  # of what has come of it

    @property
    def is_under_way(self) -> bool:
        """Whether a page is under way, so that no other can begin."""
        return self.inbox is not None

    def look(
        self,
        destination: str,
        make: Callable[[int], Browse],
        on_answer: OnBrowsed,
        opener: Callable[[Message], Any],
    ) -> None:
        """Asks for a page of a queue; `make` gets the request's number."""
        assert self.inbox is None
        place = make(0).place
        inbox = Inbox(consume=Consume(0, 0, 0, place, 0), destination=destination, mode=AckMode.INDIVIDUAL)
        inbox.opener = opener

        def on_browsed(answer: Answer | Error) -> None:
            self.inbox = None
            on_answer(inbox, answer)

        self.inbox = inbox
        self._ask(make, on_browsed)

    def start_over(self) -> None:
        """The page begins anew, on a new stream."""
        if self.inbox is not None:
            self.inbox.held = RangeSet()
            self.inbox.start_over()
