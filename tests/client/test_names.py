import subprocess
import sys
from pathlib import Path

import pytest

import alphorn
from alphorn import api


def test_every_name_of_the_library_is_there() -> None:
    assert {*alphorn.__all__} == {*api.__all__, "aio", "cluster", "__version__"}
    assert {*alphorn.__all__} <= {*dir(alphorn)}
    for name in api.__all__:
        assert getattr(alphorn, name) is getattr(api, name)


def test_another_name_is_told_as_python_does() -> None:
    with pytest.raises(AttributeError, match="module 'alphorn' has no attribute 'yodel'"):
        alphorn.yodel  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize(
    "program",
    [
        "import alphorn; alphorn.connect, alphorn.aio.connect",
        "import alphorn; alphorn.aio.connect",
        "from alphorn import aio, connect; aio.connect",
        "from alphorn import *; connect, aio.connect, cluster.join, Misuse",
        "import alphorn; alphorn.cluster.join, alphorn.cluster.WorkProcess",
        "import alphorn.cluster; alphorn.cluster.join",
        "import alphorn, sys; assert 'alphorn.client' not in sys.modules",
    ],
)
def test_the_library_is_loaded_when_a_name_of_it_is_used(program: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(Path(alphorn.__file__).parent.parent)},
    )
    assert (ended.returncode, ended.stderr) == (0, "")
