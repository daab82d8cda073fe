"""Runs asynchronous tests on both event loops, and waits for conditions without sleeping."""

import asyncio
import itertools
import os
from collections.abc import Awaitable, Callable

import pytest
import uvloop

DEADLINE_S = 120.0  # only what hangs meets it
_groups = itertools.count(1)

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
on_both_loops = pytest.mark.parametrize("loop_name", LOOPS)


def run(test: Callable[[], Awaitable[None]], loop_name: str = "asyncio") -> None:
    """Runs one test on a new loop; a test that hangs fails."""

    async def bounded() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await test()

    with asyncio.Runner(loop_factory=LOOPS[loop_name]) as runner:
        runner.run(bounded())


async def until(condition: Callable[[], bool]) -> None:
    """Lets the loop turn until the condition holds."""
    while not condition():  # noqa: ASYNC110 - what is waited for has no event to wait on
        await asyncio.sleep(0)


def new_group() -> int:
    """A group id, and so multicast addresses, that no other test uses, here or in a process running beside."""
    return (os.getpid() & 0x3FFF) << 17 | (os.getpid() & 0xFF) << 9 | next(_groups)
