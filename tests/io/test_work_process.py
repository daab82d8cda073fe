"""The internal connections of a work process: they are made again, whatever became of the one before."""

import asyncio
import os
from typing import Any

import pytest

from alphorn.io import work_process
from alphorn.io.work_process import WorkProcessRunner
from alphorn.message_server import process_machine as machine
from alphorn.model import internal

ROW = internal.Row("a", os.urandom(16), internal.PROGRAM)


def _ignore(given: object) -> None:
    """Takes nothing."""


class Deaf:
    """A server that welcomes, and reads nothing."""

    def __init__(self) -> None:
        self.called, self.welcomed = asyncio.Event(), asyncio.Event()
        self._writers: list[asyncio.StreamWriter] = []

    async def start(self) -> WorkProcessRunner:
        """Listens; a work process that calls it."""
        self._server = await asyncio.start_server(self._welcome, "127.0.0.1", 0, limit=1)
        port = self._server.sockets[0].getsockname()[1]
        runner = WorkProcessRunner(
            ROW, [("ms1", f"127.0.0.1:{port}")], secret=b"", on_given=_ignore, on_joined=self._on_joined
        )
        await runner.start()
        return runner

    def _on_joined(self, server: str) -> None:
        self.welcomed.set()

    async def close(self, runner: WorkProcessRunner) -> None:
        await runner.close()
        for writer in self._writers:
            writer.transport.abort()
        self._server.close()

    async def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        rows = [internal.Row(f"p{number}", bytes([number]) * 16, internal.PROGRAM) for number in range(1, 50)]
        for frame in (internal.Joined("ms1", bytes(16)), internal.Arrived([ROW, *rows])):
            writer.write(internal.encode(frame))
        self.called.set()


def test_a_connection_that_takes_nothing_more_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_process, "LAST_WORDS_S", 0.1)

    async def test() -> None:
        server = Deaf()
        runner = await server.start()
        await server.welcomed.wait()
        telling = [asyncio.ensure_future(runner.tell(f"p{number}", bytes(1 << 20), 60.0)) for number in range(1, 30)]
        for _ in range(10):  # passes of the loop, in which all of that is said
            await asyncio.sleep(0)
        assert runner._streams["ms1"].unsent_bytes > 0
        server.called.clear()
        runner._perform(machine.Cut("ms1", "nothing was heard of it"))
        await server.called.wait()
        await server.close(runner)
        await asyncio.gather(*telling, return_exceptions=True)

    asyncio.run(asyncio.wait_for(test(), 60.0))


def test_a_call_that_nobody_answers_is_given_up_and_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_process, "CONNECT_S", 0.1)

    async def test() -> None:
        loop = asyncio.get_running_loop()
        connect, calls = loop.create_connection, 0

        async def call(*arguments: Any, **named: Any) -> Any:
            nonlocal calls
            calls += 1
            return await (loop.create_future() if calls == 1 else connect(*arguments, **named))

        monkeypatch.setattr(loop, "create_connection", call)
        server = Deaf()
        runner = await server.start()
        await server.called.wait()
        await server.close(runner)

    asyncio.run(asyncio.wait_for(test(), 60.0))
