"""Consumers of patterns on one connection: which there are, what joins them, and how they come back.

A destination that joins is an inbox like any other, under a number that the Client Manager tells. After a reconnection
it consumes again by itself, at the place that it had, and never looks its name up, which could create it anew. The
pattern is then asked for once more, naming the places that need not join; what joins besides came in the meantime.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from alphorn.client.flow import SessionState
from alphorn.client.inbox import Inbox
from alphorn.client.pattern_inbox import PatternInbox
from alphorn.client.requests import Answer, OnAnswer, Requests
from alphorn.model.conversation import ClosePattern, Consume, ConsumePattern, Joined
from alphorn.model.destinations import parse_destination
from alphorn.model.errors import Error, Misuse
from alphorn.model.joining import consume_for

if TYPE_CHECKING:
    from alphorn.client.core import Core

Adopt = Callable[[SessionState, Consume, str], Inbox]


class Patterns:
    """All consumers of patterns."""

    __slots__ = ("_adopt", "_boxes", "_core", "_drop", "_let_go")

    def __init__(
        self, core: "Core", *, adopt: Adopt, let_go: Callable[[Inbox], list[int]], drop: Callable[[Inbox], None]
    ) -> None:
        self._core = core
        self._adopt = adopt  # takes an inbox in
        self._let_go = let_go  # lets one receive no more; gives what the program was never handed
        self._drop = drop  # forgets one
        self._boxes: dict[int, PatternInbox] = {}

    def open(self, session: SessionState, wish: ConsumePattern, on_answer: OnAnswer) -> PatternInbox:
        """Begins to receive. `wish` needs no numbers yet."""
        wish = msgspec.structs.replace(wish, session=session.number, watch=self._core.next_number())
        box = PatternInbox(wish, session.mode)
        box.on_failed = partial(self._on_failed, box)
        self._boxes[wish.watch] = box
        try:
            self._core.request(
                lambda request: msgspec.structs.replace(wish, request=request), partial(self._on_answer, box, on_answer)
            )
        except Misuse:
            del self._boxes[wish.watch]
            raise
        return box

    def on_joined(self, frame: Joined) -> None:
        """A destination matches."""
        box = self._boxes.get(frame.watch)
        session = self._core.sessions.get(box.session) if box is not None else None
        if box is None or session is None or not box.is_open:
            return  # it is being closed, and all its consumers with it
        destination = parse_destination(frame.destination)
        consume = consume_for(box.wish, frame.consumer, frame.place, destination, is_new=frame.is_new)
        box.join(self._adopt(session, consume, frame.destination))

    def close(self, box: PatternInbox, on_answer: OnAnswer) -> None:
        """Ends receiving; what was not acknowledged comes back."""
        joined = list(box.joined.values())
        unseen = {inbox.number: self._let_go(inbox) for inbox in joined}
        box.close()

        def on_closed(answer: Answer | Error) -> None:
            self._boxes.pop(box.number, None)
            for inbox in joined:
                self._drop(inbox)
            on_answer(answer)

        self._core.request(lambda request: ClosePattern(request, box.number, unseen), on_closed)

    def close_session(self, session: SessionState) -> None:
        """A session ends, and its inboxes with it."""
        for box in [box for box in self._boxes.values() if box.session == session.number]:
            box.close()
            del self._boxes[box.number]

    def fail(self, error: Error) -> None:
        """The connection has ended for good."""
        for box in self._boxes.values():
            box.on_closed(error)

    def resume(self, requests: Requests) -> None:
        """Lets every pattern be asked for on a new stream."""
        for box in self._boxes.values():
            if not box.is_open:
                continue
            wish = msgspec.structs.replace(box.wish, joined=[inbox.consume.place for inbox in box.joined.values()])
            if box.is_settled:
                wish = msgspec.structs.replace(wish, start=0, start_ms=0)
            if not requests.renew(wish):
                number = self._core.next_number()
                ask = msgspec.structs.replace(wish, request=number)
                requests.add(number, ask, partial(self._on_answer, box, lambda answer: None))

    def _on_answer(self, box: PatternInbox, on_answer: OnAnswer, answer: Answer | Error) -> None:
        if isinstance(answer, Error):
            self._boxes.pop(box.number, None)
            if box.failure is None:
                box.on_closed(answer)
        box.is_settled = True
        on_answer(box.failure or answer)

    def _on_failed(self, box: PatternInbox, error: Error) -> None:
        """One destination is not to be had, so the program would not get what it asked for."""
        if box.is_open and self._core.failure is None:
            box.on_closed(error)
            self.close(box, lambda answer: None)
