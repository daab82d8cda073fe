"""`join_cluster` and `WorkProcess`: a program becomes a work process of the cluster."""

import inspect
from collections.abc import Callable, Generator
from typing import Any, Literal

from alphorn.client.blocking.connection import CONNECT_TIMEOUT_S
from alphorn.client.calls import Function, Message
from alphorn.client.membership import TELL_S, Membership
from alphorn.model.events import Event


class Joining:
    """What `join_cluster` gives: await it for a `WorkProcess`, or use it with `async with`, which leaves at the end."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership

    def __await__(self) -> Generator[Any, None, "WorkProcess"]:
        return self._join().__await__()

    async def __aenter__(self) -> "WorkProcess":
        return await self._join()

    async def __aexit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        await self._membership.close(is_failed=kind is not None)

    async def _join(self) -> "WorkProcess":
        await self._membership.start()
        return WorkProcess(self._membership)


def join_cluster(
    url: str | None = None,
    *,
    name: str,
    user: str | None = None,
    password: str | None = None,
    tls: object = None,
    connect_timeout: float | None = CONNECT_TIMEOUT_S,
) -> Joining:
    """Joins a cluster as a work process, as `alphorn.cluster.join` does: `async with join_cluster(url, name=...)`.

    Functions run in the event loop, one after the other; what they give is awaited where it can be. Raises
    `Unavailable` when nobody lets it in within `connect_timeout` seconds, `Misuse` for a name that another one has.
    """
    return Joining(
        Membership(url, name=name, invoke=_call, connect_timeout=connect_timeout, user=user, password=password, tls=tls)
    )


class WorkProcess:
    """A work process of a cluster; an async context manager that leaves it.

    It belongs to the event loop that joined. A forked child must join itself.
    """

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self.events = Events(membership)

    def __repr__(self) -> str:
        return repr(self._membership)

    async def __aenter__(self) -> "WorkProcess":
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        await self._membership.close(is_failed=kind is not None)

    @property
    def name(self) -> str:
        """The name under which others know this process."""
        return self._membership.name

    async def tell(self, name: str, body: Any, timeout: float | None = TELL_S) -> None:
        """Says something to one other process, by its name; returns when that has it.

        Bodies are those of messages, up to 1 MiB. Raises `UnknownOutcome` when `timeout` seconds were too few,
        `Unavailable` when no message server is there and nothing was sent, `Misuse` for a name that nobody knows.
        """
        await self._membership.tell(name, body, timeout)

    async def tell_others(self, body: Any, timeout: float | None = TELL_S) -> None:
        """Says something to all other processes that are there; returns when it cannot be lost any more.

        That is when all message servers have it, or with one of them left every process that is there.
        """
        await self._membership.tell_others(body, timeout)

    def on_message(self, function: Callable[[Message], Any]) -> "Registered":
        """Calls `function` with each message that others tell this process: it has `sender` and `body`.

        Messages that came before wait for it, the last few hundred of them. A second function takes the place of the
        first.
        """
        self._membership.on_message(function)
        return Registered()

    def others(self) -> list[str]:
        """The names of all other processes that are there: the cluster's nodes, and programs that have joined."""
        return self._membership.others()

    def servers(self) -> list[str]:
        """The names of the message servers that this process has joined and reaches; without one it is on its own."""
        return self._membership.servers()

    async def close(self) -> None:
        """Leaves the cluster, after functions have run for what was acknowledged. A second time does nothing."""
        await self._membership.close(is_failed=False)


class Events:
    """The events of the cluster, as one work process hears them."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership

    def on(
        self, kind: str, function: Callable[[Event], Any], once_per: Literal["process", "cluster"] = "process"
    ) -> "Registered":
        """Calls `function` with each event of this kind, or of every kind for "*", from now on.

        Once per "process" it runs in every process that asked for it; once per "cluster" in one of those that have a
        function of this name, and in another one where that ends before the function has returned.
        Raises `Misuse` for a kind that there is not.
        """
        self._membership.on_event(kind, function, once_per)
        return Registered()

    async def recent(self, maximum: int = 100) -> list[Event]:
        """The last events, oldest first; raises `Unavailable` when no message server is there."""
        return await self._membership.recent(maximum)


class Registered:
    """What was asked for holds already; awaiting it does nothing."""

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


async def _call(function: Function, argument: Any) -> BaseException | None:
    try:
        found = function(argument)
        if inspect.isawaitable(found):
            await found
    except Exception as error:
        return error
    return None
