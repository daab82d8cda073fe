"""What clients acknowledge goes into the log: together, and with something else where there is time for that."""

import pytest

from alphorn.model import commands, link
from alphorn.model.conversation import Acknowledge, Done
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
