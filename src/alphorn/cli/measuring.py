"""What the commands that measure share: the machine in one line, a progress bar, verdicts."""

import os
import platform
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from alphorn.model.errors import Misuse


def describe_machine() -> str:
    """Processor, cores, kernel and Python, in one line."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "processor")
    cores = len(os.sched_getaffinity(0))
    return f"{cores} cores of {name}, Linux {platform.release()}, Python {platform.python_version()}"


def check_directory(directory: Path | None) -> None:
    """Raises `Misuse` for one that is not there."""
    if directory is not None and not directory.is_dir():
        raise Misuse(f"{directory} is no directory; make it, or choose another")


@contextmanager
def temporary_folder(directory: Path | None) -> Iterator[Path]:
    """A new directory in this one, removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="alphorn-bench-", dir=directory) as made:
        yield Path(made)


def show_progress(console: Console) -> Progress:
    """A bar that is gone when all is measured."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True)


def show_verdict(target: str, *, is_met: bool) -> str:
    """A target, and whether it is met, as Rich prints it."""
    return f"[green]{target}[/]" if is_met else f"[red]{target} missed[/]"
