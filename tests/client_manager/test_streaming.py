"""Fragments through a Client Manager: into the log as they come, and out of it one by one as they are asked for."""

import msgspec
import pytest

from alphorn.client_manager.channel import BULK_BYTES_SHARED
from alphorn.client_manager.fetching import AGAIN_S
from alphorn.client_manager.machine import Lost, Said, Writable
from alphorn.client_manager.streaming import READS_AT_ONCE, READS_MAX
from alphorn.model import commands, link
from alphorn.model.conversation import (
    AbandonStream,
    Administer,
    Close,
    Confirmed,
    Done,
    Failed,
    FragmentRead,
    Goodbye,
    Publish,
    ReadFragment,
    Refused,
    Resolve,
    SendFragment,
)
from alphorn.model.destinations import parse_destination, temporary_prefix
from alphorn.model.messages import Flag, Packed, Streamed
from tests.client_manager.managing import Client, Managing, encode

SENDER = b"s" * 20


def send(client: Client, place: int, counter: int, index: int, blob: bytes = b"piece") -> None:
    client.say(SendFragment(1, 3, place, counter, index, memoryview(blob)))


def seal(client: Client, place: int, counter: int, fragments: int) -> None:
    message = Packed(None, stream=Streamed(fragments, 5 * fragments, bytes(16)))
    client.say(Publish(1, 3, place, counter, 1, int(Flag.STREAM), 1000, memoryview(encode([message]))))


def answer_all(managing: Managing) -> None:
    """The primary takes all that was ordered."""
    for entry in managing.entries:
        for request in entry.requests:
            managing.tell(link.Answered(request))


def ordered(managing: Managing) -> list[commands.AnyCommand]:
    return [command for entry in managing.entries for command in entry.commands]


def located(managing: Managing) -> list[link.LocateFragments]:
    found = [frame for _, frame in managing.asked if isinstance(frame, link.LocateFragments)]
    managing.asked = [asked for asked in managing.asked if not isinstance(asked[1], link.LocateFragments)]
    return found


def fetched(managing: Managing) -> list[tuple[str, link.Fetch]]:
    found = [(name, frame) for name, frame in managing.asked if isinstance(frame, link.Fetch)]
    managing.asked.clear()
    return found


def entry(*blobs: bytes) -> memoryview:
    fragments = [commands.Fragment(5, SENDER, place, place, memoryview(blob)) for place, blob in enumerate(blobs)]
    return memoryview(encode(commands.Entry(list(fragments))))


def reading(index: int = 0, request: int = 70) -> ReadFragment:
    return ReadFragment(request, 5, SENDER, 9, 33, index)


@pytest.fixture(name="managing")
def make_managing() -> Managing:
    managing = Managing()
    managing.link_up("mm2", is_primary=False, epoch=1)
    managing.asked.clear()
    return managing


@pytest.mark.requirement("VLM-3", "VLM-8")
def test_a_fragment_is_ordered_before_the_next_has_come_and_confirmed_when_it_is_taken(managing: Managing) -> None:
    client = managing.connect()
    place = client.resolve()
    managing.commits = False
    send(client, place, 1, 0)
    [fragment] = [command for command in ordered(managing) if isinstance(command, commands.Fragment)]
    assert (fragment.counter, fragment.index, bytes(fragment.blob)) == (1, 0, b"piece")
    assert fragment.producer == commands.key_of(client.id, 3)
    managing.commit()
    assert client.take(Confirmed) == []
    managing.answer()
    assert client.take(Confirmed) == [Confirmed(3, 1)]


def test_a_fragment_that_does_not_fit_is_refused_at_once(managing: Managing) -> None:
    client = managing.connect()
    send(client, client.resolve(), 1, 4)
    managing.answer(error="PeerViolation", reason="fragment 4 came where 0 comes next")
    assert client.take(Refused) == [Refused(3, 1, 1, "PeerViolation", "fragment 4 came where 0 comes next")]


def test_a_name_is_looked_up_anew_once_the_primary_says_that_its_destination_is_gone(managing: Managing) -> None:
    """The log says so too, and may be heard later than the primary's answer."""
    client = managing.connect()
    place = client.resolve(number=5)
    send(client, place, 1, 0)
    managing.answer(error="InvalidDestination", reason="there is no destination 5 any more")
    assert client.resolve(number=6) != place


def test_a_name_is_looked_up_anew_once_its_deletion_is_answered(managing: Managing) -> None:
    client = managing.connect()
    client.resolve()
    managing.commits = False
    client.say(Administer(9, "delete", "queue:q", b""))
    managing.answer()
    assert client.take(Done) == [Done(9, 0)]
    assert managing.manager._desk.directory.find(parse_destination("queue:q")) is None


def test_the_primary_decides_whether_a_streamed_message_is_taken(managing: Managing) -> None:
    client = managing.connect()
    place = client.resolve()
    send(client, place, 1, 0)
    managing.answer()
    seal(client, place, 2, 1)
    assert client.take(Confirmed) == [Confirmed(3, 1)]
    managing.answer(error="PeerViolation", reason="not whole")
    assert client.take(Refused) == [Refused(3, 2, 1, "PeerViolation", "not whole")]


def test_an_abandoned_body_is_said_to_the_log(managing: Managing) -> None:
    client = managing.connect()
    place = client.resolve()
    send(client, place, 1, 0)
    client.say(AbandonStream(1, 3, place, 2))
    assert ordered(managing)[-1] == commands.Abandon(commands.key_of(client.id, 3), 2, 5)
    answer_all(managing)
    assert client.take(Confirmed) == [Confirmed(3, 1), Confirmed(3, 2)]


def test_after_a_reconnection_the_primary_answers_for_fragments(managing: Managing) -> None:
    client = managing.connect()
    place = client.resolve()
    send(client, place, 1, 0)
    client.close()
    again = managing.connect(client.id, resumption=1)
    send(again, place, 2, 1)
    assert again.take(Confirmed) == []
    managing.answer()
    assert again.take(Confirmed) == [Confirmed(3, 2)]


@pytest.mark.parametrize(
    "frame",
    [
        SendFragment(1, 3, 5, 1, -1, memoryview(b"x")),
        SendFragment(1, 3, 5, 1, 0, memoryview(b"")),
        SendFragment(1, 3, 5, 1, 0, memoryview(bytes((1 << 20) + 1))),
        SendFragment(2, 3, 5, 1, 0, memoryview(b"x")),
        SendFragment(1, 3, 5 << 60, 1, 0, memoryview(b"x")),
        AbandonStream(1, 3, 5, 0),
        ReadFragment(1, 5 << 60, SENDER, 1, 1, 0),
        ReadFragment(1, 5, SENDER, 1, 1, -1),
        ReadFragment(1, 5, SENDER, 1, 1 << 62, 0),
        Publish(1, 3, 5, 1, 1, int(Flag.STREAM), 1000, memoryview(encode([["plain"]]))),
    ],
)
def test_what_no_library_says_ends_the_connection(managing: Managing, frame: object) -> None:
    client = managing.connect()
    client.say(frame)  # type: ignore[arg-type]
    assert client.take(Goodbye)[0].error == "PeerViolation"


def test_fragments_take_no_room_in_the_cache(managing: Managing) -> None:
    client = managing.connect()
    place = client.resolve()
    before = managing.manager.describe()["channels"]
    send(client, place, 1, 0, b"x" * 1000)
    [after] = managing.manager.describe()["channels"]  # type: ignore[misc]
    assert after["cache"] == before[0]["cache"]  # type: ignore[index]


@pytest.mark.requirement("VLM-4")
def test_a_piece_is_located_by_the_primary_and_fetched_from_a_backup(managing: Managing) -> None:
    client = managing.connect()
    client.say(reading(1))
    [question] = located(managing)
    assert (question.producer, question.counter, question.sequence, question.index) == (SENDER, 9, 33, 1)
    managing.tell(link.FragmentsLocated(question.request, [40, 1, 41, 0]))
    [(server, fetch)] = fetched(managing)
    assert (server, fetch.sequences) == ("mm2", [40])
    managing.tell(link.Entries(fetch.request, [(40, entry(b"zero", b"one"))]), "mm2")
    assert [(frame.request, bytes(frame.blob)) for frame in client.take(FragmentRead)] == [(70, b"one")]
    client.say(reading(2, 71))
    assert located(managing) == [], "where the next ones are is known"
    [(_, fetch)] = fetched(managing)
    assert fetch.sequences == [41]


def test_all_who_wait_for_pieces_of_a_body_ask_once(managing: Managing) -> None:
    client = managing.connect()
    for index in range(3):
        client.say(reading(index, 70 + index))
    [question] = located(managing)
    managing.tell(link.FragmentsLocated(question.request, [40, 0, 41, 0]))
    assert [fetch.sequences for _, fetch in fetched(managing)] == [[40, 41]]
    client.say(reading(2, 73))
    managing.asked.clear()


def test_a_piece_that_was_not_among_the_answers_is_asked_for_again(managing: Managing) -> None:
    client = managing.connect()
    client.say(reading(0), reading(2, 71))
    [question] = located(managing)
    managing.tell(link.FragmentsLocated(question.request, [40, 0]))
    [question] = located(managing)
    assert question.index == 2
    managing.tell(link.FragmentsLocated(question.request, []))
    assert [(frame.request, frame.error) for frame in client.take(Failed)] == [(71, "Unavailable")]


def test_a_body_that_nobody_needs_any_more_cannot_be_read(managing: Managing) -> None:
    client = managing.connect()
    client.say(reading())
    [question] = located(managing)
    managing.tell(link.FragmentsLocated(question.request, []))
    [failed] = client.take(Failed)
    assert (failed.request, failed.error) == (70, "Unavailable")
    assert "acknowledged" in failed.reason


def test_an_entry_that_nobody_has_any_more_ends_the_reading_when_the_primary_says_so(managing: Managing) -> None:
    client = managing.connect()
    client.say(reading())
    [question] = located(managing)
    managing.tell(link.FragmentsLocated(question.request, [40, 0]))
    for name in ("mm2", "mm1"):
        [(server, fetch)] = fetched(managing)
        assert server == name
        managing.tell(link.Entries(fetch.request, []), name)
    [question] = located(managing)
    managing.tell(link.FragmentsLocated(question.request, [40, 0]))
    assert client.take(Failed) == [], "it is still needed, and so it is asked for again"
    managing.manager.on_time(AGAIN_S)
    managing.turn()
    for _ in range(2):
        [(server, fetch)] = fetched(managing)
        managing.tell(link.Entries(fetch.request, []), server)
    [question] = located(managing)
    managing.tell(link.FragmentsLocated(question.request, []))
    assert [frame.request for frame in client.take(Failed)] == [70]
    assert managing.manager.next_deadline() == float("inf")


def test_another_primary_is_asked_for_what_the_last_one_did_not_answer(managing: Managing) -> None:
    client = managing.connect()
    client.say(reading())
    [unanswered] = located(managing)
    managing.tell(link.Role("mm2", 2, True), "mm2")
    [question] = located(managing)
    managing.tell(link.FragmentsLocated(unanswered.request, []))
    assert client.take(Failed) == [], "the old one has no say"
    managing.tell(link.FragmentsLocated(question.request, [40, 0]), "mm2")
    assert [fetch.sequences for _, fetch in fetched(managing)] == [[40]]


def test_nobody_answers_a_client_that_is_gone(managing: Managing) -> None:
    client = managing.connect()
    client.say(reading())
    [question] = located(managing)
    client.close()
    managing.tell(link.FragmentsLocated(question.request, []))
    assert client.heard() == []
    assert msgspec.to_builtins(managing.manager.describe()["streaming"]) == {"read": 0, "reading": 0, "fetched": 0}


@pytest.mark.requirement("VLM-5")
def test_only_some_of_many_pieces_are_fetched_at_a_time(managing: Managing) -> None:
    client = managing.connect()
    places = [number for index in range(40) for number in (40 + index, 0)]
    for index in range(40):
        client.say(reading(index, 100 + index))
    managing.tell(link.FragmentsLocated(located(managing)[0].request, places))
    [(_, fetch)] = fetched(managing)
    assert len(fetch.sequences) == READS_AT_ONCE
    managing.tell(link.Entries(fetch.request, [(sequence, entry(b"piece")) for sequence in fetch.sequences]), "mm2")
    assert len(client.take(FragmentRead)) == READS_AT_ONCE
    assert [fetch.sequences for _, fetch in fetched(managing)] == [[56 + index for index in range(READS_AT_ONCE)]]


@pytest.mark.requirement("VLM-5")
def test_a_client_that_does_not_take_what_it_is_sent_is_sent_no_more_pieces(managing: Managing) -> None:
    client = managing.connect()
    managing.receive(Writable(client.stream, False))
    client.say(reading())
    assert located(managing) == []
    managing.receive(Writable(client.stream, True))
    assert len(located(managing)) == 1


def test_a_client_that_asks_for_more_than_anybody_reads_is_sent_away(managing: Managing) -> None:
    client = managing.connect()
    managing.receive(Writable(client.stream, False))
    for index in range(READS_MAX):
        managing.manager.receive(Said(client.stream, reading(index, 100 + index)), 0.0)
    managing.turn()
    assert client.take(Goodbye) == []
    client.say(reading(READS_MAX, 99))
    assert client.take(Goodbye)[0].error == "PeerViolation"


@pytest.mark.requirement("VLM-7")
def test_small_messages_of_the_same_turn_are_not_in_the_entry_of_a_fragment(managing: Managing) -> None:
    client = managing.connect()
    place = client.resolve()
    managing.entries.clear()
    small = memoryview(encode([["small"]]))
    client.say(
        Publish(1, 1, place, 1, 1, 0, 1000, small),
        SendFragment(1, 3, place, 1, 0, memoryview(b"piece")),
        Publish(1, 1, place, 2, 1, 0, 1000, small),
    )
    kinds = [[type(command) for command in entry.commands] for entry in managing.entries]
    assert kinds == [[commands.Publish, commands.Publish], [commands.Fragment]]


@pytest.mark.requirement("VLM-7")
def test_bulk_of_many_clients_waits_while_small_messages_pass(managing: Managing) -> None:
    managing.commits = False
    clients = [managing.connect() for _ in range(4)]
    managing.commits = True
    places = [client.resolve() for client in clients]
    managing.commits = False
    managing.entries.clear()
    for client, place in zip(clients, places, strict=True):
        for counter in range(1, 5):
            send(client, place, counter, counter - 1, bytes(1 << 18))
    under_way = BULK_BYTES_SHARED >> 18
    assert len(managing.entries) == under_way
    clients[0].publish(places[0], 1, "small")
    assert isinstance(managing.entries[-1].commands[0], commands.Publish)
    managing.commit()
    while managing.waiting:
        managing.commit()
    assert len(managing.entries) == 17
    answer_all(managing)
    assert [len(client.take(Confirmed)) for client in clients] == [5, 4, 4, 4]


def test_what_follows_fragments_does_not_overtake_those_that_wait(managing: Managing) -> None:
    client = managing.connect()
    place = client.resolve()
    managing.commits = False
    managing.entries.clear()
    count = (BULK_BYTES_SHARED >> 18) + 2
    for counter in range(1, count + 1):
        send(client, place, counter, counter - 1, bytes(1 << 18))
    seal(client, place, count + 1, count)
    managing.tell(link.Role("mm1", 2, True))
    client.say(Close())
    managing.commits = True
    managing.commit()
    kinds = [type(command) for entry in managing.entries for command in entry.commands]
    has_left = BULK_BYTES_SHARED >> 18  # before the primary changed, which was to answer
    again = [commands.Fragment] * has_left
    assert kinds == [commands.Fragment] * count + [commands.Publish] + again + [commands.Forget]


def test_what_a_connection_wanted_is_not_wanted_again_after_its_end(managing: Managing) -> None:
    client = managing.connect()
    place = client.resolve()
    seal(client, place, 1, 0)
    client.say(Resolve(50, f"queue:{temporary_prefix(client.id)}mine", True))
    client.say(Close())
    managing.entries.clear()
    managing.tell(link.Role("mm1", 2, True))
    assert managing.entries == [], "another primary would take it for something new"


def test_lost_bulk_makes_room_again(managing: Managing) -> None:
    client = managing.connect()
    place = client.resolve()
    managing.commits = False
    for counter in range(1, (BULK_BYTES_SHARED >> 18) + 2):
        send(client, place, counter, counter - 1, bytes(1 << 18))
    for order in managing.waiting:
        managing.manager.receive(Lost(0, order.handle, "interrupted"), 0.0)
    before = len(managing.entries)
    managing.turn()
    assert len(managing.entries) == before + 1


def test_one_piece_for_thousands_of_questions_is_given_to_each(managing: Managing) -> None:
    client = managing.connect()
    for number in range(READS_MAX):
        managing.manager.receive(Said(client.stream, reading(0, number)), 0.0)
    managing.turn()
    managing.tell(link.FragmentsLocated(located(managing)[0].request, [40, 0]))
    [(_, fetch)] = fetched(managing)
    managing.tell(link.Entries(fetch.request, [(40, entry(b"zero"))]), "mm2")
    assert len(client.take(FragmentRead)) == READS_MAX


def test_who_names_an_entry_of_the_future_keeps_nobody_else_from_reading(managing: Managing) -> None:
    liar, honest = managing.connect(), managing.connect()
    liar.say(msgspec.structs.replace(reading(), sequence=1 << 61))
    located(managing)
    honest.say(reading())
    [question] = located(managing)
    assert question.sequence == 33
    managing.tell(link.FragmentsLocated(question.request, []))
    assert honest.take(Failed)
    assert liar.heard() == []


def test_where_the_one_who_asked_is_gone_another_who_waits_asks(managing: Managing) -> None:
    first, second = managing.connect(), managing.connect()
    first.say(reading(index=3))
    second.say(reading(index=5))
    [asked] = located(managing)
    assert asked.index == 3
    first.close()
    [asked] = located(managing)
    assert asked.index == 5
    managing.tell(link.FragmentsLocated(asked.request, []))
    assert second.take(Failed)


def test_nothing_is_left_of_a_client_that_is_gone(managing: Managing) -> None:
    client = managing.connect()
    client.say(reading(), reading(index=1))
    client.close()
    located(managing)
    managing.link_up("mm2", is_primary=True, epoch=2)
    assert located(managing) == []
    assert managing.manager.describe()["streaming"] == {"read": 0, "reading": 0, "fetched": 0}
