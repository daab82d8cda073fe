"""Tasks that cannot vanish: each is held by a strong reference, its failure is reported, and closing awaits it."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

_log = logging.getLogger(__name__)


class Tasks:
    """The tasks of one owner.

    `on_failure` hears of every exception but cancellation, which is neither a success nor a failure.
    """

    __slots__ = ("_is_closed", "_on_failure", "_running")

    def __init__(self, *, on_failure: Callable[[BaseException], None] | None = None) -> None:
        self._running: set[asyncio.Task[Any]] = set()
        self._on_failure = on_failure
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._running)

    async def __aenter__(self) -> "Tasks":
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    def start(self, work: Coroutine[Any, Any, Any], *, name: str) -> asyncio.Task[Any]:
        """Runs `work` until it ends or `close` cancels it."""
        assert not self._is_closed, f"task {name} is started after closing"
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._running.add(task)
        task.add_done_callback(self._on_done)
        return task

    async def close(self) -> None:
        """Cancels what still runs and waits until all of it has ended. Failures were reported as they happened."""
        self.cancel()
        while self._running:
            await asyncio.wait(list(self._running))
            self.cancel()

    def cancel(self) -> None:
        """Cancels what still runs, for an owner who cannot wait."""
        self._is_closed = True
        for task in list(self._running):
            task.cancel()

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            return
        _log.error("event=task_failed task=%s error=%r", task.get_name(), error, exc_info=error)
        if self._on_failure is not None:
            self._on_failure(error)
