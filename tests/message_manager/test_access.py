"""Who may send where: some destinations of the system are written by the cluster alone, whichever way messages come."""

from collections.abc import Callable

import msgspec
import pytest

from alphorn.message_manager.access import may_publish
from alphorn.model.audit import AUDIT_POLICY, AuditTrail
from alphorn.model.commands import (
    NOBODY,
    AnyCommand,
    CreateDestination,
    Fragment,
    Move,
    MoveStage,
    Stage,
    TransactionCommit,
    TransactionPrepare,
    key_of,
)
from alphorn.model.destinations import Policy, parse_destination
from alphorn.model.log_lines import LOG_POLICY, LogLines
from alphorn.model.messages import Flag, Packed, Streamed
from tests.message_manager.bench import ALICE, Bench, batch

CLIENT, NODE = key_of(ALICE, 1), key_of(NOBODY, 1)
OF_NODES = ["topic:_LOG", "topic:_AUDIT"]


@pytest.mark.requirement("WKD-3")
@pytest.mark.parametrize(
    ("name", "clients", "nodes"),
    [
        ("topic:_LOG", False, True),
        ("topic:_AUDIT", False, True),
        ("queue:_DMQ", False, False),
        ("topic:_ADMIN", True, True),
        ("topic:prices", True, True),
        ("queue:orders", True, True),
    ],
)
def test_what_nodes_say_comes_from_nodes_alone(name: str, clients: bool, nodes: bool) -> None:
    destination = parse_destination(name)
    assert (may_publish(destination, CLIENT), may_publish(destination, NODE)) == (clients, nodes)


def alone(number: int) -> list[AnyCommand]:
    return [batch(number, ["forged"], key=CLIENT)]


def in_fragments(number: int) -> list[AnyCommand]:
    return [Fragment(number, CLIENT, 1, 0, memoryview(b"piece"))]


def without_fragments(number: int) -> list[AnyCommand]:
    plain = batch(number, [Packed("", stream=Streamed(0, 0, bytes(16)))], key=CLIENT)
    return [msgspec.structs.replace(plain, flags=int(Flag.STREAM))]


def in_a_transaction(number: int) -> list[AnyCommand]:
    return [TransactionCommit(CLIENT, 1, 1), *alone(number)]


def prepared(number: int) -> list[AnyCommand]:
    return [TransactionPrepare(CLIENT, 1, [0, 1], 1), *alone(number)]


def staged(number: int) -> list[AnyCommand]:
    return [Stage(*msgspec.structs.astuple(batch(number, ["forged"], key=CLIENT)), "w", 0, 0, 7, 0)]


def staged_as_a_node(number: int) -> list[AnyCommand]:
    return [Stage(*msgspec.structs.astuple(batch(number, ["forged"], key=NODE)), "w", 0, 0, 7, 0)]


@pytest.mark.requirement("WKD-3")
@pytest.mark.parametrize("name", OF_NODES)
@pytest.mark.parametrize(
    "way", [alone, in_fragments, without_fragments, in_a_transaction, prepared, staged, staged_as_a_node]
)
def test_a_client_puts_nothing_where_nodes_speak(name: str, way: Callable[[int], list[AnyCommand]]) -> None:
    bench = Bench()
    number = bench.create(name)
    [answer] = bench.apply(*way(number))
    assert f"{name} takes what nodes of the cluster say only; send to another topic" in answer.reason  # type: ignore[union-attr]
    assert bench.topic(number).next_position == 1
    assert not list(bench.engine.retained())


@pytest.mark.requirement("WKD-3")
def test_nodes_say_what_they_have_to_say() -> None:
    bench = Bench()
    lines, trail = LogLines(b"run"), AuditTrail("mm1", b"run")
    lines.add(["a line"])
    number = bench.answer(lines.create()).number
    bench.subscribe(number)
    assert bench.apply(lines.publish(number, 7))
    assert bench.topic(number).next_position == 2
    assert not bench.answer(trail.create()).error


@pytest.mark.requirement("WKD-2", "WKD-3")
@pytest.mark.parametrize(("name", "policy"), [("topic:_LOG", LOG_POLICY), ("topic:_AUDIT", AUDIT_POLICY)])
def test_whoever_needs_them_first_makes_them_as_the_system_has_them(name: str, policy: Policy) -> None:
    """Otherwise who looks before anything was said, or wishes something else, would decide what is kept of it."""
    bench = Bench()
    wished = Policy(max_length=1, overflow="reject")
    number = bench.answer(CreateDestination(parse_destination(name), wished)).number
    assert bench.topic(number).policy == policy


@pytest.mark.requirement("WKD-3")
@pytest.mark.parametrize("name", OF_NODES)
def test_they_stay_where_they_are(name: str) -> None:
    bench = Bench()
    assert bench.answer(Move(bench.create(name), MoveStage.PLANNED, 1)).error == "AccessDenied"
