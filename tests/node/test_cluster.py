"""Real endpoints, stores and multicast, in one process: what the simulator cannot show is that the hands do it too."""

import contextlib
import os
import socket

import pytest

from alphorn.bus.config import GroupConfig, MemberConfig, Role
from alphorn.io.sealing import write_cluster_key
from alphorn.node.bus import BusNode, BusSettings
from tests.io.loops import new_group, on_both_loops, run, until
from tests.node.relay import Listener

HOST = f"127.{os.getpid() % 200 + 1}.7.12"  # where nobody else takes ports
REPLICA = Role.SEQUENCER | Role.DATA | Role.COMMIT | Role.CHECKPOINT


def make_group() -> GroupConfig:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(3)]
        for probe in probes:
            probe.bind((HOST, 0))
        ports = [probe.getsockname()[1] for probe in probes]
    members = tuple(
        MemberConfig(number=number, name=f"replica {number}", address=f"{HOST}:{port}", roles=REPLICA, rank=number)
        for number, port in enumerate(ports, 1)
    )
    return GroupConfig(group=new_group(), members=members, copies=2, checkpoint_interval=16)


class Cluster:
    """Three replicas with stores, and clients without."""

    def __init__(self, path, **settings) -> None:
        self.config = make_group()
        self.path = path
        self.settings = settings
        self.running: list[BusNode] = []

    async def start(self, me, *, founding=False):
        store = self.path / f"store{me.number}" if me.number else None
        settings = BusSettings(config=self.config, me=me, store=store, founding=founding, **self.settings)
        upper = Listener()
        node = BusNode(settings, upper)
        await node.start()
        self.running.append(node)
        return node, upper

    async def start_replicas(self, *, founding):
        return [await self.start(member, founding=founding) for member in self.config.members]

    async def start_client(self):
        return await self.start(MemberConfig(number=0, name="client", address=f"{HOST}:0", roles=Role.NONE))

    async def stop(self):
        while self.running:
            await self.running.pop().stop()


@contextlib.asynccontextmanager
async def cluster(path, **settings):
    made = Cluster(path, **settings)
    try:
        yield made
    finally:
        await made.stop()


def is_synchronised(upper) -> bool:
    told = [words for words in upper.told if words[0] == "synchronised"]
    return bool(told) and told[-1] == ("synchronised", True)


def ordered(upper) -> list[int]:
    return [words[1] for words in upper.told if words[0] == "ordered"]


def test_members_that_nobody_told_to_found_say_once_what_they_wait_for_and_founded_ones_do_not(
    tmp_path, monkeypatch, capsys, caplog
):
    monkeypatch.setattr("alphorn.node.bus.LACKING_S", 0.5)

    async def test():
        async with cluster(tmp_path) as made:
            uppers = [upper for _, upper in await made.start_replicas(founding=False)]
            await until(lambda: sum(record.msg.startswith("event=log_lacking") for record in caplog.records) == 3)
            await made.stop()
            lines = capsys.readouterr().err.splitlines()
            assert [line.partition(" had a blank disk")[0] for line in lines] == [
                f"alphorn: replica {number}" for number in (1, 2, 3)
            ]
            assert all(line.endswith("stop them and start each with --found") for line in lines)
            monkeypatch.setattr("alphorn.node.bus.LACKING_S", 60.0)  # however slow the machine is
            uppers = [upper for _, upper in await made.start_replicas(founding=True)]
            await until(lambda: all(map(is_synchronised, uppers)))

    run(test)
    assert capsys.readouterr().err == ""


@pytest.mark.requirement("BUS-1")
@on_both_loops
@pytest.mark.parametrize("is_sealed", [False, True])
def test_batches_of_a_client_reach_all_replicas_in_one_order(tmp_path, loop_name, is_sealed):
    key = tmp_path / "key"
    write_cluster_key(key)

    async def test():
        settings = {"cluster_key": key} if is_sealed else {}
        async with cluster(tmp_path, **settings) as group:
            replicas = [upper for _, upper in await group.start_replicas(founding=True)]
            node, client = await group.start_client()
            await until(lambda: all(map(is_synchronised, [*replicas, client])))
            batches = [bytes([number]) * 100_000 for number in range(40)]
            handles = [node.order(batch) for batch in batches]
            await until(lambda: len(ordered(client)) == 40)
            await until(lambda: all(len(upper.state) >= 40 for upper in [*replicas, client]))

            assert ordered(client) == handles
            assert all(upper.state == batches for upper in [*replicas, client])

    run(test, loop_name)


def test_a_cluster_that_was_stopped_goes_on_where_it_was(tmp_path):
    async def test():
        async with cluster(tmp_path) as group:
            (first, one), *_ = await group.start_replicas(founding=True)
            await until(lambda: is_synchronised(one))
            for number in range(50):
                first.order(b"before %d" % number)
            await until(lambda: len(ordered(one)) == 50)
            await group.stop()
            (first, one), *others = await group.start_replicas(founding=False)
            await until(lambda: is_synchronised(one))
            first.order(b"after")
            await until(lambda: all(upper.state[-1:] == [b"after"] for upper in (one, *(upper for _, upper in others))))

            assert one.state == [*(b"before %d" % number for number in range(50)), b"after"]

    run(test)
