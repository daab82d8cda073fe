"""`alphorn send`, `receive`, `browse`, `tail` and `status` against a connection that remembers what it is told."""

import base64
import datetime
import io
import json
import os
import re
import sys

import pytest

from alphorn.cli import send, talking
from alphorn.model.errors import Unavailable
from tests.cli.commands import run
from tests.cli.fake_cluster import ID, FakeCluster, FakeMessage


@pytest.fixture
def cluster(monkeypatch):
    fake = FakeCluster(["one", b"\xff\x00", {"id": 3}])
    monkeypatch.setattr(talking, "connect", fake.connect)
    monkeypatch.delenv("ALPHORN_URL", raising=False)
    return fake


class Input(io.TextIOWrapper):
    """Standard input with these bytes."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data), encoding="utf-8")


def test_a_message_is_sent_and_its_id_printed(cluster, capsys):
    assert run("send", "queue:orders", "hello") == 0
    assert capsys.readouterr().out == f"{ID}\n"
    assert cluster.log == [
        ("connect", "alphorn://127.0.0.1:7700"),
        ("session", "auto"),
        ("producer", "queue:orders"),
        ("send", "hello", {"properties": {}, "priority": 4}),
        "flush",
        "closed",
    ]


def test_everything_a_message_can_carry_is_sent(cluster):
    options = ["--property", "region=eu", "--property", "n=5", "--property", 'text="5"', "--property", "is=true"]
    assert run("send", "topic:t", "x", *options, "--priority", "9", "--ttl", "30", "--delay", "0.5") == 0
    properties = {"region": "eu", "n": 5, "text": "5", "is": True}
    assert ("send", "x", {"properties": properties, "priority": 9, "ttl": 30.0, "delay": 0.5}) in cluster.log
    fields = ["--key", "k", "--type", "order", "--correlation-id", "c7", "--reply-to", "answers"]
    assert run("send", "topic:t", "y", *fields) == 0
    sent = {"key": "k", "type": "order", "correlation_id": "c7", "reply_to": "queue:answers"}
    assert ("send", "y", {"properties": {}, "priority": 4} | sent) in cluster.log


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_property_that_no_number_of_json_can_tell_is_text(cluster, text):
    assert run("send", "orders", "x", "--property", f"n={text}") == 0
    assert cluster.log[3][2]["properties"] == {"n": text}


def test_more_messages_than_anybody_can_count_are_begun_all_the_same():
    assert next(send.batches(10**30)) == 1_000


def test_many_messages_are_sent_in_batches(cluster, capsys):
    assert run("send", "orders", "x", "--count", "2500") == 0
    assert [call[1] for call in cluster.log if call[0] == "send_many"] == [1000, 1000, 500]
    assert cluster.log[-2:] == ["flush", "closed"]
    assert capsys.readouterr().out.startswith("sent 2,500 messages to queue:orders in ")


@pytest.mark.parametrize(("count", "is_shown"), [("10000", False), ("10001", True)])
def test_much_to_send_has_a_progress_bar_on_a_terminal(cluster, capsys, monkeypatch, count, is_shown):
    monkeypatch.setenv("FORCE_COLOR", "1")  # stands for a terminal
    assert run("send", "orders", "x", "--count", count) == 0
    captured = capsys.readouterr()
    assert ("sending" in captured.err) is is_shown
    assert "sending" not in captured.out


def test_a_stream_has_a_progress_bar_on_a_terminal_alone(cluster, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(send, "BODY_BYTES_MAX", 4)
    (tmp_path / "film").write_bytes(b"123456789")
    assert run("send", "orders", "--file", str(tmp_path / "film")) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("FORCE_COLOR", "1")  # stands for a terminal
    assert run("send", "orders", "--file", str(tmp_path / "film")) == 0
    captured = capsys.readouterr()
    assert "9/9 bytes" in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", captured.err)
    assert captured.out == f"{ID}\n"


def test_while_standard_input_is_awaited_nobody_waits_for_the_cluster():
    seen: list[tuple[bool, int]] = []

    class Source(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            seen.append((begun.pace.is_ours, begun.pace.steps))
            return super().read(size)

    begun = send.Begun(b"12", Source(b"345"))
    assert [begun.read(3), begun.read(3), begun.read(3)] == [b"12", b"345", b""]
    assert seen == [(True, 1), (True, 2)]
    assert (begun.pace.is_ours, begun.pace.steps) == (False, 3)


def test_elsewhere_there_is_no_progress_bar(cluster, capsys):
    assert run("send", "orders", "x", "--count", "20000") == 0
    assert capsys.readouterr().err == ""


def test_what_was_sent_is_told_to_programs(cluster, capsys):
    assert run("send", "orders", "x", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["destination"], told["sent"], told["id"]) == ("queue:orders", 1, ID)


@pytest.mark.parametrize(("data", "body"), [("wörter\n".encode(), "wörter\n"), (b"\xff\x00", b"\xff\x00")])
def test_standard_input_is_a_text_where_it_is_one(cluster, monkeypatch, data, body):
    monkeypatch.setattr(sys, "stdin", Input(data))
    assert run("send", "orders") == 0
    assert cluster.log[3][1] == body


def test_a_file_is_sent_as_bytes(cluster, monkeypatch, tmp_path):
    (tmp_path / "file").write_bytes(b"text")
    assert run("send", "orders", "--file", str(tmp_path / "file")) == 0
    monkeypatch.setattr(sys, "stdin", Input(b"other"))
    assert run("send", "orders", "--file", "-") == 0
    assert [call[1] for call in cluster.log if call[0] == "send"] == [b"text", b"other"]


@pytest.mark.requirement("API-17")
def test_a_file_that_no_plain_message_holds_is_sent_as_a_stream(cluster, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(send, "BODY_BYTES_MAX", 4)
    (tmp_path / "file").write_bytes(b"123456789")
    assert run("send", "orders", "--file", str(tmp_path / "file"), "--priority", "7") == 0
    monkeypatch.setattr(sys, "stdin", Input(b"abcdefghi"))
    assert run("send", "orders", "--file", "-") == 0
    streams = [call for call in cluster.log if call[0] == "send_stream"]
    assert streams[0] == ("send_stream", b"123456789", {"properties": {}, "priority": 7})
    assert streams[1][1] == b"abcdefghi"
    assert capsys.readouterr().out == f"{ID}\n{ID}\n"


def test_more_than_one_message_takes_is_refused_before_anything_is_sent(cluster, monkeypatch, capsys):
    monkeypatch.setattr(send, "BODY_BYTES_MAX", 4)
    monkeypatch.setattr(sys, "stdin", Input(b"12345"))
    assert run("send", "orders") == 1
    assert "standard input has more than 3 MB; send it as a stream" in capsys.readouterr().err
    monkeypatch.setattr(sys, "stdin", Input(b"12345"))
    assert run("send", "orders", "--file", "-", "--count", "2") == 1
    assert "leave out --count" in capsys.readouterr().err
    assert cluster.log == []


@pytest.mark.requirement("API-17")
def test_a_streamed_body_is_written_as_it_is(cluster, capsysbinary):
    cluster.messages = [FakeMessage(None, cluster.log, size=5, open=lambda: io.BytesIO(b"\x00film"))]
    assert run("receive", "orders") == 0
    assert capsysbinary.readouterr().out == b"\x00film"


class Film(io.BytesIO):
    """A streamed body that gives a few bytes at a time and remembers how many were asked for at once."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.asked: list[int | None] = []

    def read(self, size: int | None = -1, /) -> bytes:
        self.asked.append(size)
        return super().read(size)


def test_a_streamed_body_is_told_to_programs_before_it_is_acknowledged(cluster, monkeypatch, capsysbinary):
    monkeypatch.setattr(talking, "PIECE_BYTES", 3)
    film = Film(b"\x00film\xff!")
    cluster.messages = [FakeMessage(None, cluster.log, size=7, open=lambda: film, properties={"a": 1})]
    written: list[bytes] = []

    def acknowledge() -> None:
        written.append(capsysbinary.readouterr().out)

    cluster.messages[0].acknowledge = acknowledge
    assert run("receive", "orders", "--json") == 0
    assert written[0].count(b"\n") == 1
    told = json.loads(written[0])
    assert base64.b64decode(told["body_base64"]) == b"\x00film\xff!"
    assert set(told) == {"body_base64", *talking.FIELDS}
    assert (told["size"], told["properties"]) == (7, {"a": 1})
    assert set(film.asked) == {3}


@pytest.mark.parametrize(("command", "name"), [("browse", "films"), ("tail", "films")])
def test_who_only_looks_is_told_the_size_of_a_streamed_body(cluster, capsysbinary, command, name):
    cluster.messages = [FakeMessage(None, cluster.log, size=5, open=None)]
    assert run(command, name, "--count", "1", "--json") == 0
    told = json.loads(capsysbinary.readouterr().out)
    assert (told["size"], told["body"]) == (5, None)
    assert not any(call[0] == "acknowledge" for call in cluster.log)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (
            ["orders", "x", "--property", "region"],
            "the property 'region' has no name or no value; write it as --property name=value",
        ),
        (["orders", "x", "--file", "f"], "there are two bodies, an argument and --file; give one"),
        (["orders", "--file", "/nowhere/file"], "the file /nowhere/file cannot be read: No such file or directory"),
        (["", "x"], "the destination has no name"),
    ],
)
def test_a_message_that_cannot_be_sent_is_one_sentence(cluster, capsys, arguments, reason):
    assert run("send", *arguments) == 1
    captured = capsys.readouterr()
    assert reason in captured.err
    assert captured.err.count("\n") == 1


def test_received_messages_are_written_and_then_acknowledged(cluster, capfdbinary):
    assert run("receive", "orders", "--count", "3", "--selector", "a = 1") == 0
    assert capfdbinary.readouterr().out == b'one\n\xff\x00\n{"id": 3}\n'
    assert ("session", "client") in cluster.log
    assert ("consumer", "queue:orders", {"selector": "a = 1", "prefetch": 3}) in cluster.log
    assert cluster.log[-2:] == [("acknowledge", {"id": 3}), "closed"]


def test_fewer_messages_than_asked_for_is_no_success(cluster, capfdbinary):
    assert run("receive", "orders", "--count", "5", "--timeout", "0.25") == 1
    captured = capfdbinary.readouterr()
    assert captured.out.startswith(b"one\n")
    assert captured.err.startswith(b"alphorn: 3 of 5 messages came from queue:orders, and then none for 0.25 s")


def test_messages_are_told_to_programs_with_all_they_carry(cluster, capfdbinary):
    assert run("receive", "orders", "--count", "3", "--json") == 0
    one, other, last = map(json.loads, capfdbinary.readouterr().out.splitlines())
    assert one["body"] == "one"
    assert set(one) == {"body", *talking.FIELDS}
    assert other["body_base64"] == "/wA="
    assert last["body"] == {"id": 3}
    assert (last["id"], last["sequence"]) == (ID, 7)


def refuse(constant: str) -> object:
    raise AssertionError(f"{constant} is no JSON")


def test_numbers_that_json_does_not_have_are_told_as_texts(cluster, capfdbinary):
    odd = {"a": float("nan"), "b": [float("inf"), 1.5], "c": b"\xff"}
    cluster.messages = [FakeMessage(odd, cluster.log, properties={"n": float("-inf"), "m": 2.5}) for _ in range(2)]
    assert run("receive", "orders", "--json") == 0
    assert run("receive", "orders") == 0
    one, body = (json.loads(line, parse_constant=refuse) for line in capfdbinary.readouterr().out.splitlines())
    assert one["body"] == body == {"a": "NaN", "b": ["Infinity", 1.5], "c": "/w=="}
    assert one["properties"] == {"n": "-Infinity", "m": 2.5}


def test_browsing_shows_and_acknowledges_nothing(cluster, capfdbinary):
    assert run("browse", "orders", "--count", "1", "--selector", "a = 1") == 0
    assert capfdbinary.readouterr().out == b"one\n"
    assert ("browser", "queue:orders", "a = 1") in cluster.log
    assert not any(call[0] == "acknowledge" for call in cluster.log)


def test_browsing_what_does_not_exist_is_an_error_and_creates_nothing(cluster, capsys):
    assert run("browse", "neverseen") == 1
    sentence = "there is no queue:neverseen; `alphorn destinations list` shows what there is"
    assert capsys.readouterr().err == f"alphorn: {sentence}\n"
    assert not any(call[0] == "browser" for call in cluster.log)


def test_what_is_on_a_channel_without_a_primary_is_not_said_to_be_missing(cluster, capsys):
    cluster.state |= {
        "nodes": [{"name": "mm1", "channel": "channel-1"}, {"name": "cm1", "channel": ""}],
        "channels": [],
    }
    assert run("browse", "neverseen") == 1
    assert "channel-1 has no primary now" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["queue:_DMQ", "queue:_DMQ@channel-2"])
def test_what_belongs_to_the_system_is_browsed_whether_it_was_needed_yet_or_not(cluster, name):
    assert run("browse", name) == 0
    assert ("browser", name, None) in cluster.log


def test_an_error_of_the_cluster_is_one_sentence(cluster, capsys):
    assert run("browse", "orders", "--selector", "wrong") == 1
    assert capsys.readouterr().err == "alphorn: the selector ends too early\n"


MOMENT = datetime.datetime(2026, 1, 31, 8)


@pytest.mark.parametrize(
    ("start", "where"),
    [
        ("new", "new"),
        ("earliest", "earliest"),
        ("17", 17),
        ("2026-01-31T08:00", MOMENT),
        ("2026-01-31T08:00Z", MOMENT.replace(tzinfo=datetime.UTC)),
    ],
)
def test_a_topic_is_followed_from_where_it_is_asked_for(cluster, capfdbinary, start, where):
    assert run("tail", "prices", "--count", "2", "--start", start) == 0
    assert capfdbinary.readouterr().out == b"one\n\xff\x00\n"
    assert ("consumer", "topic:prices", {"selector": None, "start": where}) in cluster.log


def test_following_ends_in_peace_when_it_is_interrupted(cluster, monkeypatch):
    def interrupted(maximum: int, timeout: float) -> list[object]:
        raise KeyboardInterrupt

    monkeypatch.setattr(cluster, "receive_many", interrupted)
    assert run("tail", "prices") == 0
    assert cluster.log[-1] == "closed"


def test_following_that_is_interrupted_before_as_many_came_as_were_asked_for_is_no_success(cluster, monkeypatch):
    def interrupted(maximum: int, timeout: float) -> list[object]:
        raise KeyboardInterrupt

    monkeypatch.setattr(cluster, "receive_many", interrupted)
    assert run("tail", "prices", "--count", "5") == 130
    assert cluster.log[-1] == "closed"


def test_a_follower_of_a_quiet_topic_ends_when_its_reader_goes_away(cluster, monkeypatch):
    # A write would tell, but there is nothing to write any more: as in `alphorn tail prices | head -1`.
    read_end, write_end = os.pipe()
    looks: list[float] = []

    def leave(maximum: int, timeout: float) -> list[object]:
        looks.append(timeout)
        if len(looks) == 2:
            os.close(read_end)
        assert len(looks) < 4
        return []

    monkeypatch.setattr(cluster, "receive_many", leave)
    with open(write_end, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        assert run("tail", "prices") == 1
    assert len(looks) == 2
    assert cluster.log[-1] == "closed"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["tail", "queue:orders"], "queue:orders is no topic"),
        (["tail", "prices", "--start", "yesterday"], "--start 'yesterday' is no place in a topic"),
        (["browse", "topic:prices"], "topic:prices is no queue"),
    ],
)
def test_the_wrong_kind_of_destination_is_one_sentence(cluster, capsys, arguments, reason):
    assert run(*arguments) == 1
    captured = capsys.readouterr()
    assert reason in captured.err
    assert captured.err.count("\n") == 1


STATE = {"nodes": [{"name": "mm1", "role": "primary"}], "channels": [], "lost": [], "destinations": []}


def test_the_status_is_told_to_programs_as_it_is(cluster, capsys):
    cluster.state = STATE
    assert run("status", "--json", "--url", "alphorn://h:1") == 0
    assert json.loads(capsys.readouterr().out) == STATE
    assert cluster.log[0] == ("connect", "alphorn://h:1")


def test_the_environment_names_the_cluster(cluster, monkeypatch):
    monkeypatch.setenv("ALPHORN_URL", "alphorn://elsewhere:7700")
    assert run("status", "--json") == 0
    assert cluster.log[0] == ("connect", "alphorn://elsewhere:7700")


def test_a_cluster_that_is_away_is_one_sentence(monkeypatch, capsys):
    def connect(url: str, **how: object) -> None:
        raise Unavailable("no Client Manager answers; start one with alphorn up")

    monkeypatch.setattr(talking, "connect", connect)
    assert run("send", "orders", "x") == 1
    assert capsys.readouterr().err == "alphorn: no Client Manager answers; start one with alphorn up\n"


COMMANDS = {
    "up": "--dir --client-managers --backups --channels --gateways --transport --base-port --no-console",
    "single": "--dir --port",
    "node": "--config --name --found",
    "send": "DEST BODY --count --property --priority --ttl --delay --file --json --url",
    "receive": "DEST --count --timeout --selector --json --url",
    "browse": "QUEUE --selector --json --url",
    "tail": "TOPIC --start --selector --json --url",
    "status": "--json --url",
    "events": "--follow -f --kind --count --exec --post --json --url",
    "tell": "NODE TEXT --timeout --json --url",
    "move": "DEST CHANNEL --json --url",
    "channel": "drain open",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_names_all_it_takes(capsys, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "200")
    assert run(command, "--help") == 0
    text = capsys.readouterr().out
    assert [word for word in COMMANDS[command].split() if word not in text] == []
