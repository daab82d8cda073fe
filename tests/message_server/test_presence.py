"""Who is there: names, silence, comings and goings, and what the servers tell each other of it."""

import pytest

from alphorn.message_server.process_machine import Quit
from alphorn.model import internal
from tests.message_server.meshes import Mesh, Worker

pytestmark = pytest.mark.requirement("CCM-1", "CCM-2", "CCM-3")


def told(worker: Worker, node: str) -> list[str]:
    return [event.kind for event in worker.told if event.node == node]


def test_everybody_joins_both_servers_and_all_have_one_home() -> None:
    mesh = Mesh()
    workers = mesh.join("a", "b", "c")
    for worker in workers:
        assert worker.half.joined == ["ms1", "ms2"]
        assert worker.half.describe()["speaks_through"] == "ms1"
        assert len(worker.half.others) == 2
    assert [server.describe()["role"] for server in mesh.servers.values()] == ["primary", "backup"]


def test_one_run_has_a_name_and_another_is_told_who_has_it() -> None:
    mesh = Mesh()
    a, _ = mesh.join("a", "b")
    rival = mesh.add("a", label="rival")
    mesh.run(0.5)
    assert rival.half.joined == []
    (_, error, reason), *_ = rival.refused
    assert error == "Misuse"
    assert "the name a is taken by process 1" in reason
    mesh.end(a)
    mesh.run(1.0)
    assert rival.half.joined == ["ms1", "ms2"]


@pytest.mark.parametrize("kind", [internal.PROGRAM, "client_manager"])
def test_names_of_nodes_are_reserved_to_nodes(kind: str) -> None:
    mesh = Mesh()
    stranger = mesh.add("mm1", kind=kind)
    mesh.run(0.5)
    assert stranger.half.joined == []
    assert stranger.refused[0][1] == "Misuse"


def test_who_is_gone_is_called_down_after_three_seconds_once() -> None:
    mesh = Mesh()
    (listener,) = mesh.join("listener", wants=("node_up", "node_down"))
    (a,) = mesh.join("a")
    mesh.end(a)
    mesh.run(2.5)
    assert told(listener, "a") == ["node_up"]
    mesh.run(1.5)
    assert told(listener, "a") == ["node_up", "node_down"]


def test_who_is_away_for_a_moment_is_not_called_down() -> None:
    mesh = Mesh()
    (listener,) = mesh.join("listener", wants=("*",))
    mesh.join("a")
    for name in mesh.names:
        mesh.cut_off("a", name)
    mesh.run(2.0)
    mesh.mend()
    mesh.run(10.0)
    assert told(listener, "a") == ["node_up"]


def test_who_was_called_down_and_is_not_is_called_up_and_may_be_called_down_again() -> None:
    mesh = Mesh()
    (listener,) = mesh.join("listener", wants=("node_up", "node_down"))
    (a,) = mesh.join("a")
    for _ in range(2):
        for name in ("ms2", "listener", "a"):
            mesh.cut_off("ms1", name)
        mesh.run(10.0)
        mesh.mend()
        mesh.run(3.0)
        assert told(listener, "a")[-2:] == ["node_down", "node_up"]
    mesh.kill("ms1")  # the other one has never called it down
    mesh.run(3.0)
    mesh.end(a)
    mesh.run(5.0)
    assert told(listener, "a") == ["node_up", "node_down", "node_up", "node_down", "node_up", "node_down"]


def test_who_is_reached_by_the_other_server_alone_is_called_up_when_the_servers_meet() -> None:
    mesh = Mesh()
    (listener,) = mesh.join("listener", wants=("node_up", "node_down"))
    (a,) = mesh.join("a")
    mesh.cut_off("ms1", "ms2")
    mesh.cut_off("ms1", "a")
    mesh.run(10.0)
    mesh.cut.discard(frozenset(mesh.names))
    mesh.run(3.0)
    assert told(listener, "a") == ["node_up", "node_down", "node_up"]
    mesh.end(a)
    mesh.run(5.0)
    assert told(listener, "a") == ["node_up", "node_down", "node_up", "node_down"]


def test_who_leaves_is_down_at_once() -> None:
    mesh = Mesh()
    (listener,) = mesh.join("listener", wants=("*",))
    (a,) = mesh.join("a")
    a.do(Quit())
    mesh.flush()
    assert told(listener, "a") == ["node_up", "node_down"]


def test_a_server_that_restarts_is_no_news_of_anybody() -> None:
    mesh = Mesh()
    (listener,) = mesh.join("listener", wants=("*",))
    mesh.join("a")
    for name in ("ms1", "ms2"):
        mesh.kill(name)
        mesh.run(1.0)
        mesh.start(name)
        mesh.run(3.0)
    assert told(listener, "a") == ["node_up"]


def test_a_server_that_has_started_takes_nobody_in_before_it_knows_what_the_other_one_does() -> None:
    mesh = Mesh()
    mesh.join("a")
    mesh.kill("ms2")
    mesh.cut.add(frozenset(mesh.names))
    mesh.start("ms2")
    mesh.run(0.9)
    assert mesh.servers["ms2"].describe()["connections"] == 0
    mesh.run(0.5)
    assert mesh.servers["ms2"].describe()["connections"] == 1


def test_the_home_is_the_server_that_reaches_most_and_changes_only_for_a_better_one_that_lasts() -> None:
    mesh = Mesh()
    a, *_ = mesh.join("a", "b", "c")
    mesh.cut_off("ms1", "ms2")
    mesh.cut_off("b", "ms1")
    mesh.run(0.8)
    assert a.half.describe()["speaks_through"] == "ms1"
    mesh.run(1.0)
    assert a.half.describe()["speaks_through"] == "ms2"
    mesh.mend()
    mesh.run(3.0)
    assert a.half.describe()["speaks_through"] == "ms1"


def test_of_two_runs_that_have_one_name_at_two_servers_one_goes_when_the_servers_meet() -> None:
    mesh = Mesh()
    mesh.join("other")
    mesh.cut_off("ms1", "ms2")
    mesh.cut_off("a", "ms2")
    mesh.cut_off("second", "ms1")
    a, second = mesh.add("a"), mesh.add("a", label="second")
    mesh.run(2.0)
    assert [a.half.joined, second.half.joined] == [["ms1"], ["ms2"]]
    mesh.cut.discard(frozenset(mesh.names))
    mesh.run(1.0)
    assert sorted([a.half.joined, second.half.joined]) in ([[], ["ms1"]], [[], ["ms2"]])
