"""What a consumer has to tell its Client Manager: consumed messages, and those that come back, as requests."""

from collections.abc import Callable
from functools import partial

import msgspec

from alphorn.client.inbox import Inbox
from alphorn.client.requests import OnAnswer
from alphorn.model.conversation import Acknowledge, AnyClientFrame, Return
from alphorn.model.ranges import RangeSet

Wish = tuple[Callable[[int], AnyClientFrame], OnAnswer]  # makes the frame from a request's number; hears the answer


def take_wishes(inbox: Inbox) -> list[Wish]:
    """All that there is to tell, once; positions that are decided alike go together."""
    acknowledged, rejected = inbox.take_wishes()
    wishes: list[Wish] = []
    if acknowledged:
        make = partial(_numbered, Acknowledge(0, inbox.number, acknowledged))
        wishes.append((make, lambda answer: inbox.on_acknowledged(acknowledged)))
    decided: dict[tuple[int, bool, bool], RangeSet] = {}
    for (first, last), *how in rejected:
        decided.setdefault(tuple(how), RangeSet()).add(first, last)  # type: ignore[arg-type]
    for (delay_ms, is_dead, is_unseen), ranges in decided.items():
        back = Return(0, inbox.number, ranges.flat(), delay_ms, is_dead, is_unseen)
        wishes.append((partial(_numbered, back), lambda answer: None))
    return wishes


def _numbered(frame: Acknowledge | Return, request: int) -> AnyClientFrame:
    return msgspec.structs.replace(frame, request=request)
