"""A node's client half beside real message servers: it joins, tells, logs what it is told, and needs nobody."""

import asyncio
import logging
import os
from pathlib import Path
from typing import Any

import msgspec

from alphorn.io.cluster_file import ClusterFile, NodeTable
from alphorn.io.local_cluster import LocalShape, lay_out
from alphorn.io.work_process import WorkProcessRunner
from alphorn.model.events import Event
from alphorn.model.internal import PROGRAM, SECRET_BYTES, Row, run_of
from alphorn.model.process_conversation import COMMAND
from alphorn.node.client_half import LOGGED_CHARACTERS_MAX, ClientHalf, Early, one_line
from alphorn.node.message_server import MessageServerNode
from alphorn.testing.process_bench.measure import free_addresses

DEADLINE_S = 30.0


def laid_out(directory: Path, *, is_sealed: bool = False) -> ClusterFile:
    """A cluster whose message servers are nodes of their own, at free ports."""
    file = lay_out(directory, LocalShape())
    others = tuple(node for node in file.nodes if node.kind != "message_server")
    named = zip(("ms1", "ms2"), free_addresses(2), strict=True)
    own = tuple(NodeTable(name=name, kind="message_server", internal=address) for name, (_, address) in named)
    key = directory / "cluster.key"
    key.write_text(bytes(range(32)).hex())
    key.chmod(0o600)
    return msgspec.structs.replace(file, nodes=(*others, *own), cluster_key=str(key) if is_sealed else "")


async def until(is_so: Any) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not is_so():  # noqa: ASYNC110 - what is awaited tells nobody
            await asyncio.sleep(0.01)


def program(file: ClusterFile, name: str) -> WorkProcessRunner:
    servers = [(server.name, server.internal) for server in file.message_servers]
    secret = os.urandom(SECRET_BYTES)
    row = Row(name, run_of(secret), PROGRAM, 77, "here")
    return WorkProcessRunner(row, servers, secret=secret, on_given=lambda given: None)


def test_what_a_node_is_told_is_one_line_of_its_log_whatever_is_in_it(tmp_path, caplog):
    caplog.set_level(logging.INFO)

    async def test() -> None:
        file = laid_out(tmp_path)
        server = MessageServerNode(file, "ms1", founding=False)
        half, teller = ClientHalf(file, file.node("mm1")), program(file, "worker")
        await server.start()
        await half.start()
        await teller.start()
        await until(lambda: any(row.name == "mm1" for row in teller.half.others))
        forged = 'x\n{"event":"forged"}\revent=forged \x1b[31m'
        await teller.tell("mm1", msgspec.msgpack.encode([forged]), DEADLINE_S)
        await teller.tell("mm1", b"\xff no body", DEADLINE_S)
        for end in (teller, half):
            await end.close()
        await server.stop()

    asyncio.run(test())
    told = [record for record in caplog.records if "message_told" in record.getMessage()]
    assert [record.args[0] for record in told] == ["worker", "worker"]
    assert "\n" not in told[0].getMessage()
    assert told[0].args[-1] == 'x\\n{"event":"forged"}\\revent=forged \\x1b[31m'


def test_a_long_message_is_cut():
    assert one_line("ä" * LOGGED_CHARACTERS_MAX) == "ä" * LOGGED_CHARACTERS_MAX
    assert one_line("\0" * LOGGED_CHARACTERS_MAX + "b") == "\\x00" * LOGGED_CHARACTERS_MAX + "…"
    assert one_line("a\\n\u2028\u202e") == "a\\\\n\\u2028\\u202e"


def test_message_servers_and_programs_are_seen_and_commands_are_not(tmp_path):
    async def test() -> list[dict[str, Any]]:
        file = laid_out(tmp_path)
        server = MessageServerNode(file, "ms1", founding=False)
        half, worker, command = ClientHalf(file, file.node("cm1")), program(file, "w"), program(file, f"{COMMAND}x")
        assert await half_looks_alone(half) == []
        ends = (half, worker, command)
        await server.start()
        for end in ends[1:]:
            await end.start()
        rows: list[dict[str, Any]] = []
        async with asyncio.timeout(DEADLINE_S):
            while not rows or rows[0].get("connections") != len(ends) or len(rows) < 2:
                rows = await half.look()
                await asyncio.sleep(0.01)
        for end in ends:
            await end.close()
        await server.stop()
        return rows

    async def half_looks_alone(half: ClientHalf) -> list[dict[str, Any]]:
        await half.start()
        return await half.look()

    server, worker = asyncio.run(test())
    assert (server["name"], server["kind"], server["role"]) == ("ms1", "message_server", "active")
    assert (worker["name"], worker["kind"], worker["pid"], worker["address"]) == ("w", PROGRAM, 77, "here")


def test_with_a_cluster_key_nodes_join_and_what_has_no_key_does_not(tmp_path):
    async def test() -> dict[str, Any]:
        file = laid_out(tmp_path, is_sealed=True)
        servers = [MessageServerNode(file, name, founding=False) for name in ("ms1", "ms2")]
        half, stranger = ClientHalf(file, file.node("mm1")), program(file, "stranger")
        for server in servers:
            await server.start()
        await stranger.start()
        await half.start()
        await until(lambda: half.describe()["joined"] == ["ms1", "ms2"])
        described = stranger.describe()
        for end in (half, stranger):
            await end.close()
        for server in servers:
            await server.stop()
        return described

    assert asyncio.run(test())["joined"] == []


def test_what_happens_before_a_node_has_its_internal_connection_is_told_then_as_far_as_it_is_kept():
    class Half:
        def __init__(self) -> None:
            self.told: list[int] = []

        def happen(self, event: Event) -> None:
            self.told.append(event.number)

    early, half = Early(), Half()
    for number in range(150):
        early.happen(Event(kind="disk_low", node="mm1", number=number))
    early.pass_on(half)  # type: ignore[arg-type]
    early.pass_on(half)  # type: ignore[arg-type]
    assert half.told == list(range(50, 150))
