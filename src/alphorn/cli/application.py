"""The application behind the `alphorn` command.

Each sub-command is a module of this room with a function `register(app)`; only the module of the command that runs is
imported, so that a short command ends soon, and none for the help of `alphorn` itself. An `Error` becomes one sentence
on standard error and exit code 1, never a traceback: it was raised on purpose and its text says the way out. So does
output that cannot be written, and wrong usage, which is exit code 2; a reader that goes away, such as `head`, ends a
command without a word. Everything else is a bug and keeps its traceback.

Whoever asked for `--json` reads standard output: there the last line of a command that failed is an object with its
`error`, a class of `model/errors.py`, and the sentence as its `reason`. That holds for wrong usage too.
"""

import contextlib
import errno
import importlib
import itertools
import json
import os
import re
import signal
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, Protocol, cast

import typer

from alphorn import __version__
from alphorn.model.errors import Error, Misuse

COMMANDS = {  # what the help of `alphorn` itself says of each, where none is loaded
    "up": "Run a whole cluster on this machine.",
    "single": "Run the whole server in one process.",
    "node": "Run one node of a real cluster.",
    "send": "Send messages, and wait until they are safe.",
    "receive": "Take messages and print them.",
    "browse": "Print the messages of a queue, and leave them there.",
    "tail": "Follow a topic: print messages as they come.",
    "status": "Show nodes with their roles, channels, destinations.",
    "events": "Show what happens: nodes up and down, takeovers.",
    "tell": "Say something to a node or a program.",
    "destinations": "List, show, create, change, purge, delete destinations.",
    "dlq": "List, redrive and purge dead messages.",
    "move": "Move a destination to another channel.",
    "channel": "Drain a channel, or open it again.",
    "spark": "Run a Spark job on a cluster's data.",
    "demo": "Run a group with a log alone, to watch and disturb.",
    "sim": "Simulate groups and clusters under faults.",
    "chaos": "Kill and freeze real processes under load.",
    "bench": "Measure this machine.",
    "inspect": "Decode a store or a frame capture.",
}

MODULES = {"browse": "receive", "tail": "receive"}  # of commands that are not named after their module

# Of a write to standard output; where a file is at fault the error names it, and a socket has none of these.
OUTPUT_FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
INTERRUPTED = 128 + signal.SIGINT  # as shells count
WRONG_USAGE = 2
PHRASES = (  # of the library that reads arguments, and how they are said within one sentence
    (r"^Invalid value for (.*?): Input should be", r"\1 should be"),
    (r": Value error, ", r": "),
    (r"\(Possible ", r"(possible "),
    (r"\. Did you mean (.*)\?$", r" (did you mean \1?)"),
)


class Command(Protocol):
    """What a sub-command's module offers."""

    def register(self, app: typer.Typer) -> None:
        """Adds the sub-command to the application."""


def load_commands(arguments: Sequence[str] | None = None) -> list[Command]:
    """The module of the sub-command that these arguments name; an overview where they name none.

    Without arguments all are loaded, which takes long.
    """
    if arguments is None:
        return [_load(name) for name in COMMANDS if name not in MODULES]
    if list(arguments) == ["--version"]:
        return []
    named = next((argument for argument in arguments if argument != "--"), "")
    return [_load(MODULES.get(named, named)) if named in COMMANDS else Overview()]


def _load(module: str) -> Command:
    return cast(Command, importlib.import_module(f"alphorn.cli.{module}"))


class Overview:
    """All sub-commands with a line each and nothing behind, for a help or a complaint that is there at once."""

    def register(self, app: typer.Typer) -> None:
        """Adds the lines."""
        for name, line in COMMANDS.items():
            app.command(name, help=line)(_never_run)


def _never_run() -> None:
    raise AssertionError("who names a sub-command is given its module")


def build_app(commands: Iterable[Command]) -> typer.Typer:
    """The application with these sub-commands."""
    app = typer.Typer(
        name="alphorn",
        help="A message server cluster on a replicated, totally ordered log.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(_read_global_options)
    for command in commands:
        command.register(app)
    return app


def run(app: typer.Typer, arguments: Sequence[str] | None = None) -> int:
    """Runs one command line (the process's own by default) and returns its exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    wants_json = "--json" in itertools.takewhile(lambda argument: argument != "--", arguments)
    try:
        _refuse_stripped_assertions()
        code = _run_app(app, arguments, wants_json=wants_json)
        sys.stdout.flush()
    except Error as error:
        _complain(str(error))
        if wants_json:
            _tell_program(type(error).__name__, str(error))
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _drop_output()
    except OSError as error:
        if error.filename is not None or error.errno not in OUTPUT_FAULTS:
            raise
        _drop_output()
        _complain(f"standard output cannot be written: {error.strerror}; send it elsewhere, or make room")
    else:
        return code
    return 1


def _run_app(app: typer.Typer, arguments: Sequence[str], *, wants_json: bool) -> int:
    try:
        code = app(args=arguments, prog_name="alphorn", standalone_mode=False)
    except typer.TyperException as error:
        if sentence := _usage_fault(error, arguments):
            _complain(sentence)
            if wants_json:
                _tell_program(Misuse.__name__, sentence)
        return WRONG_USAGE
    return code if isinstance(code, int) else 0


def _usage_fault(error: typer.TyperException, arguments: Sequence[str]) -> str:
    """One sentence; nothing where a group of commands was called without one, which has shown its help by then."""
    said = error.format_message().rstrip(".")
    for pattern, ours in PHRASES:
        said = re.sub(pattern, ours, said)
    context: typer.Context | None = getattr(error, "ctx", None)
    named = next((argument for argument in arguments if argument in COMMANDS), "")
    command = context.command_path if context else f"alphorn {named}".rstrip()
    return said and f"{said[0].lower()}{said[1:]}; see {command} --help"


def _complain(sentence: str) -> None:
    with contextlib.suppress(OSError):  # where standard error is full too there is nobody to tell
        print(f"alphorn: {_in_one_line(sentence)}", file=sys.stderr, flush=True)


def _tell_program(error: str, sentence: str) -> None:
    """The last line of standard output, for who asked for JSON."""
    try:
        print(json.dumps({"error": error, "reason": _in_one_line(sentence)}), flush=True)
    except OSError:  # it was said on standard error
        _drop_output()


def _in_one_line(sentence: str) -> str:
    return " ".join(sentence.split())


def _drop_output() -> None:
    """What is left in the buffer goes nowhere, or the interpreter tries to write it again at its end and complains."""
    with contextlib.suppress(OSError), open(os.devnull, "wb") as nowhere:  # in tests it may be no file at all
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


def fill_closed_streams() -> None:
    """Takes the place of standard streams that are closed, which a socket would have otherwise and be written to."""
    closed = [number for number, stream in enumerate((sys.stdin, sys.stdout, sys.stderr)) if stream is None]
    for number in closed:
        nowhere = os.open(os.devnull, os.O_RDWR)
        if nowhere != number:
            os.dup2(nowhere, number)
            os.close(nowhere)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - it stays open as long as the process
    if sys.stdout is None:
        _complain("standard output is closed; where nobody reads it write >/dev/null")
        sys.exit(1)


def _show_version(asked: bool) -> None:
    if asked:
        print(f"alphorn {__version__}")
        raise typer.Exit


def _read_global_options(
    *,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """A message server cluster on a replicated, totally ordered log."""


def _refuse_stripped_assertions() -> None:
    if not __debug__:
        raise Misuse("Python runs with -O, which strips the assertions alphorn relies on; start it without -O")
