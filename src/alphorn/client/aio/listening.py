"""The task that calls a session's listeners, one message at a time."""

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
        if self._task is None:
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

    async def _run(self) -> None:
        while True:
            inbox = next((inbox for inbox in self._callbacks if inbox.has_prefetched), None)
            if inbox is None:
                self._changed.clear()
                await self._changed.wait()
                continue
            callback = self._callbacks.pop(inbox)
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

    def _take(self, inbox: Inbox) -> Message | None:
        taken = inbox.take(1)
        return taken[0] if taken else None

    async def _call(self, inbox: Inbox, callback: Callback, message: Message) -> None:
        try:
            result = callback(message)
            if inspect.isawaitable(result):
                await result
        except asyncio.CancelledError:
            inbox.unhand()
            raise
        except Exception:
            _log.exception("event=listener_failed destination=%s message=%s", inbox.destination, message.id)
            inbox.give_back(message._arrival, message._index)
        inbox.finish()
        if inbox.is_urgent:
            self._line.schedule()
        else:
            self._line.schedule_wishes()
