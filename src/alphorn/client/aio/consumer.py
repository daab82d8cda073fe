"""Receiving with asyncio: `Consumer` and `Browser`."""

from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import TYPE_CHECKING

from alphorn.client.aio.line import AsyncLine
from alphorn.client.aio.places import Places
from alphorn.client.browsing import is_whole, parts_of
from alphorn.client.choices import check_maximum, check_timeout
from alphorn.client.forks import FORKS, forked
from alphorn.client.inbox import Inbox
from alphorn.client.message import Message
from alphorn.client.refusals import again
from alphorn.client.requests import Answer, OnAnswer
from alphorn.model.conversation import Browse, Done
from alphorn.model.errors import Error, Misuse
from alphorn.model.log_conversation import Channels

if TYPE_CHECKING:
    from alphorn.client.aio.listening import Listening

PAGE_MESSAGES = 1000


class Consumer:
    """Receives messages of one destination, each task that shares it others."""

    def __init__(self, line: AsyncLine, inbox: Inbox, listening: "Listening") -> None:
        self._line = line
        self._inbox = inbox
        self._listening = listening
        self._is_automatic = inbox.mode.is_automatic
        inbox.on_wish = self._on_wish

    def __repr__(self) -> str:
        return f"<Consumer of {self._inbox.destination}>"

    async def __aenter__(self) -> "Consumer":
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        if kind is not None:
            self._inbox.unhand(is_closing=True)
        await self.close()

    def __aiter__(self) -> "Consumer":
        """Messages for as long as the consumer is open."""
        return self

    async def __anext__(self) -> Message:
        inbox = self._inbox
        message = next(inbox.ready, None)
        if message is not None and FORKS.number == self._line.forks:
            inbox.in_hand = 1
            if self._is_automatic:
                self._line.schedule_wishes()
            return message
        try:
            message = await self.receive()
        except Misuse:
            if self._inbox.is_open or self._inbox.failure is not None or FORKS.number != self._line.forks:
                raise
            raise StopAsyncIteration from None
        assert message is not None
        return message

    async def receive(self, timeout: float | None = None) -> Message | None:
        """The next message; None when none came within `timeout` seconds. Without a timeout it waits.

        In a session with `ack="auto"` this acknowledges what was received before. Cancellation loses no message. Raises
        `Misuse` on a closed consumer, and the reason when the server closed it.
        """
        inbox = self._inbox
        message = next(inbox.ready, None)
        if message is None or FORKS.number != self._line.forks:
            taken = await self._take(1, timeout)
            return taken[0] if taken else None
        inbox.in_hand = 1
        if self._is_automatic:
            self._line.schedule_wishes()
        return message

    async def receive_many(self, maximum: int = 1000, timeout: float | None = None) -> list[Message]:
        """Up to `maximum` messages: waits for the first only, and gives an empty list when the time is over."""
        return await self._take(check_maximum(maximum), timeout)

    async def listen(self, callback: Callable[[Message], object]) -> None:
        """Calls `callback` for each message, one at a time in the session.

        What it returns is awaited if need be. With `ack="auto"` a message is acknowledged when the callback is done. An
        exception returns the message, which then comes again, and is logged.
        """
        self._check()
        if not callable(callback):
            raise Misuse(f"listen needs something to call, not {type(callback).__name__}")
        self._listening.add(self._inbox, callback)

    async def close(self) -> None:
        """Ends receiving: in automatic modes what was handed out is acknowledged, everything else comes back.

        Cancelled while a callback runs, it does not wait for that: its message comes back as well.
        """
        try:
            await self._listening.remove(self._inbox)
        except BaseException:
            if self._is_receiving:
                self._inbox.unhand(is_closing=True)
                self._line.core.close_inbox(self._inbox, lambda answer: None)
                self._line.schedule()
            raise
        if self._is_receiving:
            self._inbox.finish()
            await self._line.await_answer(partial(self._line.core.close_inbox, self._inbox))

    @property
    def _is_receiving(self) -> bool:
        return self._inbox.is_open and self._line.core.failure is None

    async def _take(self, maximum: int, timeout: float | None) -> list[Message]:
        self._check()
        inbox, line = self._inbox, self._line
        timeout = check_timeout(timeout)
        taken = inbox.take(maximum)
        if not taken:
            self._tell_soon()
            await line.wait_for(lambda: inbox.has_prefetched or not inbox.is_open, timeout)
            self._check()
            taken = inbox.take(maximum)
        self._tell_soon()
        return taken

    def _tell_soon(self) -> None:
        if self._inbox.is_urgent:
            self._line.schedule()
        elif self._inbox.has_wishes:
            self._line.schedule_wishes()

    def _check(self) -> None:
        if FORKS.number != self._line.forks:
            raise forked()
        if not self._inbox.is_open:
            if self._inbox.failure is not None:
                raise again(self._inbox.failure)
            raise Misuse("this consumer is closed; make another with session.consumer")

    def _on_wish(self) -> None:
        if self._inbox.is_urgent:
            self._line.schedule()
        else:
            self._line.schedule_wishes()


class Browser:
    """Looks at the messages of a queue without consuming them: iterate over it, each time from the first."""

    def __init__(self, line: AsyncLine, places: Places, destination: str, place: int, selector: str) -> None:
        self._line = line
        self._places = places
        self._destination = destination
        self._place = place
        self._selector = selector

    def __repr__(self) -> str:
        return f"<Browser of {self._destination}>"

    async def __aenter__(self) -> "Browser":
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def __aiter__(self) -> AsyncIterator[Message]:
        for queue in await self._queues():
            place = self._place if queue == self._destination else await self._places.find(queue)
            start, following = -1, 0
            while following > start:  # a page that shows nothing is the last one only where it says so
                start = following
                messages, following = await self._page(queue, place, start)
                for message in messages:
                    yield message

    async def _queues(self) -> list[str]:
        """One, or of what belongs to the system each channel's part."""
        if not is_whole(self._destination):
            return [self._destination]
        return parts_of(self._destination, await self._line.ask(Channels))

    async def close(self) -> None:
        """Nothing is held open between pages."""

    async def _page(self, queue: str, place: int, start: int) -> tuple[list[Message], int]:
        line, core = self._line, self._line.core
        line.check()
        while core.is_browsing:
            await line.wait_for(lambda: not core.is_browsing, None)
        made: list[Inbox] = []

        def wish(on_answer: OnAnswer) -> None:
            def on_browsed(inbox: Inbox, answer: Answer | Error) -> None:
                made.append(inbox)
                on_answer(answer)

            core.browse(
                queue,
                lambda request: Browse(request, place, self._selector, start, PAGE_MESSAGES),
                on_browsed,
            )

        answer = await line.await_answer(wish)
        taken = made[0].take(1 << 31)
        made[0].close()
        return taken, answer.number if isinstance(answer, Done) else 0
