"""The blocking and the asyncio library are one API: the same names, parameters, defaults and promises."""

import inspect
from typing import Any

import pytest

from alphorn import aio, api, cluster
from alphorn.client.aio import connection as aio_connection
from alphorn.client.aio import process as aio_process
from alphorn.client.aio import producer as aio_producer
from alphorn.client.blocking import connection as blocking_connection
from alphorn.client.blocking import producer as blocking_producer

PAIRS = [
    (api.Connection, aio.Connection),
    (api.Session, aio.Session),
    (api.Producer, aio.Producer),
    (api.Receipt, aio.Receipt),
    (api.Consumer, aio.Consumer),
    (api.Browser, aio.Browser),
    (blocking_connection.Destinations, aio_connection.Destinations),
    (blocking_producer.Receipts, aio_producer.Receipts),
    (cluster.WorkProcess, aio.WorkProcess),
    (cluster.Events, aio_process.Events),
]
OF_CLUSTER = {"WorkProcess", "join_cluster"}  # which are in a module of their own where they block
METHODS = [
    pytest.param(getattr(blocking, name), getattr(asynchronous, name), id=f"{blocking.__name__}.{name}")
    for blocking, asynchronous in PAIRS
    for name in vars(blocking)
    if not name.startswith("_") and callable(getattr(blocking, name)) and hasattr(asynchronous, name)
]


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def parameters(function: Any) -> list[tuple[str, Any, Any, str]]:
    found = inspect.signature(function).parameters.values()
    return [(one.name, one.kind, one.default, str(one.annotation)) for one in found]


def first_sentence(thing: Any) -> str:
    return " ".join((inspect.getdoc(thing) or "").split()).partition(". ")[0].rstrip(".")


def test_both_have_the_same_names() -> None:
    assert {*aio.__all__} == {*api.__all__} | OF_CLUSTER


@pytest.mark.parametrize("name", api.__all__)
def test_what_waits_for_nothing_is_the_same_object_in_both(name: str) -> None:
    in_both = getattr(aio, name) is getattr(api, name)
    assert in_both is (name not in ("Browser", "Connection", "Consumer", "Producer", "Receipt", "Session", "connect"))


@pytest.mark.parametrize(("blocking", "asynchronous"), PAIRS)
def test_both_forms_of_a_class_have_the_same_methods_and_attributes(blocking: type, asynchronous: type) -> None:
    assert public(asynchronous) == public(blocking)
    for verb in ("enter", "exit", "iter"):
        assert hasattr(asynchronous, f"__a{verb}__") == hasattr(blocking, f"__{verb}__") or hasattr(
            asynchronous, f"__{verb}__"
        )


CALLS = [
    *METHODS,
    pytest.param(api.connect, aio.connect, id="connect"),
    pytest.param(cluster.join, aio.join_cluster, id="join"),
]


@pytest.mark.parametrize(("blocking", "asynchronous"), CALLS)
def test_both_forms_of_a_call_take_the_same_with_the_same_defaults(blocking: Any, asynchronous: Any) -> None:
    assert parameters(asynchronous) == parameters(blocking)


@pytest.mark.parametrize(("blocking", "asynchronous"), METHODS)
def test_both_forms_of_a_call_promise_the_same(blocking: Any, asynchronous: Any) -> None:
    assert first_sentence(blocking)
    assert first_sentence(asynchronous) == first_sentence(blocking)
