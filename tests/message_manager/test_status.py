"""What a Message Manager says of its destinations: pages in order of numbers, whatever happens between two of them."""

from typing import Any

import msgspec
import pytest

from alphorn.message_manager.engine import DESCRIBED_MAX
from alphorn.message_manager.guarded import Guarded
from alphorn.message_manager.machine import Demoted, Promoted, Witness, WitnessesChanged
from alphorn.model import link
from alphorn.model.commands import Acknowledge, CreateDestination, DeleteDestination
from alphorn.model.destinations import Policy, parse_destination
from tests.message_manager.test_core import CONSUMER, FIRST, ME, QUEUE, Serving
from tests.message_manager.travel import Side, Travel


def create(serving: Serving, *names: str) -> None:
    serving.apply(*(CreateDestination(parse_destination(name), Policy()) for name in names))


def names_of(described: link.Described) -> list[str]:
    return [row["name"] for row in msgspec.json.decode(described.data)["destinations"]]


def rest_of(serving: Serving, described: link.Described, *, maximum: int) -> list[list[str]]:
    """The pages after this one."""
    pages = []
    while described.after:
        described = serving.describe(after=described.after, maximum=maximum)
        pages.append(names_of(described))
    return pages


@pytest.fixture
def serving() -> Serving:
    """A primary with the queues `q` and `q2` to `q9`, which have the numbers 1 to 9."""
    made = Serving()
    made.introduce(1, FIRST)
    create(made, *(f"queue:q{number}" for number in range(2, 10)))
    return made


def test_destinations_come_in_pages_and_all_else_with_the_first(serving: Serving) -> None:
    described = serving.describe(maximum=4)
    first = msgspec.json.decode(described.data)
    assert first.keys() == {"node", "channel", "client_managers", "witnesses", "readers", "moves", "destinations"}
    assert (first["node"]["role"], first["channel"]["destinations"]) == ("primary", 9)
    assert names_of(described) == ["queue:q", "queue:q2", "queue:q3", "queue:q4"]
    assert rest_of(serving, described, maximum=4) == [["queue:q5", "queue:q6", "queue:q7", "queue:q8"], ["queue:q9"]]
    assert msgspec.json.decode(serving.describe(after=4).data).keys() == {"destinations"}


@pytest.mark.parametrize("maximum", [9, 10, link.PAGE_ROWS])
def test_a_page_that_has_all_is_the_last(serving: Serving, maximum: int) -> None:
    described = serving.describe(maximum=maximum)
    assert (len(names_of(described)), described.after) == (9, 0)


@pytest.mark.parametrize(("asked", "given"), [(-1, 1), (0, 1), (1 << 40, link.PAGE_ROWS)])
def test_no_page_is_empty_and_none_has_more_than_the_most(asked: int, given: int) -> None:
    serving = Serving()
    create(serving, *(f"queue:many.{number}" for number in range(link.PAGE_ROWS)))
    described = serving.describe(maximum=asked)
    assert len(names_of(described)) == given
    assert described.after == given


def test_what_was_there_all_the_while_is_told_once_whatever_comes_and_goes(serving: Serving) -> None:
    described = serving.describe(maximum=3)
    told = names_of(described)
    for number in (3, 4, 5):  # the last that was told, and the next ones
        serving.apply(DeleteDestination(number))
    create(serving, "queue:new")
    told += [name for page in rest_of(serving, described, maximum=3) for name in page]
    stayed = [*(f"queue:q{number}" for number in (2, 6, 7, 8, 9)), "queue:q"]
    assert sorted(set(told) - {"queue:new", "queue:q3"}) == sorted(stayed)
    assert len(told) == len(set(told))


def test_who_begins_meanwhile_takes_nothing_from_who_goes_on(serving: Serving) -> None:
    described = serving.describe(maximum=5)
    create(serving, "queue:new")
    serving.describe(maximum=2)
    assert rest_of(serving, described, maximum=5) == [[f"queue:q{number}" for number in (6, 7, 8, 9)] + ["queue:new"]]


def test_a_replica_that_is_primary_again_does_not_go_on_with_what_it_knew_before(serving: Serving) -> None:
    serving.describe(maximum=2)
    serving.receive(Demoted(2))
    create(serving, "queue:while.another.was.primary")
    serving.receive(Promoted(3, ME, ()))
    assert names_of(serving.describe(after=9)) == ["queue:while.another.was.primary"]


def test_witnesses_are_told_while_the_group_has_them(serving: Serving) -> None:
    here, gone = Witness("w1", "host:1", 4711, is_live=True), Witness("w2", "host:2", 0, is_live=False)
    serving.receive(WitnessesChanged((here, gone)))
    [row] = msgspec.json.decode(serving.describe().data)["witnesses"]
    assert (row["name"], row["kind"], row["role"], row["pid"]) == ("w1", "witness", "witness", 4711)


def test_one_that_is_not_primary_tells_of_itself_and_has_no_pages(serving: Serving) -> None:
    serving.receive(Demoted(2))
    first = serving.describe()
    assert msgspec.json.decode(first.data).keys() == {"node"}
    assert (first.after, serving.describe(after=0).data, serving.describe(after=4).data) == (0, b"", b"")


def test_a_destination_that_came_late_with_an_early_number_is_in_its_place() -> None:
    here, there = Side(0), Side(1)
    there.order(CreateDestination(parse_destination("queue:moved"), Policy()))
    for place, step in enumerate(Travel(there, here, 1).steps()):
        step()
        here.order(CreateDestination(parse_destination(f"queue:meanwhile.{place}"), Policy()))
    numbers = list(here.engine.destinations)
    assert numbers != sorted(numbers), "it was numbered when it was expected"
    serving = Serving()
    serving.manager.engine = here.engine
    rows = [row for page in paged(serving) for row in page]
    assert rows == [str(here.engine.destinations[number].destination) for number in sorted(numbers)]


def paged(serving: Serving) -> list[list[str]]:
    described = serving.describe(maximum=2)
    return [names_of(described), *rest_of(serving, described, maximum=2)]


def test_a_row_is_the_same_whichever_page_it_is_in(serving: Serving) -> None:
    serving.publish(1, 7)
    serving.attach(1)
    serving.ask(1, link.Waiting([(QUEUE, 2)]))
    [first] = rows_of(serving.describe(maximum=1))
    assert (first["consumers"], first["blocked_producers"], first["channel"]) == (1, 2, "main")
    [seventh] = rows_of(serving.describe(after=6, maximum=1))
    assert (seventh["name"], seventh["depth"], seventh["messages"]) == ("queue:q7", 1, 1)
    assert first.keys() == seventh.keys()
    assert seventh["policy"] == msgspec.to_builtins(Policy())


def test_what_consumers_hold_is_told_beside_the_depth_until_it_is_acknowledged(serving: Serving) -> None:
    for counter in (1, 2, 3):
        serving.publish(counter)
    assert [(row["depth"], row["held"]) for row in rows_of(serving.describe(maximum=1))] == [(3, 0)]
    serving.attach(1)
    assert [(row["depth"], row["held"]) for row in rows_of(serving.describe(maximum=1))] == [(3, 3)]
    serving.apply(Acknowledge(QUEUE, 0, CONSUMER, [1, 2]))
    assert [(row["depth"], row["held"]) for row in rows_of(serving.describe(maximum=1))] == [(1, 1)]


def test_client_managers_are_told_with_the_number_of_their_connections(serving: Serving) -> None:
    serving.introduce(2, b"2" * 10, b"a" * 10, b"b" * 10)
    serving.ask(2, link.ConnectionOpened(b"c" * 10))
    serving.ask(2, link.ConnectionLost(b"a" * 10))
    found = {row["name"]: row["connections"] for row in serving.status()["client_managers"]}
    assert found == {"cm1": 0, "cm2": 2}


def rows_of(described: link.Described) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = msgspec.json.decode(described.data)["destinations"]
    return found


def test_pages_only_look_while_a_snapshot_is_open(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: object, key: object) -> None:
        raise AssertionError("who gets a row from here may change it")

    snapshot = serving.manager.engine.snapshot()
    monkeypatch.setattr(Guarded, "__getitem__", refuse)
    described = serving.describe(maximum=5)
    assert [len(names_of(described)), *map(len, rest_of(serving, described, maximum=5))] == [5, 4]
    assert list(snapshot)


def test_the_printable_state_has_the_first_of_many_destinations_and_their_number() -> None:
    serving = Serving()
    create(serving, *(f"queue:many.{number}" for number in range(DESCRIBED_MAX)))
    state: Any = serving.manager.describe()["engine"]
    assert [row["number"] for row in state["destinations"]] == list(range(1, DESCRIBED_MAX + 1))
    assert state["destinations_in_all"] == DESCRIBED_MAX + 1
