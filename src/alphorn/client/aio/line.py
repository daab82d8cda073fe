"""Keeps a stream to some Client Manager on the program's event loop and moves bytes for the core.

Everything runs in the loop's thread, so the core needs no lock. Programs call `schedule` after adding something: what
was added within one turn of the loop leaves together.
"""

import asyncio
import logging
import os
import ssl
import time
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from alphorn.client.aio.streaming import open_body
from alphorn.client.core import Core, State
from alphorn.client.forks import FORKS, forked
from alphorn.client.inbox import Inbox
from alphorn.client.refusals import again
from alphorn.client.requests import Answer, OnAnswer
from alphorn.client.route import Route
from alphorn.client.url import Address, Target, format_address
from alphorn.doors.tunnel import Tunnel
from alphorn.io.streams import FrameStream
from alphorn.io.tasks import Tasks
from alphorn.io.tunnel import TunnelStream
from alphorn.model.conversation import FRAME_BYTES_MAX, AnyClientFrame
from alphorn.model.errors import Error, PeerViolation, Unavailable

ACKNOWLEDGE_S = 0.01
GOODBYE_S = 5.0
TICK_S = 1.0
UNSENT_BYTES_MAX = 1 << 20

_log = logging.getLogger("alphorn.client")
OnEvent = Callable[[str, str], None]


class AsyncLine:
    """The stream, its tasks, and who waits."""

    def __init__(
        self,
        target: Target,
        core: Core,
        *,
        context: ssl.SSLContext | None = None,
        connect_timeout: float,
        reconnect_timeout: float,
    ) -> None:
        self.core = core
        core.opener = partial(open_body, self)
        self._path = target.path  # of the WebSocket that leads there; empty where none does
        self._context = context  # how that is sealed
        self.forks = FORKS.number
        self._on_event: OnEvent | None = None
        self._route = Route(target.addresses, Random(os.urandom(16)))
        self._give_up_s = connect_timeout
        self._reconnect_timeout = reconnect_timeout
        self._stream: FrameStream | None = None
        self._lost: asyncio.Future[str] | None = None
        self._is_scheduled = False
        self._is_full = False
        self._wishes_timer: asyncio.TimerHandle | None = None
        self._waiting: set[asyncio.Future[None]] = set()
        self.is_closed = False

    async def start(self, on_event: OnEvent | None) -> None:
        """Connects; raises what went wrong."""
        self._on_event = on_event
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks(on_failure=self._on_failure)
        self._tasks.start(self._run(), name="alphorn-connection")
        self._tasks.start(self._tick(), name="alphorn-heartbeat")
        try:
            await self.wait_for(lambda: self.core.state is not State.CONNECTING, None)
        except asyncio.CancelledError:
            await self.close(Unavailable("connecting was cancelled"))
            raise
        if self.core.failure is not None:
            await self._tasks.close()
            raise again(self.core.failure)

    def note_event(self, name: str, detail: str) -> None:
        """The core tells what happened; the program hears it in a turn of its own."""
        _log.debug("event=%s detail=%r", name, detail)
        if self._on_event is not None:
            self._loop.call_soon(self._on_event, name, detail)

    def check(self) -> None:
        """Raises after a fork and after closing."""
        if FORKS.number != self.forks:
            raise forked()
        if self.core.failure is not None:
            raise again(self.core.failure)

    def schedule(self) -> None:
        """Lets what was added leave at the end of this turn."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._flush)

    def schedule_wishes(self) -> None:
        """Lets acknowledgements leave soon, together with those that follow meanwhile."""
        if self._wishes_timer is None and not self._is_scheduled:
            self._wishes_timer = self._loop.call_later(ACKNOWLEDGE_S, self._flush)

    def start_task(self, work: "asyncio._CoroutineLike[None]", name: str) -> "asyncio.Task[None]":
        """Runs something of a session; ends with the connection."""
        return self._tasks.start(work, name=name)  # type: ignore[arg-type]

    async def wait_for(self, is_done: Callable[[], object], timeout: float | None) -> bool:
        """Waits until something holds, looked at whenever the server said something; False when the time is over.

        `asyncio.timeout` is of no use here: before Python 3.11.3 it does not end in time what a cancelled task waits
        for while it cleans up.
        """
        is_over = False

        def end() -> None:
            nonlocal is_over
            is_over = True
            self.notify()

        timer = self._loop.call_later(timeout, end) if timeout is not None else None
        try:
            while not is_done():
                if is_over:
                    return False
                turn: asyncio.Future[None] = self._loop.create_future()
                self._waiting.add(turn)
                try:
                    await turn
                finally:
                    self._waiting.discard(turn)
        finally:
            if timer is not None:
                timer.cancel()
        return True

    async def ask(self, make: Callable[[int], AnyClientFrame], *, forgives: bool = False) -> Answer:
        """Asks and waits for the answer; raises the error that is the answer."""
        return await self.await_answer(lambda on_answer: self.core.request(make, on_answer, forgives=forgives))

    async def await_answer(self, wish: Callable[[OnAnswer], object]) -> Answer:
        """Makes a wish and waits for its answer; raises the error that is the answer."""
        self.check()
        future: asyncio.Future[Answer | Error] = self._loop.create_future()
        wish(lambda answer: None if future.done() else future.set_result(answer))
        self.schedule()
        answer = await future
        if isinstance(answer, Error):
            raise again(answer)
        return answer

    async def open_inbox(self, wish: Callable[[OnAnswer], Inbox]) -> Inbox:
        """Begins to receive; raises why not. Cancelled, it leaves nothing behind that receives for nobody."""
        made: list[Inbox] = []
        try:
            await self.await_answer(lambda on_answer: made.append(wish(on_answer)))
        except Error:
            raise
        except BaseException:
            for inbox in made:
                self.core.close_inbox(inbox, lambda answer: None)
            self.schedule()
            raise
        return made[0]

    async def close(self, reason: Error) -> None:
        """Says goodbye and ends."""
        if self.is_closed:  # by somebody else, who is at it
            await self.wait_for(lambda: self.core.failure is not None, None)
            return
        self._say_goodbye()
        try:
            if self._stream is not None and self._lost is not None and not self._lost.done():
                await asyncio.wait([self._lost], timeout=GOODBYE_S)
            await self._tasks.close()
        finally:
            self.end(reason)

    def end(self, reason: Error) -> None:
        """Ends without waiting, be it in the middle of closing: what was said last leaves by itself."""
        if not self.is_closed:
            self._say_goodbye()
        self._tasks.cancel()
        self.core.fail(reason)
        self.notify()

    def _say_goodbye(self) -> None:
        self.is_closed = True
        self.core.say_goodbye()
        self._flush()
        if self._wishes_timer is not None:
            self._wishes_timer.cancel()
        if self._stream is not None:
            self._stream.close("closed")

    def notify(self) -> None:
        """Lets everybody who waits look again."""
        for turn in self._waiting:
            if not turn.done():
                turn.set_result(None)
        self._waiting.clear()

    def _on_failure(self, error: BaseException) -> None:
        self.core.fail(Unavailable(f"the connection's I/O ended by an error of the library: {error!r}"))
        self.notify()

    async def _run(self) -> None:
        while not self.is_closed and self.core.failure is None:
            self._lost = self._loop.create_future()
            stream = await self._connect()
            if stream is None:
                break
            reason = await self._lost
            self._stream = None
            self.core.on_disconnected(reason)
            self.notify()
        self.notify()

    async def _connect(self) -> FrameStream | None:
        deadline = time.monotonic() + self._give_up_s
        while self.core.failure is None:
            await asyncio.sleep(min(self._route.pause_s(), max(0.0, deadline - time.monotonic())))
            left = deadline - time.monotonic()
            if left <= 0:
                self.core.fail(self._route.exhausted(self._give_up_s))
                break
            wait_s = min(self._route.wait_s(self._give_up_s), left)
            stream = await self._open(self._route.next_address(), wait_s)
            if stream is not None:
                return stream
        return None

    async def _open(self, address: Address, timeout: float) -> FrameStream | None:
        """A stream on which the Client Manager said welcome."""
        lost = self._loop.create_future()
        self._lost = lost

        def on_closed(stream: FrameStream, reason: str) -> None:
            if not lost.done():
                lost.set_result(reason)
            self.notify()

        def make() -> FrameStream:
            choices: dict[str, Any] = {
                "on_frames": self._on_frames,
                "on_closed": on_closed,
                "on_writable": self._on_writable,
                "frame_bytes_max": FRAME_BYTES_MAX,
                "buffered_bytes_max": UNSENT_BYTES_MAX,
            }
            if self._path:
                return TunnelStream(Tunnel.to_server(format_address(address), self._path), **choices)
            return FrameStream(**choices)

        try:
            async with asyncio.timeout(timeout):
                _, stream = await self._loop.create_connection(make, *address, ssl=self._context)
                self._stream, self._is_full = stream, False
                self.core.on_connected(time.monotonic(), time.time_ns() // 1_000_000)
                self._flush()
                await self.wait_for(
                    lambda: lost.done() or self.core.state is not State.CONNECTING or not stream.is_open, None
                )
        except OSError as error:  # TimeoutError is one
            if isinstance(error, TimeoutError):
                self._route.on_silence(address)
            else:
                self._route.on_failure(address, error.strerror or str(error))
            if self._stream is not None:
                self._stream.abort("no welcome")
                self._stream = None
            return None
        if lost.done():
            self._route.on_failure(address, lost.result())
            self._stream = None
            return None
        return stream

    async def _tick(self) -> None:
        received = unsent = 0
        while True:
            await asyncio.sleep(TICK_S)
            if self._stream is not None:
                before = received, unsent
                received, unsent = self._stream.received_bytes, self._stream.unsent_bytes
                if received != before[0] or unsent < before[1]:
                    self.core.silence.on_movement(time.monotonic())
            self.core.on_time(time.monotonic())
            if self.core.has_output:
                self._flush()
            self._leave_if_wanted()

    def _leave_if_wanted(self) -> None:
        if self.core.wants_reconnection and self._stream is not None:
            self._stream.forsake("the Client Manager does not answer, or sent us away")

    def _on_writable(self, stream: FrameStream, is_writable: bool) -> None:
        self._is_full = not is_writable
        if is_writable:
            self._flush()

    def _on_frames(self, stream: FrameStream, frames: list[memoryview]) -> None:
        if stream is not self._stream:
            return
        try:
            self.core.receive(frames, time.monotonic())
        except PeerViolation as error:
            # One that has not said welcome is perhaps no Client Manager, which is told when all were tried.
            level = logging.DEBUG if self.core.state is State.CONNECTING else logging.WARNING
            _log.log(level, "event=peer_violation reason=%r", str(error))
            stream.abort(str(error))
        if self.core.state is State.OPEN:
            self._give_up_s = self._reconnect_timeout
            # Behind a wall the addresses that Client Managers know of each other lead nowhere.
            self._route.on_open(time.monotonic(), [] if self._path else self.core.addresses)
        self.notify()
        if self.core.has_output:
            self._flush()
        elif self.core.has_wishes:
            self.schedule_wishes()
        self._leave_if_wanted()

    def _flush(self) -> None:
        self._is_scheduled = False
        if self._wishes_timer is not None:
            self._wishes_timer.cancel()
            self._wishes_timer = None
        if self._stream is None or self._is_full:
            return
        frames = self.core.take_output(time.time_ns() // 1_000_000)
        if frames:
            self._stream.send(*frames)
            self._stream.flush()
