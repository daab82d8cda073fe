import contextlib

import pytest

from alphorn.bus.config import Budget, GroupConfig, MemberConfig, Role
from alphorn.bus.frames import CheckpointChunk
from alphorn.bus.machine import CheckpointInstalled, CheckpointWritten, Goodbye
from alphorn.io.store import Store
from alphorn.model.errors import Misuse, Unavailable
from alphorn.node.bus import BusNode, BusSettings
from tests.io.loops import new_group, on_both_loops, run, until
from tests.node.relay import MEMBER, Listener, Relay

ALL_ROLES = Role.SEQUENCER | Role.DATA | Role.COMMIT | Role.CHECKPOINT


class Node:
    """A bus node around a relay, and both its ends."""

    def __init__(self, config: GroupConfig, name: str, **settings: object) -> None:
        me = MemberConfig(number=1, name=name, address="127.0.0.1:0", roles=ALL_ROLES)
        self.upper = Listener()
        self.bus = BusNode(BusSettings(config=config, me=me, **settings), self.upper, machine=self._make)

    def _make(self, **settings: object) -> Relay:
        self.relay = Relay(**settings)
        return self.relay


def make_config() -> GroupConfig:
    member = MemberConfig(number=1, name="one", address="127.0.0.1:1", roles=ALL_ROLES)
    return GroupConfig(group=new_group(), members=(member,), copies=1)


@contextlib.asynccontextmanager
async def nodes(*stores, **settings):
    config = make_config()
    made = [Node(config, f"node {place}", store=store, **settings) for place, store in enumerate(stores)]
    started = []
    try:
        for node in made:
            await node.bus.start()
            started.append(node)
        yield made
    finally:
        for node in started:
            await node.bus.stop()


@on_both_loops
@pytest.mark.parametrize("is_stored", [True, False])
def test_a_batch_goes_to_disk_and_to_every_member_and_is_answered(tmp_path, loop_name, is_stored):
    async def test():
        stores = [tmp_path / name if is_stored else None for name in ("a", "b", "c")]
        async with nodes(*stores) as (alice, bob, carol):
            handles = [alice.bus.order(b"batch %d" % number) for number in range(10)]
            await until(lambda: len(alice.upper.told) == len(bob.upper.state) == len(carol.upper.state) == 10)

            assert alice.upper.told == [("ordered", handle, handle) for handle in handles]
            assert bob.upper.state == carol.upper.state == [b"batch %d" % number for number in range(10)]
            described = alice.bus.describe()
            assert described["endpoint"] == {"sequence": 10}
            assert described["transport"]["datagrams"]["sent"]["*data"]["datagrams"] == 1

        if is_stored:
            store = Store(stores[0], on_durable=lambda _: None, on_failure=lambda _: None)
            assert bytes(store.entry(10)) == b"batch 9"
            store.close()

    run(test, loop_name)


def test_what_can_wait_is_heard_with_what_comes_next(monkeypatch):
    monkeypatch.setattr("alphorn.node.bus.PATIENCE_S", 1e6)

    async def test():
        async with nodes(None, None) as (alice, bob):
            for number in range(3):
                alice.bus.order(b"patient")
                await until(lambda number=number: len(alice.upper.told) == number + 1)
            assert bob.relay.heard == []
            alice.bus.order(b"prompt")
            await until(lambda: bool(bob.relay.heard))
            assert [body.committed for body in bob.relay.heard] == [1, 2, 3, 4]

    run(test)


def test_what_can_wait_is_heard_though_nothing_comes_after_it():
    async def test():
        async with nodes(None, None) as (alice, bob):
            alice.bus.order(b"patient")
            await until(lambda: bool(bob.relay.heard))

    run(test)


def test_every_other_output_reaches_the_upper_layer_in_order():
    async def test():
        async with nodes(None) as (alice,):
            alice.bus.order(b"events")
            await until(lambda: len(alice.upper.told) == 6)

            assert alice.upper.told == [
                ("window", False),
                ("member", 3, "joined", MEMBER),
                ("primary", 4, 1 << 16, 9, False),
                ("synchronised", True),
                ("refused", 77, "the window is full", True),
                ("ordered", 1, 1),
            ]

    run(test)


@pytest.mark.parametrize("is_stored", [True, False])
def test_a_checkpoint_is_taken_stored_in_equal_chunks_and_installed(tmp_path, is_stored):
    async def test():
        store = tmp_path / "store" if is_stored else None
        async with nodes(store, budget=Budget(chunk_bytes=100)) as (alice,):
            alice.upper.state = [b"x" * 300]
            alice.bus.order(b"checkpoint")
            await until(lambda: alice.relay.heard == [CheckpointWritten(1)])
            info = alice.relay.settings["storage"].checkpoint()
            alice.upper.state = []
            alice.bus.order(b"install 1")
            await until(lambda: alice.relay.heard[1:] == [CheckpointInstalled(1)])

            assert alice.upper.state == [b"x" * 300]
            assert (info.sequence, info.epoch, info.chunks, info.state) == (1, 1, 4, b"group state")

    run(test)


def test_a_large_frame_goes_over_a_connection():
    async def test():
        async with nodes(None, None) as (alice, bob):
            alice.bus.order(b"large " + bob.bus.address.encode())
            await until(lambda: bool(bob.relay.heard))

            assert bob.relay.heard == [CheckpointChunk(1, 2, 0, 1, bytes(1 << 20))]

    run(test)


@pytest.mark.parametrize(
    ("payload", "reason"),
    [(b"stop", "the log went on without this member"), (b"bug", "AssertionError: an invariant is broken")],
)
def test_a_member_that_cannot_go_on_falls_silent_and_says_why(payload, reason):
    async def test():
        async with nodes(None) as (alice,):
            alice.bus.order(payload)
            assert await alice.bus.stopped == reason

            assert alice.upper.told == [("stop", reason)]
            assert alice.upper.state == []
            with pytest.raises(Unavailable, match="node 0 has stopped"):
                alice.bus.order(b"more")
        assert Goodbye() not in alice.relay.heard

    run(test)


def test_a_full_disk_stops_the_member_before_it_answers(tmp_path):
    async def test():
        async with nodes(tmp_path / "store", store_bytes_max=1 << 20) as (alice,):
            alice.bus.order(b"quiet " + b"x" * (2 << 20))
            reason = await alice.bus.stopped

            assert "has reached its limit" in reason
            assert alice.upper.told == [("stop", reason)]

    run(test)


def test_a_member_that_stops_in_good_order_says_goodbye():
    async def test():
        async with nodes(None) as (alice,):
            pass

        assert alice.relay.heard == [Goodbye()]
        assert alice.upper.told == [("stop", "it was told to stop")]

    run(test)


def test_a_member_gets_its_real_address_and_datagram_size():
    async def test():
        async with nodes(None) as (alice,):
            given = alice.relay.settings

            assert given["me"].address == alice.bus.address == f"127.0.0.1:{given['port']}"
            assert given["budget"].datagram_bytes == 60_000
            assert given["host"] == bytes((127, 0, 0, 1))

    run(test)


def test_a_member_that_cannot_open_its_port_gives_its_store_back(tmp_path):
    async def test():
        async with nodes(None) as (alice,):
            me = MemberConfig(number=1, name="late", address=alice.bus.address, roles=ALL_ROLES)
            settings = BusSettings(config=make_config(), me=me, store=tmp_path / "store")
            late = BusNode(settings, Listener(), machine=Relay)
            with pytest.raises(Misuse, match="cannot be opened"):
                await late.start()

        Store(tmp_path / "store", on_durable=lambda _: None, on_failure=lambda _: None).close()

    run(test)


def test_a_member_without_its_cluster_key_gives_its_store_back(tmp_path):
    async def test():
        node = Node(make_config(), "keyless", store=tmp_path / "store", cluster_key=tmp_path / "nokey")
        with pytest.raises(Misuse, match="nokey cannot be read"):
            await node.bus.start()

        Store(tmp_path / "store", on_durable=lambda _: None, on_failure=lambda _: None).close()

    run(test)


def test_an_address_without_a_port_is_refused():
    me = MemberConfig(number=1, name="one", address="127.0.0.1", roles=ALL_ROLES)

    with pytest.raises(Misuse, match="write it as host:port"):
        BusNode(BusSettings(config=make_config(), me=me), Listener(), machine=Relay)


@pytest.mark.parametrize(("roles", "reads", "expected"), [(Role.COMMIT, False, False), (Role.DATA, False, True)])
def test_only_a_witness_is_spared_the_bulk(roles, reads, expected):
    me = MemberConfig(number=1, name="one", address="127.0.0.1:5", roles=roles)
    settings = BusSettings(config=make_config(), me=me, reads=reads)

    assert settings.transport().multicast.receives_data is expected
