"""What consumers had that are gone, or gave back: a new primary hears of it until the log has it."""

import pytest

from alphorn.model import commands, link
from alphorn.model.conversation import Acknowledge, CloseConsumer, Consume, Done, Failed, Resolve, Return
from tests.client_manager.managing import Client, Managing, attached, batch, consuming


def _settled(managing: Managing) -> list[tuple[int, int, list[int]]]:
    managing.asked.clear()
    managing.link_up("mm2", is_primary=True, epoch=2)
    [settled] = [frame for name, frame in managing.asked if name == "mm2" and isinstance(frame, link.Settled)]
    return settled.loose


def _holding(managing: Managing) -> tuple[Client, bytes]:
    """A client that has the messages 1 to 4."""
    client = managing.connect()
    key = consuming(managing, client)
    sequence = batch(managing, *"abcd")
    managing.tell(link.Deliver(key, 5, [link.DeliveredRun(sequence, 0, 0, 4, 1, 1)]))
    return client, key


@pytest.mark.requirement("HA-20", "MM-11")
def test_a_new_primary_hears_what_clients_had_that_are_gone() -> None:
    managing = Managing()
    client, _ = _holding(managing)
    client.say(Acknowledge(9, 1, [1, 1]))
    client.close()
    assert _settled(managing) == [(5, 0, [2, 4])]


def test_a_new_primary_hears_what_a_closed_consumer_had_and_has_not_come_back() -> None:
    managing = Managing()
    client, key = _holding(managing)
    client.say(CloseConsumer(9, 1))
    assert _settled(managing) == [(5, 0, [1, 4])]
    managing.commit_other(commands.Return(5, 0, key, [1, 3]), commands.Acknowledge(5, 0, key, [4, 4]))
    managing.link_up("mm1", is_primary=True, epoch=3)
    assert managing.asked[-1] == ("mm1", link.Settled())


def test_what_a_program_was_never_handed_is_not_loose() -> None:
    managing = Managing()
    client, _ = _holding(managing)
    managing.commits = False
    client.say(Return(9, 1, [1, 1], is_unseen=True), CloseConsumer(10, 1, [3, 4]))
    assert _settled(managing) == [(5, 0, [2, 2])]


def test_what_a_client_said_it_had_of_nothing_that_is_there_is_forgotten_when_the_primary_says_so() -> None:
    managing = Managing()
    client = managing.connect()
    client.say(*[Consume(number, 1, number, number, 10, held=[1, 1]) for number in (7, 8)])
    asked = [frame for _, frame in managing.asked if isinstance(frame, link.Name)]
    client.close()
    for frame in asked:
        managing.tell(link.Answered(frame.request, 0, "InvalidDestination", "there is no such destination"))
    assert _settled(managing) == []


def test_what_a_client_still_has_when_it_comes_back_is_not_loose() -> None:
    managing = Managing()
    client, _ = _holding(managing)
    client.close()
    managing.connect(connection=client.id).consume(5, held=[1, 4])
    assert _settled(managing) == []


@pytest.mark.parametrize(
    "end",
    [commands.DeleteDestination(5), commands.Unsubscribe(5, 0), commands.Purge(5)],
    ids=["destination", "subscription", "all that it held"],
)
def test_of_what_has_ended_nothing_is_loose(end: commands.AnyCommand) -> None:
    managing = Managing()
    client, _ = _holding(managing)
    client.close()
    managing.commit_other(end)
    assert _settled(managing) == []


def test_of_a_temporary_queue_nothing_is_loose_when_its_connection_has_ended() -> None:
    managing = Managing()
    client = managing.connect()
    client.say(Resolve(1, f"queue:temporary.{client.id.hex()}.1", is_temporary=True))
    managing.answer(number=5)
    client.consume(5, held=[1, 4])
    client.close()
    managing.commit_other(commands.Forget(b"another one    x"))
    assert _settled(managing) == [(5, 0, [1, 4])]
    managing.commit_other(commands.Forget(client.id))
    managing.link_up("mm1", is_primary=True, epoch=3)
    assert managing.asked[-1] == ("mm1", link.Settled())


def test_of_a_subscription_without_a_name_nothing_is_loose_when_all_its_connections_have_ended() -> None:
    managing = Managing()
    clients = [managing.connect(), managing.connect()]
    for place, client in enumerate(clients):
        client.consume(client.resolve("topic:t"), subscription="s", is_shared=True, held=[place, place])
        [claim] = [frame for _, frame in managing.asked if isinstance(frame, link.Claim)]
        managing.tell(link.Answered(claim.request))
        managing.answer(number=9)
        managing.asked.clear()
    for client in clients:
        client.close()
    managing.commit_other(commands.Forget(clients[0].id))
    assert _settled(managing) == [(5, 9, [0, 1])]
    managing.commit_other(commands.Forget(clients[1].id))
    managing.link_up("mm1", is_primary=True, epoch=3)
    assert managing.asked[-1] == ("mm1", link.Settled())


def test_of_what_the_log_keeps_something_is_loose_after_its_connection_has_ended() -> None:
    managing = Managing()
    client, _ = _holding(managing)
    client.close()
    managing.commit_other(commands.Forget(client.id))
    assert _settled(managing) == [(5, 0, [1, 4])]


def test_of_a_destination_that_is_not_there_any_more_nothing_is_loose() -> None:
    managing = Managing()
    client = managing.connect(connection=b"c" * 16)
    client.consume(5, held=[1, 4])
    [asked] = [frame for _, frame in managing.asked if isinstance(frame, link.Name)]
    managing.tell(link.Answered(asked.request, 0, "InvalidDestination", "it is gone"))
    assert [failed.error for failed in client.take(Failed)] == ["InvalidDestination"]
    assert _settled(managing) == []


def test_what_is_on_its_way_back_is_not_claimed_from_a_new_primary_but_may_have_been_used() -> None:
    managing = Managing()
    client, _ = _holding(managing)
    managing.commits = False
    client.say(Return(9, 1, [2, 3]))
    assert _settled(managing) == [(5, 0, [2, 3])]
    assert [attach.held for attach in attached(managing)] == [[1, 1, 4, 4]]
    managing.commit()
    assert client.take(Done) == [Done(9)]
    managing.link_up("mm1", is_primary=True, epoch=3)
    assert managing.asked[-1] == ("mm1", link.Settled())


def test_a_consumer_is_detached_only_after_what_it_gave_back_is_in_the_log() -> None:
    managing = Managing()
    client, key = _holding(managing)
    managing.asked.clear()
    managing.commits = False
    client.say(Return(0, 1, [1, 2]), CloseConsumer(70, 1))
    assert managing.asked == []
    managing.commit()
    [(_, detach)] = managing.asked
    assert isinstance(detach, link.Detach)
    assert (detach.consumer, detach.held) == (key, [3, 4])
