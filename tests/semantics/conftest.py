"""One real cluster for all tests of what users rely on; each test has destinations of its own."""

import contextlib

import pytest

import alphorn
import alphorn.testing
from tests.semantics.waiting import WAIT_S


@pytest.fixture(scope="session")
def cluster():
    """Two Client Managers, a primary and a backup, each a process."""
    with alphorn.testing.cluster(client_managers=2) as made:
        yield made


@pytest.fixture
def connect(cluster):
    """Makes connections that are closed with the test. Keyword arguments are those of `alphorn.connect`."""
    with contextlib.ExitStack() as stack:

        def make(url: str = "", **settings):
            connection = alphorn.connect(url or cluster.url, connect_timeout=WAIT_S, **settings)
            stack.callback(connection.close)
            return connection

        yield make


@pytest.fixture
def connection(connect):
    return connect()


@pytest.fixture
def other(connect):
    """A second client, who must not notice what the first does wrong."""
    return connect()


@pytest.fixture
def queue(request):
    return f"queue:{request.node.name}"


@pytest.fixture
def topic(request):
    return f"topic:{request.node.name}"


@pytest.fixture(params=["cm1", "cm2"])
def door(request, cluster):
    """The URL of one Client Manager alone, each in turn."""
    scheme, _, hosts = cluster.url.partition("://")
    index = ["cm1", "cm2"].index(request.param)
    return f"{scheme}://{hosts.split(',')[index]}"
