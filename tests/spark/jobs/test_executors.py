"""What jobs send to executors works in processes that share nothing with the driver but the installed package."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.processes
def test_executors_of_their_own_read_the_log_and_write_the_archive(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
        "SPARK_WORKER_DIR": str(tmp_path / "work"),
    }
    program = [sys.executable, str(Path(__file__).with_name("on_executors.py")), str(tmp_path / "archive")]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "archived 1000"
