"""The entry point of the `alphorn` command, and what becomes of Ctrl-C and SIGTERM.

They let a command clear away what it made, and end it with exit code 130 and 143. Before a command runs, and after it,
there is nothing to clear away: then the process ends at once, since an exception would come up wherever the
interpreter just is, which prints it or swallows it there. Importing takes most of the time of a short command, so this
module imports nothing that is not loaded in a moment; the rest is imported by `main`, when it listens to signals.
"""

import os
import signal
import sys
from types import FrameType

TERMINATED = 128 + signal.SIGTERM  # as shells count


def main() -> None:
    """The console script."""
    signals = Signals()
    signals.end_at_once()
    from alphorn.cli import application

    application.fill_closed_streams()
    commands = application.load_commands(sys.argv[1:])
    try:
        signals.interrupt()
        code = application.run(application.build_app(commands))
    except KeyboardInterrupt:
        code = application.INTERRUPTED
    signals.end_at_once()
    sys.exit(TERMINATED if code == application.INTERRUPTED and signals.is_terminated else code)


class Signals:
    """Ctrl-C and SIGTERM: both end a command in the same way, unless Ctrl-C has a way of its own."""

    def __init__(self) -> None:
        self.is_terminated = False
        self._is_ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN  # as in the background of a script

    def end_at_once(self) -> None:
        """From here on nothing is made that would have to be cleared away."""
        signal.signal(signal.SIGTERM, _end)
        if not self._is_ignored:
            signal.signal(signal.SIGINT, _end)

    def interrupt(self) -> None:
        """From here on they raise `KeyboardInterrupt`."""
        signal.signal(signal.SIGTERM, self._on_terminated)
        if not self._is_ignored:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _on_terminated(self, number: int, frame: FrameType | None) -> None:
        self.is_terminated = True
        if callable(signal.getsignal(signal.SIGINT)):
            signal.raise_signal(signal.SIGINT)  # a running event loop has its own way to be interrupted
        else:
            raise KeyboardInterrupt


def _end(number: int, frame: FrameType | None) -> None:
    os._exit(128 + number)


if __name__ == "__main__":
    main()
