"""Both shells behind one face, so that every test of behaviour runs on both: asyncio objects become blocking ones."""

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import alphorn
from tests.client.broker import Broker

Connect = Callable[..., Any]


class Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Face:
    """An asyncio object with blocking methods."""

    def __init__(self, inner: Any, loop: Loop) -> None:
        self.inner, self._loop = inner, loop

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self.inner, name)
        if not callable(attribute):
            return Face(attribute, self._loop) if name in ("destinations", "events") else attribute
        return lambda *arguments, **named: self._call(attribute, *arguments, **named)

    def __repr__(self) -> str:
        return repr(self.inner)

    def __enter__(self) -> Any:
        return self._call(self.inner.__aenter__)

    def __exit__(self, *exception: Any) -> None:
        self._call(self.inner.__aexit__, *exception)

    def __iter__(self) -> Iterator[Any]:
        source = self.inner.__aiter__()
        while True:
            try:
                yield self._call(source.__anext__)
            except StopAsyncIteration:
                return

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, place: int) -> Any:
        return self._wrap(self.inner[place])

    def _call(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        async def run() -> Any:
            result = function(*arguments, **named)
            return await result if inspect.isawaitable(result) else result

        return self._wrap(self._loop.run(run()))

    def _wrap(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._wrap(part) for part in value]
        is_ours = type(value).__module__.startswith("alphorn.client")
        return Face(value, self._loop) if is_ours else value


class Call:
    """Something that is called in a thread of its own."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._result: Any = None
        self._error: BaseException | None = None
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._function()
        except BaseException as error:
            self._error = error

    def result(self) -> Any:
        self._thread.join(60)
        assert not self._thread.is_alive(), "it still waits"
        if self._error is not None:
            raise self._error
        return self._result


def await_waiting(connection: Any) -> None:
    """Returns once somebody waits for something on this connection."""
    while not number_waiting(connection):
        connection.status()


def number_waiting(connection: Any) -> int:
    line = getattr(connection, "inner", connection)._line
    return len(line._waiting if hasattr(line, "_waiting") else line.changed)


@contextmanager
def make_connect(shell: str) -> Iterator[Connect]:
    """The function that connects, of this shell."""
    if shell == "blocking":
        yield alphorn.connect
        return
    loop = Loop()

    def connect(*arguments: Any, **named: Any) -> Any:
        return Face(alphorn.aio, loop)._call(alphorn.aio.connect, *arguments, **named)

    yield connect
    loop.close()


@pytest.fixture(params=["blocking", "asyncio"])
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    with make_connect(request.param) as made:
        yield made


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running
