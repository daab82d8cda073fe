"""Each rule of this folder finds what it is there to find, and leaves good source alone."""

from pathlib import PurePath

import pytest

from tests.tidy.habits import faults_of_module_state, faults_of_reminders, faults_of_size, faults_of_test_names
from tests.tidy.purity import faults_of_purity
from tests.tidy.rooms import faults_of_imports

CORE = PurePath("alphorn/bus/sample.py")
REMINDER = "TO" + "DO"


@pytest.mark.parametrize(
    ("room", "line"),
    [
        ("model", "import alphorn.bus.frames"),
        ("model", "from alphorn import __version__"),
        ("bus", "from alphorn.io.store import Store"),
        ("bus", "from alphorn.gateway.session import DeviceSession"),
        ("bus", "from alphorn import gateway"),
        ("io", "from alphorn.node import log"),
        ("io", "from alphorn.testing import simulator"),
        ("client", "from alphorn.node.log import run"),
        ("node", "from alphorn.console import pages"),
        ("node", "import alphorn.cli.main"),
        ("testing", "from alphorn.node import log"),
        ("bus", "def late():\n    from alphorn.io import store"),
    ],
)
def test_an_import_that_goes_up_or_sideways_is_found(room: str, line: str) -> None:
    assert len(faults_of_imports(PurePath(f"alphorn/{room}/sample.py"), line)) == 1


@pytest.mark.parametrize(
    ("room", "line"),
    [
        ("bus", "from alphorn.model.errors import Misuse\nfrom alphorn.bus.frames import decode"),
        ("io", "from alphorn.bus.machine import Send"),
        ("node", "from alphorn.io.store import Store\nfrom alphorn.client import connect"),
        ("testing", "from alphorn.io.store import Store\nfrom alphorn.bus.endpoint import Endpoint"),
        ("cli", "from alphorn import __version__\nfrom alphorn.testing import simulator\nfrom alphorn.node import log"),
        ("model", "import struct\nimport alphornish"),
    ],
)
def test_an_import_that_goes_down_is_allowed(room: str, line: str) -> None:
    assert faults_of_imports(PurePath(f"alphorn/{room}/sample.py"), line) == []


def test_a_module_outside_of_all_rooms_is_found() -> None:
    assert len(faults_of_imports(PurePath("alphorn/attic/sample.py"), "")) == 1
    assert faults_of_imports(PurePath("alphorn/__init__.py"), "") == []


@pytest.mark.parametrize(
    "line",
    [
        "import asyncio",
        "import socket",
        "from time import monotonic",
        "import os.path",
        "import threading as t",
        "from concurrent.futures import Future",
        "import random\nx = random.random()",
        "import random as chance\nx = chance.choice('ab')",
        "from random import shuffle",
        "import random\nx = random.Random()",
        "from random import Random\nx = Random()",
        "data = open('file').read()",
        "print('here')",
        "import datetime\nx = datetime.datetime.now()",
        "from datetime import datetime\nx = datetime.utcnow()",
        "async def wait(): pass",
    ],
)
def test_a_core_that_acts_or_asks_the_world_is_found(line: str) -> None:
    assert len(faults_of_purity(CORE, line)) == 1


@pytest.mark.parametrize(
    "line",
    [
        "import random\ndef choose(source: random.Random) -> float:\n    return source.random()",
        "from random import Random\nx = Random(7)",
        "import hashlib\nimport struct\nimport heapq",
        "def open_window(reopen): return reopen()",
        "now = 1.0\nself.now = now",
    ],
)
def test_a_core_that_only_computes_is_allowed(line: str) -> None:
    assert faults_of_purity(CORE, line) == []


def test_rooms_with_hands_may_act() -> None:
    assert faults_of_purity(PurePath("alphorn/io/sample.py"), "import asyncio, time\nopen('x')") == []


def test_a_reminder_is_found() -> None:
    assert len(faults_of_reminders(CORE, f"x = 1  # {REMINDER}: later\n")) == 1
    assert faults_of_reminders(CORE, "methods = 1\n") == []


def test_a_module_above_the_limit_is_found() -> None:
    assert len(faults_of_size(CORE, "x = 1\n" * 501)) == 1
    assert faults_of_size(CORE, "x = 1\n" * 500) == []


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("tests/test_frames.py", "def test_loss_2(): pass"),
        ("tests/test_frames.py", "class TestLoss:\n    async def test_again3(self): pass"),
        ("tests/test_frames_2.py", ""),
    ],
)
def test_a_numbered_test_name_is_found(path: str, text: str) -> None:
    assert len(faults_of_test_names(PurePath(path), text)) == 1


def test_a_number_inside_a_test_name_is_allowed() -> None:
    assert faults_of_test_names(PurePath("tests/test_xxh3_sums.py"), "def test_3_1_connect_is_refused(): pass") == []


@pytest.mark.parametrize(
    "text",
    [
        "cache = {}",
        "seen: list[int] = []",
        "_waiting = collections.deque()",
        "numbers = itertools.count()",
        "TABLE = {}\ndef learn(key):\n    TABLE[key] = 1",
        "TABLE = {1: 2}\nTABLE.update({3: 4})",
        "def change():\n    global CURRENT\n    CURRENT = 1",
        "TABLE = {1: 2}\ndel TABLE[1]",
    ],
)
def test_state_of_a_module_is_found(text: str) -> None:
    assert len(faults_of_module_state(CORE, text)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "NAMES = {1: 'a'} | {2: 'b'}",
        "_DECODERS = {n: n for n in range(3)}\ndef decode(kind):\n    return _DECODERS.get(kind)",
        "__all__ = ['a']",
        "encode = Encoder().encode",
        "def collect():\n    found = []\n    found.append(1)\n    return found",
        "class Queue:\n    def __init__(self):\n        self.items = []",
    ],
)
def test_constants_and_state_of_objects_are_allowed(text: str) -> None:
    assert faults_of_module_state(CORE, text) == []
