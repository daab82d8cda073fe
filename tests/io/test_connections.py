import asyncio
import random
import socket

import pytest

from alphorn.bus.machine import CONTROL_GROUP, DATA_GROUP
from alphorn.io.connections import ConnectionSettings
from alphorn.io.sealing import write_cluster_key
from tests.io.loops import new_group, on_both_loops, run, until
from tests.io.members import HOST, speakers


async def open_raw(speaker):
    host, _, port = speaker.transport.address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


@on_both_loops
@pytest.mark.parametrize("is_sealed", [False, True])
def test_a_frame_too_large_for_a_datagram_arrives_whole_over_a_connection(tmp_path, loop_name, is_sealed):
    key = tmp_path / "key"
    write_cluster_key(key)

    async def test():
        async with speakers(new_group(), 2, cluster_key=key if is_sealed else None) as (alice, bob):
            large = [alice.bulk(size) for size in (60_001, 1 << 20, 8 << 20, 70_000)]
            alice.say(bob.transport.address, *large[:2])
            alice.say(bob.transport.address, *large[2:])
            await until(lambda: len(bob.heard) == 4)

            assert bob.heard == [b"".join(parts) for parts in large]
            assert alice.counters("connections")["outgoing"] == {bob.transport.address: "open"}
            assert alice.sent == {}

    run(test, loop_name)


@pytest.mark.requirement("BUS-3")
def test_every_member_needs_the_same_few_sockets_however_many_members_talk():
    async def test():
        async with speakers(new_group(), 6) as members:
            for speaker in members:
                speaker.say(DATA_GROUP, speaker.bulk(60_000))
                speaker.say(CONTROL_GROUP, speaker.word())
                for other in members:
                    if other is not speaker:
                        speaker.say(other.transport.address, speaker.word())
            await until(lambda: all(len(speaker.frames) == 15 for speaker in members))

            for speaker in members:
                assert len(speaker.counters("datagrams")["received"]) == 3
                assert speaker.counters("connections")["outgoing"] == {}
                assert speaker.counters("connections")["incoming"] == 0

    run(test)


@on_both_loops
def test_frames_are_found_however_the_stream_is_cut(loop_name):
    async def test():
        stream = random.Random(3)
        async with speakers(new_group(), 1) as (bob,):
            frames = [b"".join(bob.bulk(stream.randrange(92, 3000))) for _ in range(40)]
            data, start = b"".join(frames), 0
            _, writer = await open_raw(bob)
            while start < len(data):
                size = stream.choice((1, 7, 15, 16, 40, 5000))
                writer.write(data[start : start + size])
                start += size
                await asyncio.sleep(0)
            await until(lambda: len(bob.heard) == 40)

            assert bob.heard == frames
            writer.close()
            await writer.wait_closed()

    run(test, loop_name)


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\n\r\n", bytes(100), b"\xff" * 100])
@pytest.mark.parametrize("is_sealed", [False, True])
def test_a_peer_that_sends_garbage_is_disconnected(tmp_path, garbage, is_sealed):
    key = tmp_path / "key"
    write_cluster_key(key)

    async def test():
        async with speakers(new_group(), 1, cluster_key=key if is_sealed else None) as (bob,):
            reader, writer = await open_raw(bob)
            writer.write(garbage)

            assert await reader.read() == b""
            assert bob.counters("connections")["violations"] == 1
            assert bob.heard == []
            writer.close()
            await writer.wait_closed()

    run(test)


@pytest.mark.requirement("BUS-9")
def test_a_member_with_another_key_is_disconnected(tmp_path):
    keys = tmp_path / "key", tmp_path / "other"
    for key in keys:
        write_cluster_key(key)

    async def test():
        group = new_group()
        async with (
            speakers(group, 1, cluster_key=keys[0]) as (bob,),
            speakers(group, 2, cluster_key=keys[1]) as (_, eve),
        ):
            eve.say(bob.transport.address, eve.bulk(100_000))
            await until(lambda: bob.counters("connections")["violations"] == 1)

            assert bob.heard == []
            assert bob.counters("seal")["foreign"] == 1

    run(test)


@on_both_loops
def test_a_broken_connection_is_opened_again_at_the_next_use(loop_name):
    async def test():
        group = new_group()
        async with speakers(group, 1) as (alice,):
            async with speakers(group, 1) as (bob,):
                address = bob.transport.address
                alice.say(address, alice.bulk(100_000))
                await until(lambda: bool(bob.heard))
            await until(lambda: alice.counters("connections")["outgoing"][address] == "closed")
            port = int(address.rpartition(":")[2])
            async with speakers(group, 1, multicast={"port": port}) as (bob,):
                alice.say(address, alice.bulk(100_000))
                await until(lambda: bool(bob.heard))

    run(test, loop_name)


def test_frames_for_a_member_that_does_not_listen_are_counted_drops():
    async def test():
        async with speakers(new_group(), 1) as (alice,):
            async with speakers(alice.group, 1) as (bob,):
                address = bob.transport.address
            alice.say(address, alice.bulk(100_000), alice.bulk(100_000))
            await until(lambda: alice.counters("connections")["drops"] == 2)

            assert alice.counters("connections")["outgoing"][address] == "closed"

    run(test)


def test_a_connection_that_is_not_answered_in_time_is_given_up():
    async def test():
        with socket.socket() as silent:
            silent.bind((HOST, 0))
            silent.listen(0)
            address = "{}:{}".format(*silent.getsockname())
            knocks = [socket.socket(type=socket.SOCK_STREAM | socket.SOCK_NONBLOCK) for _ in range(4)]
            for knock in knocks:  # They fill the queue, so that the kernel answers nobody any more.
                knock.connect_ex(silent.getsockname())
            settings = ConnectionSettings(connect_s=0.05)
            async with speakers(new_group(), 1, connections=settings) as (alice,):
                alice.say(address, alice.bulk(100_000))
                assert alice.counters("connections")["outgoing"][address] == "connecting"
                await until(lambda: alice.counters("connections")["outgoing"][address] == "closed")

                assert alice.counters("connections")["drops"] == 1
            for knock in knocks:
                knock.close()

    run(test)


@on_both_loops
def test_what_waits_for_a_peer_that_does_not_read_is_bounded(loop_name):
    async def test():
        with socket.socket() as lazy:
            lazy.bind((HOST, 0))
            lazy.listen()
            address = "{}:{}".format(*lazy.getsockname())
            settings = ConnectionSettings(waiting_bytes_max=3 << 20)
            async with speakers(new_group(), 1, connections=settings) as (alice,):
                alice.say(address, alice.bulk(1 << 20))
                await until(lambda: alice.counters("connections")["outgoing"][address] == "open")
                for _ in range(40):
                    alice.say(address, alice.bulk(1 << 20))
                    await asyncio.sleep(0)

                counters = alice.counters("connections")
                assert counters["drops"] > 0
                assert counters["drops"] + counters["sent"]["frames"] == 41

    run(test, loop_name)


@on_both_loops
def test_an_idle_connection_is_closed(loop_name):
    async def test():
        settings = ConnectionSettings(idle_s=0.01)
        async with speakers(new_group(), 2, connections=settings) as (alice, bob):
            alice.say(bob.transport.address, alice.bulk(100_000))
            await until(lambda: bool(bob.heard))
            await until(lambda: alice.counters("connections")["outgoing"] == {})
            await until(lambda: bob.counters("connections")["incoming"] == 0)

    run(test, loop_name)


def test_connections_beyond_the_limit_are_refused():
    async def test():
        async with speakers(new_group(), 1, connections=ConnectionSettings(incoming_max=1)) as (bob,):
            _, kept = await open_raw(bob)
            await until(lambda: bob.counters("connections")["incoming"] == 1)
            reader, refused = await open_raw(bob)

            assert await reader.read() == b""
            assert bob.counters("connections")["incoming"] == 1
            for writer in (kept, refused):
                writer.close()
                await writer.wait_closed()

    run(test)


def test_a_view_sent_before_the_connection_is_open_is_copied():
    async def test():
        async with speakers(new_group(), 2) as (alice, bob):
            head, payload = alice.bulk(100_000)
            page = bytearray(payload)
            alice.say(bob.transport.address, (head, memoryview(page)))
            page[:] = b"y" * len(page)
            await until(lambda: bool(bob.heard))

            assert bob.heard == [head + payload]

    run(test)
