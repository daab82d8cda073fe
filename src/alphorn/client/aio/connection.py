"""`connect` and `Connection` with asyncio: the way into a cluster."""

import asyncio
import os
import time
from collections.abc import Callable, Generator
from functools import partial
from typing import Any

from alphorn.client.aio.line import AsyncLine
from alphorn.client.aio.places import Places
from alphorn.client.aio.session import Session
from alphorn.client.blocking.connection import CONNECT_TIMEOUT_S, RECONNECT_TIMEOUT_S
from alphorn.client.choices import (
    DestinationLike,
    check_channel,
    check_destination,
    check_mode,
    check_patience,
    check_sequence,
    choose_identity,
    choose_policy,
)
from alphorn.client.core import Core
from alphorn.client.flushing import give_up_at, log_given_up
from alphorn.client.forks import FORKS
from alphorn.client.url import choose_tls, choose_url, parse_url
from alphorn.io.process import CLIENT_KEPT_BYTES, CLIENT_MAPPED_BYTES_MIN, keep_freed_memory
from alphorn.model.conversation import Administer, Done, Status
from alphorn.model.errors import Error, Misuse
from alphorn.model.moving_conversation import Drain, Move
from alphorn.model.status_pages import StatusPages, check_complete

OnEvent = Callable[[str, str], None]


class Connecting:
    """What `connect` gives: await it for a `Connection`, or use it with `async with`, which closes at the end."""

    def __init__(self, line: AsyncLine, on_event: OnEvent | None) -> None:
        self._line = line
        self._on_event = on_event
        self._connection: Connection | None = None

    def __await__(self) -> Generator[Any, None, "Connection"]:
        return self._connect().__await__()

    async def __aenter__(self) -> "Connection":
        self._connection = await self._connect()
        return self._connection

    async def __aexit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        assert self._connection is not None
        await self._connection.__aexit__(kind)

    async def _connect(self) -> "Connection":
        await self._line.start(self._on_event)
        return Connection(self._line)


def connect(
    url: str | None = None,
    *,
    user: str | None = None,
    password: str | None = None,
    client_id: str = "",
    tls: object = None,
    on_event: OnEvent | None = None,
    connect_timeout: float | None = CONNECT_TIMEOUT_S,
    reconnect_timeout: float | None = RECONNECT_TIMEOUT_S,
) -> Connecting:
    """Connects to a cluster, as `alphorn.connect` does: `async with connect(url) as connection`, or await it.

    `on_event(name, detail)` hears "connected", "disconnected", "resumed" and "closed", in the event loop. Raises
    `Unavailable` when no Client Manager answers within `connect_timeout` seconds, `AccessDenied`, `Misuse`.
    """
    target = parse_url(choose_url(url, os.environ))
    context = choose_tls(target, tls)
    if on_event is not None and not callable(on_event):
        raise Misuse("on_event is something to call with a name and a detail")
    identity = choose_identity(target, user=user, password=password, client_id=client_id)
    connect_timeout = check_patience(connect_timeout, "connect_timeout")
    reconnect_timeout = check_patience(reconnect_timeout, "reconnect_timeout")
    keep_freed_memory(CLIENT_KEPT_BYTES, CLIENT_MAPPED_BYTES_MIN)
    core = Core(**identity, on_event=lambda name, detail: line.note_event(name, detail))
    line = AsyncLine(
        target, core, context=context, connect_timeout=connect_timeout, reconnect_timeout=reconnect_timeout
    )
    return Connecting(line, on_event)


class Connection:
    """A connection to a cluster; a context manager that closes it.

    It belongs to the event loop that opened it. A forked child must connect itself.
    """

    def __init__(self, line: AsyncLine) -> None:
        self._line = line
        self._places = Places(line)
        self._sessions: list[Session] = []
        self.destinations = Destinations(line)

    def __repr__(self) -> str:
        return f"<Connection {self.id} to {self._line.core.server} {self._line.core.state.value}>"

    async def __aenter__(self) -> "Connection":
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        try:
            await self._end(is_failed=kind is not None)
        except asyncio.CancelledError:
            self._line.end(_closed())  # nobody else will: it would live on, and keep what its consumers hold
            raise

    @property
    def id(self) -> str:
        """The id that the cluster gave this connection, kept across reconnections."""
        return self._line.core.connection.hex()

    def session(self, ack: str = "auto", *, transacted: bool = False) -> Session:
        """Begins an independent flow. `ack` is "auto", "client", "individual" or "dups_ok".

        In a `transacted` one nothing is sent or consumed before `commit`, whatever `ack` says.
        """
        self._line.check()
        mode = check_mode(ack, transacted=transacted)
        state = self._line.core.open_session(mode)
        self._line.schedule()
        session = Session(self._line, self._places, state, self._sessions.remove)
        self._sessions.append(session)
        return session

    async def status(self, *, destinations_max: int | None = None) -> dict[str, Any]:
        """The state of the cluster, as `alphorn status --json` prints it; with the first so many destinations, or all.

        Destinations come in pages: those that are there all the while are told once, others may be told or not.
        """
        return await ask_status(self._line, destinations_max)

    async def close(self) -> None:
        """Flushes all producers, ends all sessions, says goodbye. A second time does nothing."""
        await self._end(is_failed=False)

    async def _end(self, *, is_failed: bool) -> None:
        if FORKS.number != self._line.forks or self._line.is_closed:
            return
        faults: list[Error] = []
        until, given_up = give_up_at(time.monotonic(), is_failed=is_failed), 0
        for session in list(self._sessions):
            try:
                given_up += await session._end(until=until)
            except Error as error:
                faults.append(error)
        log_given_up(given_up)
        faults += self._line.core.unknown_outcomes()
        await self._line.close(_closed())
        if faults and not is_failed:
            raise faults[0]


def _closed() -> Misuse:
    return Misuse("this connection is closed; connect again")


class Destinations:
    """Administration of queues and topics."""

    def __init__(self, line: AsyncLine) -> None:
        self._line = line

    async def create(self, name: DestinationLike, **policy: Any) -> None:
        """Creates a destination with this policy (docs/client.md lists what can be decided).

        One that exists with the same policy is left as it is, and so is any where no policy is given; with another
        policy it is a `Misuse` that names the differences.
        """
        await self._administer("create", name, policy)

    async def policy(self, name: DestinationLike, **policy: Any) -> None:
        """Replaces a destination's policy."""
        await self._administer("policy", name, policy)

    async def delete(self, name: DestinationLike) -> None:
        """Deletes a destination and all it holds."""
        await self._administer("delete", name, None)

    async def purge(self, name: DestinationLike) -> int:
        """Lets go of everything a queue holds, also for readers of the log; gives how many messages were waiting.

        Where the connection was lost meanwhile it is asked again, and counts what the last time found.
        """
        return await self._administer("purge", name, None)

    async def redrive(self, name: DestinationLike) -> int:
        """Sends the dead messages in this queue back to where they came from; gives how many, as `purge` does.

        Raises `InvalidDestination` where that is gone for some; the others have gone back.
        """
        return await self._administer("redrive", name, None)

    async def release(self, name: DestinationLike, through: int) -> None:
        """A destination keeps no more what arrived through this sequence number, because it is kept elsewhere."""
        await self._administer("release", name, None, check_sequence("through", through))

    async def move(self, name: DestinationLike, channel: str) -> None:
        """Moves a destination to another channel while it is used; returns when it is there.

        Nothing is lost, repeated or overtaken; its producers and consumers notice no more than a short pause.
        """
        destination, target = check_destination(name), check_channel(channel)
        await self._line.ask(lambda request: Move(request, destination, target))

    async def drain(self, channel: str) -> int:
        """Moves everything off a channel and lets nothing new onto it; gives how many destinations were moved."""
        name = check_channel(channel)
        answer = await self._line.ask(lambda request: Drain(request, name))
        return answer.number if isinstance(answer, Done) else 0

    async def open(self, channel: str) -> None:
        """Lets new destinations onto a channel again that was drained."""
        name = check_channel(channel)
        await self._line.ask(lambda request: Drain(request, name, is_over=True))

    async def list(self) -> list[dict[str, Any]]:
        """All destinations, each with `name`, `channel`, `depth` and `consumers`.

        Raises `Unavailable` while a channel has no primary, because its destinations would be missing; `status` tells
        what can be told, and names such channels in `lost`.
        """
        found = await ask_status(self._line)
        check_complete(found["lost"])
        return list(found["destinations"])

    async def _administer(
        self, action: str, destination: DestinationLike, policy: dict[str, Any] | None, number: int = 0
    ) -> int:
        name = check_destination(destination)
        data = b"" if policy is None else choose_policy(name, policy)
        answer = await self._line.ask(
            lambda request: Administer(request, action, name, data, number), forgives=action == "delete"
        )
        if action == "delete":
            self._line.core.places.pop(name, None)
        return answer.number if isinstance(answer, Done) else 0


async def ask_status(line: AsyncLine, destinations_max: int | None = None) -> dict[str, Any]:
    """The cluster's state."""
    pages = StatusPages(destinations_max)
    while not pages.is_complete:
        pages.add(await line.ask(partial(Status, cursor=pages.cursor)))
    return pages.status
