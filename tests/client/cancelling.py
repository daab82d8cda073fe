"""Cancels what a task does at its first, second, third... await, until it is done before."""

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any

WAIT_S = 10


class Cancelled:
    """Awaits something, and cancels the task that does so where it waits for the so-manieth time.

    A late cancellation comes when what is waited for has come, and before the task goes on.
    """

    def __init__(self, work: Coroutine[Any, Any, Any], number: int, *, is_late: bool) -> None:
        self._work, self._left, self._is_late = work, number, is_late

    def __await__(self) -> Generator[Any, Any, Any]:
        step, value = self._work.send, None
        task = asyncio.current_task()
        assert task is not None
        while True:
            try:
                waited = step(value)  # type: ignore[arg-type]
            except StopIteration as end:
                return end.value
            self._left -= 1
            if self._left == 0 and self._is_late and waited is not None:
                waited.add_done_callback(lambda done: task.cancel())
            elif self._left == 0:
                task.cancel()
            try:
                step, value = self._work.send, (yield waited)
            except BaseException as error:
                step, value = self._work.throw, error  # type: ignore[assignment]


async def cancel(work: Coroutine[Any, Any, Any], number: int, *, is_late: bool = False) -> bool:
    """Whether it waited so often that it was cancelled; raises what it raises."""

    async def run() -> None:
        await Cancelled(work, number, is_late=is_late)

    task = asyncio.create_task(run())
    await asyncio.wait([task], timeout=WAIT_S)
    assert task.done(), "it still waits"
    if not task.cancelled():
        task.result()
    return task.cancelled()


async def others() -> list[str]:
    """Tasks that are not the test's own, once those that were cancelled have ended."""
    await asyncio.sleep(0)
    return [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()]
