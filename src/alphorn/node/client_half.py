"""A node's internal connection: it joins the message servers of its cluster, logs what it is told, and tells events.

Every node has one of its own, also where nodes share a process. A node needs none of it to serve: without a message
server, or without any in the cluster file, it goes on as it is.
"""

import asyncio
import logging
import os
import time
from collections import deque
from typing import Any

import msgspec

from alphorn.io.cluster_file import ClusterFile, NodeTable
from alphorn.io.internal_stream import pass_of_node
from alphorn.io.sealing import load_cluster_key
from alphorn.io.work_process import Given, WorkProcessRunner
from alphorn.message_server.process_machine import Told
from alphorn.model.errors import Error
from alphorn.model.events import EVERYTHING, Event
from alphorn.model.internal import PROGRAM, SECRET_BYTES, Row, run_of
from alphorn.model.process_conversation import COMMAND, read_body

ANSWER_S = 0.5  # so long a message server may take to say how it stands
EARLY_MAX = 100
ROLES = {"primary": "active", "backup": "standby"}  # in words that no channel's roles have
LOGGED_CHARACTERS_MAX = 200  # of a message that a node logs

_log = logging.getLogger(__name__)
_decode_standing = msgspec.json.Decoder(dict[str, Any]).decode


class Early:
    """What happens before a node has its internal connection; the latest of it."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque(maxlen=EARLY_MAX)

    def happen(self, event: Event) -> None:
        """Keeps an event."""
        self._events.append(event)

    def pass_on(self, half: "ClientHalf") -> None:
        """Tells the cluster of all of them."""
        while self._events:
            half.happen(self._events.popleft())


class ClientHalf:
    """One node's. `start`, then anything, then `close`."""

    def __init__(self, file: ClusterFile, table: NodeTable) -> None:
        self._table = table
        self._addresses = {server.name: server.internal for server in file.message_servers}
        # Client Managers log events, so that each is on `_LOG` and not once for every node.
        wants = [EVERYTHING] if table.kind == "client_manager" else []
        address = table.clients or table.link or table.internal or table.witness
        secret = os.urandom(SECRET_BYTES)
        key = load_cluster_key(file.key_path) if file.key_path is not None else None
        self._runner = WorkProcessRunner(
            Row(table.name, run_of(secret), table.kind, os.getpid(), address, wants),
            list(self._addresses.items()),
            secret=secret,
            on_given=self._on_given,
            on_refused=self._on_refused,
            on_joined=self._on_joined,
            on_standing=self._on_standing,
            admission=pass_of_node(key) if key is not None else None,
        )
        self._standing: dict[str, dict[str, Any]] = {}  # what each message server said last of itself
        self._looking: list[tuple[set[str], asyncio.Future[None]]] = []  # servers that are waited for

    async def start(self) -> None:
        """Begins to connect, and waits for nobody."""
        await self._runner.start()

    async def close(self) -> None:
        """Leaves in good order."""
        await self._runner.close()

    def happen(self, event: Event) -> None:
        """Tells the cluster of an event, now."""
        self._runner.happen(msgspec.structs.replace(event, time=time.time()))

    def describe(self) -> dict[str, object]:
        """The one printable state."""
        return self._runner.describe()

    async def look(self) -> list[dict[str, Any]]:
        """Rows of the cluster's state: message servers that answer, and programs that have joined."""
        joined = set(self._runner.half.joined)
        if joined:
            answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            looking = (joined.copy(), answered)
            self._looking.append(looking)
            self._runner.ask_servers()
            await asyncio.wait((answered,), timeout=ANSWER_S)
            self._looking.remove(looking)
            joined -= looking[0]
        rows = [self._runner.row, *self._runner.half.others]
        pids = {row.name: row.pid for row in rows}
        servers = [self._server_row(name, pids.get(name, 0)) for name in self._addresses if name in joined]
        return servers + [_plain_row(row.name, PROGRAM, row.pid, row.address) for row in rows if _is_program(row)]

    def _server_row(self, name: str, pid: int) -> dict[str, Any]:
        standing = self._standing[name]
        counts = {field: standing.get(field, 0) for field in ("connections", "queued", "queued_bytes")}
        row = _plain_row(name, "message_server", pid, self._addresses[name])
        return {**row, "role": ROLES.get(str(standing.get("role")), ""), **counts}

    def _on_standing(self, server: str, data: bytes) -> None:
        try:
            self._standing[server] = _decode_standing(data)
        except msgspec.MsgspecError:
            return  # it is waited for in vain, and found unreachable
        for waiting, answered in self._looking:
            waiting.discard(server)
            if not waiting and not answered.done():
                answered.set_result(None)

    def _on_given(self, given: Given) -> None:
        self._runner.take(given)
        if isinstance(given, Told):
            _log_event(given.event)
        else:
            _log.info(
                "event=message_told sender=%s bytes=%d text=%s", given.sender, len(given.body), _shown(given.body)
            )

    def _on_refused(self, error: Error) -> None:
        _log.warning("event=internal_connection_refused reason=%s", error)

    def _on_joined(self, server: str) -> None:
        _log.info("event=internal_connection_joined server=%s", server)


def one_line(text: str) -> str:
    """What somebody else wrote, as one piece of a log line: cut, and whatever is not plain text escaped."""
    escaped = "".join(
        character if character.isprintable() and character != "\\" else ascii(character)[1:-1]
        for character in text[:LOGGED_CHARACTERS_MAX]
    )
    return escaped if len(text) <= LOGGED_CHARACTERS_MAX else escaped + "…"


def _shown(data: bytes) -> str:
    try:
        body = read_body(data)
    except Error:
        body = data[:LOGGED_CHARACTERS_MAX]
    return one_line(body if isinstance(body, str) else repr(body))


def _log_event(event: Event) -> None:
    if event.node.startswith(COMMAND) and event.kind.startswith("node_"):
        return  # of an operator who looks
    details = " ".join(f"{key}={value}" for key, value in event.details.items())
    _log.info(
        "event=cluster_event kind=%s of=%s channel=%s epoch=%d number=%d details=%s",
        event.kind,
        event.node,
        event.channel,
        event.epoch,
        event.number,
        one_line(details),
    )


def _is_program(row: Row) -> bool:
    return row.kind == PROGRAM and not row.name.startswith(COMMAND)


def _plain_row(name: str, kind: str, pid: int, address: str) -> dict[str, Any]:
    return {
        "name": name,
        "kind": kind,
        "pid": pid,
        "address": address,
        "channel": "",
        "role": "",
        "epoch": 0,
        "lag": 0,
    }
