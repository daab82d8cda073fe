"""A new primary waits for those who may know what their clients hold, and no longer than that makes sense."""

import pytest

from alphorn.message_manager.awaited import FIND_S, RETURN_S, UNLINKED_S
from alphorn.message_manager.machine import ClientManagerLeft, Demoted, LinkClosed, Promoted
from alphorn.model import link
from tests.message_manager.test_core import CONNECTION, FIRST, ME, OTHER, QUEUE, SECOND, Serving


@pytest.mark.requirement("HA-9", "API-12")
def test_clients_of_a_client_manager_that_died_with_the_primary_have_time_to_claim_what_they_hold_elsewhere() -> None:
    serving = Serving()
    serving.publish(1)
    serving.receive(Promoted(2, ME, (FIRST,)))
    serving.pass_time(UNLINKED_S / 2)
    serving.introduce(2, SECOND)
    serving.ask(2, link.Settled())
    serving.ask(2, link.Attach(9, OTHER, QUEUE, 0, "", 10, [], 0))
    serving.pass_time(UNLINKED_S / 2)
    assert serving.delivered(2) == [], "its time begins anew when there is somebody to come back through"
    serving.attach(2, held=(1, 1), resumption=1)
    serving.publish(2)
    serving.pass_time(UNLINKED_S)
    assert serving.delivered(2) == [(2, 1)]


@pytest.mark.requirement("HA-9", "HA-20")
def test_what_was_there_at_the_change_waits_until_every_client_manager_has_answered_or_left() -> None:
    serving = Serving()
    serving.publish(1)
    serving.introduce(2, SECOND)
    serving.receive(Promoted(2, ME, (FIRST, SECOND)))
    serving.introduce(1, FIRST, CONNECTION)
    serving.attach(1)
    serving.ask(1, link.Settled())
    serving.pass_time(2 * UNLINKED_S)
    assert serving.delivered(1) == [], "the other one has a link, and may have a say"
    serving.receive(ClientManagerLeft(SECOND))
    assert serving.delivered(1) == [(1, 2)], "the one that left may have given it out"


@pytest.mark.requirement("HA-9", "HA-20")
def test_a_client_manager_that_died_with_the_primary_is_not_waited_for_until_it_is_evicted() -> None:
    serving = Serving()
    serving.publish(1)
    serving.receive(Promoted(2, ME, (FIRST, SECOND)))
    serving.introduce(1, FIRST, CONNECTION)
    serving.attach(1)
    serving.ask(1, link.Settled())
    serving.pass_time(UNLINKED_S / 2)
    assert serving.delivered(1) == []
    serving.pass_time(UNLINKED_S)
    assert serving.delivered(1) == [(1, 2)]


@pytest.mark.requirement("HA-9", "HA-20")
def test_clients_of_a_client_manager_whose_link_broke_before_the_change_have_had_time_since_then() -> None:
    serving = Serving()
    serving.publish(1)
    serving.receive(Demoted(2))
    serving.introduce(1, FIRST)
    serving.introduce(2, SECOND)
    serving.receive(LinkClosed(2))
    serving.pass_time(RETURN_S / 2)
    serving.receive(Promoted(3, ME, (FIRST, SECOND)))
    serving.introduce(1, FIRST, CONNECTION)
    serving.attach(1)
    serving.ask(1, link.Settled())
    assert serving.delivered(1) == []
    serving.pass_time(RETURN_S / 2)
    assert serving.delivered(1) == [(1, 2)]


@pytest.mark.requirement("HA-9", "HA-20")
def test_a_client_manager_that_never_found_a_replica_that_another_found_long_ago_is_not_waited_for() -> None:
    serving = Serving()
    serving.publish(1)
    serving.receive(Demoted(2))
    serving.introduce(1, FIRST)
    serving.pass_time(FIND_S)
    serving.receive(Promoted(3, ME, (FIRST, SECOND)))
    serving.introduce(1, FIRST, CONNECTION)
    serving.attach(1)
    serving.ask(1, link.Settled())
    serving.pass_time(0.0)
    assert serving.delivered(1) == [(1, 2)], "the other one may have given it out before this replica started"


@pytest.mark.requirement("HA-9", "HA-20")
@pytest.mark.parametrize("is_new", [False, True])
def test_a_client_manager_that_may_still_find_a_replica_is_waited_for(*, is_new: bool) -> None:
    serving = Serving()
    serving.publish(1)
    serving.receive(Demoted(2))
    serving.introduce(1, FIRST)
    if is_new:  # the one through which clients may come back
        serving.pass_time(FIND_S)
        serving.receive(LinkClosed(1))
        serving.introduce(1, FIRST)
    serving.receive(Promoted(3, ME, (FIRST, SECOND)))
    serving.introduce(1, FIRST, CONNECTION)
    serving.attach(1)
    serving.ask(1, link.Settled())
    serving.pass_time(UNLINKED_S / 2)
    assert serving.delivered(1) == []
    serving.pass_time(UNLINKED_S / 2)
    assert serving.delivered(1) == [(1, 2)]


@pytest.mark.requirement("HA-9", "HA-20")
def test_clients_that_could_go_nowhere_have_time_when_there_is_a_client_manager_again() -> None:
    serving = Serving()
    serving.publish(1)
    serving.receive(Demoted(2))
    serving.introduce(2, SECOND)
    serving.receive(LinkClosed(2))
    serving.receive(Promoted(3, ME, (SECOND,)))
    serving.pass_time(RETURN_S)
    serving.introduce(1, FIRST, CONNECTION)
    serving.attach(1)
    serving.ask(1, link.Settled())
    assert serving.delivered(1) == []
    serving.pass_time(UNLINKED_S)
    assert serving.delivered(1) == [(1, 2)]


def test_a_client_manager_that_dies_before_it_has_answered_is_not_waited_for_either() -> None:
    serving = Serving()
    serving.publish(1)
    serving.introduce(2, SECOND)
    serving.receive(Promoted(2, ME, (FIRST, SECOND)))
    serving.ask(2, link.Introduce("cm2", SECOND, 1, "", []))
    serving.introduce(1, FIRST, CONNECTION)
    serving.attach(1)
    serving.ask(1, link.Settled())
    serving.receive(LinkClosed(2))
    serving.pass_time(UNLINKED_S)
    assert serving.delivered(1) == [(1, 2)]
