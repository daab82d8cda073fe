"""Which addresses are tried, and what is said when none of them answers."""

from random import Random

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


def test_addresses_that_client_managers_name_are_tried_besides_those_of_the_url() -> None:
    route = Route((HERE,), Random(1))
    route.on_open(0.0, ["there:2", "there:none"])
    assert {route.next_address() for _ in range(4)} == {HERE, THERE}
