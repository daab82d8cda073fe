"""What a process tells all others: one frame to the server, one copy for each of them, and no loss with a server."""

import pytest

from alphorn.message_server.settings import Limits
from alphorn.model import internal
from alphorn.model.internal import OTHERS
from tests.message_server.meshes import Mesh, Worker

pytestmark = pytest.mark.requirement("CCM-10")


def bodies(worker: Worker) -> list[bytes]:
    return [body for _, body in worker.given]


def tell_many(worker: Worker, first: int, last: int, timeout_s: float = 10.0) -> list[int]:
    return [worker.tell(OTHERS, str(number).encode(), timeout_s) for number in range(first, last + 1)]


def numbers(first: int, last: int) -> list[bytes]:
    return [str(number).encode() for number in range(first, last + 1)]


def test_it_is_one_frame_to_the_server_and_one_to_each_other_process_and_none_to_the_sender() -> None:
    mesh = Mesh()
    a, *others = mesh.join("a", "b", "c", "d", "e")
    mesh.said.clear()
    handle = a.tell(OTHERS, b"hear")
    mesh.flush()
    assert [(by, to) for by, to, frame in mesh.said if isinstance(frame, internal.SayAll)] == [("a", "ms1")]
    copies = [(by, to) for by, to, frame in mesh.said if isinstance(frame, internal.RelayAll)]
    assert sorted(copies) == [("ms1", worker.name) for worker in others]
    assert a.given == []
    assert {tuple(bodies(worker)) for worker in others} == {(b"hear",)}
    assert a.outcomes[handle] == "acknowledged"


def test_it_is_acknowledged_when_both_servers_have_it_though_nobody_has_taken_it() -> None:
    mesh = Mesh()
    a, b = mesh.join("a", "b")
    b.takes = False
    handle = a.tell(OTHERS, b"hear")
    mesh.flush()
    assert a.outcomes[handle] == "acknowledged"
    assert len(mesh.frames(internal.Hold, listener="ms2")) >= 1


@pytest.mark.parametrize("servers", [1, 2])
def test_with_one_server_left_it_is_acknowledged_when_everybody_has_it(servers: int) -> None:
    mesh = Mesh(servers)
    a, b, c = mesh.join("a", "b", "c")
    if servers > 1:
        mesh.kill("ms2")
        mesh.run(1.0)
    b.takes = c.takes = False
    handle = a.tell(OTHERS, b"hear")
    mesh.run(0.5)
    b.take()
    mesh.run(0.5)
    assert handle not in a.outcomes
    c.take()
    mesh.run(0.5)
    assert a.outcomes[handle] == "acknowledged"


def test_who_is_gone_is_not_waited_for() -> None:
    mesh = Mesh(1)
    a, b = mesh.join("a", "b")
    b.takes = False
    handle = a.tell(OTHERS, b"hear")
    mesh.run(0.5)
    assert handle not in a.outcomes
    mesh.end(b)
    mesh.run(0.5)
    assert a.outcomes[handle] == "acknowledged"


def test_a_server_that_dies_costs_nothing_and_doubles_nothing() -> None:
    mesh = Mesh()
    a, b, c = mesh.join("a", "b", "c")
    b.takes = False
    handles = tell_many(a, 1, 20)
    mesh.flush()
    handles += tell_many(a, 21, 40)
    mesh.kill("ms1")
    mesh.run(1.0)
    mesh.start("ms1")
    handles += tell_many(a, 41, 60)
    mesh.run(3.0)
    b.takes = True
    b.take()
    mesh.run(3.0)
    assert bodies(b) == bodies(c) == numbers(1, 60)
    assert {a.outcomes[handle] for handle in handles} == {"acknowledged"}
    assert a.half.describe()["outbox"] == 0


def test_servers_that_die_in_turn_cost_nothing() -> None:
    mesh = Mesh()
    a, b = mesh.join("a", "b")
    for round_ in range(6):
        tell_many(a, 10 * round_ + 1, 10 * round_ + 10)
        name = mesh.names[round_ % 2]
        mesh.kill(name)
        mesh.run(0.5)
        mesh.start(name)
        mesh.run(2.5)
    assert bodies(b) == numbers(1, 60)


def test_who_changes_its_home_with_untaken_entries_gets_none_twice_and_confirms_them_there() -> None:
    mesh = Mesh()
    a, b = mesh.join("a", "b")
    b.takes = False
    tell_many(a, 1, 10)
    mesh.run(0.2)
    mesh.cut_off("b", "ms1")
    mesh.run(0.5)
    tell_many(a, 11, 20)
    mesh.run(0.5)
    assert bodies(b) == numbers(1, 20)
    b.takes = True
    b.take()
    mesh.run(0.5)
    took = mesh.frames(internal.Took, speaker="b", listener="ms2")
    assert took
    assert bodies(b) == numbers(1, 20)


def test_what_one_server_took_alone_reaches_who_is_at_the_other_when_they_meet_or_the_sender_comes() -> None:
    mesh = Mesh()
    a, b = mesh.join("a", "b")
    mesh.cut_off("ms1", "ms2")
    mesh.cut_off("b", "ms1")
    mesh.run(2.0)
    handles = tell_many(a, 1, 5)
    mesh.run(1.0)
    mesh.cut_off("a", "ms1")
    mesh.run(1.0)
    handles += tell_many(a, 6, 10)
    mesh.run(1.0)
    assert bodies(b) == numbers(1, 10)
    mesh.mend()
    mesh.run(3.0)
    assert bodies(b) == numbers(1, 10)
    assert {a.outcomes[handle] for handle in handles} == {"acknowledged"}


def test_a_link_that_is_cut_and_made_again_loses_and_doubles_nothing() -> None:
    mesh = Mesh()
    a, b = mesh.join("a", "b")
    mesh.cut_off("a", "ms2")
    mesh.cut_off("b", "ms1")
    mesh.run(2.0)
    tell_many(a, 1, 5)
    mesh.flush()
    tell_many(a, 6, 10)
    mesh.cut_off("ms1", "ms2")
    mesh.run(1.0)
    tell_many(a, 11, 15)
    mesh.cut.discard(frozenset(("ms1", "ms2")))
    mesh.run(2.0)
    assert bodies(b) == numbers(1, 15)


def test_who_comes_for_the_first_time_begins_with_what_is_said_then() -> None:
    mesh = Mesh()
    a, _ = mesh.join("a", "b")
    tell_many(a, 1, 5)
    mesh.run(0.5)
    (late,) = mesh.join("late")
    tell_many(a, 6, 7)
    mesh.run(0.5)
    assert bodies(late) == numbers(6, 7)
    assert late.missed == []


def test_who_was_away_for_less_than_a_minute_gets_what_it_missed() -> None:
    mesh = Mesh()
    a, b = mesh.join("a", "b")
    for name in mesh.names:
        mesh.cut_off("b", name)
    tell_many(a, 1, 5)
    mesh.run(55.0)
    mesh.mend()
    mesh.run(3.0)
    assert bodies(b) == numbers(1, 5)
    assert b.missed == []


def test_who_was_away_for_longer_is_told_once_how_much_it_missed() -> None:
    mesh = Mesh()
    a, b = mesh.join("a", "b")
    for name in mesh.names:
        mesh.cut_off("b", name)
    tell_many(a, 1, 5)
    mesh.run(40.0)
    tell_many(a, 6, 7)
    mesh.run(40.0)
    mesh.mend()
    mesh.run(5.0)
    assert bodies(b) == numbers(6, 7)
    assert b.missed == [5]


def test_the_ring_is_bounded_and_who_is_slow_is_told_what_it_missed() -> None:
    limits = Limits(ring_entries=100, reader_bytes=2000)
    mesh = Mesh(limits=limits)
    a, b, c = mesh.join("a", "b", "c")
    b.takes = False
    for first in range(1, 1001, 10):
        tell_many(a, first, first + 9)
        mesh.flush()
    assert bodies(c) == numbers(1, 1000)
    for server in mesh.servers.values():
        queued = server.describe()["queued"]
        assert isinstance(queued, int)
        assert queued <= 100
    b.takes = True
    b.take()
    mesh.run(2.0)
    assert len(b.given) + sum(b.missed) == 1000
    assert bodies(b) == sorted(bodies(b), key=int)


def test_what_was_dropped_before_everybody_had_it_is_not_acknowledged() -> None:
    mesh = Mesh(1, limits=Limits(ring_entries=10, reader_bytes=500))
    a, b = mesh.join("a", "b")
    b.takes = False
    handles = tell_many(a, 1, 40, timeout_s=2.0)
    mesh.run(3.0)
    assert {a.outcomes[handle] for handle in handles} == {"UnknownOutcome"}
    assert a.half.describe()["outbox"] <= 10


def test_a_single_server_that_restarts_costs_nothing_of_the_last_minute() -> None:
    mesh = Mesh(1)
    a, b, c = mesh.join("a", "b", "c")
    mesh.cut_off("b", "ms1")
    mesh.run(1.0)
    handles = tell_many(a, 1, 5)
    mesh.run(1.0)
    assert {a.outcomes[handle] for handle in handles} == {"acknowledged"}
    mesh.kill("ms1")
    mesh.run(1.0)
    mesh.start("ms1")
    mesh.mend()
    mesh.run(3.0)
    assert bodies(b) == bodies(c) == numbers(1, 5)


def test_who_comes_back_to_the_same_server_says_nothing_again_that_it_took() -> None:
    mesh = Mesh(1)
    a, _ = mesh.join("a", "b")
    tell_many(a, 1, 5)
    mesh.run(0.5)
    mesh.cut_off("a", "ms1")
    mesh.mend()
    mesh.said.clear()
    mesh.run(1.0)
    assert mesh.frames(internal.SayAll) == []
