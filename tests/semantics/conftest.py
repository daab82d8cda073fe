"""One real cluster for all tests of what users rely on; each test has destinations of its own."""

import contextlib
import zlib

import pytest

import alphorn
import alphorn.testing
from tests.semantics.waiting import WAIT_S

# What depends on how Client Managers and Message Managers speak to each other is tried in both layouts.
BOTH_LAYOUTS = ("every_client_manager", "redelivery", "streams", "transactions")


def pytest_generate_tests(metafunc):
    name = metafunc.module.__name__.rpartition(".test_")[2]
    if name in BOTH_LAYOUTS and "cluster" in metafunc.fixturenames:
        metafunc.parametrize("cluster", ["apart", "together"], indirect=True, scope="session")


@pytest.fixture(scope="session")
def cluster(request):
    """Two Client Managers, a primary and a backup, each a process, or two processes of one each."""
    is_together = getattr(request, "param", "apart") == "together"
    with alphorn.testing.cluster(client_managers=2, together=is_together) as made:
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
    return f"queue:{_name_of(request.node)}"


@pytest.fixture
def topic(request):
    return f"topic:{_name_of(request.node)}"


def _name_of(test):
    """Of each test another one, without the words of its parameters: what is expected of an error stands among them,
    and an error names its destination."""
    return f"{test.originalname}-{zlib.crc32(test.name.encode()):08x}"


@pytest.fixture(params=["cm1", "cm2"])
def door(request, cluster):
    """The URL of one Client Manager alone, each in turn."""
    scheme, _, hosts = cluster.url.partition("://")
    index = ["cm1", "cm2"].index(request.param)
    return f"{scheme}://{hosts.split(',')[index]}"
