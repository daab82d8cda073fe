"""The processes of a cluster, with fake nodes in them: kept alive, given up, stopped in order."""

import asyncio
import contextlib
import errno
import os
import signal

import pytest

from alphorn.io.cluster_file import read_cluster_file
from alphorn.io.local_cluster import FILE_NAME, LocalShape, lay_out, write_cluster_file
from alphorn.io.probe import missing_of, status_of, until_serving
from alphorn.io.restarts import RestartPolicy
from alphorn.io.supervisor import NodeProcess, Supervisor
from alphorn.model.errors import Misuse, Unavailable
from tests.io.loops import run
from tests.node.fake_nodes import fake_command

pytestmark = pytest.mark.processes

HOST = f"127.{os.getpid() % 200 + 1}.7.11"


class Heard:
    """What a supervisor says, to be waited for."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.given_up: list[str] = []
        self._changed = asyncio.Event()

    def say(self, sentence: str) -> None:
        self.lines.append(sentence)
        self._changed.set()

    async def until(self, text: str) -> str:
        while True:
            for line in self.lines:
                if text in line:
                    return line
            self._changed.clear()
            await self._changed.wait()


@contextlib.asynccontextmanager
async def supervised(directory, *, does=(), quick_deaths_max=3, together=False, **settings):
    path = directory / FILE_NAME
    write_cluster_file(path, lay_out(directory, LocalShape(client_managers=1, together=together), host=HOST))
    for name, what in does:
        (directory / f"{name}.does").write_text(what)
    heard = Heard()
    supervisor = Supervisor(
        path,
        read_cluster_file(path),
        say=heard.say,
        on_given_up=heard.given_up.append,
        command=fake_command,
        policy=lambda: RestartPolicy(quick_s=1e9, quick_deaths_max=quick_deaths_max, first_s=0.0),
        **settings,
    )
    try:
        yield supervisor, heard
    finally:
        await supervisor.stop()


def test_a_cluster_that_is_started_serves_and_stops_client_managers_first(tmp_path):
    async def test():
        async with supervised(tmp_path) as (supervisor, _):
            await supervisor.start()
            await until_serving(supervisor.file, deadline_s=30, whole=True)
            pids = [node.pid for node in supervisor.nodes.values()]
        assert 0 not in pids
        assert {node.pid for node in supervisor.nodes.values()} == {0}
        assert [node.how_it_ended() for node in supervisor.processes] == ["ended with exit code 0"] * 3
        stops = (tmp_path / "stops").read_text().split()
        assert stops[:2] == ["cm1", "ms1"], "of the same process"
        assert sorted(stops[2:]) == ["mm1", "mm2", "ms2"]

    run(test)


def test_nodes_of_one_process_are_started_killed_and_started_again_as_one(tmp_path):
    async def test():
        async with supervised(tmp_path, together=True) as (supervisor, heard):
            await supervisor.start()
            assert [node.name for node in supervisor.processes] == ["mm1+cm1", "mm2", "w1"]
            node = supervisor.nodes["cm1"]
            assert supervisor.nodes["mm1"] is node
            await node.until_started()
            before = node.pid
            os.kill(before, signal.SIGKILL)
            await heard.until("mm1+cm1 was ended by SIGKILL")
            await heard.until("mm1+cm1 starts again")
            await node.until_started()
            assert node.pid not in (0, before)
        stops = (tmp_path / "stops").read_text().split()
        assert stops.index("cm1") < stops.index("mm1"), "nothing clients ordered is left unanswered"
        assert stops[-1] == "w1"

    run(test)


def test_a_node_that_is_killed_is_started_again_and_that_is_said(tmp_path):
    async def test():
        async with supervised(tmp_path) as (supervisor, heard):
            await supervisor.start()
            node = supervisor.nodes["mm2"]
            await node.until_started()
            before = node.pid
            os.kill(before, signal.SIGKILL)
            line = await heard.until("mm2 was ended by SIGKILL")
            assert line == "mm2 was ended by SIGKILL; it is started again in 0.0 s"
            await heard.until("mm2 starts again")
            await node.until_started()
            assert node.pid not in (0, before)
            assert node.starts == 2

    run(test)


def test_a_node_whose_process_cannot_be_made_is_tried_again_and_given_up_at_last(tmp_path, monkeypatch):
    async def test():
        async with supervised(tmp_path, quick_deaths_max=4) as (supervisor, heard):
            node, real = supervisor.nodes["mm2"], NodeProcess._start_process
            await supervisor.start()
            await node.until_started()

            async def start_process(process):
                if process is node and (node.starts == 2 or node.starts > 3):
                    raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
                return await real(process)

            monkeypatch.setattr(NodeProcess, "_start_process", start_process)
            os.kill(node.pid, signal.SIGKILL)
            await heard.until("mm2 could not be started: [Errno 11] Resource temporarily unavailable; it is started")
            await heard.until("mm2 starts again")
            os.kill(node.pid, signal.SIGKILL)
            line = await heard.until("stays down")
            assert heard.given_up == [line]
            with pytest.raises(Unavailable, match="node mm2 could not be started"):
                await node.until_started()

    run(test)


def test_a_node_whose_libraries_print_something_is_heard_all_the_same(tmp_path):
    async def test():
        async with supervised(tmp_path, does=[("mm2", "chatter")]) as (supervisor, _):
            await supervisor.start()
            await supervisor.nodes["mm2"].until_started()
            assert "mm2" in await supervisor.nodes["mm2"].describe()

    run(test)


def test_a_node_that_dies_again_and_again_is_given_up_with_its_reason(tmp_path):
    async def test():
        async with supervised(tmp_path, does=[("mm2", "refuse")]) as (supervisor, heard):
            await supervisor.start()
            line = await heard.until("stays down")
            assert line.startswith(
                "mm2 ended with exit code 1: mm2 cannot start on this disk; replace it; it died 3 times"
            )
            assert str(tmp_path / "mm2.stderr") in line
            assert heard.given_up == [line]
            assert supervisor.nodes["mm2"].starts == 3
            await supervisor.nodes["mm1"].until_started()

    run(test)


def test_a_node_whose_disk_is_full_is_never_given_up_and_goes_on_when_there_is_space(tmp_path):
    async def test():
        settings = {"does": [("mm2", "full")], "quick_deaths_max": 1, "no_space_s": 0.01}
        async with supervised(tmp_path, **settings) as (supervisor, heard):
            await supervisor.start()
            line = await heard.until("until there is space")
            assert line.startswith("mm2 ended with exit code 1: no space left on the disk of store mm2; free some")
            node = supervisor.nodes["mm2"]
            while node.starts < 3:
                await node.ended()
                await asyncio.sleep(0)
            (tmp_path / "mm2.does").write_text("serve")
            await heard.until("mm2 runs again, pid")
            assert node.pid
            assert not heard.given_up
            assert len([said for said in heard.lines if "space" in said]) == 1

    run(test)


def test_a_node_that_does_not_stop_is_killed(tmp_path):
    async def test():
        async with supervised(tmp_path, does=[("mm1", "stuck")]) as (supervisor, _):
            await supervisor.start()
            node = supervisor.nodes["mm1"]
            await node.until_started()
            assert await node.stop(stop_s=0.2) is False
            assert node.how_it_ended() == "was ended by SIGKILL"

    run(test)


def test_a_node_that_is_frozen_is_stopped_all_the_same(tmp_path):
    async def test():
        async with supervised(tmp_path) as (supervisor, _):
            await supervisor.start()
            node = supervisor.nodes["mm1"]
            await node.until_started()
            node.signal(signal.SIGSTOP)
            assert await node.stop() is True

    run(test)


def test_killing_ends_everything_at_once(tmp_path):
    async def test():
        async with supervised(tmp_path) as (supervisor, _):
            await supervisor.start()
            supervisor.kill()
            for node in supervisor.nodes.values():
                await node.ended()
            assert {node.how_it_ended() for node in supervisor.nodes.values()} == {"was ended by SIGKILL"}
            assert all(node.starts == 1 for node in supervisor.nodes.values())

    run(test)


def test_without_restarts_a_node_stays_down(tmp_path):
    async def test():
        async with supervised(tmp_path, restarts=False) as (supervisor, heard):
            await supervisor.start()
            node = supervisor.nodes["mm1"]
            await node.until_started()
            node.signal(signal.SIGKILL)
            await node.ended()
            with pytest.raises(Unavailable, match="node mm1 does not run; start it first"):
                await node.describe()
            await node.start()
            await node.until_started()
            assert (await node.describe())["mm1"] == {"name": "mm1", "founding": False}
            assert not any("again" in line for line in heard.lines)

    run(test)


def test_a_node_that_ends_instead_of_answering_is_not_waited_for(tmp_path):
    async def test():
        async with supervised(tmp_path, restarts=False) as (supervisor, _):
            await supervisor.start()
            node = supervisor.nodes["mm1"]
            await node.until_started()
            node.signal(signal.SIGSTOP)
            asked = asyncio.ensure_future(node.describe(answer_s=1e6))
            await asyncio.sleep(0)
            node.signal(signal.SIGKILL)
            with pytest.raises(Unavailable, match="node mm1 ended before it answered"):
                await asked

    run(test)


def test_everybody_who_asks_a_node_at_once_is_answered(tmp_path):
    async def test():
        async with supervised(tmp_path, restarts=False) as (supervisor, _):
            await supervisor.start()
            node = supervisor.nodes["mm1"]
            await node.until_started()
            node.signal(signal.SIGSTOP)
            with pytest.raises(Unavailable, match="does not answer within 0 s"):
                await node.describe(answer_s=0.01)
            asked = [asyncio.ensure_future(node.describe(answer_s=1e6)) for _ in range(3)]
            await asyncio.sleep(0)
            node.signal(signal.SIGCONT)
            assert [described["mm1"]["name"] for described in await asyncio.gather(*asked)] == ["mm1"] * 3

    run(test)


def test_a_node_that_cannot_start_is_not_waited_for(tmp_path):
    async def test():
        async with supervised(tmp_path, does=[("mm1", "refuse")], restarts=False) as (supervisor, _):
            await supervisor.start()
            with pytest.raises(Unavailable, match="node mm1 ended with exit code 1: mm1 cannot start on this disk"):
                await supervisor.nodes["mm1"].until_started()

    run(test)


def test_nodes_of_an_earlier_run_are_waited_for(tmp_path):
    async def test():
        async with supervised(tmp_path) as (earlier, _):
            await earlier.start()
            for node in earlier.nodes.values():
                await node.until_started()
            pid = earlier.nodes["mm1"].pid
            async with supervised(tmp_path) as (later, heard):
                with pytest.raises(Misuse, match=f"node mm1 still runs as process {pid}; stop it"):
                    await later.until_free(wait_s=0.0)
                assert heard.lines == [f"waiting for mm1 of an earlier run to end (pid {pid})"]
                await earlier.stop()
                await later.until_free(wait_s=0.0)

    run(test)


def test_what_a_cluster_lacks_is_said(tmp_path):
    async def test():
        async with supervised(tmp_path, does=[("cm1", "leaderless")]) as (supervisor, _):
            assert await missing_of(supervisor.file) == f"cm1: nobody serves clients at {HOST}:7700"
            await supervisor.start()
            await supervisor.nodes["cm1"].until_started()
            assert await missing_of(supervisor.file) == "cm1 knows no primary of channel-1"
            with pytest.raises(Unavailable, match=r"does not serve after 0 s: .*; its nodes' logs are in"):
                await until_serving(supervisor.file, deadline_s=0.05)

    run(test)


def test_a_stranger_at_the_door_is_no_client_manager(tmp_path):
    async def greet(reader, writer):
        writer.write(b"SSH-2.0-stranger\r\n")
        writer.close()

    async def test():
        server = await asyncio.start_server(greet, HOST, 0)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(Unavailable, match=f"what answers at {HOST}:{port} is no Client Manager: it announces"):
            await status_of(f"{HOST}:{port}")
        server.close()

    run(test)
