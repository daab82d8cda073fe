"""What commands do while a cluster does not answer, as one without a primary."""

import threading
from typing import Any

import pytest

from alphorn.cli import receive, talking, waiting
from alphorn.model.errors import Unavailable
from tests.cli.commands import run
from tests.cli.fake_cluster import FakeCluster


class SilentCluster(FakeCluster):
    """Answers one of its calls only after somebody was told that it does not."""

    def __init__(self, silent: str, *, is_blocked: bool = False) -> None:
        super().__init__(["one"])
        self.destinations = self
        self.explained = threading.Event()
        self._is_blocked = is_blocked
        setattr(self, silent, self._wait)

    def _wait(self, *arguments: object, **named: object) -> "SilentCluster":
        assert self.explained.wait(20)
        return self

    def is_blocked(self) -> bool:
        return self._is_blocked


@pytest.fixture
def silent(monkeypatch):
    """Makes a cluster that is silent in one call, until a sentence is said."""

    def make(name: str, sentence: str = "", **how: Any) -> SilentCluster:
        cluster = SilentCluster(name, **how)

        def explain(*words: str, **how: Any) -> None:
            print(*words, **how)
            if sentence in words[0]:
                cluster.explained.set()

        monkeypatch.setattr(talking, "connect", cluster.connect)
        monkeypatch.setattr(waiting, "SILENT_S", 0.0)
        monkeypatch.setattr(waiting, "print", explain, raising=False)
        return cluster

    return make


@pytest.mark.parametrize(
    ("call", "arguments", "sentence"),
    [
        ("consumer", "receive orders --timeout 20", "queue:orders does not answer yet"),
        ("consumer", "tail prices --count 1", "topic:prices does not answer yet"),
        ("producer", "send orders hello", "queue:orders does not answer yet"),
        ("flush", "send orders hello", "queue:orders does not confirm yet"),
        ("create", "destinations create orders", "queue:orders does not confirm yet"),
        ("delete", "destinations delete orders", "queue:orders does not confirm yet"),
        ("move", "move orders channel-2", "queue:orders is not on channel-2 yet"),
        ("open", "channel open channel-2", "channel-2 does not confirm yet"),
    ],
)
def test_who_waits_long_is_told_what_for(silent, capsys, call, arguments, sentence):
    silent(call, sentence)
    assert run(*arguments.split()) == 0
    assert f"alphorn: {sentence}; waiting, Ctrl-C gives up" in capsys.readouterr().err.splitlines()


def test_who_waits_for_a_full_destination_is_told_that_it_is_full(silent, capsys):
    sentence = "queue:orders takes no more at the moment, and `alphorn status` tells why"
    silent("flush", sentence, is_blocked=True)
    assert run("send", "orders", "hello") == 0
    assert sentence in capsys.readouterr().err


def test_receiving_gives_up_in_time_where_nobody_answers(silent, capsys, monkeypatch):
    cluster = silent("consumer")
    monkeypatch.setattr(receive, "OPEN_S_MIN", 0.01)
    monkeypatch.setattr(waiting, "SILENT_S", 20.0)
    assert run("receive", "orders", "--timeout", "0.01") == 1
    cluster.explained.set()
    assert capsys.readouterr().err.startswith("alphorn: queue:orders did not answer within 0.01 s; `alphorn status`")


@pytest.mark.parametrize("seconds", ["inf", "1e10"])
def test_receiving_waits_for_ever_where_it_is_told_to(monkeypatch, capfdbinary, seconds):
    monkeypatch.setattr(talking, "connect", FakeCluster(["one"]).connect)
    assert run("receive", "orders", "--timeout", seconds) == 0
    assert capfdbinary.readouterr().out == b"one\n"


def test_what_a_call_raises_is_raised_where_it_is_waited_for():
    def refuse() -> None:
        raise Unavailable("not now")

    with pytest.raises(Unavailable, match="not now"):
        waiting.within(20, refuse, "it did not answer")


def test_a_command_that_failed_does_not_wait_for_a_cluster_that_says_no_goodbye(monkeypatch):
    silence = threading.Event()

    class Silent(FakeCluster):
        def __exit__(self, *error: object) -> None:
            silence.wait(20)

    monkeypatch.setattr(waiting, "GOODBYE_S", 0.01)
    with pytest.raises(KeyboardInterrupt), waiting.ending(Silent([])):
        raise KeyboardInterrupt
    assert not silence.is_set()
    silence.set()


@pytest.mark.parametrize(
    ("looks", "is_told"), [("step step ours step", False), ("step ours none", True), ("ours ours", False)]
)
def test_nothing_is_explained_while_the_work_goes_on_or_waits_for_us(capsys, looks, is_told):
    pace, rest = waiting.Pace(), looks.split()

    def is_over(seconds: float) -> bool:
        if not rest:
            return True
        look = rest.pop(0)
        pace.steps += look == "step"
        pace.is_ours = look == "ours"
        return False

    waiting.explain("nobody answers", pace, is_over)
    assert capsys.readouterr().err == "alphorn: nobody answers; waiting, Ctrl-C gives up\n" * is_told


def hear(link: waiting.Link, *names: str) -> None:
    """Each event comes when all that the one before makes it say has been said."""
    for name in names:
        link.on_event(name, "")
        if link._silence is not None:
            link._silence.join()


def test_a_lost_connection_is_told_and_that_it_is_back(monkeypatch, capsys):
    monkeypatch.setattr(waiting, "SILENT_S", 0.0)
    hear(waiting.Link(), "connected", "disconnected", "resumed", "disconnected", "closed")
    lost = "alphorn: the connection to the cluster is lost; trying again, Ctrl-C gives up"
    assert capsys.readouterr().err.splitlines() == [lost, "alphorn: the cluster is reached again", lost]


@pytest.mark.parametrize("end", ["resumed", "closed"])
def test_a_connection_that_is_lost_for_a_moment_is_not_worth_a_word(capsys, end):
    link = waiting.Link()
    for name in ("connected", "disconnected", end):
        link.on_event(name, "")
    assert capsys.readouterr().err == ""


def test_every_command_hears_of_a_lost_connection(monkeypatch, capsys):
    monkeypatch.setattr(waiting, "SILENT_S", 0.0)

    class Lost(FakeCluster):
        def connect(self, url: str, **how: Any) -> FakeCluster:
            link = how["on_event"].__self__
            hear(link, "disconnected")
            return self

    monkeypatch.setattr(talking, "connect", Lost(["one"]).connect)
    assert run("receive", "orders") == 0
    assert "the connection to the cluster is lost" in capsys.readouterr().err
