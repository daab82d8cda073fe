import errno
import json
import logging
import threading

import pytest

from alphorn.io.log_task import CURRENT_NODE, LogFile, LogHandler, LogTask, fields_of

pytestmark = pytest.mark.requirement("LOG-1")


class Collected:
    """A place that keeps what it gets, and waits where it is told to."""

    def __init__(self) -> None:
        self.lines: list[dict[str, object]] = []
        self.entered = threading.Event()
        self.may_go = threading.Event()
        self.may_go.set()

    def __call__(self, lines: list[bytes]) -> None:
        self.entered.set()
        assert self.may_go.wait(30)
        self.lines += map(json.loads, lines)

    def values(self, field: str) -> list[object]:
        return [line.get(field) for line in self.lines]


def record(text: str, *arguments: object, **more: object) -> logging.LogRecord:
    return logging.LogRecord("alphorn.sample", logging.INFO, "sample.py", 1, text, arguments, None, **more)


def test_each_line_is_an_object_with_time_level_node_event_and_fields(tmp_path):
    file = LogFile(tmp_path / "log.jsonl")
    task = LogTask("mm1", [file])
    task.say("info", "link_lost", {"to": "mm2", "attempts": 3})
    assert task.close(wait_s=30)
    (line,) = map(json.loads, (tmp_path / "log.jsonl").read_text().splitlines())
    assert line.pop("time").endswith("Z")
    assert line == {"level": "info", "node": "mm1", "event": "link_lost", "to": "mm2", "attempts": 3}


def test_a_file_begins_anew_at_its_size_and_a_few_older_ones_are_kept(tmp_path):
    file = LogFile(tmp_path / "log", bytes_max=10, kept=2)
    for number in range(6):
        file([f"{number}{number}\n".encode(), b"abc\n", b"defg\n"])
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["log", "log.1", "log.2"]
    assert all(path.stat().st_size <= 10 for path in tmp_path.iterdir())
    together = b"".join((tmp_path / name).read_bytes() for name in ("log.2", "log.1", "log"))
    assert together == b"44\nabc\ndefg\n55\nabc\ndefg\n"[-len(together) :]


def test_a_line_larger_than_a_file_is_written_whole(tmp_path):
    file = LogFile(tmp_path / "log", bytes_max=10)
    file([b"a" * 30 + b"\n", b"b\n"])
    assert (tmp_path / "log.1").read_bytes() == b"a" * 30 + b"\n"
    assert (tmp_path / "log").read_bytes() == b"b\n"


def test_a_restarted_node_goes_on_with_its_file(tmp_path):
    LogFile(tmp_path / "log", bytes_max=10)([b"12345\n"])
    LogFile(tmp_path / "log", bytes_max=10)([b"678\n"])
    LogFile(tmp_path / "log", bytes_max=10)([b"9\n"])
    assert (tmp_path / "log.1").read_bytes() == b"12345\n678\n"
    assert (tmp_path / "log").read_bytes() == b"9\n"


def test_what_is_no_unicode_is_escaped_and_the_log_goes_on():
    place = Collected()
    task = LogTask("mm1", [place])
    LogHandler([task]).emit(record("event=file_lost path=%s error=%r", "caf\udce9", OSError(2, "no", "\ud800")))
    assert place.entered.wait(30)
    task.say("info", "next", {})
    assert task.close(wait_s=30)
    assert place.values("event") == ["file_lost", "next"]
    assert place.lines[0]["path"] == "caf\\udce9"


@pytest.mark.requirement("LOG-3")
def test_a_place_that_hangs_makes_nobody_wait_and_drops_are_counted_and_said():
    slow = Collected()
    task = LogTask("mm1", [slow], queue_lines_max=5)
    slow.may_go.clear()
    task.say("info", "first", {})
    assert slow.entered.wait(30)
    for number in range(8):  # returns each time although the place is stuck
        task.say("info", "next", {"number": number})
    assert task.dropped == 3
    slow.may_go.set()
    assert task.close(wait_s=30)
    assert slow.values("event") == ["first", *["next"] * 5, "log_lines_dropped"]
    assert slow.lines[-1]["lines"] == 3


@pytest.mark.requirement("LOG-3")
def test_lines_go_to_every_place_and_one_that_fails_harms_no_other():
    def full_disk(lines: list[bytes]) -> None:
        raise OSError(errno.ENOSPC, "no space")

    first, last = Collected(), Collected()
    task = LogTask("mm1", [first, full_disk, last])
    task.say("info", "one", {})
    task.say("info", "two", {})
    assert task.close(wait_s=30)
    assert first.values("event") == last.values("event") == ["one", "two"]
    assert task.failed == 2


def test_lines_are_published_once_somebody_takes_them():
    published, file = Collected(), Collected()
    task = LogTask("mm1", [file])
    task.say("info", "before", {})
    assert file.entered.wait(30)
    task.publish = published
    task.say("info", "after", {})
    assert task.close(wait_s=30)
    assert published.values("event")[-1] == "after"


def test_what_is_said_after_closing_is_dropped():
    place = Collected()
    task = LogTask("mm1", [place])
    assert task.close(wait_s=30)
    task.say("info", "late", {})
    assert task.describe() == {"waiting": 0, "dropped": 1, "failed": 0}


def test_a_record_of_our_form_keeps_its_values():
    event, fields = fields_of(record("event=link_lost to=%s attempts=%d ratio=%.2f fixed=1", "a b", 3, 0.25))
    assert event == "link_lost"
    assert fields == {"to": "a b", "attempts": 3, "ratio": 0.25, "fixed": "1", "logger": "alphorn.sample"}


def test_a_record_of_another_form_is_kept_as_text():
    event, fields = fields_of(record("event=odd 100%% of %s", "it"))
    assert (event, fields["text"]) == ("odd", "100% of it")
    event, fields = fields_of(record("plain words"))
    assert (event, fields["text"]) == ("said", "plain words")


def test_a_form_that_is_an_argument_itself_is_taken_apart():
    event, fields = fields_of(record("event=%s node=%s %s", "connected", "cm1", "connection=7f resumed=False"))
    assert event == "connected"
    assert fields == {"node": "cm1", "connection": "7f", "resumed": "False", "logger": "alphorn.sample"}


def test_fields_never_replace_what_every_line_has():
    place = Collected()
    task = LogTask("mm1", [place])
    LogHandler([task]).handle(record("event=x node=%s time=%d level=%d", "other", 7, 8))
    assert task.close(wait_s=30)
    assert (place.lines[0]["node"], place.lines[0]["time_"], place.lines[0]["level_"]) == ("mm1", 7, 8)


def test_a_value_that_is_no_plain_one_becomes_text_at_once():
    changing = [1]
    _, fields = fields_of(record("event=x value=%s", changing))
    changing.append(2)
    assert fields["value"] == "[1]"


def test_an_exception_is_kept_with_its_traceback():
    try:
        raise ZeroDivisionError("sample")
    except ZeroDivisionError as error:
        said = record("event=x")
        said.exc_info = (type(error), error, error.__traceback__)
    _, fields = fields_of(said)
    assert str(fields["exception"]).endswith("ZeroDivisionError: sample\n")


@pytest.mark.requirement("MM-15")
def test_nodes_that_share_a_process_log_apart():
    places = [Collected(), Collected()]
    tasks = [LogTask(name, [place]) for name, place in zip(("mm1", "mm2"), places, strict=True)]
    handler = LogHandler(tasks)
    handler.handle(record("event=without_context"))
    token = CURRENT_NODE.set("mm2")
    handler.handle(record("event=within"))
    handler.handle(record("event=named node=%s", "mm1"))
    CURRENT_NODE.reset(token)
    for task in tasks:
        assert task.close(wait_s=30)
    assert [place.values("event") for place in places] == [["without_context", "named"], ["within"]]
