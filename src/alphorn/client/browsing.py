"""Looking at a queue, a page at a time: what comes for it has no number of its own, so one page is under way.

What belongs to the system is looked at part by part, each channel's in its turn.
"""

from collections.abc import Callable

from alphorn.client.inbox import AckMode, Inbox
from alphorn.client.requests import Answer, OnAnswer
from alphorn.model.conversation import Browse, Consume
from alphorn.model.destinations import parse_destination
from alphorn.model.errors import Error, PeerViolation
from alphorn.model.log_conversation import ChannelsAnswer
from alphorn.model.ranges import RangeSet
from alphorn.model.system import SYSTEM

OnBrowsed = Callable[[Inbox, Answer | Error], None]
Ask = Callable[[Callable[[int], Browse], OnAnswer], None]


def is_whole(destination: str) -> bool:
    """Whether a queue has a part on each channel."""
    return parse_destination(destination) in SYSTEM


def parts_of(whole: str, answer: Answer) -> list[str]:
    """What these parts are called, by the answer to `Channels`; the first channel's is called as the whole."""
    if not isinstance(answer, ChannelsAnswer):
        raise PeerViolation("the Client Manager answered the question for its channels with something else")
    others = [known.name for known in answer.channels[1:] if known.servers]
    return [whole, *(f"{whole}@{name}" for name in others)]


class Browsing:
    """The page that is under way, if one is."""

    __slots__ = ("inbox",)

    def __init__(self) -> None:
        self.inbox: Inbox | None = None

    def begin(self, destination: str, make: Callable[[int], Browse], on_answer: OnBrowsed, ask: Ask) -> Inbox:
        """Asks for a page; what comes for it is in the inbox."""
        assert self.inbox is None
        consume = Consume(0, 0, 0, make(0).place, 0)
        inbox = self.inbox = Inbox(consume=consume, destination=destination, mode=AckMode.INDIVIDUAL)

        def on_browsed(answer: Answer | Error) -> None:
            self.inbox = None
            on_answer(inbox, answer)

        ask(make, on_browsed)
        return inbox

    def begin_anew(self) -> None:
        """What has come is dropped: the question is repeated."""
        if self.inbox is not None:
            self.inbox.held = RangeSet()
            self.inbox.start_over()
