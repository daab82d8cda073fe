import contextlib

import pytest

from alphorn.bus.machine import CONTROL_GROUP, DATA_GROUP
from alphorn.io.connections import ConnectionSettings
from alphorn.io.sealing import write_cluster_key
from tests.io.loops import new_group, on_both_loops, run, until
from tests.io.members import Speaker
from tests.io.namespaces import bytes_sent, inside, needs_namespaces, switch

pytestmark = needs_namespaces


@contextlib.asynccontextmanager
async def speakers_on(names, group, **settings):
    settings["connections"] = ConnectionSettings()
    made = []
    try:
        for number, name in enumerate(names, 1):
            with inside(name):
                made.append(Speaker(group, number, settings, {"host": f"10.77.0.{number}"}))
                made[-1].transport.open()
            await made[-1].transport.start(made[-1].origin)
        yield made
    finally:
        for speaker in made:
            await speaker.transport.close()


@pytest.mark.requirement("BUS-2")
def test_more_receivers_put_no_more_bytes_on_a_real_wire():
    frames = 500

    async def bytes_for(names):
        async with speakers_on(names, new_group()) as (sender, *others):
            assert sender.transport.datagram_bytes == 1472
            before = bytes_sent(names[0])
            sender.say(DATA_GROUP, *[sender.bulk(1472)] * frames)
            await until(lambda: all(len(other.heard) == frames for other in others))
            return bytes_sent(names[0]) - before

    async def test():
        with switch(5) as names:
            one, two, four = [await bytes_for(names[: 1 + receivers]) for receivers in (1, 2, 4)]

            assert frames * 1514 <= one < frames * 1514 * 1.02
            assert two < one * 1.02
            assert four < one * 1.02

    run(test)


@on_both_loops
@pytest.mark.parametrize("is_sealed", [False, True])
def test_members_on_different_machines_hear_groups_datagrams_and_connections(tmp_path, loop_name, is_sealed):
    key = tmp_path / "key"
    write_cluster_key(key)

    async def test():
        with switch(2) as names:
            async with speakers_on(names, new_group(), cluster_key=key if is_sealed else None) as (alice, bob):
                with inside(names[0]):  # A connection's socket is made when it is first used.
                    alice.say(CONTROL_GROUP, alice.word(1))
                    alice.say(bob.transport.address, alice.word(2))
                    alice.say(bob.transport.address, alice.bulk(1 << 20))
                    await until(lambda: len(bob.heard) == 3)

                assert sorted(frame.name for frame in bob.frames) == ["Data", "Heartbeat", "Heartbeat"]
                assert alice.transport.datagram_bytes == (1432 if is_sealed else 1472)
                assert alice.heard == []

    run(test, loop_name)
