"""Programs that have joined hear of what happens in the cluster."""

import logging
import threading
from typing import Any

import pytest

import alphorn
from alphorn.model.errors import Misuse
from alphorn.model.events import Event
from tests.cluster.conftest import Join
from tests.cluster.serving import Heard, Serving, is_about


@pytest.mark.requirement("CCM-4", "CCM-7")
def test_a_function_runs_once_in_every_process_that_asked_for_it(join: Join, pair: Serving) -> None:
    heard = [Heard(), Heard(), Heard()]
    for number in range(3):
        join(pair.url, name=f"listener-{number}").events.on("node_up", heard[number])
    join(pair.url, name="worker").close()
    join(pair.url, name="last")
    for ears in heard:
        event = ears.until(is_about("node_up", "worker"))
        assert (event.kind, event.node, event.channel, event.epoch, event.details["kind"]) == (
            "node_up",
            "worker",
            "",
            0,
            "program",
        )
        assert event.time > 0
        assert event.number >= 1
        assert ears.next().node == "last"  # the same event never comes again


@pytest.mark.requirement("CCM-7")
def test_once_per_cluster_one_process_runs_it(join: Join, pair: Serving) -> None:
    heard, ran = Heard(), Heard()
    processes = [join(pair.url, name=f"manager-{number}") for number in range(3)]
    for process in processes:
        process.events.on("node_down", ran, once_per="cluster")
        process.events.on("node_down", heard)
    for number in range(5):
        join(pair.url, name=f"worker-{number}").close()
    for _ in range(15):
        heard.next()
    assert sorted(ran.next().node for _ in range(5)) == [f"worker-{number}" for number in range(5)]
    processes[0].close()  # whose own end is one more event, for those that are left
    assert ran.next().node == "manager-0"
    assert ran.is_empty


def test_who_died_and_comes_again_at_once_has_gone_and_come(serving: Serving) -> None:
    heard = Heard()
    with alphorn.cluster.join(serving.url, name="listener") as listener:
        listener.events.on("*", heard)
        _die(alphorn.cluster.join(serving.url, name="worker"))
        with alphorn.cluster.join(serving.url, name="worker"):
            assert [heard.next().kind for _ in range(3)] == ["node_up", "node_down", "node_up"]


def test_two_functions_of_one_name_both_run(join: Join, serving: Serving) -> None:
    ran = [Heard(), Heard()]
    process = join(serving.url, name="manager")
    for ears in ran:
        process.events.on("node_down", ears, once_per="cluster")
    join(serving.url, name="worker").close()
    assert [ears.next().node for ears in ran] == ["worker", "worker"]


@pytest.mark.requirement("CCM-7")
def test_another_process_does_it_when_the_first_is_gone_before_its_function_returned(pair: Serving) -> None:
    entered, gate = Heard(), threading.Event()

    def work(event: Any) -> None:
        entered(threading.current_thread())
        gate.wait(60)

    processes = [alphorn.cluster.join(pair.url, name=f"manager-{number}") for number in range(2)]
    for process in processes:
        process.events.on("destination_created", work, once_per="cluster")
    reporter = alphorn.cluster.join(pair.url, name="reporter")
    _report(reporter, "destination_created")
    first = entered.next()
    [busy] = [process for process in processes if process._threads._caller is first]
    busy.__exit__(RuntimeError, None, None)
    assert entered.next() is not first
    gate.set()
    for process in (*processes, reporter):
        process.close()


def test_functions_run_in_the_order_in_which_they_were_registered(join: Join, serving: Serving) -> None:
    heard = Heard()
    process = join(serving.url, name="listener")
    process.events.on("node_up", lambda event: heard("first"))
    process.events.on("*", lambda event: heard("second"))
    process.events.on("node_up", lambda event: heard("third"))
    join(serving.url, name="worker")
    assert [heard.next() for _ in range(3)] == ["first", "second", "third"]


def test_the_last_events_can_be_asked_for(join: Join, serving: Serving) -> None:
    process, heard = join(serving.url, name="listener"), Heard()
    process.events.on("node_down", heard)
    for number in range(3):
        join(serving.url, name=f"worker-{number}").close()
        heard.next()
    happened = [(event.kind, event.node) for event in process.events.recent()]
    assert happened[0] == ("node_up", "listener")
    assert happened[-2:] == [("node_up", "worker-2"), ("node_down", "worker-2")]
    assert [event.node for event in process.events.recent(maximum=1)] == ["worker-2"]
    with pytest.raises(Misuse, match="maximum"):
        process.events.recent(maximum=0)


def test_that_commands_come_and_go_is_no_news(join: Join, serving: Serving) -> None:
    process, heard = join(serving.url, name="listener"), Heard()
    process.events.on("*", heard)
    join(serving.url, name="alphorn:events:1").close()
    join(serving.url, name="worker")
    assert heard.next().node == "worker"
    assert [event.node for event in process.events.recent()] == ["listener", "worker"]


def test_an_unknown_kind_is_refused_with_those_that_there_are(join: Join, serving: Serving) -> None:
    process = join(serving.url, name="listener")
    with pytest.raises(Misuse, match=r"no events of kind 'node_upp'; there are .*destination_created.*node_down"):
        process.events.on("node_upp", Heard())


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((7, print), "is a str"),
        ((["node_up"], print), "is a str"),
        (("node_up", "print"), "no function"),
        (("node_up", None), "no function"),
        (("node_up", print, "node"), "'process', or 'cluster'"),
    ],
)
def test_what_cannot_be_meant_is_refused(join: Join, serving: Serving, arguments: Any, reason: str) -> None:
    process = join(serving.url, name="listener")
    with pytest.raises(Misuse, match=reason):
        process.events.on(*arguments)
    with pytest.raises(Misuse, match="no function"):
        process.on_message(None)


def test_a_function_that_exits_ends_nothing(join: Join, serving: Serving, caplog: pytest.LogCaptureFixture) -> None:
    heard = Heard()
    process = join(serving.url, name="listener")
    process.events.on("node_up", lambda event: 1 // 0)
    process.events.on("node_up", heard)
    with caplog.at_level(logging.ERROR):
        join(serving.url, name="worker")
        assert heard.next().node == "worker"
    assert "for=node_up of worker" in caplog.text


def _report(process: Any, kind: str) -> None:
    """What a node tells."""
    event = Event(kind=kind, node=process.name, channel="main", number=7, details={"destination": "queue:orders"})
    process._threads.do(lambda: process._membership._runner.happen(event))


def _die(process: Any) -> None:
    """As kill -9 does: its connections are cut, and it says nothing any more."""
    runner = process._membership._runner

    def cut() -> None:
        runner._driver.close()
        runner._tasks.cancel()
        for stream in runner._streams.values():
            stream.abort("its process has died")

    process._threads.do(cut)
    process.__exit__(RuntimeError, None, None)
