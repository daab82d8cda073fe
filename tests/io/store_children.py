"""Starts tests/io/store_child.py as a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

CHILD = Path(__file__).with_name("store_child.py")


def child_command(*arguments: object) -> list[str]:
    return [sys.executable, str(CHILD), *map(str, arguments)]


def child_environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}


def run_child(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        child_command(*arguments), capture_output=True, text=True, check=False, env=child_environment() | environment
    )
