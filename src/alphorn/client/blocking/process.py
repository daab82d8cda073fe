"""`join` and `WorkProcess`: a program becomes a work process of the cluster.

Two threads serve it: one keeps the internal connections, and one runs functions, so that a function that takes long
does not make the cluster take this process for dead.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, Literal, TypeVar

from alphorn.client.blocking.connection import CONNECT_TIMEOUT_S
from alphorn.client.calls import Function, Message, check_blocking
from alphorn.client.membership import TELL_S, Membership
from alphorn.model.events import Event

Result = TypeVar("Result")


def join(
    url: str | None = None,
    *,
    name: str,
    user: str | None = None,
    password: str | None = None,
    tls: object = None,
    connect_timeout: float | None = CONNECT_TIMEOUT_S,
) -> "WorkProcess":
    """Joins a cluster as a work process of this name: the URL is that of `alphorn.connect`.

    Whatever is lost is made again by itself: who has joined stays so until it leaves, and misses nothing of a minute.
    Functions run in a thread of their own, one after the other. Raises `Unavailable` when nobody lets it in within
    `connect_timeout` seconds, `Misuse` for a name that another one has.
    """
    threads = _Threads()
    membership = Membership(
        url, name=name, invoke=threads.call, connect_timeout=connect_timeout, user=user, password=password, tls=tls
    )
    process = WorkProcess(membership, threads)
    threads.start()
    try:
        threads.run(membership.start())
    except BaseException:
        threads.stop()
        raise
    return process


class WorkProcess:
    """A work process of a cluster; a context manager that leaves it.

    Threads may share it. A forked child must join itself.
    """

    def __init__(self, membership: Membership, threads: "_Threads") -> None:
        self._membership = membership
        self._threads = threads
        self.events = Events(membership, threads)

    def __repr__(self) -> str:
        return repr(self._membership)

    def __enter__(self) -> "WorkProcess":
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        self._end(is_failed=kind is not None)

    @property
    def name(self) -> str:
        """The name under which others know this process."""
        return self._membership.name

    def tell(self, name: str, body: Any, timeout: float | None = TELL_S) -> None:
        """Says something to one other process, by its name; returns when that has it.

        Bodies are those of messages, up to 1 MiB. Raises `UnknownOutcome` when `timeout` seconds were too few,
        `Unavailable` when no message server is there and nothing was sent, `Misuse` for a name that nobody knows.
        """
        self._membership.check()
        self._threads.run(self._membership.tell(name, body, timeout))

    def tell_others(self, body: Any, timeout: float | None = TELL_S) -> None:
        """Says something to all other processes that are there; returns when it cannot be lost any more.

        That is when all message servers have it, or with one of them left every process that is there.
        """
        self._membership.check()
        self._threads.run(self._membership.tell_others(body, timeout))

    def on_message(self, function: Callable[[Message], Any]) -> None:
        """Calls `function` with each message that others tell this process: it has `sender` and `body`.

        Messages that came before wait for it, the last few hundred of them. A second function takes the place of the
        first.
        """
        self._membership.check()
        check_blocking(function)
        self._threads.do(lambda: self._membership.on_message(function))

    def others(self) -> list[str]:
        """The names of all other processes that are there: the cluster's nodes, and programs that have joined."""
        self._membership.check()
        return self._threads.do(self._membership.others)

    def servers(self) -> list[str]:
        """The names of the message servers that this process has joined and reaches; without one it is on its own."""
        self._membership.check()
        return self._threads.do(self._membership.servers)

    def close(self) -> None:
        """Leaves the cluster, after functions have run for what was acknowledged. A second time does nothing."""
        self._end(is_failed=False)

    def _end(self, *, is_failed: bool) -> None:
        if self._membership.is_foreign or self._membership.is_closed:
            return
        is_within = self._threads.runs_here
        try:
            self._threads.run(self._membership.close(is_failed=is_failed, is_within=is_within))
        finally:
            self._threads.stop()


class Events:
    """The events of the cluster, as one work process hears them."""

    def __init__(self, membership: Membership, threads: "_Threads") -> None:
        self._membership = membership
        self._threads = threads

    def on(
        self, kind: str, function: Callable[[Event], Any], once_per: Literal["process", "cluster"] = "process"
    ) -> None:
        """Calls `function` with each event of this kind, or of every kind for "*", from now on.

        Once per "process" it runs in every process that asked for it; once per "cluster" in one of those that have a
        function of this name, and in another one where that ends before the function has returned.
        Raises `Misuse` for a kind that there is not.
        """
        self._membership.check()
        check_blocking(function)
        self._threads.do(lambda: self._membership.on_event(kind, function, once_per))

    def recent(self, maximum: int = 100) -> list[Event]:
        """The last events, oldest first; raises `Unavailable` when no message server is there."""
        self._membership.check()
        return self._threads.run(self._membership.recent(maximum))


class _Threads:
    """The thread of the event loop, and the thread of the functions. Nobody waits for either at the program's end."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[Function, Any, asyncio.Future[BaseException | None]] | None] = SimpleQueue()

    def start(self) -> None:
        """Begins both."""
        self._loop = asyncio.new_event_loop()
        self._keeper = threading.Thread(target=self._keep, name="alphorn-cluster", daemon=True)
        self._caller = threading.Thread(target=self._run_calls, name="alphorn-functions", daemon=True)
        self._keeper.start()
        self._caller.start()

    def stop(self) -> None:
        """Ends both; a function that still runs is left to itself."""
        self._calls.put(None)
        self._loop.call_soon_threadsafe(self._loop.stop)
        if threading.current_thread() is not self._keeper:
            self._keeper.join()

    @property
    def runs_here(self) -> bool:
        """Whether a function asks."""
        return threading.current_thread() is self._caller

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """What comes of it in the event loop; a signal's handler may raise meanwhile, which ends it there too."""
        done: SimpleQueue[None] = SimpleQueue()
        future: Future[Result] = asyncio.run_coroutine_threadsafe(work, self._loop)
        future.add_done_callback(lambda future: done.put(None))
        try:
            done.get()
        except BaseException:
            future.cancel()
            raise
        return future.result()

    def do(self, act: Callable[[], Result]) -> Result:
        """What it gives, done in the event loop."""

        async def work() -> Result:
            return act()

        return self.run(work())

    async def call(self, function: Function, argument: Any) -> BaseException | None:
        """Runs a function in the thread for them; gives what it raised."""
        answer: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
        self._calls.put((function, argument, answer))
        return await answer

    def _keep(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            left = asyncio.all_tasks(self._loop)  # of calls that a signal has ended
            for task in left:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        finally:
            self._loop.close()

    def _run_calls(self) -> None:
        while (call := self._calls.get()) is not None:
            function, argument, answer = call
            error: BaseException | None = None
            try:
                function(argument)
            except BaseException as raised:  # also SystemExit, which in a thread would end just this one, unheard
                error = raised
            try:
                self._loop.call_soon_threadsafe(_answer, answer, error)
            except RuntimeError:  # the process has left meanwhile
                return


def _answer(answer: "asyncio.Future[BaseException | None]", error: BaseException | None) -> None:
    if not answer.done():
        answer.set_result(error)
