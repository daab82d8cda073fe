"""After a change of primary: what consumers hold stays theirs, and whatever may be a redelivery says so."""

import pytest

from alphorn.message_manager.tick_names import NAMED_MAX
from alphorn.model.commands import DeleteDestination
from alphorn.model.messages import Packed
from alphorn.model.ranges import RangeSet
from tests.message_manager.stage import Stage, first_time, key


@pytest.fixture
def stage() -> Stage:
    """Ten messages, of which `a` on Client Manager 1 holds 1 to 4 and `b` on Client Manager 2 holds 5 to 7."""
    stage = Stage()
    queue = stage.queue()
    stage.attach("a", queue, prefetch=4, client_manager=1)
    stage.attach("b", queue, prefetch=3, client_manager=2)
    for count in (4, 3, 3):
        stage.publish(queue, count)
    assert stage.deliver() == {"a": first_time(1, 4), "b": first_time(5, 7)}
    return stage


QUEUE = 1


def twice(*positions: int) -> list[tuple[int, int]]:
    return [(position, 2) for position in positions]


@pytest.mark.requirement("HA-20", "API-9")
def test_nothing_is_delivered_before_all_client_managers_have_attached_again(stage: Stage) -> None:
    stage.become_primary(1, 2)
    assert stage.dispatcher.missing == [1, 2]
    stage.attach("a", QUEUE, prefetch=10, client_manager=1, held=[1, 4])
    stage.dispatcher.introduce(1)
    stage.publish(QUEUE, 1)
    assert stage.deliver() == {}  # 5 to 7 are with b, and 11 would come before 8
    stage.attach("b", QUEUE, prefetch=3, client_manager=2, held=[5, 7])
    assert stage.deliver() == {}
    stage.dispatcher.introduce(2)
    assert stage.dispatcher.missing == []
    assert stage.deliver() == {"a": first_time(8, 11)}


def test_what_nobody_claims_was_not_given_out_if_all_have_answered(stage: Stage) -> None:
    stage.become_primary(1, 2)
    stage.attach("a", QUEUE, prefetch=10, client_manager=1, held=[1, 2])
    stage.dispatcher.introduce(1)
    stage.dispatcher.introduce(2)
    assert stage.deliver() == {"a": first_time(3, 10)}


@pytest.mark.requirement("HA-20", "MM-11")
def test_what_a_lost_client_manager_may_have_had_is_delivered_as_a_redelivery(stage: Stage) -> None:
    stage.become_primary(1, 2)
    stage.attach("a", QUEUE, prefetch=20, client_manager=1, held=[1, 4])
    stage.publish(QUEUE, 2)
    assert stage.lose(2) == []
    assert stage.deliver() == {}
    stage.dispatcher.introduce(1)
    assert stage.deliver() == {"a": [*twice(5, 6, 7, 8, 9, 10), *first_time(11, 12)]}


def test_a_client_manager_that_attached_and_left_before_it_said_so_gives_back_what_it_claimed(stage: Stage) -> None:
    stage.become_primary(1, 2)
    stage.dispatcher.introduce(1)
    stage.attach("b", QUEUE, prefetch=3, client_manager=2, held=[5, 7])
    commands = stage.lose(2)
    assert [command.positions for command in commands] == [[5, 7]]
    stage.order(*commands)
    stage.attach("a", QUEUE, prefetch=20, client_manager=1)
    assert stage.deliver() == {"a": [*twice(1, 2, 3, 4), (5, 2), (6, 2), (7, 2), *twice(8, 9, 10)]}


def test_when_the_grace_is_over_what_nobody_claimed_is_delivered_as_a_redelivery(stage: Stage) -> None:
    stage.become_primary(1, 2)
    stage.attach("a", QUEUE, prefetch=20, client_manager=1, held=[1, 4])
    stage.dispatcher.introduce(1)
    stage.dispatcher.leave(2)
    assert stage.deliver() == {"a": twice(5, 6, 7, 8, 9, 10)}
    stage.attach("b", QUEUE, prefetch=3, client_manager=2, held=[5, 7])  # too late
    assert stage.state(QUEUE)["consumers"][1]["outstanding"] == 0


def test_a_late_client_manager_still_keeps_what_was_not_given_out_meanwhile(stage: Stage) -> None:
    stage.become_primary(1, 2)
    for number in (1, 2):
        stage.dispatcher.leave(number)
    stage.attach("b", QUEUE, prefetch=3, client_manager=2, held=[5, 7])
    stage.attach("a", QUEUE, prefetch=20, client_manager=1)
    assert stage.deliver() == {"a": twice(1, 2, 3, 4, 8, 9, 10)}


def test_a_queue_whose_consumers_come_after_the_grace_knows_its_doubts(stage: Stage) -> None:
    stage.become_primary(2)
    stage.lose(2)
    stage.publish(QUEUE, 1)
    stage.attach("c", QUEUE, client_manager=3)
    assert stage.deliver() == {"c": [*twice(*range(1, 11)), (11, 1)]}
    (command,) = stage.detach("c")
    stage.order(command)
    stage.attach("c", QUEUE, client_manager=3)
    assert stage.deliver() == {"c": [*((position, 3) for position in range(1, 11)), (11, 2)]}


def test_a_queue_whose_consumers_come_after_a_clean_grace_has_no_doubts(stage: Stage) -> None:
    stage.become_primary(1, 2)
    stage.dispatcher.introduce(1)
    stage.dispatcher.introduce(2)
    stage.attach("c", QUEUE, client_manager=3)
    assert stage.deliver() == {"c": first_time(1, 10)}


def test_a_destination_with_nothing_in_question_is_served_at_once(stage: Stage) -> None:
    other = stage.queue("other")
    stage.become_primary(1, 2)
    stage.attach("a", other, client_manager=1)
    stage.publish(other, 2)
    assert stage.deliver() == {"a": first_time(1, 2)}


def test_a_queue_goes_on_as_soon_as_all_in_question_is_claimed_or_consumed(stage: Stage) -> None:
    stage.become_primary(1, 2, 3)
    stage.attach("a", QUEUE, prefetch=20, client_manager=1, held=[1, 4])
    stage.acknowledge("b", QUEUE, 5, 7)  # was on its way
    stage.publish(QUEUE, 1)
    assert stage.deliver() == {}
    stage.acknowledge("b", QUEUE, 8, 10)
    assert stage.deliver() == {"a": [(11, 1)]}
    assert stage.dispatcher.missing == [1, 2, 3]


def test_what_comes_back_during_the_grace_is_in_question_no_more(stage: Stage) -> None:
    stage.become_primary(1, 2)
    stage.attach("a", QUEUE, prefetch=20, client_manager=1, held=[1, 4])
    stage.give_back("b", QUEUE, 5, 10)  # ordered by the primary before
    assert stage.deliver() == {"a": twice(5, 6, 7, 8, 9, 10)}


def test_an_exclusive_queue_stays_with_the_consumer_that_holds_its_messages() -> None:
    stage = Stage()
    queue = stage.queue(exclusive=True)
    stage.attach("a", queue, prefetch=2)
    stage.publish(queue, 5)
    stage.deliver()
    stage.become_primary(1, 2)
    stage.attach("b", queue, client_manager=2)
    stage.dispatcher.introduce(2)
    stage.attach("a", queue, prefetch=5, client_manager=1, held=[1, 2])
    stage.dispatcher.introduce(1)
    assert stage.deliver() == {"a": first_time(3, 5)}


def test_a_destination_that_is_deleted_during_the_grace_is_forgotten(stage: Stage) -> None:
    stage.become_primary(1)
    stage.order(DeleteDestination(QUEUE))
    stage.dispatcher.leave(1)
    assert stage.dispatcher.describe() == {"missing": [], "destinations": {}}
    assert stage.detach("a") == []
    assert key("a") not in stage.dispatcher._places


@pytest.mark.requirement("HA-20", "MM-11")
def test_what_a_client_had_that_is_gone_is_delivered_as_a_redelivery(stage: Stage) -> None:
    stage.become_primary(1)
    stage.attach("a", QUEUE, prefetch=20, client_manager=1, held=[1, 2])
    stage.dispatcher.doubt(QUEUE, 0, [1, 4])
    stage.dispatcher.introduce(1)
    assert stage.deliver() == {"a": [*twice(3, 4), *first_time(5, 10)]}


def test_a_doubt_about_what_is_not_there_any_more_is_passed_over(stage: Stage) -> None:
    stage.become_primary(1)
    stage.dispatcher.doubt(QUEUE, 0, [11, 20])
    stage.dispatcher.doubt(99, 0, [1, 4])
    stage.dispatcher.introduce(1)
    stage.attach("a", QUEUE, prefetch=20, client_manager=1)
    stage.publish(QUEUE, 1)
    assert stage.deliver() == {"a": first_time(1, 11)}


def keyed(*keys: str) -> list[Packed]:
    return [Packed(str(place), key=key) for place, key in enumerate(keys, 1)]


@pytest.mark.requirement("HA-20")
def test_a_message_that_is_parked_for_one_stays_with_another_that_comes_late_and_has_it() -> None:
    stage = Stage()
    queue = stage.queue(groups=True)
    stage.publish(queue, keyed("K", "K"))
    stage.attach("b", queue, prefetch=10, client_manager=2)
    assert stage.deliver() == {"b": first_time(1, 2)}
    stage.become_primary(1, 2)
    stage.attach("a", queue, prefetch=1, client_manager=1)
    stage.attach("c", queue, prefetch=1, client_manager=1)
    stage.dispatcher.introduce(1)
    stage.dispatcher.leave(2)  # it was not back in time: 1 goes to a, and 2 is parked for it
    assert stage.deliver() == {"a": twice(1)}
    stage.attach("b", queue, prefetch=10, client_manager=2, held=[2, 2])
    stage.acknowledge("a", queue, 1, 1)
    assert stage.deliver() == {}
    stage.acknowledge("b", queue, 2, 2)
    assert stage.state(queue)["locked"] == 0


def test_an_exclusive_queue_with_groups_serves_the_active_consumer_alone_after_a_change_of_primary() -> None:
    stage = Stage()
    queue = stage.queue(groups=True, exclusive=True)
    stage.attach("a", queue, prefetch=2, client_manager=1)
    stage.attach("b", queue, prefetch=1, client_manager=2)
    stage.publish(queue, keyed("K", "L"))
    assert stage.deliver() == {"a": first_time(1, 2)}
    stage.become_primary(1, 2)
    stage.attach("b", queue, prefetch=1, client_manager=2)
    stage.dispatcher.introduce(2)
    stage.dispatcher.leave(1)
    assert stage.deliver() == {"b": twice(1)}
    stage.attach("a", queue, prefetch=2, client_manager=1, held=[1, 2])
    stage.acknowledge("b", queue, 1, 1)
    stage.publish(queue, keyed("L"))
    assert stage.deliver() == {"b": first_time(3, 3)}


ALL = {QUEUE: RangeSet([(2, 9)])}


def test_of_what_expires_is_named_what_consumers_have_and_what_they_may_have_had(stage: Stage) -> None:
    assert stage.dispatcher.names_of(ALL) == ([], [(QUEUE, 0, [2, 7])])
    stage.acknowledge("a", QUEUE, 3, 3)
    stage.attach("b", QUEUE, prefetch=0, client_manager=2, held=[5, 5])
    assert stage.dispatcher.names_of(ALL) == ([(QUEUE, 0, [6, 7])], [(QUEUE, 0, [2, 2, 4, 5])]), "b may have used 6, 7"


def test_of_what_expires_after_a_change_of_primary_is_named_what_consumers_may_have(stage: Stage) -> None:
    stage.become_primary(1, 2)
    assert stage.dispatcher.names_of(ALL) == ([], [(QUEUE, 0, [2, 9])]), "nobody has said anything"
    stage.attach("a", QUEUE, prefetch=0, client_manager=1, held=[1, 4])
    stage.dispatcher.introduce(1)
    assert stage.dispatcher.names_of(ALL) == ([], [(QUEUE, 0, [2, 9])])
    stage.attach("b", QUEUE, prefetch=0, client_manager=2, held=[5, 6])
    stage.dispatcher.introduce(2)
    assert stage.dispatcher.names_of(ALL) == ([], [(QUEUE, 0, [2, 6])])


def test_a_tick_names_a_bounded_number_of_intervals_that_consumers_have(stage: Stage) -> None:
    stage.attach("a", QUEUE, prefetch=3 * NAMED_MAX, held=[1, 4])
    stage.publish(QUEUE, 3 * NAMED_MAX)
    stage.deliver()
    odd = RangeSet((position, position) for position in range(1, 3 * NAMED_MAX, 2))
    _, [named] = stage.dispatcher.names_of({QUEUE: odd, QUEUE + 1: odd})
    assert RangeSet.from_flat(named[2]).intervals == NAMED_MAX
    _, [named] = stage.dispatcher.names_of({QUEUE: RangeSet([(1, 10**9)])})
    assert len(RangeSet.from_flat(named[2])) > NAMED_MAX, "one interval"


def test_a_tick_names_a_bounded_number_of_messages_that_consumers_may_have_had(stage: Stage) -> None:
    stage.attach("a", QUEUE, prefetch=3 * NAMED_MAX, held=[1, 4])
    stage.publish(QUEUE, 2 * NAMED_MAX)
    stage.deliver()
    stage.attach("a", QUEUE, prefetch=0, held=[])
    [named], _ = stage.dispatcher.names_of({QUEUE: RangeSet([(1, 10**9)])})
    assert len(RangeSet.from_flat(named[2])) == NAMED_MAX
