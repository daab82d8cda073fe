"""A client comes back through a Client Manager that has never heard of it or of its destinations."""

import pytest

from alphorn.client_manager.machine import Opened
from alphorn.doors.native import VERSION
from alphorn.model import commands, link
from alphorn.model.conversation import Acknowledge, CloseConsumer, Consume, Done, Failed, Goodbye, Hello, Ping, Pong
from alphorn.model.destinations import Policy, parse_destination
from tests.client_manager.managing import Client, Managing, attached
from tests.client_manager.proving import secret_of

CONNECTION = b"c" * 16
KEY = commands.key_of(CONNECTION, 1)
PLACE = 5


def named(managing: Managing) -> list[link.Name]:
    found = [frame for _, frame in managing.asked if isinstance(frame, link.Name)]
    managing.asked.clear()
    return found


def tell_name(managing: Managing, request: int, name: str, primary: str = "mm1") -> None:
    answer = link.Answered(request, PLACE, policy=Policy(), destination=parse_destination(name))
    managing.tell(answer, primary)


def resumed(managing: Managing, *, held: list[int] | None = None, **options: object) -> Client:
    client = managing.connect(CONNECTION, resumption=3)
    client.say(Consume(77, 1, 1, PLACE, 100, held=held or [], **options))  # type: ignore[arg-type]
    return client


@pytest.mark.requirement("API-10", "API-11", "CM-6", "CM-7")
def test_a_consumer_of_an_unheard_of_place_attaches_once_the_primary_has_named_it() -> None:
    managing = Managing()
    client = resumed(managing, held=[4, 6])
    [question] = named(managing)
    assert question.destination == PLACE
    tell_name(managing, question.request, "queue:q")
    [attach] = attached(managing)
    assert (attach.consumer, attach.destination, attach.held, attach.resumption) == (KEY, PLACE, [4, 6], 3)
    assert client.resolve("queue:q") == PLACE, "the directory knows it now"


def test_a_consumer_of_a_place_that_is_gone_is_told_so() -> None:
    managing = Managing()
    client = resumed(managing)
    [question] = named(managing)
    managing.tell(link.Answered(question.request, 0, "InvalidDestination", "there is none"))
    [failed] = client.take(Failed)
    assert (failed.request, failed.error) == (77, "InvalidDestination")


def test_another_primary_is_asked_for_the_name_when_the_first_is_gone() -> None:
    managing = Managing()
    resumed(managing)
    named(managing)
    managing.link_up("mm2", is_primary=True, epoch=2)
    [question] = named(managing)
    tell_name(managing, question.request, "queue:q", "mm2")
    assert len(attached(managing)) == 1


def test_two_consumers_of_one_unheard_of_place_ask_once() -> None:
    managing = Managing()
    client = resumed(managing)
    client.say(Consume(78, 1, 2, PLACE, 100))
    [question] = named(managing)
    tell_name(managing, question.request, "queue:q")
    assert len(attached(managing)) == 2


@pytest.mark.requirement("API-12")
def test_what_was_acknowledged_of_a_subscription_is_said_to_that_subscription_once_it_is_known() -> None:
    managing = Managing()
    client = resumed(managing, held=[1, 9], subscription="s", is_durable=True)
    client.say(Acknowledge(80, 1, [1, 3]))
    [question] = named(managing)
    tell_name(managing, question.request, "topic:t")
    [claim] = [frame for _, frame in managing.asked if isinstance(frame, link.Claim)]
    managing.tell(link.Answered(claim.request))
    assert [type(command) for entry in managing.entries for command in entry.commands] == [commands.Subscribe]
    managing.answer(number=12)
    [attach] = attached(managing)
    assert attach.held == [1, 9], "until the log has the acknowledgement, all of it is claimed"
    assert managing.entries[-1].commands == [commands.Acknowledge(PLACE, 12, KEY, [1, 3])]
    assert client.take(Done) == [Done(80)]


def test_a_consumer_that_is_closed_before_its_place_is_known_is_detached_afterwards() -> None:
    managing = Managing()
    client = resumed(managing, held=[1, 9])
    client.say(CloseConsumer(81, 1))
    assert client.take(Done) == []
    [question] = named(managing)
    tell_name(managing, question.request, "queue:q")
    [detach] = [frame for _, frame in managing.asked if isinstance(frame, link.Detach)]
    managing.tell(link.Answered(detach.request))
    assert client.take(Done) == [Done(81)]


def test_a_consumer_that_is_closed_before_its_place_turns_out_to_be_gone_is_answered_too() -> None:
    managing = Managing()
    client = resumed(managing)
    client.say(CloseConsumer(81, 1))
    [question] = named(managing)
    managing.tell(link.Answered(question.request, 0, "InvalidDestination", "there is none"))
    [detach] = [frame for _, frame in managing.asked if isinstance(frame, link.Detach)]
    managing.tell(link.Answered(detach.request))
    assert Done(81) in client.heard()


@pytest.mark.requirement("API-12")
def test_a_batch_for_an_unheard_of_place_waits_for_the_primary_and_later_ones_do_not() -> None:
    managing = Managing()
    client = managing.connect(CONNECTION)
    client.publish(PLACE, 1, "a")
    [question] = named(managing)
    assert any(managing.entries[-1].requests), "the primary tells whether it was stored"
    tell_name(managing, question.request, "queue:q")
    managing.answer()
    client.publish(PLACE, 2, "b")
    assert managing.entries[-1].requests == []


@pytest.mark.requirement("API-10")
def test_a_stream_that_a_client_has_given_up_does_not_end_the_newer_one_when_it_is_heard_of_later() -> None:
    """A Client Manager that was slow finds several streams of one client, each with its hello, in any order."""
    managing = Managing()
    client = managing.connect(CONNECTION, resumption=3)
    managing.receive(Opened(99))
    given_up = Client(managing, 99)
    given_up.say(Hello(VERSION, connection=CONNECTION, resumption=2, secret=secret_of(CONNECTION)))
    assert [type(frame) for frame in given_up.heard()] == [Goodbye]
    assert (list(managing.hung), client.take(Goodbye)) == ([99], [])
    client.say(Ping())
    assert client.take(Pong) == [Pong()]


def test_the_newer_stream_of_a_client_takes_the_place_of_the_one_before() -> None:
    managing = Managing()
    older = managing.connect(CONNECTION, resumption=2)
    newer = managing.connect(CONNECTION, resumption=3)
    assert list(managing.hung) == [older.stream]
    newer.say(Ping())
    assert newer.take(Pong) == [Pong()]
