"""Events: each is told once by its name, to who wants it, also when who reported it dies."""

import pytest

from alphorn.message_server.process_machine import AskRecent, TellEvent, WantEvents
from alphorn.message_server.settings import Limits
from alphorn.model import internal
from alphorn.model.events import Event
from tests.message_server.meshes import Mesh, Worker

pytestmark = pytest.mark.requirement("CCM-4", "CCM-6", "CCM-7")


def event(number: int, kind: str = "disk_low") -> Event:
    return Event(kind=kind, node="mm1", channel="orders", epoch=1, number=number)


def told(worker: Worker, kind: str = "disk_low") -> list[int]:
    return [event.number for event in worker.told if event.kind == kind]


def test_what_several_report_is_told_once() -> None:
    mesh = Mesh()
    reporters = mesh.join("a", "b", "c")
    (listener,) = mesh.join("listener", wants=("disk_low",))
    for worker in reporters:
        worker.do(TellEvent(event(1)))
        mesh.run(0.2)
    assert told(listener) == [1]
    assert len(mesh.frames(internal.Notify, listener="listener")) == 1


def test_who_turns_to_a_server_that_was_told_by_somebody_else_is_not_told_again() -> None:
    mesh = Mesh()
    a, b = mesh.join("a", "b")
    (listener,) = mesh.join("listener", wants=("disk_low",))
    mesh.cut_off("a", "ms2")
    mesh.cut_off("b", "ms1")
    mesh.cut_off("ms1", "ms2")
    mesh.run(2.0)
    a.do(TellEvent(event(1)))
    b.do(TellEvent(event(1)))
    mesh.flush()
    mesh.kill("ms1")
    mesh.run(1.0)
    assert told(listener) == [1]
    assert len(mesh.frames(internal.Notify, listener="listener")) == 2


def test_what_two_report_to_two_servers_is_told_once_wherever_who_hears_it_turns() -> None:
    mesh = Mesh()
    a, b = mesh.join("a", "b")
    (listener,) = mesh.join("listener", wants=("disk_low",))
    mesh.cut_off("a", "ms2")
    mesh.cut_off("b", "ms1")
    mesh.cut_off("ms1", "ms2")
    mesh.run(2.0)
    a.do(TellEvent(event(1)))
    b.do(TellEvent(event(1)))
    mesh.run(0.5)
    mesh.mend()
    mesh.run(2.0)
    for name in ("ms1", "ms2"):
        mesh.cut_off("listener", name)
        mesh.run(1.0)
        mesh.mend()
        mesh.run(2.0)
    assert told(listener) == [1]


def test_it_is_told_though_its_reporter_and_its_server_die() -> None:
    mesh = Mesh()
    (a,) = mesh.join("a")
    (listener,) = mesh.join("listener", wants=("*",))
    listener.takes = False
    a.do(TellEvent(event(1)))
    mesh.flush()
    mesh.end(a)
    mesh.kill("ms1")
    mesh.run(1.0)
    listener.takes = True
    listener.take()
    mesh.run(1.0)
    assert told(listener) == [1]


def test_events_of_kinds_that_are_not_wanted_cost_no_frame() -> None:
    mesh = Mesh()
    a, b = mesh.join("a", "b")
    mesh.said.clear()
    a.do(TellEvent(event(1)))
    mesh.run(0.5)
    assert mesh.frames(internal.Notify) == []
    assert b.told == []


def test_who_wants_a_kind_hears_of_it_from_then_on_also_from_another_server() -> None:
    mesh = Mesh()
    a, b = mesh.join("a", "b")
    a.do(TellEvent(event(1)))
    mesh.run(0.5)
    b.do(WantEvents(("disk_low",)))
    mesh.run(0.1)
    a.do(TellEvent(event(2)))
    mesh.run(0.1)
    mesh.cut_off("b", "ms1")
    mesh.run(1.0)
    a.do(TellEvent(event(3)))
    mesh.run(0.5)
    assert told(b) == [2, 3]


def test_who_was_away_for_a_while_is_told_and_beyond_a_minute_how_much_it_missed() -> None:
    mesh = Mesh()
    (a,) = mesh.join("a")
    (b,) = mesh.join("b", wants=("disk_low",))
    for name in mesh.names:
        mesh.cut_off("b", name)
    for number, kind in enumerate(("disk_low", "disk_ok", "disk_low"), start=1):
        a.do(TellEvent(event(number, kind)))
    mesh.run(50.0)
    a.do(TellEvent(event(4)))
    mesh.run(30.0)
    mesh.mend()
    mesh.run(5.0)
    assert told(b) == [4]
    assert b.missed == [2]


def test_a_flood_of_events_is_bounded_and_nobody_else_waits() -> None:
    mesh = Mesh(limits=Limits(ring_entries=1000, reader_bytes=20_000))
    flooder, a, b = mesh.join("flooder", "a", "b")
    (slow,) = mesh.join("slow", wants=("disk_low",))
    slow.takes = False
    for number in range(1, 5001):
        flooder.do(TellEvent(event(number)))
    handle = a.tell("b", b"between")
    mesh.flush()
    assert a.outcomes[handle] == "acknowledged"
    assert b.given == [("a", b"between")]
    mesh.run(1.0)
    for server in mesh.servers.values():
        queued = server.describe()["queued"]
        assert isinstance(queued, int)
        assert queued <= 1000
    slow.takes = True
    slow.take()
    mesh.run(2.0)
    assert len(told(slow)) + sum(slow.missed) == 5000


def test_the_last_events_can_be_asked_for_and_outlast_a_server() -> None:
    mesh = Mesh()
    (a,) = mesh.join("a")
    for number in (1, 2, 3):
        a.do(TellEvent(event(number)))
    mesh.run(0.5)
    mesh.kill("ms1")
    mesh.run(1.0)
    mesh.start("ms1")
    mesh.run(2.0)
    mesh.kill("ms2")
    mesh.run(1.0)
    a.do(AskRecent(7, 100))
    mesh.flush()
    assert [each.number for each in a.recent[0] if each.kind == "disk_low"] == [1, 2, 3]
