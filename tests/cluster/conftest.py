"""Every test of this folder may use message servers, and `join` of both shells."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import alphorn
from tests.client.shells import Face, Loop
from tests.cluster.serving import Serving

Join = Callable[..., Any]


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    with Serving(tmp_path) as running:
        yield running


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Serving]:
    with Serving(tmp_path, count=2) as running:
        yield running


@pytest.fixture(params=["blocking", "asyncio"])
def join(request: pytest.FixtureRequest) -> Iterator[Join]:
    """Joins; what a test leaves is left for it."""
    joined: list[Any] = []
    loop = Loop()

    def make(*arguments: Any, **named: Any) -> Any:
        if request.param == "blocking":
            process = alphorn.cluster.join(*arguments, **named)
        else:
            process = Face(alphorn.aio, loop)._call(alphorn.aio.join_cluster, *arguments, **named)
        joined.append(process)
        return process

    yield make
    for process in joined:
        process.__exit__(RuntimeError, None, None)
    loop.close()
