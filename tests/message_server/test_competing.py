"""What one process of the cluster is to do: one does it, and another one where that dies before it is done."""

from alphorn.message_server.competing import Competing
from alphorn.message_server.process_machine import Compete, Complete
from alphorn.model.internal import Claim, ProcessFrame, Withdraw
from tests.message_server.meshes import Mesh, Worker

KEY = b"a function and an event"


def winners(*workers: Worker) -> list[str]:
    return [worker.name for worker in workers for _ in worker.won]


def test_one_of_several_is_to_do_it() -> None:
    mesh = Mesh()
    workers = mesh.join("a", "b", "c")
    for worker in workers:
        worker.do(Compete(KEY))
    mesh.run(0.5)
    assert len(winners(*workers)) == 1


def test_when_it_dies_before_it_is_done_another_one_does_it() -> None:
    mesh = Mesh()
    a, b, c = mesh.join("a", "b", "c")
    a.do(Compete(KEY))
    mesh.flush()
    b.do(Compete(KEY))
    c.do(Compete(KEY))
    mesh.run(0.5)
    assert winners(a, b, c) == ["a"]
    mesh.end(a)
    mesh.run(5.0)
    assert len(winners(b, c)) == 1


def test_what_is_done_stays_done_through_the_death_of_both_servers() -> None:
    mesh = Mesh()
    a, b = mesh.join("a", "b")
    a.do(Compete(KEY))
    mesh.flush()
    a.do(Complete(KEY))
    mesh.run(0.1)
    for name in mesh.names:
        mesh.kill(name)
    mesh.run(1.0)
    for name in mesh.names:
        mesh.start(name)
    b.do(Compete(KEY))
    mesh.run(10.0)
    assert winners(a, b) == ["a"]


def test_who_does_it_goes_on_through_the_death_of_both_servers() -> None:
    mesh = Mesh()
    a, b = mesh.join("a", "b")
    a.do(Compete(KEY))
    mesh.flush()
    b.do(Compete(KEY))
    mesh.run(0.1)
    for name in mesh.names:
        mesh.kill(name)
    mesh.run(1.0)
    for name in mesh.names:
        mesh.start(name)
    mesh.run(10.0)
    assert winners(a, b) == ["a"]
    mesh.end(a)
    mesh.run(5.0)
    assert winners(b) == ["b"]


def test_servers_that_have_just_started_grant_nothing_before_who_has_done_it_is_back() -> None:
    mesh = Mesh()
    a, b = mesh.join("a", "b")
    a.do(Compete(KEY))
    mesh.flush()
    a.do(Complete(KEY))
    mesh.run(0.1)
    for name in mesh.names:
        mesh.kill(name)
        mesh.cut.add(frozenset(("a", name)))
    mesh.run(1.0)
    for name in mesh.names:
        mesh.start(name)
    b.do(Compete(KEY))
    mesh.run(0.5)
    mesh.mend()
    mesh.run(10.0)
    assert winners(a, b) == ["a"]


def test_a_server_that_restarts_knows_what_was_claimed() -> None:
    mesh = Mesh()
    a, b = mesh.join("a", "b")
    a.do(Compete(KEY))
    mesh.run(0.1)
    for name in mesh.names:
        mesh.kill(name)
        mesh.run(1.0)
        mesh.start(name)
        mesh.run(3.0)
    b.do(Compete(KEY))
    mesh.run(3.0)
    assert winners(a, b) == ["a"]


def test_two_that_each_have_the_word_of_one_server_give_way_until_one_does_it() -> None:
    mesh = Mesh()
    a, b = mesh.join("a", "b")
    mesh.cut_off("ms1", "ms2")
    mesh.cut_off("b", "ms1")
    a.do(Compete(KEY))
    b.do(Compete(KEY))
    mesh.mend()
    mesh.run(5.0)
    assert winners(a, b)


def test_a_yes_that_comes_after_a_no_is_given_back() -> None:
    said: list[tuple[str, ProcessFrame]] = []
    joined, won = ["ms2"], list[bytes]()
    competing = Competing(lambda: joined, lambda server, frame: said.append((server, frame)), won.append)
    competing.compete(KEY)
    joined.insert(0, "ms1")
    competing.on_joined("ms1")
    assert said == [("ms2", Claim(KEY)), ("ms1", Claim(KEY))]
    competing.on_claimed("ms2", KEY, is_yours=False)
    competing.on_claimed("ms1", KEY, is_yours=True)
    assert said[2:] == [("ms1", Withdraw(KEY))]
    assert not won


def test_a_yes_to_who_does_it_already_is_kept() -> None:
    said: list[tuple[str, ProcessFrame]] = []
    competing = Competing(lambda: ["ms1"], lambda server, frame: said.append((server, frame)), lambda key: None)
    competing.compete(KEY)
    competing.on_claimed("ms1", KEY, is_yours=True)
    competing.on_claimed("ms1", KEY, is_yours=True)
    competing.complete(KEY)
    competing.on_claimed("ms1", KEY, is_yours=True)
    assert not [frame for _, frame in said if isinstance(frame, Withdraw)]
