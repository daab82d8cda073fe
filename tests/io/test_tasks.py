import asyncio
import gc

import pytest

from alphorn.io.tasks import Tasks
from tests.io.loops import run


def test_a_failed_task_is_reported_once():
    async def test():
        failures = []
        tasks = Tasks(on_failure=failures.append)

        async def fail():
            raise ValueError("broken")

        task = tasks.start(fail(), name="failing")
        with pytest.raises(ValueError, match="broken"):
            await task

        assert [str(error) for error in failures] == ["broken"]
        await tasks.close()

    run(test)


def test_a_task_without_other_references_runs_to_its_end():
    async def test():
        tasks, done, go = Tasks(), asyncio.Event(), asyncio.Event()

        async def work():
            await go.wait()
            done.set()

        tasks.start(work(), name="working")
        await asyncio.sleep(0)
        gc.collect()
        go.set()
        await done.wait()
        await tasks.close()

    run(test)


def test_closing_cancels_and_awaits_every_task_and_reports_no_cancellation():
    async def test():
        failures, ended = [], []
        tasks = Tasks(on_failure=failures.append)

        async def work(number):
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                ended.append(number)

        for number in range(3):
            tasks.start(work(number), name=f"work {number}")
        await asyncio.sleep(0)
        await tasks.close()

        assert sorted(ended) == [0, 1, 2]
        assert not failures
        assert not len(tasks)

    run(test)
