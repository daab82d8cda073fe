"""Who is not heard while it has asked for very much, and who is."""

from alphorn.client_manager.hanging import HUNG_S
from alphorn.client_manager.limits import ASKING
from alphorn.client_manager.machine import Said, Window
from alphorn.model import link
from alphorn.model.conversation import Browse, Confirmed, Goodbye, Postponed, Resolve, Retire, Status
from alphorn.model.log_conversation import Stage
from tests.client_manager.managing import Client, Managing, encode


def flood(client: Client, count: int) -> None:
    client.say(*(Resolve(1000 + number, f"queue:{number}") for number in range(count)))


def requests_of(managing: Managing) -> list[int]:
    return [request for entry in managing.entries for request in entry.requests if request]


def test_a_client_with_many_requests_is_heard_again_when_half_of_them_are_answered() -> None:
    managing = Managing(load_max=10)
    client, other = managing.connect(), managing.connect()
    managing.entries.clear()
    flood(client, 9)
    assert managing.unheard == set()
    client.say(Resolve(2000, "queue:last"))
    assert managing.unheard == {client.stream}
    requests = requests_of(managing)
    for request in requests[:4]:
        managing.tell(link.Answered(request, request))
    assert managing.unheard == {client.stream}
    managing.tell(link.Answered(requests[4], 77))
    assert managing.unheard == set()
    assert other.stream not in managing.unheard


def test_a_client_that_was_not_heard_for_long_comes_back_and_says_again_what_it_said() -> None:
    managing = Managing(load_max=10)
    client, other = managing.connect(), managing.connect()
    managing.entries.clear()
    flood(client, 10)
    assert managing.unheard == {client.stream}
    managing.now += HUNG_S
    for request in requests_of(managing):
        managing.tell(link.Answered(request, request))
    assert [goodbye.error for goodbye in client.take(Goodbye)] == ["Unavailable"], "it may have asked elsewhere since"
    assert other.take(Goodbye) == []


def test_a_client_that_looks_at_much_at_once_is_not_heard_and_others_are() -> None:
    managing = Managing(load_max=1000)
    client, other = managing.connect(), managing.connect()
    place = client.resolve()
    looks = 1000 // ASKING[Browse]
    client.say(*(Browse(1000 + number, place, "", 0, 10) for number in range(looks - 1)))
    assert managing.unheard == set()
    client.say(Status(3000))
    assert managing.unheard == {client.stream}
    other.say(Status(1))
    assert managing.unheard == {client.stream}


def test_a_client_that_is_gone_is_not_waited_for() -> None:
    managing = Managing(load_max=10)
    client = managing.connect()
    flood(client, 10)
    assert managing.unheard == {client.stream}
    client.close()
    assert not managing.manager._desk.busy


def test_one_that_stages_as_much_as_it_may_postpones_nobody_and_is_not_heard() -> None:
    managing = Managing(channel_bytes_max=10_000)
    client, other = managing.connect(), managing.connect()
    place = client.resolve()
    other.resolve()
    managing.receive(Window(0, False))
    blob, part = memoryview(encode([["x" * 1000]])), 0
    while client.stream not in managing.unheard:
        staged = Stage(100 + part, place, b"p" * 20, part + 1, 1, 0, 1000, blob, "writer", 1, 0, 1, part)
        managing.receive(Said(client.stream, staged))
        part += 1
    assert part > 5, "it has as much as others leave it"
    other.publish(place, 1, "body")
    assert other.take(Postponed) == []
    managing.receive(Window(0, True))
    assert other.take(Confirmed) == [Confirmed(1, 1)]


def test_who_has_more_waiting_than_its_share_is_not_heard_whatever_it_said() -> None:
    managing = Managing(channel_bytes_max=1_000)
    client, other = managing.connect(), managing.connect()
    place = other.resolve()
    managing.receive(Window(0, False))
    other.publish(place, 1, "body")
    used = list(range(1, 101))
    for _ in range(5):
        client.say(Retire(1000, used))
    assert managing.unheard == {client.stream}
    managing.receive(Window(0, True))
    assert managing.unheard == set()


def test_clients_with_many_requests_are_heard_while_nobody_answers_anyway() -> None:
    managing = Managing(load_max=10)
    client = managing.connect()
    flood(client, 10)
    assert managing.unheard == {client.stream}
    managing.link_down("mm1")
    assert managing.unheard == set()
    managing.link_up("mm1", is_primary=True, epoch=2)
    assert managing.unheard == {client.stream}


def test_what_a_client_says_in_the_same_breath_is_not_heard_either() -> None:
    managing = Managing(load_max=10)
    client, other = managing.connect(), managing.connect()
    for number in range(10):
        assert managing.manager.heeding.is_heard(client.stream)
        managing.manager.receive(Said(client.stream, Resolve(1000 + number, f"queue:{number}")), 0.0)
    assert not managing.manager.heeding.is_heard(client.stream)
    assert managing.manager.heeding.is_heard(other.stream)
