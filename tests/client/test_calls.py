"""Which functions run for what comes to a work process, and what of it is confirmed."""

import functools
import logging
from typing import Any

import pytest

from alphorn.client.calls import LINE_BYTES_MAX, LINE_MAX, WISHES_MAX, Calls, key_of, name_of
from alphorn.client.packing import pack_body
from alphorn.message_server.process_machine import Given, Told
from alphorn.model.errors import Misuse
from alphorn.model.events import MISSED, Event

RUN = b"r" * 16


class Process:
    """The functions of one process, with what they wish of it."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.wanted: list[bytes] = []
        self.completed: list[bytes] = []
        self.calls = Calls(
            take=lambda given: self.taken.append(given.number),
            compete=self.wanted.append,
            complete=self.completed.append,
        )

    def give(self, number: int, body: Any = "hello") -> None:
        self.calls.on_given(Given("one", RUN, number, pack_body(body)))

    def tell(self, number: int, kind: str = "node_up", node: str = "mm1") -> Event:
        event = Event(kind=kind, node=node, number=number, run=RUN)
        self.calls.on_given(Told(RUN, number, event))
        return event

    def run(self) -> list[object]:
        """Runs all there is to run; gives what functions were called with."""
        arguments: list[object] = []
        while (call := self.calls.next()) is not None:
            call.function(call.argument)
            arguments.append(getattr(call.argument, "body", call.argument))
            self.calls.finish(call)
        return arguments


def ignore(argument: Any) -> None:
    """Does nothing."""


def other(argument: Any) -> None:
    """Does nothing either."""


def test_what_comes_is_confirmed_before_its_function_runs_until_the_line_is_full() -> None:
    process = Process()
    process.calls.answer_messages(ignore)
    for number in range(1, 2 * LINE_MAX + 1):
        process.give(number, number)
    assert process.taken == list(range(1, LINE_MAX + 1))
    process.calls.next()
    assert process.taken == list(range(1, LINE_MAX + 2))
    assert process.run() == list(range(2, 2 * LINE_MAX + 1))
    assert process.taken == list(range(1, 2 * LINE_MAX + 1))
    assert process.calls.describe()["line_bytes"] == 0


def test_a_line_is_full_with_large_messages_too() -> None:
    process = Process()
    process.calls.answer_messages(ignore)
    for number in range(1, 101):
        process.give(number, b"x" * (1 << 20))
    assert len(process.taken) <= LINE_BYTES_MAX // (1 << 20) + 1
    assert len(process.run()) == 100


def test_events_and_messages_run_in_the_order_of_arrival() -> None:
    process = Process()
    process.calls.answer_messages(ignore)
    process.calls.add("node_up", ignore, "process")
    process.give(1, "a")
    event = process.tell(2)
    process.give(3, "b")
    assert process.run() == ["a", event, "b"]


def test_of_messages_without_a_function_the_last_are_held(caplog: pytest.LogCaptureFixture) -> None:
    process = Process()
    process.calls.add("node_up", ignore, "process")
    with caplog.at_level(logging.WARNING):
        for number in range(1, 5 * LINE_MAX + 1):
            process.give(number, number)
            assert process.run() == []
    event = process.tell(5 * LINE_MAX + 1)
    assert process.run() == [event]
    assert caplog.text.count("message_dropped") == 1
    process.calls.answer_messages(ignore)
    process.give(5 * LINE_MAX + 2, "last")
    held = process.run()
    assert held == [*range(5 * LINE_MAX - LINE_MAX // 2 + 1, 5 * LINE_MAX + 1), "last"]
    assert process.calls.describe()["dropped"] == 5 * LINE_MAX - LINE_MAX // 2
    assert process.calls.describe()["line"] == 0


def test_what_is_no_body_is_logged_and_left_out(caplog: pytest.LogCaptureFixture) -> None:
    process = Process()
    process.calls.answer_messages(ignore)
    process.calls.on_given(Given("one", RUN, 1, b"\xc1"))
    process.give(2, "readable")
    assert process.run() == ["readable"]
    assert "message_unreadable sender=one" in caplog.text


def test_once_per_cluster_it_runs_when_it_was_won_and_is_complete_when_it_has_run() -> None:
    process = Process()
    process.calls.add("node_up", ignore, "cluster")
    event = process.tell(1)
    assert process.run() == []
    [key] = process.wanted
    assert process.completed == []
    process.calls.on_won(key)
    assert process.run() == [event]
    assert process.completed == [key]
    process.calls.on_won(key)
    assert process.run() == []


def test_every_process_names_the_work_on_an_event_alike_and_no_other() -> None:
    event, later = Event(kind="node_up", node="a", number=1, run=RUN), Event(kind="node_up", node="a", number=2)
    assert key_of(event, "f#0") == key_of(Event(kind="node_up", node="a", number=1, run=RUN, time=7.0), "f#0")
    assert len({key_of(event, "f#0"), key_of(event, "f#1"), key_of(event, "g#0"), key_of(later, "f#0")}) == 4
    one, two = Process(), Process()
    for process in (one, two):
        for function in (ignore, other, ignore):
            process.calls.add("node_up", function, "cluster")
        process.tell(1)
        process.run()
    assert one.wanted == two.wanted
    assert len(set(one.wanted)) == 3


def test_what_others_do_is_remembered_for_a_while() -> None:
    process = Process()
    process.calls.add("node_up", ignore, "cluster")
    for number in range(WISHES_MAX + 10):
        process.tell(number)
        process.run()
    assert process.calls.describe()["undecided"] == WISHES_MAX


def test_what_was_missed_is_told_to_who_asks_for_it(caplog: pytest.LogCaptureFixture) -> None:
    process = Process()
    missed = Event(kind=MISSED, node="me", details={"count": 7})
    process.calls.add("node_up", ignore, "process")
    process.calls.on_given(Told(b"", 0, missed))
    assert process.run() == []
    assert "events_missed count=7" in caplog.text
    process.calls.add("missed", ignore, "process")
    process.calls.add("*", ignore, "cluster")
    process.calls.on_given(Told(b"", 0, missed))
    assert process.run() == [missed, missed]
    assert process.calls.kinds == ["*", "node_up"]


def test_after_its_end_nothing_is_confirmed_and_the_rest_runs() -> None:
    process = Process()
    process.calls.answer_messages(ignore)
    process.give(1, "a")
    process.calls.end()
    process.give(2, "b")
    assert (process.taken, process.run()) == ([1], ["a"])


def test_nothing_runs_after_it_was_cleared() -> None:
    process = Process()
    process.calls.answer_messages(ignore)
    process.give(1, "a")
    process.calls.clear()
    assert process.run() == []


def test_functions_are_named_as_they_are_defined() -> None:
    class Work:
        def __call__(self, argument: Any) -> None:
            """Works."""

        def method(self, argument: Any) -> None:
            """Works."""

    assert name_of(ignore) == "ignore"
    assert name_of(functools.partial(functools.partial(ignore), 1)) == "ignore"
    assert name_of(Work()).endswith("Work")
    assert name_of(Work().method).endswith("Work.method")
    assert name_of([].append) == "list.append"


@pytest.mark.parametrize("kind", ["", "up", None, 7, "node_down "])
def test_a_kind_that_there_is_not_is_refused(kind: Any) -> None:
    with pytest.raises(Misuse):
        Process().calls.add(kind, ignore, "process")


def test_what_was_won_runs_however_much_comes_before_it() -> None:
    process = Process()
    for _ in range(WISHES_MAX // LINE_MAX + 2):
        process.calls.add("node_up", ignore, "cluster")
    first = process.tell(1)
    assert process.calls.next() is None
    for number in range(2, LINE_MAX + 1):
        process.tell(number)
    process.calls.on_won(process.wanted[0])
    assert process.run() == [first]
