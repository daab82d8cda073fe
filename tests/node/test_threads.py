"""Who runs where: the tasks of all nodes of a process in one thread, what blocks in a few others."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

import alphorn.aio
from alphorn.client_manager.core import ClientManager
from alphorn.message_manager.core import MessageManager
from tests.io.loops import run
from tests.node.serving import server

SESSIONS = 40
TASKS = (
    (ClientManager, "receive"),
    (ClientManager, "take_outputs"),
    (MessageManager, "receive"),
    (MessageManager, "on_time"),
)


def noting(threads: set[str], method: Callable[..., Any]) -> Callable[..., Any]:
    def enter(*arguments: Any, **options: Any) -> Any:
        threads.add(threading.current_thread().name)
        return method(*arguments, **options)

    return enter


@pytest.mark.requirement("CM-15", "CM-16")
def test_tasks_run_in_one_thread_and_more_sessions_need_no_more_threads(tmp_path, monkeypatch):
    ran_in: set[str] = set()
    for machine, method in TASKS:
        monkeypatch.setattr(machine, method, noting(ran_in, getattr(machine, method)))

    async def test():
        async with server(tmp_path, client_managers=1, backups=0) as url, alphorn.aio.connect(url) as connection:
            before = {thread.name for thread in threading.enumerate()}
            for number in range(SESSIONS):
                session = await connection.session()
                producer = await session.producer(f"queue:{number}")
                await (await producer.send(number)).result()
                message = await (await session.consumer(f"queue:{number}")).receive(timeout=60)
                assert message.body == number
            assert {thread.name for thread in threading.enumerate()} == before
            assert any(name.startswith("store") for name in before), "what waits for the disk has a thread of its own"
            assert any(name.startswith("log of") for name in before)
            assert ran_in == {threading.current_thread().name}

    run(test)
