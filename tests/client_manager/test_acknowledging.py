"""What clients acknowledge goes into the log: together, and with something else where there is time for that."""

from collections.abc import Callable

import pytest

from alphorn.model import commands, link
from alphorn.model.conversation import (
    Acknowledge,
    AnyClientFrame,
    CloseConsumer,
    CloseSession,
    Consume,
    Done,
    Recover,
    Return,
)
from tests.client_manager.managing import Managing, batch, consuming


def test_acknowledgements_of_one_turn_become_one_command() -> None:
    managing = Managing()
    client = managing.connect()
    key = consuming(managing, client)
    sequence = batch(managing, *"abcdef")
    managing.tell(link.Deliver(key, 5, [link.DeliveredRun(sequence, 0, 0, 6, 1, 1)]))
    client.say(Acknowledge(0, 1, [1, 2]), Acknowledge(0, 1, [3, 4]))
    assert managing.entries[-1].commands == [commands.Acknowledge(5, 0, key, [1, 2, 3, 4])]


def test_an_acknowledgement_waits_a_moment_for_company(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("alphorn.client_manager.consuming.ACKNOWLEDGE_S", 0.004)
    managing = Managing()
    client = managing.connect()
    key = consuming(managing, client)
    sequence = batch(managing, *"abc")
    managing.tell(link.Deliver(key, 5, [link.DeliveredRun(sequence, 0, 0, 3, 1, 1)]))
    ordered = len(managing.entries)
    client.say(Acknowledge(88, 1, [1, 2]))
    assert len(managing.entries) == ordered
    due = managing.manager.next_deadline()
    managing.manager.on_time(due)
    managing.turn()
    assert managing.entries[-1].commands == [commands.Acknowledge(5, 0, key, [1, 2])]
    assert client.take(Done) == [Done(88)]
    assert managing.manager.next_deadline() > due


def test_an_acknowledgement_waits_for_nothing_where_its_consumer_needs_it_to_be_given_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("alphorn.client_manager.consuming.ACKNOWLEDGE_S", 0.004)
    managing = Managing()
    client = managing.connect()
    key = consuming(managing, client)
    sequence = batch(managing, *("m" * 50))
    managing.tell(link.Deliver(key, 5, [link.DeliveredRun(sequence, 0, 0, 50, 1, 1)]))
    client.say(Acknowledge(88, 1, [1, 2]))
    assert managing.entries[-1].commands == [commands.Acknowledge(5, 0, key, [1, 2])]


def test_an_acknowledgement_with_a_request_is_answered_once_it_is_committed() -> None:
    managing = Managing()
    client = managing.connect()
    key = consuming(managing, client)
    sequence = batch(managing, "a")
    managing.tell(link.Deliver(key, 5, [link.DeliveredRun(sequence, 0, 0, 1, 1, 1)]))
    managing.commits = False
    client.say(Acknowledge(88, 1, [1, 1]))
    assert client.take(Done) == []
    managing.commit()
    assert client.take(Done) == [Done(88)]


WRONG = {
    "descending": [8, 8, 6, 6, 4, 4],
    "overlapping": [1, 4, 3, 6],
    "twice": [1, 1, 1, 1],
    "beyond all numbers": [0, 1 << 63],
    "odd": [1],
}


@pytest.mark.parametrize("positions", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize(
    "say",
    [
        lambda place, wrong: Consume(9, 1, 2, place, 10, held=wrong),
        lambda place, wrong: Acknowledge(0, 1, wrong),
        lambda place, wrong: Return(0, 1, wrong),
        lambda place, wrong: Recover(9, 1, wrong, []),
        lambda place, wrong: CloseConsumer(9, 1, wrong),
        lambda place, wrong: CloseSession(9, 1, {1: wrong}),
    ],
    ids=["consume", "acknowledge", "return", "recover", "close consumer", "close session"],
)
@pytest.mark.parametrize("is_attached", [True, False], ids=["attached", "not yet attached"])
def test_positions_in_no_order_end_the_connection_of_who_said_them(
    positions: list[int], say: Callable[[int, list[int]], AnyClientFrame], is_attached: bool
) -> None:
    managing = Managing()
    client, other = managing.connect(), managing.connect()
    place = client.resolve("queue:q" if is_attached else "topic:t")
    client.consume(place, held=[0, 100])
    client.say(say(place, positions))
    assert "positions come in pairs" in managing.hung[client.stream]
    managing.answer(number=3)
    assert other.stream not in managing.hung


def test_neighbours_may_be_given_back_one_by_one() -> None:
    managing = Managing()
    client = managing.connect()
    key = consuming(managing, client)
    sequence = batch(managing, "a", "b")
    managing.tell(link.Deliver(key, 5, [link.DeliveredRun(sequence, 0, 0, 2, 1, 1)]))
    client.say(Return(88, 1, [1, 1, 2, 2]))
    assert managing.entries[-1].commands == [commands.Return(5, 0, key, [1, 1, 2, 2])]
    assert client.take(Done) == [Done(88)]


def test_whoever_claims_all_positions_there_can_be_is_counted_as_any_other() -> None:
    managing = Managing()
    client = managing.connect()
    key = consuming(managing, client, held=[0, commands.COUNTER_MAX - 1])
    client.say(Acknowledge(0, 1, [0, 0]))
    assert managing.entries[-1].commands == [commands.Acknowledge(5, 0, key, [0, 0])]
