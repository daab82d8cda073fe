import asyncio
import socket
import struct

import pytest

from alphorn.bus.machine import CONTROL_GROUP, DATA_GROUP
from alphorn.io import multicast
from alphorn.io.addresses import Lane, group_address, parse_address
from alphorn.io.capture import Direction, read_capture
from alphorn.io.multicast import DRAIN_MAX, Datagrams, MulticastSettings
from alphorn.io.sealing import write_cluster_key
from alphorn.model.errors import Misuse
from tests.io.loops import new_group, on_both_loops, run, until
from tests.io.members import HOST, speakers


@pytest.mark.requirement("BUS-2")
@pytest.mark.parametrize("loop_name", ["asyncio", "uvloop"])
def test_one_transmission_reaches_every_member_for_the_same_bytes_on_the_wire(loop_name):
    async def bytes_sent_to(receivers):
        async with speakers(new_group(), 1 + receivers) as (sender, *others):
            sender.say(DATA_GROUP, *[sender.bulk(60_000)] * 10)
            await until(lambda: all(len(other.frames) == 10 for other in others))
            return sender.sent[DATA_GROUP]

    async def test():
        assert [await bytes_sent_to(receivers) for receivers in (1, 2, 4)] == [{"datagrams": 10, "bytes": 600_000}] * 3

    run(test, loop_name)


@pytest.mark.parametrize("filtered", [True, False])
@pytest.mark.parametrize("is_sealed", [True, False])
def test_a_member_does_not_hear_itself(monkeypatch, tmp_path, filtered, is_sealed):
    if not filtered:
        monkeypatch.setattr(multicast, "ignore_origin", lambda *_: False)
    key = tmp_path / "key"
    write_cluster_key(key)

    async def test():
        async with speakers(new_group(), 2, cluster_key=key if is_sealed else None) as (alice, bob):
            alice.say(CONTROL_GROUP, alice.word(1))
            await until(lambda: len(bob.frames) == 1)
            bob.say(CONTROL_GROUP, bob.word(2))
            await until(lambda: bool(alice.frames))

            assert [frame.number for frame in alice.frames] == [2]
            assert alice.counters("datagrams")["received"][CONTROL_GROUP]["datagrams"] == (1 if filtered else 2)
            assert alice.counters("datagrams")["received"][CONTROL_GROUP]["kernel_drops"] == 0

    run(test)


def test_a_member_of_control_only_receives_no_bulk_and_may_send_it():
    async def test():
        group = new_group()
        async with (
            speakers(group, 1, multicast={"receives_data": False}) as (client,),
            speakers(group, 3) as (_, bob, carol),
        ):
            bob.say(DATA_GROUP, bob.bulk(1000))
            bob.say(CONTROL_GROUP, bob.word())
            client.say(DATA_GROUP, client.bulk(2000))
            await until(lambda: bool(client.frames) and len(carol.frames) == 2 + 1)

            assert [frame.name for frame in client.frames] == ["Heartbeat"]
            assert DATA_GROUP not in client.counters("datagrams")["received"]

    run(test)


@on_both_loops
def test_small_frames_to_one_target_leave_as_one_datagram(loop_name):
    async def test():
        async with speakers(new_group(), 2) as (alice, bob):
            alice.say(CONTROL_GROUP, *[alice.word(number) for number in range(1, 21)])
            alice.say(bob.transport.address, *[alice.word(number) for number in range(21, 41)])
            await until(lambda: len(bob.frames) == 40)

            assert sorted(frame.body.committed for frame in bob.frames) == list(range(1, 41))
            assert alice.sent[CONTROL_GROUP]["datagrams"] == alice.sent[bob.transport.address]["datagrams"] == 1

    run(test, loop_name)


def test_frames_that_do_not_fit_one_datagram_leave_in_several_of_the_allowed_size():
    async def test():
        async with speakers(new_group(), 2) as (alice, bob):
            alice.say(DATA_GROUP, *[alice.bulk(25_000)] * 5)
            alice.say(CONTROL_GROUP, *[alice.word(number) for number in range(2000)])
            await until(lambda: len(bob.frames) == 2005)

            assert alice.sent[DATA_GROUP] == {"datagrams": 3, "bytes": 125_000}
            assert alice.sent[CONTROL_GROUP]["datagrams"] == 4  # the kernel takes no more than 1024 parts
            assert max(map(len, bob.heard)) <= 60_000

    run(test)


@on_both_loops
def test_a_wake_up_hands_over_everything_up_to_the_drain_limit_at_once(loop_name):
    async def test():
        async with speakers(new_group(), 2) as (alice, bob):
            for number in range(100):
                alice.say(CONTROL_GROUP, alice.word(number))
            await until(lambda: len(bob.frames) == 100)

            assert bob.lists == [DRAIN_MAX, 100 - DRAIN_MAX]
            assert [frame.body.committed for frame in bob.frames] == list(range(100))

    run(test, loop_name)


class Congested:
    """A socket whose send buffer is full until it is relieved."""

    def __init__(self, real: socket.socket) -> None:
        self._real = real
        self.is_full = True

    def fileno(self) -> int:
        return self._real.fileno()

    def sendmsg(self, parts, *rest):
        self._refuse_when_full()
        return self._real.sendmsg(parts, *rest)

    def sendto(self, data, address):
        self._refuse_when_full()
        return self._real.sendto(data, address)

    def getsockname(self):
        return self._real.getsockname()

    def _refuse_when_full(self) -> None:
        if self.is_full:
            raise BlockingIOError


def test_a_full_send_buffer_makes_datagrams_wait_in_order_within_a_bound():
    async def test():
        group, heard = new_group(), []
        async with speakers(group, 1) as (bob,):
            settings = MulticastSettings(group=group, host=HOST, queue_bytes_max=2500)
            alice = Datagrams(settings, on_datagrams=heard.extend)
            alice.open()
            alice.start(asyncio.get_running_loop(), origin=b"alice-----")
            alice._member_socket = congested = Congested(alice._member_socket)
            for number in range(5):
                piece = bytes([number]) * 1000
                alice.send(DATA_GROUP, (piece,), len(piece))
                alice.flush()

            assert alice.describe()["waiting_bytes"] == 2000
            assert alice.send_drops == 3
            congested.is_full = False
            await until(lambda: len(bob.heard) == 2)
            assert [datagram[0] for datagram in bob.heard] == [0, 1]
            assert alice.describe()["waiting_bytes"] == 0
            alice.close()

    run(test)


def test_a_view_that_must_wait_is_copied_before_the_turn_ends():
    async def test():
        group = new_group()
        async with speakers(group, 1) as (bob,):
            alice = Datagrams(MulticastSettings(group=group, host=HOST), on_datagrams=lambda _: None)
            alice.open()
            alice.start(asyncio.get_running_loop(), origin=b"alice-----")
            alice._member_socket = congested = Congested(alice._member_socket)
            page = bytearray(b"x" * 100)
            alice.send(DATA_GROUP, (memoryview(page),), 100)
            alice.flush()
            page[:] = b"y" * 100
            congested.is_full = False
            await until(lambda: bool(bob.heard))

            assert bob.heard == [b"x" * 100]
            alice.close()

    run(test)


def test_an_address_nobody_can_send_to_is_a_counted_drop():
    async def test():
        async with speakers(new_group(), 1) as (alice,):
            alice.say("some name", alice.word())
            alice.say("127.0.0.1:0", alice.word())

            assert alice.counters("datagrams")["send_drops"] == 2

    run(test)


def test_a_member_that_is_away_disturbs_nobody():
    async def test():
        async with speakers(new_group(), 2) as (alice, bob):
            async with speakers(alice.group, 1) as (carol,):
                address = carol.transport.address
            for _ in range(3):
                alice.say(address, alice.word())
            alice.say(bob.transport.address, alice.word(7))
            await until(lambda: bool(bob.frames))

            assert bob.frames[0].body.committed == 7

    run(test)


@pytest.mark.requirement("BUS-9")
def test_what_a_stranger_sends_to_a_sealed_group_is_dropped_and_counted(tmp_path):
    keys = tmp_path / "key", tmp_path / "stolen"
    for key in keys:
        write_cluster_key(key)

    async def test():
        group = new_group()
        async with (
            speakers(group, 3, cluster_key=keys[0]) as (alice, bob, carol),
            speakers(group, 1, cluster_key=keys[1]) as (mallory,),
            speakers(group, 1) as (plain,),
        ):
            mallory.say(CONTROL_GROUP, mallory.word())
            plain.origin = b"stranger--"
            plain.say(CONTROL_GROUP, plain.word())
            carol.say(CONTROL_GROUP, carol.word())
            await until(lambda: bool(alice.frames) and bool(bob.frames))

            assert [frame.number for frame in bob.frames] == [3]
            assert bob.counters("seal") == {"senders": 1, "foreign": 2, "replayed": 0}

    run(test)


def test_a_recorded_datagram_sent_again_is_dropped_and_counted(tmp_path):
    key = tmp_path / "key"
    write_cluster_key(key)

    async def test():
        group = new_group()
        async with speakers(group, 2, cluster_key=key) as (alice, bob):
            host, port = parse_address(group_address(group, Lane.CONTROL))
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as spy:
                spy.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                spy.bind((host, port))
                membership = struct.pack("4s4s", socket.inet_aton(host), socket.inet_aton(HOST))
                spy.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
                spy.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(HOST))
                alice.say(CONTROL_GROUP, alice.word(1))
                recorded = spy.recv(65_535)
                spy.sendto(recorded, (host, port))
            alice.say(CONTROL_GROUP, alice.word(2))
            await until(lambda: len(bob.frames) == 2)

            assert [frame.body.committed for frame in bob.frames] == [1, 2]
            assert bob.counters("seal")["replayed"] == 1

    run(test)


def test_smaller_buffers_than_asked_for_are_reported(monkeypatch, caplog):
    monkeypatch.setattr(multicast, "grow_buffers", lambda sock, wanted: wanted // 2)

    async def test():
        async with speakers(new_group(), 1) as (alice,):
            assert alice.counters("datagrams")["buffer_bytes"] == 8 << 20
            assert "event=small_socket_buffers wanted=16777216 got=8388608" in caplog.text

    run(test)


def test_datagrams_the_receive_buffer_had_no_room_for_are_counted():
    async def test():
        async with speakers(new_group(), 2, multicast={"buffer_bytes": 300_000}) as (alice, bob):
            for _ in range(40):
                alice.say(DATA_GROUP, alice.bulk(60_000))
            alice.say(CONTROL_GROUP, alice.word())
            await until(lambda: any(frame.name == "Heartbeat" for frame in bob.frames))
            received = bob.counters("datagrams")["received"][DATA_GROUP]

            assert received["kernel_drops"] > 0
            assert received["kernel_drops"] + received["datagrams"] == 40
            assert alice.counters("datagrams")["received"][DATA_GROUP]["kernel_drops"] == 0

    run(test)


def test_a_port_that_is_taken_is_refused_by_name():
    async def test():
        async with speakers(new_group(), 1) as (alice,):
            port = int(alice.transport.address.rpartition(":")[2])
            with pytest.raises(Misuse, match=rf"127\.0\.0\.1:{port} cannot be opened"):
                async with speakers(alice.group, 1, multicast={"port": port}):
                    pass

    run(test)


def test_a_capture_holds_every_frame_each_way_even_when_sealed(tmp_path):
    key, path = tmp_path / "key", tmp_path / "capture"
    write_cluster_key(key)

    async def test():
        group = new_group()
        async with (
            speakers(group, 1, cluster_key=key, capture=path) as (alice,),
            speakers(group, 2, cluster_key=key) as (_, bob),
        ):
            alice.say(CONTROL_GROUP, alice.word(1))
            await until(lambda: bool(bob.frames))
            bob.say(alice.transport.address, bob.word(2))
            await until(lambda: bool(alice.frames))
            return b"".join(alice.word(1)), b"".join(bob.word(2)), alice.transport.address

    async def compare():
        said, heard, address = await test()
        records = [(record.direction, record.address, record.data) for record in read_capture(path)]
        assert records == [(Direction.SENT, CONTROL_GROUP, said), (Direction.RECEIVED, address, heard)]

    run(compare)


@on_both_loops
def test_bulk_that_arrived_is_heard_before_control(loop_name):
    """A member that has read of a batch's number, and not yet the batch beside it, would ask for what it has."""

    async def test():
        async with speakers(new_group(), 2) as (alice, bob):
            alice.say(CONTROL_GROUP, alice.word())
            alice.say(DATA_GROUP, alice.bulk(60_000))
            await until(lambda: len(bob.frames) == 2)

            assert [frame.name for frame in bob.frames] == ["Data", "Heartbeat"]

    run(test, loop_name)


def test_what_arrived_is_heard_at_once_when_asked_for():
    async def test():
        async with speakers(new_group(), 2) as (alice, bob):
            alice.say(DATA_GROUP, *[alice.bulk(20_000)] * (DRAIN_MAX + 1))
            bob.transport.hear()

            assert len(bob.frames) == DRAIN_MAX + 1

    run(test)
