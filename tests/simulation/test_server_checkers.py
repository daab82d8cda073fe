"""Checkers of message servers: each objects to a breach of its promise, and to nothing else."""

from collections.abc import Callable

import pytest

import alphorn.message_server.process_machine as pm
from alphorn.model import internal
from alphorn.model.events import MISSED, Event
from alphorn.testing.schedule import Schedule
from alphorn.testing.servers.checkers import (
    AcknowledgedIsTaken,
    AnswersAreTrue,
    EventsAreToldOnce,
    GivenOnceInOrder,
    NamesAreOwned,
    NothingIsMissed,
)
from alphorn.testing.servers.facts import Facts, ProcessRun, Saying, ServerRun
from alphorn.testing.servers.once import RunsOnce
from alphorn.testing.watch import Violation

KEY = b"key"


class _World:
    """Two servers that know three processes, and all checkers."""

    def __init__(self) -> None:
        self.schedule = Schedule(None)
        self.facts = facts = Facts(self.schedule, frozenset(("a", "b", "c")))
        for checker in (GivenOnceInOrder, AcknowledgedIsTaken, NothingIsMissed, EventsAreToldOnce, NamesAreOwned):
            checker(facts)
        RunsOnce(facts)
        AnswersAreTrue(facts, nodes=frozenset("a"), limit=5)
        self.first, self.second = facts.server_began("s1"), facts.server_began("s2")
        self.a, self.b, self.c = (self.join(name) for name in "abc")
        self.pass_time(1.0)

    def join(self, name: str) -> ProcessRun:
        run = f"{name}{len(self.facts.processes)}".encode().ljust(internal.RUN_BYTES)
        process = self.facts.process_began(name, run, frozenset(("disk_low",)))
        for server in self.facts.servers.values():
            row = internal.Row(name, run, internal.PROGRAM)
            self.facts.server_told(server, len(self.facts.processes), internal.Joined(server.name, run), row)
            self.facts.process_joined(process, server.name)
        return process

    def pass_time(self, seconds: float) -> None:
        self.schedule.run_until(self.schedule.now + seconds)

    def say(self, sender: ProcessRun, to: str = internal.OTHERS, timeout_s: float = 10.0) -> Saying:
        saying = self.facts.say(sender, to, timeout_s, 20)
        saying.frames = 1
        return saying

    def give(self, saying: Saying, receiver: ProcessRun, *, is_taken: bool = True) -> None:
        given = pm.Given(saying.sender.name, saying.sender.run, saying.place, saying.body)
        self.facts.give(receiver, given)
        if is_taken:
            self.facts.take(receiver, given)

    def hold(self, saying: Saying, *servers: ServerRun) -> None:
        for server in servers:
            saying.hold(server, self.facts.now)

    def finish(self) -> None:
        for callback in self.facts.watch.finished:
            callback()


@pytest.fixture
def world() -> _World:
    return _World()


def _objects(checker: str, act: Callable[[], None]) -> None:
    with pytest.raises(Violation) as raised:
        act()
    assert raised.value.checker == checker


def test_what_is_given_in_order_and_acknowledged_then_breaks_nothing(world: _World) -> None:
    for _ in range(2):
        saying, to_all = world.say(world.a, "b"), world.say(world.a)
        world.hold(to_all, world.first, world.second)
        world.give(saying, world.b)
        for receiver in (world.b, world.c):
            world.give(to_all, receiver)
        world.facts.answer(saying, "")
        world.facts.answer(to_all, "")
    world.finish()


def test_a_message_given_twice_is_noticed(world: _World) -> None:
    saying = world.say(world.a, "b")
    world.give(saying, world.b)
    _objects(GivenOnceInOrder.name, lambda: world.give(saying, world.b))


def test_a_message_given_to_a_later_run_again_is_noticed(world: _World) -> None:
    saying = world.say(world.a, "b")
    world.give(saying, world.b, is_taken=False)
    world.facts.process_ended(world.b)
    for server in (world.first, world.second):
        world.facts.server_lost(server, 2)
    _objects(GivenOnceInOrder.name, lambda: world.give(saying, world.join("b")))


def test_a_message_given_out_of_order_is_noticed(world: _World) -> None:
    first, second = world.say(world.a), world.say(world.a)
    world.give(second, world.b)
    _objects(GivenOnceInOrder.name, lambda: world.give(first, world.b))


def test_a_message_given_to_its_sender_or_to_somebody_else_is_noticed(world: _World) -> None:
    _objects(GivenOnceInOrder.name, lambda: world.give(world.say(world.a), world.a))
    _objects(GivenOnceInOrder.name, lambda: world.give(world.say(world.a, "b"), world.c))


def test_an_acknowledged_message_that_nobody_has_taken_is_noticed(world: _World) -> None:
    saying = world.say(world.a, "b")
    world.give(saying, world.b, is_taken=False)
    _objects(AcknowledgedIsTaken.name, lambda: world.facts.answer(saying, ""))


def test_a_message_for_all_that_is_acknowledged_by_one_server_must_be_with_everybody(world: _World) -> None:
    saying = world.say(world.a)
    world.hold(saying, world.first)
    world.give(saying, world.b)
    _objects(AcknowledgedIsTaken.name, lambda: world.facts.answer(saying, ""))
    world.give(saying, world.c)
    world.facts.answer(saying, "")


def test_what_is_safe_and_was_not_given_is_missed_unless_all_who_had_it_have_ended(world: _World) -> None:
    saying = world.say(world.a)
    world.hold(saying, world.first, world.second)
    world.give(saying, world.b)
    world.facts.answer(saying, "")
    world.facts.server_ended(world.first)
    _objects(NothingIsMissed.name, world.finish)
    world.facts.server_ended(world.second)
    world.finish()


def test_what_is_left_out_between_two_others_is_missed_though_nobody_has_acknowledged_it(world: _World) -> None:
    first, second, third = (world.say(world.a) for _ in range(3))
    for saying in (first, second, third):
        world.hold(saying, world.first)
        world.give(saying, world.c)
    world.give(first, world.b)
    world.finish()
    world.give(third, world.b)
    _objects(NothingIsMissed.name, world.finish)


def test_an_event_that_a_server_has_heard_is_told_to_all_who_want_it(world: _World) -> None:
    world.pass_time(20.0)
    event = Event(kind="disk_low", node="", channel="orders", number=1)
    occurrence = world.facts.report(world.a, event)
    world.facts.server_heard(world.first, internal.Report(1, event))
    assert set(occurrence.holders) == {world.first}
    world.facts.tell(world.b, event)
    _objects(NothingIsMissed.name, world.finish)
    world.facts.tell(world.c, event)
    world.finish()
    _objects(EventsAreToldOnce.name, lambda: world.facts.tell(world.c, event))


def test_a_count_of_what_was_missed_is_for_who_was_away_and_covers_it(world: _World) -> None:
    missed = Event(kind=MISSED, node="b", details={"count": 1})
    _objects(NothingIsMissed.name, lambda: world.facts.tell(world.b, missed))
    world.b.missed.clear()
    world.pass_time(70.0)
    world.facts.process_heard(world.b)
    sayings = [world.say(world.a) for _ in range(2)]
    for saying in sayings:
        world.hold(saying, world.first, world.second)
        world.give(saying, world.c)
        world.facts.answer(saying, "")
    world.facts.tell(world.b, missed)
    _objects(NothingIsMissed.name, world.finish)
    world.facts.tell(world.b, missed)
    world.finish()
    world.facts.tell(world.b, missed)
    _objects(NothingIsMissed.name, world.finish)


def test_what_a_server_was_never_told_may_be_counted_by_who_has_not_taken_it(world: _World) -> None:
    missed = Event(kind=MISSED, node="b", details={"count": 1})
    saying = world.say(world.a)
    world.facts.server_heard(world.first, internal.SayAll(1, saying.body), world.a)
    world.facts.server_heard(world.second, internal.Hold(1, "a", world.a.run, 1, saying.body, None, True))
    world.give(saying, world.c)
    world.facts.server_ended(world.second)
    home = internal.Home(is_here=True, first=2)
    world.facts.server_heard(world.first, home, world.a)
    assert world.facts.may_count(world.b) == {}
    world.facts.server_heard(world.facts.server_began("s2"), home, world.a)
    world.facts.tell(world.b, missed)
    _objects(NothingIsMissed.name, lambda: world.facts.tell(world.b, missed))
    _objects(NothingIsMissed.name, lambda: world.facts.tell(world.c, missed))


@pytest.mark.parametrize("is_wanted", [False, True])
def test_what_only_dead_servers_had_may_be_counted_in_each_lane(world: _World, *, is_wanted: bool) -> None:
    event = Event(kind="disk_low" if is_wanted else "channel_lost", node="", channel="orders", number=1)
    for reporter in (world.a, world.b):
        world.facts.report(reporter, event)
        world.facts.server_heard(world.first, internal.Report(1, event), reporter)
    world.facts.server_ended(world.first)
    world.facts.server_ended(world.second)
    server = world.facts.server_began("s1")
    for reporter in (world.a, world.b):
        world.facts.server_heard(server, internal.Home(is_here=True, first=2), reporter)
    world.facts.tell(world.c, Event(kind=MISSED, node="c", details={"count": 2}))
    world.facts.tell(world.b, Event(kind=MISSED, node="b", details={"count": 1}))
    world.finish()
    world.facts.tell(world.c, Event(kind=MISSED, node="c", details={"count": 1}))
    _objects(NothingIsMissed.name, world.finish)


@pytest.mark.parametrize("error", ["Misuse", "Unavailable", "UnknownOutcome", "Blocked", "AccessDenied"])
def test_an_error_that_has_no_reason_is_noticed(world: _World, error: str) -> None:
    world.pass_time(3.0)
    _objects(AnswersAreTrue.name, lambda: world.facts.answer(world.say(world.b, "a"), error))


def test_errors_that_the_promise_names_are_none(world: _World) -> None:
    world.facts.answer(world.say(world.b, "nobody"), "Misuse")
    saying = world.say(world.b, "a")
    world.pass_time(10.0)
    world.facts.answer(saying, "UnknownOutcome")
    for server in ("s1", "s2"):
        world.facts.process_left(world.b, server)
    world.pass_time(5.0)
    late = world.say(world.b, "a")
    world.pass_time(0.5)
    _objects(AnswersAreTrue.name, lambda: world.facts.answer(late, "UnknownOutcome"))
    world.facts.answer(late, "Unavailable")


def test_an_answer_that_comes_late_is_noticed(world: _World) -> None:
    saying = world.say(world.b, "a", timeout_s=2.0)
    world.give(saying, world.a)
    world.pass_time(5.0)
    _objects(AnswersAreTrue.name, lambda: world.facts.answer(saying, ""))


def test_two_runs_of_one_name_are_noticed(world: _World) -> None:
    _objects(NamesAreOwned.name, lambda: world.join("b"))


def test_a_function_that_runs_twice_is_noticed_while_a_server_has_its_runner(world: _World) -> None:
    for process in (world.a, world.b):
        world.facts.compete(process, KEY)
    world.facts.win(world.a, KEY)
    world.facts.look(1.0)
    _objects(RunsOnce.name, lambda: world.facts.win(world.b, KEY))
    for server, connection in ((world.first, 1), (world.second, 1)):
        world.facts.server_lost(server, connection)
    world.pass_time(3.0)
    world.facts.look(1.0)
    world.facts.win(world.b, KEY)


def test_a_function_that_nobody_runs_after_its_runner_has_died_is_noticed(world: _World) -> None:
    for process in (world.a, world.b):
        world.facts.compete(process, KEY)
    world.facts.win(world.a, KEY)
    world.facts.process_ended(world.a)
    _objects(RunsOnce.name, world.finish)
    world.facts.win(world.b, KEY)
    world.facts.complete(KEY)
    world.finish()
    world.facts.server_heard(world.first, internal.Finish(KEY))
    world.pass_time(0.1)
    _objects(RunsOnce.name, lambda: world.facts.win(world.c, KEY))
