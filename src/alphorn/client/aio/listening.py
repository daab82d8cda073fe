"""The task that calls a session's listeners, one message at a time.

Nothing that a callback raises ends it, since all other listeners of the session would end with it, but what ends the
event loop too. A listener whose consumer the server closes is taken out, which only the log can tell: nobody waits for
its messages.
"""

import asyncio
import inspect
import logging
from collections.abc import Callable

from alphorn.client.aio.line import AsyncLine
from alphorn.client.inbox import Inbox
from alphorn.client.message import Message

_log = logging.getLogger("alphorn.client")
Callback = Callable[[Message], object]


class Listening:
    """The listeners of one session; the task exists from the first on."""

    def __init__(self, line: AsyncLine) -> None:
        self._line = line
        self._callbacks: dict[Inbox, Callback] = {}
        self._task: asyncio.Task[None] | None = None
        self._busy: Inbox | None = None  # whose callback runs
        self._changed = asyncio.Event()

    def add(self, inbox: Inbox, callback: Callback) -> None:
        """Calls `callback` for the messages of this consumer from now on."""
        self._callbacks[inbox] = callback
        inbox.on_arrival = self._changed.set
        self._changed.set()
        if self._task is None or self._task.done():
            self._task = self._line.start_task(self._run(), "alphorn-session")

    async def remove(self, inbox: Inbox) -> None:
        """Calls no more for this consumer; waits until a callback that runs is done."""
        self._callbacks.pop(inbox, None)
        if asyncio.current_task() is not self._task:
            await self._line.wait_for(lambda: self._busy is not inbox, None)

    async def close(self) -> None:
        """Ends the task once the callback that runs is done."""
        for inbox in list(self._callbacks):
            await self.remove(inbox)
        if self._task is not None and asyncio.current_task() is not self._task:
            self._task.cancel()
            await asyncio.wait([self._task])

    def cancel(self) -> None:
        """Ends the task, and the callback that runs: its message comes back."""
        self._callbacks.clear()
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while True:
            inbox = self._next()
            if inbox is None:
                self._changed.clear()
                await self._changed.wait()
                continue
            callback = self._callbacks.pop(inbox)
            if inbox.failure is not None:
                _log.error("event=listener_ended destination=%s reason=%r", inbox.destination, str(inbox.failure))
                continue
            self._callbacks[inbox] = callback  # the others come first next time
            message = self._take(inbox)
            if message is not None:
                self._busy = inbox
                try:
                    await self._call(inbox, callback, message)
                finally:
                    self._busy = None
                    self._line.notify()
            await asyncio.sleep(0)  # a callback that never waits must not stop the loop

    def _next(self) -> Inbox | None:
        """A consumer with a message to hand out, or one that has ended."""
        return next((inbox for inbox in self._callbacks if inbox.has_prefetched or inbox.failure is not None), None)

    def _take(self, inbox: Inbox) -> Message | None:
        taken = inbox.take(1)
        return taken[0] if taken else None

    async def _call(self, inbox: Inbox, callback: Callback, message: Message) -> None:
        try:
            result = callback(message)
            if inspect.isawaitable(result):
                await result
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and _is_being_cancelled():
                inbox.unhand()
                raise
            _log.exception("event=listener_failed destination=%s message=%s", inbox.destination, message.id)
            inbox.give_back(message._arrival, message._index)
        inbox.finish()
        if inbox.is_urgent:
            self._line.schedule()
        else:
            self._line.schedule_wishes()


def _is_being_cancelled() -> bool:
    """Whether it is this task that is to end; a callback may also await something that was cancelled by itself."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
