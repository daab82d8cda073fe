"""What one process tells another: in order, once, acknowledged by whom it was for, on whatever ways."""

import pytest

from alphorn.message_server import tells
from alphorn.message_server.outbox import WINDOW_BYTES
from alphorn.message_server.process_machine import Quit
from alphorn.model import internal
from tests.message_server.meshes import Mesh, Worker

pytestmark = pytest.mark.requirement("CCM-8", "CCM-9")


def bodies(worker: Worker, sender: str) -> list[bytes]:
    return [body for by, body in worker.given if by == sender]


def tell_many(worker: Worker, to: str, first: int, last: int, timeout_s: float = 10.0) -> list[int]:
    return [worker.tell(to, str(number).encode(), timeout_s) for number in range(first, last + 1)]


def numbers(first: int, last: int) -> list[bytes]:
    return [str(number).encode() for number in range(first, last + 1)]


@pytest.mark.requirement("CCM-5")
def test_a_message_is_acknowledged_when_its_receiver_has_taken_it() -> None:
    mesh = Mesh()
    a, b = mesh.join("a", "b")
    b.takes = False
    handle = a.tell("b", b"hello")
    mesh.run(0.5)
    assert b.given == [("a", b"hello")]
    assert handle not in a.outcomes
    b.take()
    mesh.run(0.1)
    assert a.outcomes[handle] == "acknowledged"


def test_a_message_and_its_confirmation_are_one_frame_on_each_way() -> None:
    mesh = Mesh()
    a, _ = mesh.join("a", "b")
    mesh.said.clear()
    a.tell("b", b"hello")
    mesh.flush()
    spoken = [(by, to, type(frame).__name__) for by, to, frame in mesh.said]
    assert spoken == [
        ("a", "ms1", "Say"),
        ("ms1", "b", "Relay"),
        ("b", "ms1", "Confirm"),
        ("ms1", "a", "Confirmed"),
    ]


def test_many_messages_come_in_order_and_are_confirmed_together() -> None:
    mesh = Mesh()
    a, b = mesh.join("a", "b")
    handles = tell_many(a, "b", 1, 500)
    mesh.flush()
    assert bodies(b, "a") == numbers(1, 500)
    assert {a.outcomes[handle] for handle in handles} == {"acknowledged"}
    assert len(mesh.frames(internal.Confirm)) < 5


def test_no_more_than_a_window_is_on_its_way_to_a_process_that_takes_nothing() -> None:
    mesh = Mesh()
    a, b = mesh.join("a", "b")
    b.takes = False
    tell_many(a, "b", 1, 3000)
    mesh.run(1.0)
    assert len(b.given) == 1000
    b.takes = True
    b.take()
    mesh.run(1.0)
    assert bodies(b, "a") == numbers(1, 3000)


def test_a_server_that_dies_costs_nothing_and_doubles_nothing() -> None:
    mesh = Mesh()
    a, b = mesh.join("a", "b")
    b.takes = False
    handles = tell_many(a, "b", 1, 20)
    mesh.flush()
    handles += tell_many(a, "b", 21, 40)
    mesh.kill("ms1")
    b.takes = True
    b.take()
    mesh.run(3.0)
    assert bodies(b, "a") == numbers(1, 40)
    assert {a.outcomes[handle] for handle in handles} == {"acknowledged"}


def test_who_changes_its_home_is_not_overtaken_by_what_it_said_before() -> None:
    mesh = Mesh()
    a, b = mesh.join("a", "b")
    b.takes = False
    for round_ in range(6):
        tell_many(a, "b", 10 * round_ + 1, 10 * round_ + 5)
        mesh.cut_off("a", "ms1" if round_ % 2 else "ms2")
        tell_many(a, "b", 10 * round_ + 6, 10 * round_ + 10)
        mesh.run(0.3)
        mesh.mend()
        mesh.run(1.5)
    b.takes = True
    b.take()
    mesh.run(3.0)
    assert bodies(b, "a") == numbers(1, 60)


def test_processes_that_reach_one_server_each_tell_each_other_over_the_link() -> None:
    mesh = Mesh()
    a, b = mesh.join("a", "b")
    mesh.cut_off("a", "ms2")
    mesh.cut_off("b", "ms1")
    mesh.run(2.0)
    handle = a.tell("b", b"over the link")
    mesh.run(0.2)
    assert b.given == [("a", b"over the link")]
    assert a.outcomes[handle] == "acknowledged"
    assert mesh.frames(internal.Carry)
    assert mesh.frames(internal.CarryBack)


def test_what_is_on_a_link_that_is_cut_is_said_again_when_it_is_whole() -> None:
    mesh = Mesh()
    a, b = mesh.join("a", "b")
    mesh.cut_off("a", "ms2")
    mesh.cut_off("b", "ms1")
    mesh.run(2.0)
    mesh.cut_off("ms1", "ms2")
    handles = tell_many(a, "b", 1, 10)
    mesh.run(2.0)
    assert b.given == []
    mesh.cut.discard(frozenset(("ms1", "ms2")))
    mesh.run(2.0)
    assert bodies(b, "a") == numbers(1, 10)
    assert {a.outcomes[handle] for handle in handles} == {"acknowledged"}


def test_a_known_name_that_is_away_is_waited_for_and_then_its_outcome_is_unknown() -> None:
    mesh = Mesh()
    a, b = mesh.join("a", "b")
    mesh.end(b)
    mesh.run(1.0)
    handle = a.tell("b", b"anybody?", 2.0)
    mesh.run(1.9)
    assert handle not in a.outcomes
    mesh.run(0.3)
    assert a.outcomes[handle] == "UnknownOutcome"


def test_a_node_of_the_cluster_file_is_known_before_it_has_ever_come() -> None:
    mesh = Mesh()
    (a,) = mesh.join("a")
    handle = a.tell("mm1", b"when you come")
    mesh.run(0.5)
    node = mesh.add("mm1", kind="message_manager")
    mesh.run(0.5)
    assert node.given == [("a", b"when you come")]
    assert a.outcomes[handle] == "acknowledged"


def test_an_unknown_name_is_misuse_at_once_and_the_reason_names_who_is_there_but_for_commands() -> None:
    mesh = Mesh()
    a, _, _ = mesh.join("a", "b", "alphorn:events:1")
    handle = a.tell("nobody", b"?")
    mesh.flush()
    assert a.outcomes[handle] == "Misuse"
    assert "no process is named 'nobody'; there are a, b, cm1, mm1" in a.reasons[handle]


def test_a_name_is_known_for_an_hour_after_its_process_has_left() -> None:
    mesh = Mesh()
    a, b = mesh.join("a", "b")
    b.do(Quit())
    mesh.flush()
    mesh.workers.remove(b)
    mesh.run(1.0)
    (late,) = mesh.join("late")
    handle = late.tell("b", b"?", 1.0)
    mesh.run(0.5)
    assert handle not in late.outcomes
    mesh.now += 3700.0
    mesh.run(2.0)
    handle = mesh.join("later")[0].tell("b", b"?", 1.0)
    mesh.run(0.2)
    assert mesh.workers[-1].outcomes[handle] == "Misuse"
    assert a in mesh.workers


def test_what_was_not_said_to_a_run_goes_on_to_the_next_one_and_what_was_is_unknown() -> None:
    mesh = Mesh()
    a, b = mesh.join("a", "b")
    b.takes = False
    said = a.tell("b", b"said")
    mesh.flush()
    mesh.end(b)
    mesh.run(0.5)
    waiting = [a.tell("b", b"waiting", 30.0)]
    mesh.run(1.0)
    heir = mesh.add("b", label="b again")
    mesh.run(6.0)
    assert a.outcomes[said] == "UnknownOutcome"
    assert heir.given == [("a", b"waiting")]
    assert a.outcomes[waiting[0]] == "acknowledged"


def test_a_message_whose_time_is_up_leaves_no_gap_behind() -> None:
    mesh = Mesh()
    a, b = mesh.join("a", "b")
    b.takes = False
    first = a.tell("b", b"first", 1.0)
    mesh.run(1.5)
    assert a.outcomes[first] == "UnknownOutcome"
    second = a.tell("b", b"second", 30.0)
    b.takes = True
    b.take()
    mesh.run(3.0)
    assert bodies(b, "a") == [b"first", b"second"]
    assert a.outcomes[second] == "acknowledged"


def test_who_waits_for_none_of_it_any_more_keeps_nothing() -> None:
    mesh = Mesh()
    a, b = mesh.join("a", "b")
    b.takes = False
    tell_many(a, "b", 1, 2000, timeout_s=1.0)
    mesh.run(2.0)
    assert a.half.describe()["outbox"] == 0


def test_a_process_that_takes_nothing_keeps_a_window_of_a_sender_that_gives_up() -> None:
    mesh = Mesh()
    a, b = mesh.join("a", "b")
    b.takes = False
    for _ in range(8):
        a.tell("b", bytes(WINDOW_BYTES // 2), 0.5)
        mesh.run(1.0)
    assert len(b.given) == 1
    last = a.tell("b", b"last", 60.0)
    b.takes = True
    b.take()
    mesh.run(20.0)
    assert a.outcomes[last] == "acknowledged"
    assert b.given[-1] == ("a", b"last")


def test_who_has_told_very_many_others_is_heard_again_by_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tells, "RUNS_MAX", 5)
    mesh = Mesh()
    a, first, *others = mesh.join("a", "first", *(f"other {number}" for number in range(6)))
    tell_many(a, "first", 1, 3)
    mesh.run(1.0)
    for other in others:
        a.tell(other.name, b"hello")
    mesh.run(1.0)
    tell_many(a, "first", 4, 5)
    mesh.run(3.0)
    assert bodies(first, "a") == numbers(1, 5)
    assert set(a.outcomes.values()) == {"acknowledged"}


def test_without_any_server_nothing_was_sent() -> None:
    mesh = Mesh()
    (a,) = mesh.join("a")
    mesh.kill("ms1")
    mesh.kill("ms2")
    mesh.run(2.0)
    handles = [a.tell("mm1", b"?"), a.tell(internal.OTHERS, b"?")]
    mesh.run(0.5)
    assert [a.outcomes[handle] for handle in handles] == ["Unavailable", "Unavailable"]
    mesh.start("ms1")
    mesh.start("ms2")
    mesh.run(3.0)
    assert a.half.joined == ["ms1", "ms2"]


def test_too_large_a_message_and_one_more_than_fits_are_refused() -> None:
    mesh = Mesh()
    a, b = mesh.join("a", "b")
    b.takes = False
    handle = a.tell("b", bytes(internal.MESSAGE_BYTES_MAX + 1))
    mesh.flush()
    assert a.outcomes[handle] == "Misuse"
    handles = [a.tell("b", bytes(1 << 20)) for _ in range(33)]
    mesh.flush()
    assert [a.outcomes.get(handle) for handle in handles[-2:]] == ["Blocked"] * 2
    assert handles[0] not in a.outcomes


def test_a_server_drops_what_it_cannot_pass_on_and_the_sender_says_it_again() -> None:
    mesh = Mesh()
    a, b = mesh.join("a", "b")
    mesh.cut_off("b", "ms1")
    mesh.cut_off("b", "ms2")
    handle = a.tell("b", b"later")
    mesh.run(1.0)
    mesh.mend()
    mesh.run(1.0)
    assert b.given == [("a", b"later")]
    assert a.outcomes[handle] == "acknowledged"
