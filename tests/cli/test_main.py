import errno
import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

import alphorn
from alphorn.cli import application as cli
from alphorn.model.errors import Unavailable

INSTALLED = Path(sys.executable).parent / "alphorn"


class FakeCommand:
    """A sub-command that does what it was made with."""

    def __init__(self, name: str, act: Callable[[], None]) -> None:
        self._name = name
        self._act = act

    def register(self, app: typer.Typer) -> None:
        app.command(self._name)(self._act)


def run(act: Callable[[], None], *arguments: str) -> int:
    commands = [FakeCommand("act", act), FakeCommand("rest", lambda: None)]
    return cli.run(cli.build_app(commands), arguments)


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(lambda: None, "--version") == 0
    assert capsys.readouterr().out == f"alphorn {alphorn.__version__}\n"


def test_the_package_runs_as_the_command() -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(alphorn.__file__).parent.parent)}
    ran = subprocess.run(
        [sys.executable, "-m", "alphorn", "--version"], capture_output=True, text=True, check=False, env=environment
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, f"alphorn {alphorn.__version__}\n", "")


def test_a_command_that_succeeds_exits_with_zero() -> None:
    assert run(lambda: None, "act") == 0


def test_an_error_becomes_one_sentence_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    def act() -> None:
        raise Unavailable("queue orders is draining;\n  retry after 200 ms")

    assert run(act, "act") == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "alphorn: queue orders is draining; retry after 200 ms\n"


def test_a_bug_keeps_its_traceback() -> None:
    def act() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(act, "act")


def test_an_interrupted_command_ends_without_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    def act() -> None:
        raise KeyboardInterrupt

    assert run(act, "act") == 130
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("module", ["alphorn.cli.application", "typer", "alphorn.client.core", "rich.progress"])
def test_a_command_that_is_told_to_end_while_it_is_loaded_ends_without_a_word(
    module: str, number: signal.Signals, code: int
) -> None:
    program = f"""
import signal, sys

class Finder:
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            signal.raise_signal({int(number)})

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Finder())
sys.argv[1:] = ["send", "queue:orders", "hello"]
from alphorn.cli.main import main
main()
"""
    environment = os.environ | {"PYTHONPATH": str(Path(alphorn.__file__).parent.parent)}
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, env=environment
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (code, "", "")


@pytest.mark.parametrize(
    ("at_first", "code", "said"),
    [
        ("signal.default_int_handler", -signal.SIGINT, ""),
        ("signal.SIG_IGN", 0, f"alphorn {alphorn.__version__}\n"),  # as in the background of a script
    ],
)
def test_the_installed_command_is_silent_about_an_interrupt_before_it_has_imported_anything(
    at_first: str, code: int, said: str
) -> None:
    program = f"""
import runpy, signal, sys

class Finder:
    def find_spec(self, name, path, target=None):
        if name == "alphorn":
            signal.raise_signal(signal.SIGINT)

signal.signal(signal.SIGINT, {at_first})
sys.meta_path.insert(0, Finder())
sys.argv[1:] = ["--version"]
runpy.run_path({str(INSTALLED)!r}, run_name="__main__")
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (code, said, "")


@pytest.mark.parametrize(
    ("start", "number", "code"),
    [
        ("signal.signal(signal.SIGINT, signal.default_int_handler)", signal.SIGINT, 130),
        ("signal.signal(signal.SIGINT, signal.default_int_handler)", signal.SIGTERM, 143),
        ("signal.signal(signal.SIGINT, signal.SIG_IGN)", signal.SIGTERM, 143),  # as in the background of a script
    ],
)
def test_a_command_that_is_told_to_end_clears_away_first(start: str, number: signal.Signals, code: int) -> None:
    program = f"""
import signal, sys
{start}
from alphorn.cli import application, main

class Command:
    def register(self, app):
        app.command("act")(self.act)
        app.command("rest")(lambda: None)

    def act(self):
        try:
            print("ready", flush=True)
            while True:
                signal.pause()
        finally:
            print("cleared")

application.load_commands = lambda arguments: [Command()]
sys.argv[1:] = ["act"]
main.main()
"""
    environment = os.environ | {"PYTHONPATH": str(Path(alphorn.__file__).parent.parent)}
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert (process.stdout.read(), process.stderr.read()) == ("cleared\n", "")
    assert process.returncode == code


def test_a_file_that_is_full_is_not_taken_for_standard_output() -> None:
    def act() -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/data/log.jsonl")

    with pytest.raises(OSError, match="jsonl"):
        run(act, "act")


def shell(line: str, stdout: int | None = None) -> tuple[int, str]:
    """Runs a line of bash, in which $ALPHORN is the command; gives its exit code and what it said on standard error."""
    source = Path(alphorn.__file__).parent.parent
    command = f"{sys.executable} -m alphorn.cli.main"
    ended = subprocess.run(
        ["bash", "-o", "pipefail", "-c", line],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(source), "ALPHORN": command},
    )
    return ended.returncode, ended.stderr


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("$ALPHORN --version >/dev/full", "standard output cannot be written: No space left on device"),
        ("$ALPHORN --version >&-", "standard output is closed"),
        ("$ALPHORN send q <&-", "standard input is closed; give the body as an argument"),
        ("$ALPHORN send q --file - <&-", "standard input is closed; give the body as an argument"),
        ("$ALPHORN send $'queue:caf\\xff' x", "a character that cannot be printed"),
        ("$ALPHORN status --url $'alphorn://caf\\xff'", "the URL is no valid Unicode text"),
        ("$ALPHORN send q --file ''", "--file names no file"),
        ("$ALPHORN send q --file /proc/self/mem", "the file /proc/self/mem cannot be read: Input/output error"),
        ("$ALPHORN demo --dir /proc/x", "/proc/x cannot be made"),
        ("$ALPHORN up --dir ''", "--dir names no directory"),
        ("$ALPHORN single --dir ''", "--dir names no directory"),
        ("$ALPHORN tail t --start " + "9" * 5_000, "--start has a number of 5000 digits"),
    ],
)
def test_what_a_shell_hands_over_wrongly_is_one_sentence(line: str, sentence: str) -> None:
    code, said = shell(f"{line} && exit 0 || exit 1")
    assert code == 1
    assert said.startswith("alphorn: ")
    assert sentence in said
    assert said.count("\n") == 1


def test_a_reader_that_goes_away_ends_a_command_without_a_word() -> None:
    reading, writing = os.pipe()
    os.close(reading)  # before anything is written, as `alphorn --help | true` has it sooner or later
    with os.fdopen(writing, "wb"):
        assert shell("$ALPHORN --help", writing) == (1, "")


def test_closed_streams_are_no_trap_for_what_is_opened_next() -> None:
    assert shell("$ALPHORN send q --file /nowhere <&- 2>&-") == (1, "")


@pytest.mark.parametrize(
    "arguments",
    ["sim --jobs -1", "sim --last -1", "sim --seeds 0", "chaos --kills -1", "chaos --minutes -1", "demo --seconds -1"],
)
def test_a_number_that_makes_no_sense_is_wrong_usage(capsys: pytest.CaptureFixture[str], arguments: str) -> None:
    assert cli.run(cli.build_app(cli.load_commands()), arguments.split()) == 2
    assert "greater than or equal to" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("yodel", "no such command 'yodel' (did you mean 'node'?); see alphorn --help"),
        ("--yodel", "no such option: --yodel (possible options: --help); see alphorn --help"),
        ("send", "missing argument 'DEST'; see alphorn send --help"),
        ("send q x y", "got unexpected extra argument(s) (y); see alphorn send --help"),
        ("send q --count", "option '--count' requires an argument; see alphorn send --help"),
        ("send q --priority 12", "'--priority' should be less than or equal to 9; see alphorn send --help"),
        ("receive q --timeout nan", "'--timeout' should be greater than or equal to 0; see alphorn receive --help"),
        (
            "up --transport smoke",
            "invalid value for '--transport': 'smoke' is not one of 'multicast', 'relay'; see alphorn up --help",
        ),
        ("status --rates inf", "'--rates' should be less than or equal to 86400; see alphorn status --help"),
        (
            "spark audit --grace nan",
            "'--grace' should be less than or equal to 1000000000; see alphorn spark audit --help",
        ),
        ("destinations delet", "no such command 'delet' (did you mean 'delete'?); see alphorn destinations --help"),
    ],
)
def test_wrong_usage_is_one_sentence(capsys: pytest.CaptureFixture[str], arguments: str, sentence: str) -> None:
    assert cli.run(cli.build_app(cli.load_commands(arguments.split())), arguments.split()) == 2
    assert capsys.readouterr() == ("", f"alphorn: {sentence}\n")


@pytest.mark.parametrize(("arguments", "usage"), [("", "alphorn [OPTIONS]"), ("dlq", "alphorn dlq [OPTIONS]")])
def test_who_names_no_command_is_shown_those_that_there_are(
    capsys: pytest.CaptureFixture[str], arguments: str, usage: str
) -> None:
    assert cli.run(cli.build_app(cli.load_commands(arguments.split())), arguments.split()) == 2
    captured = capsys.readouterr()
    assert usage in captured.out
    assert captured.err == ""


def test_a_command_chooses_its_exit_code() -> None:
    def act() -> None:
        raise typer.Exit(3)

    assert run(act, "act") == 3


def test_an_unknown_command_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(lambda: None, "yodel") == 2
    assert "yodel" in capsys.readouterr().err


def test_the_overview_names_every_command_that_there_is() -> None:
    group = typer.main.get_command(cli.build_app(cli.load_commands()))
    assert isinstance(group, typer.core.TyperGroup)
    assert sorted(group.commands) == sorted(cli.COMMANDS)


def test_the_help_has_a_line_for_every_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.run(cli.build_app(cli.load_commands(["--help"])), ["--help"]) == 0
    lines = [" ".join(line.strip("│ ").split()) for line in capsys.readouterr().out.splitlines()]
    assert [name for name, line in cli.COMMANDS.items() if f"{name} {line}" not in lines] == []


@pytest.mark.parametrize(("name", "module"), [("send", "send"), ("tail", "receive"), ("inspect", "inspect")])
def test_only_the_module_of_the_command_that_runs_is_loaded(name: str, module: str) -> None:
    assert cli.load_commands([name, "x"]) == [importlib.import_module(f"alphorn.cli.{module}")]


def test_the_version_needs_no_command() -> None:
    assert cli.load_commands(["--version"]) == []


@pytest.mark.parametrize("arguments", ["", "--help", "yodel", "--yodel send"])
def test_without_a_known_command_none_is_loaded(arguments: str) -> None:
    program = f"""
import sys
from alphorn.cli import application
application.load_commands({arguments.split()!r})
sys.exit(any(name in sys.modules for name in ("alphorn.testing", "alphorn.client", "alphorn.node", "alphorn.cli.send")))
"""
    environment = os.environ | {"PYTHONPATH": str(Path(alphorn.__file__).parent.parent)}
    assert subprocess.run([sys.executable, "-c", program], check=False, env=environment).returncode == 0


def test_a_command_may_stand_behind_the_end_of_options() -> None:
    assert cli.load_commands(["--", "send", "q"]) == [importlib.import_module("alphorn.cli.send")]


def test_python_without_assertions_is_refused() -> None:
    code = "import typer; from alphorn.cli import application; raise SystemExit(application.run(typer.Typer()))"
    source = Path(alphorn.__file__).parent.parent
    ended = subprocess.run([sys.executable, "-O", "-c", code], capture_output=True, text=True, check=False, cwd=source)
    assert ended.returncode == 1
    assert ended.stderr.startswith("alphorn: Python runs with -O")
