import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from alphorn.testing.campaign import _pool

pytestmark = pytest.mark.processes

INSTALLED = Path(sys.executable).parent / "alphorn"
WAIT_S = 120.0  # only what hangs meets it


def test_workers_of_a_campaign_leave_interruptions_to_their_parent():
    before = signal.getsignal(signal.SIGINT)
    with _pool(1) as pool:
        assert pool.apply(signal.getsignal, (signal.SIGINT,)) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGINT) is before


def test_the_installed_command_runs_a_campaign_in_several_processes():
    command = [INSTALLED, "sim", "--kind", "log", "--seeds", "2", "--jobs", "2", "--json"]
    found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=WAIT_S)
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)["seeds"] == 2
