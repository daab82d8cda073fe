"""One real cluster for all tests of what users rely on; each test has destinations of its own."""

import contextlib

import pytest

import alphorn
from tests.semantics.layouts import name_of, run
from tests.semantics.waiting import WAIT_S

# What depends on how Client Managers and Message Managers speak to each other is tried in both layouts.
BOTH_LAYOUTS = ("every_client_manager", "redelivery", "streams", "transactions")


def pytest_generate_tests(metafunc):
    """Users must not notice whether there is a cluster, or one process: what they rely on is tried on both."""
    if "cluster" not in metafunc.fixturenames:
        return
    name = metafunc.module.__name__.rpartition(".test_")[2]
    tried = [pytest.param("apart")]
    if name in BOTH_LAYOUTS:
        tried.append(pytest.param("together"))
    if not any(mark.name == "cluster_only" for mark in metafunc.definition.iter_markers()):
        # One module names the row for all: hundreds of tests in its place of the table would tell nobody anything.
        names_row = [pytest.mark.requirement("API-22")] if name == "every_client_manager" else []
        tried.append(pytest.param("single", marks=names_row))
    metafunc.parametrize("cluster", tried, indirect=True, scope="session")


def pytest_collection_modifyitems(items):
    """The only Client Manager of `alphorn single` is tried once."""
    items[:] = [item for item in items if parameters(item) != ("single", "cm2")]


def parameters(item):
    found = item.callspec.params if hasattr(item, "callspec") else {}
    return found.get("cluster"), found.get("door")


@pytest.fixture(scope="session")
def cluster(request):
    """The one that this layout has."""
    with run(request.param) as made:
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
    return f"queue:{name_of(request.node)}"


@pytest.fixture
def topic(request):
    return f"topic:{name_of(request.node)}"


@pytest.fixture(params=["cm1", "cm2"])
def door(request, cluster):
    """The URL of one Client Manager alone, each in turn."""
    scheme, _, hosts = cluster.url.partition("://")
    index = ["cm1", "cm2"].index(request.param)
    return f"{scheme}://{hosts.split(',')[index]}"
