"""Which addresses are tried, and what is said when none of them answers."""

from random import Random

import pytest

from alphorn.client.route import Route

HERE, THERE = ("here", 1), ("there", 2)


def test_a_time_that_is_over_does_not_hide_what_was_heard_before() -> None:
    route = Route((HERE, THERE), Random(1))
    route.on_failure(HERE, "certificate verify failed")
    route.on_silence(HERE)
    route.on_silence(THERE)
    said = str(route.exhausted(5.0))
    assert "here:1 (certificate verify failed)" in said
    assert "there:2 (no answer)" in said


def test_an_address_that_nobody_came_to_is_called_not_tried() -> None:
    route = Route((HERE, THERE), Random(1))
    route.on_silence(HERE)
    assert "here:1 (no answer), there:2 (not tried)" in str(route.exhausted(5.0))


@pytest.mark.parametrize(
    ("addresses", "total_s", "wait_s"), [(1, 5.0, 5.0), (2, 5.0, 2.5), (20, 5.0, 0.5), (2, 60.0, 5.0), (1, 0.2, 0.5)]
)
def test_one_address_takes_no_more_than_its_share_of_the_time(addresses: int, total_s: float, wait_s: float) -> None:
    route = Route(tuple(("host", port) for port in range(1, addresses + 1)), Random(1))
    assert route.wait_s(total_s) == wait_s


def test_addresses_that_client_managers_name_take_their_share_too() -> None:
    route = Route((HERE,), Random(1))
    route.on_open(0.0, ["there:2"])
    assert route.wait_s(5.0) == 2.5


def test_addresses_that_client_managers_name_are_tried_besides_those_of_the_url() -> None:
    route = Route((HERE,), Random(1))
    route.on_open(0.0, ["there:2", "there:none"])
    assert {route.next_address() for _ in range(4)} == {HERE, THERE}
