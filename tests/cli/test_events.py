"""`alphorn events` and `alphorn tell` against real message servers."""

import ast
import http.server
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import alphorn
from alphorn.cli import hooks
from alphorn.cli.events import line_of
from alphorn.model.events import Event
from tests.cli.commands import run
from tests.cluster.serving import Heard, Serving

LOOKER = "looker"
COMMAND = [str(Path(sys.executable).parent / "alphorn")]
EVENT = Event(
    kind="node_down", node="mm1", channel="main", epoch=3, time=1.5e9, number=7, details={"why": "a\0b\n$(x)"}
)


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    with Serving(tmp_path, count=2) as running:
        yield running


@pytest.fixture
def listener(serving: Serving) -> Iterator[Any]:
    """A program that is there."""
    with alphorn.cluster.join(serving.url, name="listener") as process:
        yield process


@pytest.fixture
def web() -> Iterator[Any]:
    """A server that remembers what is posted to it; it refuses what it is told to."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            server: Any = self.server
            server.posted((self.path, dict(self.headers), self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(server.code, "No way" if server.code >= 400 else None)
            self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            """Nobody reads it."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        made: Any = server
        made.posted, made.code, made.url = Heard(), 200, f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield made
        server.shutdown()
        thread.join()


def come_and_go(serving: Serving, *names: str) -> None:
    """Two events for each of these; they have happened when this returns."""
    heard = Heard()
    with alphorn.cluster.join(serving.url, name="witness") as process:
        process.events.on("node_down", heard)
        for name in names:
            alphorn.cluster.join(serving.url, name=name).close()
            heard.until(lambda event, name=name: event.node == name)


class Following:
    """`alphorn events -f` in a process of its own, which has joined and listens when it is made."""

    def __init__(self, serving: Serving, *options: str) -> None:
        environment = os.environ | {"ALPHORN_URL": serving.url, "PYTHONUNBUFFERED": "1"}
        self._command = subprocess.Popen(
            [*COMMAND, "events", "-f", *options],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._serving = serving
        self._until_it_listens()

    def _until_it_listens(self) -> None:
        """Lets things happen until it shows one of them."""
        assert self._command.stdout is not None
        output = select.poll()
        output.register(self._command.stdout.fileno(), select.POLLIN)
        while not output.poll(0):
            alphorn.cluster.join(self._serving.url, name=LOOKER).close()

    def line(self) -> str:
        """The next line of standard output that is not about who looked whether it listens."""
        assert self._command.stdout is not None
        while LOOKER in (line := self._command.stdout.readline()):
            pass
        return line

    def complaint(self) -> str:
        """The next line of standard error."""
        assert self._command.stderr is not None
        return self._command.stderr.readline()

    def end(self, number: int = signal.SIGINT) -> tuple[int, str, str]:
        """Exit code, and the rest of both outputs."""
        self._command.send_signal(number)
        rest = self._command.communicate(timeout=60)
        return (self._command.returncode, *rest)


def test_the_last_events_are_printed_a_line_each(
    serving: Serving, listener: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    come_and_go(serving, "worker-1", "worker-2")
    assert run("events", "--url", serving.url, "--kind", "node_down") == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[2:4] for line in lines if line[3] != "witness"] == [
        ["node_down", "worker-1"],
        ["node_down", "worker-2"],
    ]


def test_for_programs_each_event_is_an_object_on_a_line(
    serving: Serving, listener: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    come_and_go(serving, "worker-1")
    options = ["--kind", "node_up", "--kind", "node_down", "--count", "3", "--json"]
    assert run("events", "--url", serving.url, *options) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(one["kind"], one["node"]) for one in found] == [
        ("node_up", "worker-1"),
        ("node_down", "worker-1"),
        ("node_down", "witness"),
    ]
    assert {"kind", "node", "channel", "epoch", "time", "number"} <= set(found[0])


def test_a_command_leaves_no_traces(serving: Serving, listener: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(3):
        assert run("events", "--url", serving.url, "--json") == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {one["node"] for one in found} == {"listener"}
    assert listener.others() == []


def test_those_that_come_are_shown_until_ctrl_c(serving: Serving, listener: Any) -> None:
    following = Following(serving, "--kind", "node_down", "--json")
    come_and_go(serving, "worker")
    assert [json.loads(following.line())["node"] for _ in range(2)] == ["worker", "witness"]
    assert following.end() == (0, "", "")


def test_for_people_they_are_lines(serving: Serving, listener: Any) -> None:
    following = Following(serving)
    come_and_go(serving, "worker")
    while "worker" not in (line := following.line()):
        pass
    assert line.split()[2:4] == ["node_up", "worker"]
    assert following.end()[0] == 0


@pytest.mark.requirement("CCM-7")
def test_a_command_gets_the_event_on_standard_input_and_in_its_environment(
    serving: Serving, listener: Any, tmp_path: Path
) -> None:
    script = tmp_path / "hook"
    script.write_text(
        f"#!{sys.executable}\nimport os, sys\n"
        f"with open({str(tmp_path / 'seen')!r}, 'a') as seen:\n"
        "    seen.write(repr((sys.argv[1:], sys.stdin.read(), os.environ['ALPHORN_EVENT_NODE'])) + '\\n')\n"
        "if os.environ['ALPHORN_EVENT_NODE'] == 'worker-1': sys.exit(3)\n"
        "if os.environ['ALPHORN_EVENT_NODE'] == 'worker-2': print('done')\n"
    )
    script.chmod(0o755)
    following = Following(serving, "--kind", "node_down", "--exec", f"{script} --to 'the $(boss)'", "--json")
    come_and_go(serving, "worker-1", "worker-2")
    nodes = [json.loads(following.line())["node"] for _ in range(3)]
    assert nodes == ["worker-1", "worker-2", "witness"]
    assert following.complaint() == f"alphorn: {script} ended with exit code 3, for node_down of worker-1; going on\n"
    assert following.complaint() == "done\n"
    assert following.end() == (0, "", "")
    seen = [ast.literal_eval(line) for line in (tmp_path / "seen").read_text().splitlines() if LOOKER not in line]
    assert [arguments for arguments, _, _ in seen] == [["--to", "the $(boss)"]] * len(seen)
    assert [json.loads(said)["node"] for _, said, _ in seen[:2]] == nodes[:2]  # the last one may be cut off by Ctrl-C
    assert [node for _, _, node in seen[:2]] == nodes[:2]


@pytest.mark.requirement("CCM-7")
def test_events_are_posted_as_json(serving: Serving, listener: Any, web: Any) -> None:
    following = Following(serving, "--kind", "node_down", "--post", f"{web.url}/secret-path")
    come_and_go(serving, "worker")
    path, headers, data = web.posted.until(lambda posted: LOOKER.encode() not in posted[2])
    assert (path, headers["Content-Type"], json.loads(data)["node"]) == ("/secret-path", "application/json", "worker")
    assert json.loads(web.posted.next()[2])["node"] == "witness"
    web.code = 500
    come_and_go(serving, "another")
    complaint = following.complaint()
    assert complaint == f"alphorn: {web.url} answered 500 No way, for node_down of another; going on\n"
    assert following.end()[0] == 0


def test_a_post_follows_to_no_other_place(web: Any) -> None:
    web.code = 302
    assert hooks.hook_url(f"{web.url}/a")(EVENT) == f"{web.url} answered 302 Found"
    assert web.posted.next()[0] == "/a"
    assert web.posted.is_empty


def test_a_post_that_reaches_nobody_is_told_without_its_path() -> None:
    assert hooks.hook_url("http://127.0.0.1:1/secret")(EVENT) == (
        "http://127.0.0.1:1 could not be reached: Connection refused"
    )


@pytest.mark.parametrize(
    "url", ["", "file:///etc/passwd", "ftp://a/b", "http://", "http://a:b", "https://a b", "nowhere", "http://a\n/b"]
)
def test_what_is_no_url_of_the_web_is_refused(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("events", "-f", "--post", url) == 1
    assert "is no URL of the web; write one like --post https://" in capsys.readouterr().err


def test_a_password_in_the_url_is_refused_and_not_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("events", "-f", "--post", "https://me:hunter2@host/") == 1
    said = capsys.readouterr().err
    assert "--post takes no user" in said
    assert "hunter2" not in said


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("", "names no command"),
        ("'unfinished", "no closing quotation; close its quotes"),
        ("/nowhere/at-all now", "no program that can be run"),
    ],
)
def test_what_cannot_be_run_is_refused(command: str, reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("events", "-f", "--exec", command) == 1
    assert reason in capsys.readouterr().err


def test_a_command_that_hangs_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks, "COMMAND_S", 0.1)
    assert "did not end within 0 s and was killed" in hooks.hook_command("sleep 1000", is_output_ours=False)(EVENT)


def test_a_command_that_a_signal_ends_is_told() -> None:
    assert hooks.hook_command("sh -c 'kill -9 $$'", is_output_ours=False)(EVENT) == "sh ended by signal 9"


def test_a_command_that_does_not_read_is_fine() -> None:
    assert hooks.hook_command("true", is_output_ours=False)(EVENT) == ""


def test_whatever_an_event_says_fits_into_the_environment() -> None:
    event = Event(kind="k", node="\ud800", details={"a-b c": 1.5, "kind": "program"})
    found = hooks.variables_of(event)
    assert found["ALPHORN_EVENT_KIND"] == "k"
    assert found["ALPHORN_EVENT_NODE"] == "?"
    assert found["ALPHORN_EVENT_A_B_C"] == "1.5"
    assert found["ALPHORN_EVENT_DETAIL_KIND"] == "program"
    assert hooks.variables_of(EVENT)["ALPHORN_EVENT_WHY"] == "ab\n$(x)"


def test_a_line_has_nothing_that_moves_a_terminal() -> None:
    line = line_of(EVENT)
    assert line[20:] == " node_down            mm1  channel=main epoch=3 why=a?b?$(x)"


def test_an_unknown_kind_is_refused_with_those_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("events", "--kind", "node_upp") == 1
    said = capsys.readouterr().err
    assert "there are no events of kind 'node_upp'; there are" in said
    assert "node_suspected" in said


def test_who_follows_is_told_when_no_message_server_is_left(serving: Serving) -> None:
    following = Following(serving, "--json")
    for name in ("ms1", "ms2"):
        serving.stop(name)
    assert following.complaint() == "alphorn: no message server is reached any more; trying again, Ctrl-C gives up\n"
    serving.serve("ms1")
    assert following.complaint() == "alphorn: message servers are reached again\n"
    assert following.end()[0] == 0


def test_what_is_told_has_arrived_when_the_command_says_so(
    serving: Serving, listener: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    heard = Heard()
    listener.on_message(heard)
    assert run("tell", "listener", "hello there", "--url", serving.url) == 0
    assert capsys.readouterr().out == "listener has it\n"
    message = heard.next()
    assert message.body == "hello there"
    assert message.sender.startswith("alphorn:tell:")
    assert run("tell", "listener", "again", "--url", serving.url, "--json") == 0
    assert json.loads(capsys.readouterr().out)["node"] == "listener"


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (["nobody", "x"], 1, "no process is named 'nobody'"),
        (["", "x"], 1, "no name of a work process"),
        (["cm1", "x", "--timeout", "0.1"], 1, "cm1 "),
        (["listener", "x" * (1 << 20) + "x"], 1, "1 MiB at once and no more"),
        (["listener"], 2, "TEXT"),
        (["listener", "x", "--timeout", "-1"], 2, "--timeout"),
    ],
)
def test_what_was_not_told_is_one_sentence(
    serving: Serving, listener: Any, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, reason: str
) -> None:
    assert run("tell", *arguments, "--url", serving.url) == code
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert reason in said.err


def test_a_cluster_that_is_not_there_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("tell", "mm1", "hello", "--url", "alphorn://127.0.0.1:1") == 1
    assert capsys.readouterr().err.startswith("alphorn: no Client Manager answered within 5 s")
