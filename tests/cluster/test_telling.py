"""Programs that have joined tell each other things."""

import threading
from typing import Any

import pytest

import alphorn
from alphorn.model.errors import Misuse, UnknownOutcome
from tests.cluster.conftest import Join
from tests.cluster.serving import Heard, Serving

BODIES = ["text", b"bytes", "", None, True, 7, 1.5, [1, "two", [b"3"]], {"id": 1, "more": {"a": None}}, 1 << 63]


@pytest.mark.requirement("CCM-8", "CCM-9")
def test_what_is_told_comes_in_order_and_as_what_it_was_with_its_sender(join: Join, serving: Serving) -> None:
    heard = Heard()
    one, two = join(serving.url, name="one"), join(serving.url, name="two")
    two.on_message(heard)
    for body in BODIES:
        one.tell("two", body)
    messages = [heard.next() for _ in BODIES]
    assert [message.body for message in messages] == BODIES
    assert [type(message.body) for message in messages] == list(map(type, BODIES))
    assert {message.sender for message in messages} == {"one"}


@pytest.mark.requirement("CCM-10")
def test_what_is_for_others_comes_to_all_of_them_and_not_to_its_sender(join: Join, pair: Serving) -> None:
    names = ["one", "two", "three", "four"]
    processes, heard = {name: join(pair.url, name=name) for name in names}, {name: Heard() for name in names}
    for name in names:
        processes[name].on_message(heard[name])
    processes["one"].tell_others("hello")
    assert [heard[name].next().body for name in names[1:]] == ["hello"] * 3
    processes["two"].tell("one", "over")
    assert heard["one"].next().body == "over"  # and nothing before it


def test_others_are_those_that_are_there(join: Join, serving: Serving) -> None:
    heard = Heard()
    one = join(serving.url, name="one")
    one.events.on("*", heard)
    two = join(serving.url, name="two")
    heard.until(lambda event: event.node == "two")
    assert (one.name, one.others(), two.others()) == ("one", ["two"], ["one"])
    two.close()
    heard.until(lambda event: event.kind == "node_down")
    assert one.others() == []


def test_a_message_waits_for_the_function_that_comes_later(join: Join, serving: Serving) -> None:
    heard = Heard()
    one, two = join(serving.url, name="one"), join(serving.url, name="two")
    for number in range(3):
        one.tell("two", number)
    two.on_message(heard)
    one.tell("two", 3)
    assert [heard.next().body for _ in range(4)] == [0, 1, 2, 3]


def test_functions_of_two_processes_may_tell_each_other_things(join: Join, serving: Serving) -> None:
    heard = Heard()
    one, two = join(serving.url, name="one"), join(serving.url, name="two")
    answering = {"one": one, "two": two}

    def answer(me: Any, message: Any) -> Any:
        heard(message)
        if message.body:
            inner = getattr(me, "inner", me)
            return inner.tell(message.sender, message.body - 1)
        return None

    one.on_message(lambda message: answer(answering["one"], message))
    two.on_message(lambda message: answer(answering["two"], message))
    one.tell("two", 10)
    two.tell("one", 10)
    assert sorted(heard.next().body for _ in range(22)) == sorted([*range(11), *range(11)])


def test_a_function_that_raises_is_logged_once_and_the_next_message_comes(
    join: Join, serving: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    heard = Heard()

    def fail_once(message: Any) -> None:
        heard(message)
        if message.body == "bad":
            raise ValueError("no good")

    one, two = join(serving.url, name="one"), join(serving.url, name="two")
    two.on_message(fail_once)
    one.tell("two", "bad")
    one.tell("two", "good")
    assert [heard.next().body, heard.next().body] == ["bad", "good"]
    failures = [record for record in caplog.records if "function_failed" in record.message]
    assert len(failures) == 1
    assert failures[0].exc_info is not None
    assert "fail_once for=message of one" in failures[0].message


def test_a_message_of_one_mebibyte_passes_and_a_larger_one_does_not(join: Join, serving: Serving) -> None:
    heard = Heard()
    one, two = join(serving.url, name="one"), join(serving.url, name="two")
    two.on_message(heard)
    for body in (b"x" * (1 << 20), "x" * (1 << 20)):
        one.tell("two", body)
        assert heard.next().body == body
    for size in ((1 << 20) + 1, 5 << 20):
        with pytest.raises(Misuse, match="1 MiB at once and no more"):
            one.tell("two", b"x" * size)
        with pytest.raises(Misuse, match="1 MiB at once and no more"):
            one.tell_others(b"x" * size)


def test_who_is_unknown_cannot_be_told_anything(join: Join, serving: Serving) -> None:
    one = join(serving.url, name="one")
    with pytest.raises(Misuse, match="nobody"):
        one.tell("nobody", "hello")


def test_a_node_that_is_away_may_not_have_heard(join: Join, serving: Serving) -> None:
    one = join(serving.url, name="one")
    with pytest.raises(UnknownOutcome, match="cm1"):
        one.tell("cm1", "hello", timeout=0.2)


@pytest.mark.parametrize("name", ["", 7, None, b"two", "one", "\ud800"])
def test_a_name_that_nobody_else_has_is_refused(join: Join, serving: Serving, name: object) -> None:
    with pytest.raises(Misuse, match=r"name|this process itself"):
        join(serving.url, name="one").tell(name, "hello")


@pytest.mark.parametrize("body", [(1, 2), {1: 2}, {1, 2}, object(), 1 << 64, "\ud800"])
def test_a_body_that_would_not_come_back_as_what_it_was_is_refused(join: Join, serving: Serving, body: object) -> None:
    one = join(serving.url, name="one")
    join(serving.url, name="two")
    for tell in (lambda: one.tell("two", body), lambda: one.tell_others(body)):
        with pytest.raises(Misuse, match="body"):
            tell()


def test_closing_lets_functions_run_for_what_was_acknowledged(join: Join, serving: Serving) -> None:
    heard, gate = Heard(), threading.Event()

    def take(message: Any) -> None:
        gate.wait(60)
        heard(message)

    one, two = join(serving.url, name="one"), join(serving.url, name="two")
    two.on_message(heard if hasattr(two, "inner") else take)
    for number in range(5):
        one.tell("two", number)
    gate.set()
    two.close()
    assert [heard.next().body for _ in range(5)] == list(range(5))


def test_a_slow_function_keeps_nobody_from_hearing(serving: Serving) -> None:
    heard, entered, gate = Heard(), Heard(), threading.Event()

    def block(message: Any) -> None:
        entered(message)
        gate.wait(60)
        heard(message)

    with (
        alphorn.cluster.join(serving.url, name="one") as one,
        alphorn.cluster.join(serving.url, name="two") as two,
    ):
        two.on_message(block)
        one.tell("two", 0)
        entered.next()
        for number in range(1, 50):
            one.tell("two", number)
        two.tell("one", "still here")
        gate.set()
        assert [heard.next().body for _ in range(50)] == list(range(50))
