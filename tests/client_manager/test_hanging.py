"""A Client Manager that hung does nothing that its clients asked for before, because they have asked elsewhere since.

Goal: what a client left behind in its stream is not done late, nor is a command repeated whose client is gone.
Method: a Client Manager driven by hand is told that it hung, or loses its primary after its client.
"""

import pytest

from alphorn.client.silence import DEAD_AFTER_S, PING_AFTER_S
from alphorn.client_manager.hanging import HUNG_S, LOOK_S, Wakefulness
from alphorn.client_manager.machine import Hung
from alphorn.model import link
from alphorn.model.commands import AnyCommand, Purge, Subscribe, Unsubscribe
from alphorn.model.conversation import Administer, Done, Goodbye
from alphorn.model.conversation import Unsubscribe as UnsubscribeFrame
from tests.client_manager.managing import Client, Managing


@pytest.fixture
def managing() -> Managing:
    return Managing()


def ordered(managing: Managing, kind: type[AnyCommand]) -> list[AnyCommand]:
    return [command for entry in managing.entries for command in entry.commands if isinstance(command, kind)]


def purging(managing: Managing) -> Client:
    """A client whose purge is in the log and not answered."""
    client = managing.connect()
    client.resolve()
    client.say(Administer(70, "purge", "queue:q", b""))
    assert len(ordered(managing, Purge)) == 1
    return client


def change_primary(managing: Managing) -> None:
    managing.link_down("mm1")
    managing.link_up("mm2", is_primary=True, epoch=2)


def test_a_client_leaves_only_when_its_client_manager_would_notice_that_it_hung() -> None:
    assert 2 * HUNG_S <= DEAD_AFTER_S - PING_AFTER_S
    assert 2 * LOOK_S <= HUNG_S


def test_only_a_long_time_without_a_look_at_the_clock_is_hanging() -> None:
    wakefulness = Wakefulness()
    assert wakefulness.look(1000.0) == 0.0, "it begins"
    assert wakefulness.look(1000.0 + HUNG_S / 2) == 0.0
    assert wakefulness.look(1000.0 + HUNG_S) == 0.0, "looked in between"
    assert wakefulness.look(1000.0 + 3 * HUNG_S) == 2 * HUNG_S
    assert wakefulness.look(1000.0 + 3 * HUNG_S) == 0.0, "told once"


@pytest.mark.requirement("API-10", "CM-6")
def test_what_clients_had_said_before_it_hung_is_not_done_when_it_wakes_up(managing: Managing) -> None:
    client = managing.connect()
    client.resolve()
    managing.receive(Hung(30.0))
    [goodbye] = client.take(Goodbye)
    assert goodbye.error == "Unavailable", "who is still there comes back"
    assert client.stream in managing.hung
    client.say(Administer(70, "purge", "queue:q", b""))
    assert (ordered(managing, Purge), client.heard()) == ([], [])


def test_who_comes_back_after_it_hung_is_served(managing: Managing) -> None:
    client = managing.connect()
    managing.receive(Hung(30.0))
    client = managing.connect(connection=client.id, resumption=1)
    client.resolve()
    client.say(Administer(70, "purge", "queue:q", b""))
    managing.answer(number=3)
    assert [(done.request, done.number) for done in client.take(Done)] == [(70, 3)]


def test_a_purge_without_an_answer_is_ordered_again_with_the_next_primary_while_its_client_waits(
    managing: Managing,
) -> None:
    purging(managing)
    change_primary(managing)
    assert len(ordered(managing, Purge)) == 2


def test_a_purge_whose_client_is_gone_is_not_ordered_again_with_the_next_primary(managing: Managing) -> None:
    purging(managing).close()
    change_primary(managing)
    assert len(ordered(managing, Purge)) == 1


def test_the_end_of_a_subscription_whose_client_is_gone_is_not_ordered_again(managing: Managing) -> None:
    client = managing.connect(client_id="me")
    client.say(UnsubscribeFrame(70, "s"))
    find = [frame for _, frame in managing.asked if isinstance(frame, link.FindSubscription)][-1]
    managing.tell(link.Answered(find.request, (5 << 32) | 2))
    assert len(ordered(managing, Unsubscribe)) == 1
    client.close()
    change_primary(managing)
    assert len(ordered(managing, Unsubscribe)) == 1


def test_a_subscription_whose_consumer_is_gone_is_not_ordered_again(managing: Managing) -> None:
    client = managing.connect()
    client.consume(client.resolve("topic:t"))
    assert len(ordered(managing, Subscribe)) == 1
    client.close()
    change_primary(managing)
    assert len(ordered(managing, Subscribe)) == 1
