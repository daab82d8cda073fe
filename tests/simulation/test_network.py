"""The simulated network: each fault does what it says, in one direction, and healing undoes it."""

import random

import pytest

from alphorn.bus.frames import Heartbeat, decode_all, encode
from alphorn.model.errors import PeerViolation
from alphorn.testing.network import SimulatedNetwork, flip_bit
from alphorn.testing.schedule import Schedule

LONG_S = 60.0


class Wire:
    """A network of three members and what arrived where."""

    def __init__(self) -> None:
        self.schedule = Schedule(random.Random(1))
        self.arrived: list[tuple[int, bytes]] = []
        self.network = SimulatedNetwork(
            self.schedule, random.Random(2), lambda to, data: self.arrived.append((to, data))
        )
        for _ in range(3):
            self.network.add_member()

    def settle(self) -> list[tuple[int, bytes]]:
        self.schedule.run_until(self.schedule.now + LONG_S)
        arrived, self.arrived = self.arrived, []
        return arrived


def test_a_frame_to_the_group_reaches_every_other_member() -> None:
    wire = Wire()
    wire.network.multicast(0, b"frame")
    assert sorted(wire.settle()) == [(1, b"frame"), (2, b"frame")]


def test_a_cut_is_one_way_and_ends_when_mended() -> None:
    wire = Wire()
    wire.network.cut([(0, 1)])
    assert wire.network.multicast(0, b"x") == [(1, "cut")]
    wire.network.unicast(1, 0, b"y")
    assert sorted(wire.settle()) == [(0, b"y"), (2, b"x")]
    wire.network.mend([(0, 1)])
    wire.network.unicast(0, 1, b"z")
    assert wire.settle() == [(1, b"z")]


def test_two_cuts_of_one_link_need_two_mends() -> None:
    wire = Wire()
    wire.network.cut([(0, 1)])
    wire.network.cut([(0, 1)])
    wire.network.mend([(0, 1)])
    wire.network.unicast(0, 1, b"x")
    assert wire.settle() == []


def test_loss_and_duplication_hit_about_their_share() -> None:
    wire = Wire()
    wire.network.links[0][1].loss = 0.2
    wire.network.links[0][2].duplicate = 0.2
    for _ in range(1000):
        wire.network.multicast(0, b"x")
    arrived = [to for to, _ in wire.settle()]
    assert 750 < arrived.count(1) < 850
    assert 1150 < arrived.count(2) < 1250


def test_delay_reorders_datagrams() -> None:
    wire = Wire()
    wire.network.links[0][1].delay_mean = 0.1
    for number in range(50):
        wire.network.unicast(0, 1, bytes([number]))
    arrived = [data[0] for _, data in wire.settle()]
    assert sorted(arrived) == list(range(50))
    assert arrived != sorted(arrived)


def test_a_stream_keeps_its_order_whatever_the_delay() -> None:
    wire = Wire()
    wire.network.links[0][1].delay_mean = 0.1
    wire.network.links[0][1].loss = 0.9
    for number in range(50):
        wire.network.stream(0, 1, bytes([number]))
    assert [data[0] for _, data in wire.settle()] == list(range(50))


def test_a_stream_breaks_when_either_end_stops() -> None:
    wire = Wire()
    wire.network.stream(0, 1, b"x")
    wire.network.end_member(1)
    assert wire.settle() == []


def test_a_clogged_link_delivers_later() -> None:
    wire = Wire()
    wire.network.links[0][1].clogged_until = 2.0
    wire.network.unicast(0, 1, b"x")
    wire.schedule.run_until(1.9)
    assert wire.arrived == []
    assert wire.settle() == [(1, b"x")]


def test_a_flipped_bit_is_caught_by_the_checksum() -> None:
    stream = random.Random(3)
    frame = b"".join(encode(group=7, epoch=1, number=1, origin=bytes(10), body=Heartbeat(1, 2, 3, 4)))
    for _ in range(200):
        with pytest.raises(PeerViolation):
            decode_all(flip_bit(frame, stream))


def test_what_is_told_to_the_group_may_be_kept_from_a_member_that_hears_what_is_told_to_it_alone() -> None:
    wire = Wire()
    wire.network.cut_group([(0, 1)])
    assert wire.network.multicast(0, b"x") == [(1, "cut")]
    wire.network.unicast(0, 1, b"y")
    assert sorted(wire.settle()) == [(1, b"y"), (2, b"x")]
    wire.network.mend_group([(0, 1)])
    wire.network.multicast(0, b"z")
    assert sorted(wire.settle()) == [(1, b"z"), (2, b"z")]


def test_a_rule_ends_when_it_is_removed() -> None:
    wire = Wire()

    def drops(source: int, target: int, data: bytes) -> bool:
        return target == 1

    wire.network.add_rule(drops)
    wire.network.unicast(0, 1, b"x")
    wire.network.remove_rule(drops)
    wire.network.remove_rule(drops)
    wire.network.unicast(0, 1, b"y")
    assert wire.settle() == [(1, b"y")]


def test_a_late_copy_arrives_though_its_link_is_cut_by_then() -> None:
    wire = Wire()
    wire.network.cut([(0, 1)])
    wire.network.repeat(1, b"x", 2.0)
    wire.schedule.run_until(1.9)
    assert wire.arrived == []
    assert wire.settle() == [(1, b"x")]


def test_healing_makes_every_link_whole() -> None:
    wire = Wire()
    wire.network.cut([(0, 1), (1, 0)])
    wire.network.cut_group([(0, 1)])
    wire.network.links[0][2].loss = 1.0
    wire.network.add_rule(lambda source, target, data: True)
    wire.network.heal()
    wire.network.multicast(0, b"x")
    assert sorted(to for to, _ in wire.settle()) == [1, 2]
