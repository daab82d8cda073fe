"""Runs the client half of a work process (message_server/work_process.py): its internal connections and its timers.

Each node of the cluster has one, and each program that has joined. Connections are made again whenever they are lost.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

import alphorn.message_server.process_machine as machine
from alphorn.io.driver import Driver
from alphorn.io.internal_stream import TAG_BYTES, Knocking, Pass
from alphorn.io.streams import FrameStream, read_buffer
from alphorn.io.tasks import Tasks
from alphorn.message_server.work_process import Settings, WorkProcess
from alphorn.model import errors, internal
from alphorn.model.errors import Error, PeerViolation, Unavailable
from alphorn.model.events import Event

RECONNECT_S = (0.05, 1.0)  # first and longest wait before a connection is tried again
BUFFERED_BYTES_MAX = 8 << 20
CONNECT_S = 2.0  # before a connection is given up that nobody answers
LAST_WORDS_S = 1.0  # so long what was said may take to leave a connection that is over

Given = machine.Given | machine.Told

_log = logging.getLogger(__name__)


class WorkProcessRunner:
    """One work process on the running event loop. `start`, then anything, then `close`.

    `on_given` gets messages and events, each once and in order, and calls `take` when it has; `on_won` the keys that
    this process is to do; `on_refused` an error that no waiting mends; `on_changed` hears that others came or went.
    """

    def __init__(
        self,
        row: internal.Row,
        servers: Sequence[tuple[str, str]],
        *,
        secret: bytes,
        on_given: Callable[[Given], None],
        on_won: Callable[[bytes], None] = lambda key: None,
        on_refused: Callable[[Error], None] = lambda error: None,
        on_joined: Callable[[str], None] = lambda server: None,
        on_changed: Callable[[], None] = lambda: None,
        on_standing: Callable[[str, bytes], None] = lambda server, data: None,
        admission: Pass | None = None,
    ) -> None:
        self._row = row
        self._secret = secret
        self._addresses = dict(servers)
        self._on_given = on_given
        self._on_won = on_won
        self._on_refused = on_refused
        self._on_joined = on_joined
        self._on_changed = on_changed
        self._on_standing = on_standing
        self._admission = admission
        self._streams: dict[str, FrameStream] = {}
        self._seals: dict[str, Knocking] = {}
        self._dirty: dict[str, FrameStream] = {}
        self._closed: dict[str, asyncio.Future[str]] = {}
        self._shared = read_buffer()
        self._tasks = Tasks()
        self._handle = 0
        self._waiting: dict[int, asyncio.Future[Any]] = {}

    @property
    def row(self) -> internal.Row:
        """This process, as others know it."""
        return self._row

    @property
    def half(self) -> WorkProcess:
        """The client half, to look at."""
        return self._machine

    async def start(self) -> None:
        """Begins to connect; `on_joined` hears when a server has welcomed this process."""
        now = asyncio.get_running_loop().time()
        settings = Settings(row=self._row, secret=self._secret, servers=tuple(self._addresses))
        self._machine = WorkProcess(settings, now=now)
        self._driver: Driver[machine.Input, machine.Output] = Driver(
            self._machine, perform=self._perform, end_turn=self._end_turn, on_failure=self._on_failure
        )
        self._driver.start()
        for server in self._addresses:
            self._tasks.start(self._keep(server), name=f"internal connection to {server}")

    def renew(self, servers: Sequence[tuple[str, str]], admission: Pass | None) -> None:
        """Where the servers are by now, and what lets this process in; holds for the next connections."""
        self._addresses.update((name, address) for name, address in servers if name in self._addresses)
        self._admission = admission

    async def close(self) -> None:
        """Leaves in good order; what waits for an answer gets `UnknownOutcome`."""
        self._driver.receive(machine.Quit())
        self._driver.finish_turn()
        self._driver.close()
        for stream in list(self._streams.values()):
            stream.close("the process leaves")
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(errors.UnknownOutcome("this process has left the cluster; join again to ask"))
        self._waiting.clear()
        await self._tasks.close()

    # --- what the owner wants ---

    async def tell(self, to: str, body: bytes, timeout_s: float) -> None:
        """Says something to one process, or to all `OTHERS`; returns when it is acknowledged, or raises an `Error`."""
        self._handle += 1
        handle = self._handle
        waiting = self._waiting[handle] = asyncio.get_running_loop().create_future()
        self._driver.receive(machine.SendMessage(handle, to, body, timeout_s))
        try:
            await waiting
        finally:
            self._waiting.pop(handle, None)

    async def recent(self, maximum: int) -> list[Event]:
        """The last events, oldest first; raises `Unavailable`."""
        self._handle += 1
        handle = self._handle
        waiting: asyncio.Future[list[Event]] = asyncio.get_running_loop().create_future()
        self._waiting[handle] = waiting
        self._driver.receive(machine.AskRecent(handle, maximum))
        try:
            return await waiting
        finally:
            self._waiting.pop(handle, None)

    def take(self, given: Given) -> None:
        """The owner has this, and is not to get it again."""
        if given.number:
            self._driver.receive(machine.Taken(given.run, given.number))

    def happen(self, event: Event) -> None:
        """Tells the cluster of an event."""
        self._driver.receive(machine.TellEvent(event))

    def want(self, kinds: Sequence[str]) -> None:
        """The kinds of events that are wanted from now on."""
        self._row = msgspec.structs.replace(self._row, wants=list(kinds))
        self._driver.receive(machine.WantEvents(tuple(kinds)))

    def compete(self, key: bytes) -> None:
        """This is to be done by one process of the cluster; `on_won` hears where it is this one."""
        self._driver.receive(machine.Compete(key))

    def complete(self, key: bytes) -> None:
        """It is done."""
        self._driver.receive(machine.Complete(key))

    def ask_servers(self) -> None:
        """`on_standing` hears how each server stands."""
        self._driver.receive(machine.AskServers())

    def describe(self) -> dict[str, object]:
        """The one printable state."""
        return self._machine.describe()

    # --- connections ---

    async def _keep(self, server: str) -> None:
        loop = asyncio.get_running_loop()
        wait_s, longest_s = RECONNECT_S
        while True:
            host, _, port = self._addresses[server].rpartition(":")
            closed: asyncio.Future[str] = loop.create_future()
            self._closed[server] = closed
            try:
                async with asyncio.timeout(CONNECT_S):
                    await loop.create_connection(partial(self._make, server, closed), host.strip("[]"), int(port))
            except OSError:
                await asyncio.sleep(wait_s * random.uniform(0.5, 1.5))
                wait_s = min(2 * wait_s, longest_s)
                continue
            began = loop.time()
            reason = await closed
            self._streams.pop(server, None)
            self._dirty.pop(server, None)
            self._driver.receive(machine.Disconnected(server))
            _log.debug("event=internal_connection_lost server=%s reason=%s", server, reason)
            if loop.time() - began > longest_s:
                wait_s = RECONNECT_S[0]
            await asyncio.sleep(wait_s * random.uniform(0.5, 1.5))
            wait_s = min(2 * wait_s, longest_s)

    def _make(self, server: str, closed: "asyncio.Future[str]") -> FrameStream:
        def on_closed(stream: FrameStream, reason: str) -> None:
            if not closed.done():
                closed.set_result(reason)

        return FrameStream(
            on_frames=lambda stream, frames: self._on_frames(server, stream, frames),
            on_closed=on_closed,
            on_open=lambda stream: self._on_open(server, stream),
            frame_bytes_max=internal.FRAME_BYTES_MAX + TAG_BYTES,
            buffered_bytes_max=BUFFERED_BYTES_MAX,
            shared=self._shared,
        )

    def _on_open(self, server: str, stream: FrameStream) -> None:
        self._streams[server] = stream
        if self._admission is not None:
            self._seals[server] = Knocking(self._admission, is_server=False)
            stream.send(self._seals[server].knock())
            stream.flush()
        else:
            self._seals.pop(server, None)
            self._driver.receive(machine.Connected(server))

    def _on_frames(self, server: str, stream: FrameStream, frames: list[memoryview]) -> None:
        if stream is not self._streams.get(server):
            return
        try:
            seal = self._seals.get(server)
            if seal is not None and not seal.is_done:
                seal.hear(frames[0])
                frames = frames[1:]
                self._driver.receive(machine.Connected(server))
            heard = [
                machine.Heard(server, internal.decode_server(frame if seal is None else seal.open(frame)))
                for frame in frames
            ]
        except Error as error:
            stream.abort(str(error))
            return
        self._driver.receive_all(heard)

    # --- what the machine wants ---

    def _perform(self, output: machine.Output) -> None:
        match output:
            case machine.Send(server, frame):
                stream = self._streams.get(server)
                if stream is not None:
                    data, seal = internal.encode(frame), self._seals.get(server)
                    stream.send(data if seal is None else seal.seal(data))
                    self._dirty[server] = stream
            case machine.Given() | machine.Told():
                self._on_given(output)
            case machine.Outcome(handle, error, reason):
                self._answer(handle, error, reason)
            case machine.Won(key):
                self._on_won(key)
            case machine.Recent(handle, events):
                waiting = self._waiting.get(handle)
                if waiting is not None and not waiting.done():
                    waiting.set_result(events)
            case machine.Standing(server, data):
                self._on_standing(server, data)
            case machine.Turned(server, error, reason):
                if error:
                    _log.warning("event=internal_connection_refused server=%s reason=%s", server, reason)
                    self._on_refused(error_of(error, reason))
                else:
                    self._on_joined(server)
            case machine.Changed():
                self._on_changed()
            case machine.Cut(server, reason):
                stream = self._streams.pop(server, None)
                if stream is not None:
                    stream.close(reason)
                    asyncio.get_running_loop().call_later(LAST_WORDS_S, stream.abort, reason)
            case _:
                raise AssertionError(f"the runner does not know the output {output!r}")

    def _answer(self, handle: int, error: str, reason: str) -> None:
        waiting = self._waiting.get(handle)
        if waiting is None or waiting.done():
            return
        if error:
            waiting.set_exception(error_of(error, reason))
        else:
            waiting.set_result(None)

    def _end_turn(self) -> None:
        for stream in self._dirty.values():
            stream.flush()
        self._dirty.clear()

    def _on_failure(self, error: BaseException) -> None:
        _log.error("event=machine_failed", exc_info=error)
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(Unavailable(f"this work process has failed: {error}; join again"))


def error_of(name: str, reason: str) -> Error:
    """The error that a server named; an unknown one is a violation of the protocol."""
    kind = getattr(errors, name, PeerViolation)
    return kind(reason) if isinstance(kind, type) and issubclass(kind, Error) else PeerViolation(reason)
