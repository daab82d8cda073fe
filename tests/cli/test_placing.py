"""`alphorn move` and `alphorn channel` against a connection that remembers what it is told."""

import json

import pytest

from alphorn.cli import talking
from alphorn.model.errors import Misuse
from tests.cli.commands import run


class FakeDestinations:
    """Connection and destinations in one; `log` has every call."""

    def __init__(self) -> None:
        self.log: list[tuple[object, ...]] = []
        self.dead = 0  # messages on channel-2
        self.destinations = self

    def connect(self, url: str, **how: object) -> "FakeDestinations":
        return self

    def __enter__(self) -> "FakeDestinations":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def move(self, name: str, channel: str) -> None:
        self.log.append(("move", name, channel))
        if channel == "nowhere":
            raise Misuse("there is no channel 'nowhere'; there are channel-1, channel-2")

    def drain(self, channel: str) -> int:
        self.log.append(("drain", channel))
        return 3

    def open(self, channel: str) -> None:
        self.log.append(("open", channel))

    def status(self) -> dict[str, object]:
        rows = [
            ("queue:temporary.x", "channel-2", 1),
            ("queue:_DMQ", "channel-2", self.dead),
            ("queue:_DMQ", "channel-1", 7),
        ]
        return {"destinations": [{"name": name, "channel": channel, "depth": depth} for name, channel, depth in rows]}


@pytest.fixture
def cluster(monkeypatch):
    fake = FakeDestinations()
    monkeypatch.setattr(talking, "connect", fake.connect)
    return fake


def test_a_bare_name_is_a_queue_and_the_end_is_told(cluster, capsys):
    assert run("move", "orders", "channel-2") == 0
    assert cluster.log == [("move", "queue:orders", "channel-2")]
    assert capsys.readouterr().out == "queue:orders is on channel-2\n"


def test_a_refused_move_is_one_sentence(cluster, capsys):
    assert run("move", "topic:prices", "nowhere") == 1
    assert capsys.readouterr().err == "alphorn: there is no channel 'nowhere'; there are channel-1, channel-2\n"


def test_a_drain_says_what_was_moved_and_what_is_left(cluster, capsys):
    assert run("channel", "drain", "channel-2") == 0
    assert capsys.readouterr().out == (
        "3 destinations were moved off channel-2\n"
        "still there, of the system or temporary: queue:temporary.x, queue:_DMQ\n"
    )
    assert run("channel", "drain", "channel-2", "--json") == 0
    assert json.loads(capsys.readouterr().out)["moved"] == 3


@pytest.mark.parametrize(("dead", "words"), [(1, "1 dead message is gone"), (2000, "2,000 dead messages are gone")])
def test_a_drain_warns_of_dead_messages_that_would_go_with_the_channel(cluster, capsys, dead, words):
    cluster.dead = dead
    assert run("channel", "drain", "channel-2") == 0
    warning = capsys.readouterr().out.splitlines()[-1]
    assert warning == f"{words} when channel-2 is removed; see queue:_DMQ@channel-2 with alphorn dlq"
    assert run("channel", "drain", "channel-2", "--json") == 0
    assert json.loads(capsys.readouterr().out)["dead"] == dead


def test_a_channel_is_opened_again(cluster, capsys):
    assert run("channel", "open", "channel-2", "--json") == 0
    assert cluster.log == [("open", "channel-2")]
    assert json.loads(capsys.readouterr().out) == {"channel": "channel-2"}
