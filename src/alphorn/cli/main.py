"""The entry point of the `alphorn` command.

Each sub-command is a module of this room with a function `register(app)`; only the module of the command that runs is
imported, so that a short command ends soon. An `Error` becomes one sentence on standard error and exit code 1, never a
traceback: it was raised on purpose and its text says the way out. Everything else is a bug and keeps its traceback.
"""

import importlib
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, Protocol, cast

import typer

from alphorn import __version__
from alphorn.model.errors import Error, Misuse

COMMANDS = (
    "up",
    "single",
    "node",
    "send",
    "receive",
    "status",
    "destinations",
    "spark",
    "move",
    "channel",
    "demo",
    "sim",
    "chaos",
    "bench",
    "inspect",
)

MODULES = {"browse": "receive", "tail": "receive"}  # of commands that are not named after their module


class Command(Protocol):
    """What a sub-command's module offers."""

    def register(self, app: typer.Typer) -> None:
        """Adds the sub-command to the application."""


def load_commands(arguments: Sequence[str] = ()) -> list[Command]:
    """The module of the sub-command that comes first in the arguments, else all, in the order of the help."""
    named = MODULES.get(arguments[0], arguments[0]) if arguments else ""
    return [
        cast(Command, importlib.import_module(f"alphorn.cli.{name}")) for name in COMMANDS if named in ("", name)
    ] or load_commands()


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
    try:
        _refuse_stripped_assertions()
        app(args=arguments, prog_name="alphorn")
    except Error as error:
        print(f"alphorn: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    except SystemExit as done:  # how the application reports every ordinary end, and wrong usage
        return done.code if isinstance(done.code, int) else 0
    return 0


def main() -> None:
    """The console script."""
    sys.exit(run(build_app(load_commands(sys.argv[1:]))))


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
