"""One member process by itself, and a small group of them."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from alphorn.io.control import LoadStopped, StartLoad
from alphorn.io.member_file import WITNESS, GroupTable, MemberFile, MemberTable, write_member_file
from alphorn.model.errors import Unavailable
from alphorn.testing.processes import GroupShape, ProcessGroup

pytestmark = pytest.mark.processes

DEADLINE_S = 60


def run_member(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "alphorn.node.group", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=DEADLINE_S)


def test_a_member_file_that_is_missing_is_one_sentence(tmp_path):
    ended = run_member(str(tmp_path / "none.toml"))

    assert ended.returncode == 1
    assert ended.stderr.startswith("alphorn: member file ")
    assert ended.stderr.count("\n") == 1


def test_a_client_cannot_found_a_group(tmp_path):
    member = MemberTable(number=1, name="one", address="127.0.0.1:1", roles=("sequencer", "data", *WITNESS))
    file = MemberFile(name="visitor", group=GroupTable(id=1, members=(member,), copies=1))
    write_member_file(tmp_path / "visitor.json", file)
    ended = run_member(str(tmp_path / "visitor.json"), "--found")

    assert ended.returncode == 1
    assert ended.stderr == "alphorn: member visitor is a client and founds nothing; start it without --found\n"


def test_members_stop_in_good_order_when_told_to_and_when_their_program_ends(tmp_path):
    async def test():
        async with ProcessGroup(tmp_path, GroupShape(servers=1, clients=1, copies=1)) as group:
            await group.start()
            server, client = group.servers[0], group.clients[0]
            client.close_input()
            assert await client.ended() == 0
            server.signal(signal.SIGTERM)
            assert await server.ended() == 0
            assert not server.is_running

    asyncio.run(test())


def test_a_witness_votes_and_keeps_no_batches(tmp_path):
    async def test():
        async with ProcessGroup(tmp_path, GroupShape(servers=2, witnesses=1, clients=1)) as group:
            await group.start()
            await group.members["backup-1"].kill()  # of three voters two are left, one of them the witness
            client = group.clients[0]
            await client.start_load(StartLoad(size=1000, in_flight=4, count=10))
            assert await client.load_ended() == LoadStopped(ordered=10, refused=0)
            witness = await group.members["witness-1"].describe()
            assert witness.tally.batches == 0
            assert witness.node["endpoint"]["state"]["voters"] == [1, 2, 3]

    asyncio.run(test())


@pytest.mark.requirement("BUS-2", "HA-2")
def test_more_backups_add_no_bytes_to_what_the_sender_multicasts(tmp_path):
    size, batches = 20_000, 200

    async def measure(servers: int, path: Path) -> float:
        async with ProcessGroup(path, GroupShape(servers=servers, clients=1)) as group:
            await group.start()
            client = group.clients[0]
            await client.start_load(StartLoad(size=size, in_flight=8, count=batches))
            await client.load_ended()
            described = await client.describe()
            assert described.tally.batches == batches
            sent = described.node["transport"]["datagrams"]["sent"]
            return sent["*data"]["bytes"] / (batches * size)

    few = asyncio.run(measure(2, tmp_path / "few"))
    many = asyncio.run(measure(5, tmp_path / "many"))

    assert 1.0 <= few < 1.02
    assert many < few * 1.02


def test_waiting_for_what_never_comes_ends_with_a_sentence(tmp_path):
    async def test():
        async with ProcessGroup(tmp_path, GroupShape(servers=1, clients=0, copies=1)) as group:
            with pytest.raises(Unavailable, match=r"waited 0 s for a miracle; logs are in .*primary: is down"):
                await group.until(lambda: False, "a miracle", deadline_s=0.01)

    asyncio.run(test())
