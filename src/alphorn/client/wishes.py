"""What a consumer's program decided about its messages, as frames for the server."""

from collections.abc import Callable
from functools import partial

import msgspec

from alphorn.client.inbox import Inbox
from alphorn.client.requests import OnAnswer
from alphorn.model.conversation import Acknowledge, AnyClientFrame, Recover, Return
from alphorn.model.ranges import RangeSet

Request = Callable[[Callable[[int], AnyClientFrame], OnAnswer], None]


def tell_wishes(inbox: Inbox, request: Request) -> None:
    """Asks for everything that the program wants by now: acknowledged, given back, recovered, in this order."""
    acknowledged, rejected = inbox.take_wishes()
    if acknowledged:
        request(
            lambda number: Acknowledge(number, inbox.number, acknowledged),
            lambda answer: inbox.on_acknowledged(acknowledged),
        )
    decided: dict[tuple[int, bool], RangeSet] = {}
    for (first, last), delay_ms, is_dead in rejected:
        decided.setdefault((delay_ms, is_dead), RangeSet()).add(first, last)
    for (delay_ms, is_dead), ranges in decided.items():
        request(partial(_numbered, Return(0, inbox.number, ranges.flat(), delay_ms, is_dead)), lambda answer: None)
    if (recovery := inbox.take_recovery()) is not None:
        seen, unseen = recovery
        request(lambda number: Recover(number, inbox.number, seen, unseen), lambda answer: inbox.on_recovered())


def _numbered(frame: Return, number: int) -> Return:
    return msgspec.structs.replace(frame, request=number)
