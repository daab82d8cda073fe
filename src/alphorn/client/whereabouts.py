"""Where destinations are, as far as a connection knows: learned by asking, forgotten when they are deleted.

A producer whose destination was deleted looks for it again with the next message that it is to send: destinations are
created on first use, and a producer that sends nothing brings none back.
"""

from collections.abc import Callable, Iterable

from alphorn.client.outbox import Outbox
from alphorn.client.requests import Answer, OnAnswer
from alphorn.model.conversation import Resolve, Resolved
from alphorn.model.errors import Error, PeerViolation

PLACES_MAX = 10_000

Ask = Callable[[Callable[[int], Resolve], OnAnswer], None]


class Whereabouts:
    """Names and places."""

    __slots__ = ("places",)

    def __init__(self) -> None:
        self.places: dict[str, int] = {}

    def remember(self, destination: str, answer: Answer) -> int:
        """Where a destination is, from the answer to `Resolve`."""
        if not isinstance(answer, Resolved):
            raise PeerViolation(f"the Client Manager answered the question for {destination} with something else")
        if len(self.places) >= PLACES_MAX:
            self.places.clear()
        self.places[destination] = answer.place
        return answer.place

    def on_vanished(self, place: int, outboxes: Iterable[Outbox]) -> None:
        """A destination was deleted."""
        for name in [name for name, known in self.places.items() if known == place]:
            del self.places[name]
        for outbox in outboxes:
            if outbox.place == place:
                outbox.on_vanished()

    def find_again(self, outbox: Outbox, ask: Ask) -> None:
        """A producer has something to send and its destination was deleted: it waits until that is there again."""

        def on_answer(answer: Answer | Error) -> None:
            if isinstance(answer, Error):
                outbox.on_found(outbox.place)  # the server says why not
            else:
                outbox.on_found(self.remember(outbox.destination, answer))

        outbox.is_seeking = True
        ask(lambda request: Resolve(request, outbox.destination), on_answer)
