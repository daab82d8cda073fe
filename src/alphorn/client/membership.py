"""A program as a work process of a cluster: the way in, the internal connections, and the functions that run.

The way in is asked of a Client Manager: where the message servers are, and a ticket. It is asked again before the
ticket expires, and while no message server lets the program in, so that it comes back by itself whatever has changed.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from alphorn.client.aio.connection import connect
from alphorn.client.calls import Calls, Function, is_of_command
from alphorn.client.choices import check_maximum, check_patience
from alphorn.client.forks import FORKS
from alphorn.client.packing import check_text, pack_body
from alphorn.client.refusals import again
from alphorn.io.internal_stream import TICKET_S, Pass
from alphorn.io.tasks import Tasks
from alphorn.io.work_process import WorkProcessRunner
from alphorn.model.errors import Error, MessageTooLarge, Misuse, PeerViolation, Unavailable
from alphorn.model.events import Event
from alphorn.model.internal import MESSAGE_BYTES_MAX, OTHERS, PROGRAM, SECRET_BYTES, Row, run_of
from alphorn.model.process_conversation import COMMAND, AskTicket, TicketAnswer, check_process_name

TELL_S = 10.0  # for a message to be acknowledged
REFUSED_S = 1.0  # after a refusal, for another answer: who had the name may have left a moment ago
CLOSE_S = 5.0  # for functions to run for what was acknowledged, before a process leaves
LOOK_S = 5.0  # how often somebody looks whether the way in is to be asked for again
EVENTS_MAX = 1_000  # that message servers remember

Invoke = Callable[[Function, Any], Awaitable[BaseException | None]]  # what the function raised
_log = logging.getLogger("alphorn.cluster")


class Membership:
    """One work process, on the event loop that calls `start`."""

    def __init__(self, url: str | None, *, name: str, invoke: Invoke, connect_timeout: Any, **choices: Any) -> None:
        if type(name) is not str:
            raise Misuse(f"the name of a work process is a str, not {type(name).__name__}")
        check_process_name(check_text("name", name) or "")
        self.name = name
        self._patience_s = check_patience(connect_timeout, "connect_timeout")
        self._connect = partial(
            connect, url, connect_timeout=connect_timeout, reconnect_timeout=connect_timeout, **choices
        )
        self._connect()  # raises for what cannot be meant, before anything is begun
        self._invoke = invoke
        self._forks = FORKS.number
        self._refusal: Error | None = None  # of the server that spoke last, and did not let it in
        self._is_closed = False

    def __repr__(self) -> str:
        joined = "" if self._is_closed else ", ".join(self._runner.half.joined)
        return f"<WorkProcess {self.name} {'of ' + joined if joined else 'of no message server'}>"

    @property
    def is_foreign(self) -> bool:
        """Whether this is a forked child of the process that joined."""
        return FORKS.number != self._forks

    @property
    def is_closed(self) -> bool:
        """Whether it has left."""
        return self._is_closed

    def check(self) -> None:
        """Raises `Misuse` where nothing can be asked of it any more."""
        if self.is_foreign:
            raise Misuse("the parent of this forked process has joined the cluster; join again in the child")
        if self._is_closed:
            raise Misuse(f"{self.name} has left the cluster; join again")

    async def start(self) -> None:
        """Returns when a message server has let it in; raises why none has."""
        self._stirred = asyncio.Event()  # there is something to run, or to look at
        self._is_heard = asyncio.Event()  # it was let in, or refused
        self._is_let_in = asyncio.Event()
        self._tasks = Tasks()
        way = await self._ask_way()
        secret = os.urandom(SECRET_BYTES)
        self._runner = WorkProcessRunner(
            Row(self.name, run_of(secret), PROGRAM, os.getpid(), _host()),
            way.servers,
            secret=secret,
            on_given=self._on_given,
            on_won=self._on_won,
            on_joined=self._on_joined,
            on_refused=self._on_refused,
            admission=_pass_of(way),
        )
        self.calls = Calls(take=self._runner.take, compete=self._runner.compete, complete=self._runner.complete)
        await self._runner.start()
        try:
            await self._be_let_in(", ".join(f"{name} at {address}" for name, address in way.servers))
        except BaseException:
            self._is_closed = True
            await self._runner.close()
            raise
        self._functions = self._tasks.start(self._run_functions(), name="alphorn-functions")
        self._keeping = self._tasks.start(self._keep_way(), name="alphorn-way-in")

    async def tell(self, name: Any, body: Any, patience: Any) -> None:
        """Says something to one process; returns when that has it."""
        self.check()
        if type(name) is not str or not name:
            raise Misuse(f"{name!r} is no name of a work process; name one, as process.others() does")
        if name == self.name:
            raise Misuse(f"{name} is this process itself; tell others something, or call the function")
        check_text("name", name)
        await self._say(name, body, patience)

    async def tell_others(self, body: Any, patience: Any) -> None:
        """Says something to all other processes that are there."""
        self.check()
        await self._say(OTHERS, body, patience)

    async def recent(self, maximum: Any) -> list[Event]:
        """The last events, oldest first."""
        self.check()
        maximum = check_maximum(maximum)
        events = await self._runner.recent(EVENTS_MAX)
        return [event for event in events if not is_of_command(event)][-maximum:]

    def others(self) -> list[str]:
        """The names of the other processes that are there."""
        self.check()
        return [row.name for row in self._runner.half.others if not row.name.startswith(COMMAND)]

    def servers(self) -> list[str]:
        """The names of the message servers that it has joined."""
        self.check()
        return self._runner.half.joined

    def on_event(self, kind: Any, function: Any, once_per: Any) -> None:
        """A function runs when events of this kind come."""
        self.check()
        self.calls.add(kind, function, once_per)
        self._runner.want(self.calls.kinds)

    def on_message(self, function: Any) -> None:
        """A function runs for messages."""
        self.check()
        self.calls.answer_messages(function)
        self._stirred.set()

    async def close(self, *, is_failed: bool, is_within: bool = False) -> None:
        """Lets functions run for what was acknowledged, unless it failed or one of them asks (`is_within`); leaves."""
        if self.is_foreign or self._is_closed:
            return
        self._is_closed = True
        is_own = asyncio.current_task() is self._functions
        try:
            if is_failed or is_within or is_own:
                self.calls.clear()
            else:
                self.calls.end()
                self._stirred.set()
                await asyncio.wait([self._functions], timeout=CLOSE_S)
        finally:
            self.calls.clear()
            self._stirred.set()
            await self._runner.close()
            if is_own:
                self._keeping.cancel()  # the function that closes goes on
            else:
                await self._tasks.close()

    # --- what comes ---

    def _on_given(self, given: Any) -> None:
        self.calls.on_given(given)
        self._stirred.set()

    def _on_won(self, key: bytes) -> None:
        self.calls.on_won(key)
        self._stirred.set()

    def _on_joined(self, server: str) -> None:
        self._refusal = None
        self._is_let_in.set()
        self._is_heard.set()

    def _on_refused(self, error: Error) -> None:
        self._refusal = error
        self._is_heard.set()

    async def _run_functions(self) -> None:
        """One after the other; what one raises is logged, and the next one runs."""
        while True:
            call = self.calls.next()
            if call is None:
                if self._is_closed:
                    return
                self._stirred.clear()
                await self._stirred.wait()
                continue
            error = await self._invoke(call.function, call.argument)
            if error is not None:
                call.log_failure(error)
            self.calls.finish(call)
            await asyncio.sleep(0)  # a function that never waits must not stop the loop

    # --- the way in ---

    async def _ask_way(self) -> TicketAnswer:
        async with self._connect() as connection:
            answer = await connection._line.ask(partial(AskTicket, name=self.name))
        if not isinstance(answer, TicketAnswer):
            raise PeerViolation(
                "a Client Manager was asked for the way to the message servers, and said something else"
            )
        return answer

    async def _be_let_in(self, servers: str) -> None:
        try:
            await asyncio.wait_for(self._is_heard.wait(), self._patience_s)
            if self._refusal is not None:
                await asyncio.wait_for(self._is_let_in.wait(), REFUSED_S)
        except TimeoutError:
            if self._refusal is not None:
                raise again(self._refusal) from None
            reason = f"no message server let {self.name} in within {self._patience_s:g} s ({servers}); try again later"
            raise Unavailable(reason) from None

    async def _keep_way(self) -> None:
        loop = asyncio.get_running_loop()
        expires_at = loop.time() + TICKET_S / 2
        while not self._is_closed:
            await asyncio.sleep(LOOK_S)
            if self._runner.half.joined and loop.time() < expires_at:
                continue
            try:
                way = await self._ask_way()
            except Error as error:
                _log.debug("event=no_way_in name=%s reason=%r", self.name, str(error))
                continue
            self._runner.renew(way.servers, _pass_of(way))
            expires_at = loop.time() + TICKET_S / 2

    async def _say(self, to: str, body: Any, patience: Any) -> None:
        timeout_s = check_patience(patience, "timeout")
        data = _pack(body)
        try:
            await self._runner.tell(to, data, timeout_s)
        except Unavailable:
            if self._refusal is not None and not self._runner.half.joined:
                raise again(self._refusal) from None
            raise


def _pack(body: Any) -> bytes:
    try:
        data = pack_body(body)
    except MessageTooLarge:
        data = bytes(MESSAGE_BYTES_MAX + 1)
    if len(data) > MESSAGE_BYTES_MAX:
        raise Misuse("work processes tell each other 1 MiB at once and no more; send what is larger to a queue")
    return data


def _pass_of(way: TicketAnswer) -> Pass | None:
    return Pass(way.secret, way.ticket) if way.secret else None


def _host() -> str:
    return socket.gethostname()[:64]
