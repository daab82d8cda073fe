"""Bodies that are not in the receive cache: they come with the log, or are fetched from whoever answers."""

import pytest

from alphorn.client_manager.fetching import AGAIN_S, ANSWER_S, ENTRIES_MAX
from alphorn.model import link
from alphorn.model.conversation import Delivered
from tests.client_manager.managing import Client, Managing, batch, bodies_of, consuming, encode, entry_of


def forgetful() -> tuple[Managing, Client, bytes, int]:
    """A Client Manager with a backup, a consumer, and an entry that has left its cache."""
    managing = Managing(cache_bytes=1_000)
    managing.link_up("mm2", is_primary=False, epoch=1)
    client = managing.connect()
    key = consuming(managing, client)
    old = batch(managing, "old")
    batch(managing, "x" * 99)
    return managing, client, key, old


def fetches(managing: Managing) -> list[tuple[str, link.Fetch]]:
    found = [(name, frame) for name, frame in managing.asked if isinstance(frame, link.Fetch)]
    managing.asked.clear()
    return found


def pass_time(managing: Managing, now: float) -> None:
    if managing.manager.next_deadline() <= now:
        managing.manager.on_time(now)
        managing.turn()


def test_a_delivery_that_is_ahead_of_the_log_waits_for_it_and_asks_nobody() -> None:
    managing = Managing()
    managing.link_up("mm2", is_primary=False, epoch=1)
    client = managing.connect()
    key = consuming(managing, client)
    following = batch(managing, "first") + 1
    managing.tell(link.Deliver(key, 5, [link.DeliveredRun(following, 0, 0, 1, 2, 1)]))
    assert (fetches(managing), client.take(Delivered)) == ([], [])
    assert batch(managing, "second") == following
    assert [bodies_of(frame) for frame in client.take(Delivered)] == [["second"]]


def test_a_server_that_does_not_answer_is_not_waited_for() -> None:
    managing, client, key, old = forgetful()
    managing.tell(link.Deliver(key, 5, [link.DeliveredRun(old, 0, 0, 1, 1, 1)]))
    [(first, unanswered)] = fetches(managing)
    pass_time(managing, ANSWER_S / 2)
    assert fetches(managing) == []
    pass_time(managing, ANSWER_S)
    [(second, _)] = fetches(managing)
    assert (first, second) == ("mm2", "mm1")
    managing.tell(link.Entries(unanswered.request, [(old, memoryview(encode(entry_of("old"))))]), "mm2")
    assert [bodies_of(frame) for frame in client.take(Delivered)] == [["old"]], "a late answer counts all the same"
    assert managing.manager.next_deadline() == float("inf")


def test_a_server_that_has_not_got_an_entry_is_asked_again_only_after_all_others_and_a_pause() -> None:
    managing, _, key, old = forgetful()
    managing.tell(link.Deliver(key, 5, [link.DeliveredRun(old, 0, 0, 1, 1, 1)]))
    [(_, fetch)] = fetches(managing)
    managing.tell(link.Entries(fetch.request, []), "mm2")
    [(name, fetch)] = fetches(managing)
    assert name == "mm1"
    managing.tell(link.Entries(fetch.request, []), "mm1")
    assert fetches(managing) == []
    pass_time(managing, AGAIN_S)
    [(name, _)] = fetches(managing)
    assert name == "mm2"


def test_without_any_link_a_fetch_waits_for_one() -> None:
    managing, client, key, old = forgetful()
    managing.tell(link.Deliver(key, 5, [link.DeliveredRun(old, 0, 0, 1, 1, 1)]))
    managing.link_down("mm2")
    managing.link_down("mm1")
    fetches(managing)
    managing.link_up("mm1", is_primary=True, epoch=2)
    managing.tell(link.Deliver(key, 5, [link.DeliveredRun(old, 0, 0, 1, 1, 1)]))
    pass_time(managing, AGAIN_S)
    [(name, fetch)] = fetches(managing)
    managing.tell(link.Entries(fetch.request, [(old, memoryview(encode(entry_of("old"))))]), name)
    assert [bodies_of(frame) for frame in client.take(Delivered)] == [["old"]]


def late() -> tuple[Managing, Client, bytes]:
    """A Client Manager that has heard nothing but the newest entry of a long log."""
    managing, client, key, _ = forgetful()
    managing.sequence = 500
    batch(managing, "newest")
    return managing, client, key


def behind(managing: Managing, key: bytes, *sequences: int) -> None:
    """A delivery of messages that lie in these entries, one in each."""
    runs = [link.DeliveredRun(sequence, 0, 0, 1, place, 1) for place, sequence in enumerate(sequences, 1)]
    managing.tell(link.Deliver(key, 5, runs))


def give(managing: Managing, name: str, fetch: link.Fetch, *sequences: int) -> None:
    """An answer with some of what was asked for; each message is its entry's number."""
    entries = [(sequence, memoryview(encode(entry_of(sequence)))) for sequence in sequences]
    managing.tell(link.Entries(fetch.request, entries), name)


def received(client: Client) -> list[object]:
    return [body for frame in client.take(Delivered) for body in bodies_of(frame)]


@pytest.mark.requirement("MM-4")
def test_what_a_turn_needs_is_asked_for_at_once() -> None:
    managing, client, key = late()
    behind(managing, key, 90, 91, 92)
    [(name, fetch)] = fetches(managing)
    assert fetch.sequences == [90, 91, 92]
    give(managing, name, fetch, 90, 91, 92)
    assert received(client) == [90, 91, 92]
    assert managing.manager.next_deadline() == float("inf")


def test_many_entries_are_asked_for_in_questions_of_bounded_length() -> None:
    managing, client, key = late()
    sequences = range(100, 100 + 2 * ENTRIES_MAX + 1)
    behind(managing, key, *sequences)
    asked = fetches(managing)
    assert [len(fetch.sequences) for _, fetch in asked] == [ENTRIES_MAX, ENTRIES_MAX, 1]
    for name, fetch in asked:
        give(managing, name, fetch, *fetch.sequences)
    assert received(client) == list(sequences)


def test_what_had_no_room_in_an_answer_is_asked_of_the_same_server_again() -> None:
    managing, client, key = late()
    behind(managing, key, 90, 91, 92, 93)
    [(name, fetch)] = fetches(managing)
    give(managing, name, fetch, 90, 92)
    again = fetches(managing)
    assert [(server, fetch.sequences) for server, fetch in again] == [("mm1", [91]), (name, [93])]
    while again:  # what came too early for its consumer is asked for once more
        for server, fetch in again:
            give(managing, server, fetch, *fetch.sequences)
        again = fetches(managing)
    assert received(client) == [90, 91, 92, 93]


def test_entries_that_are_delivered_in_another_order_than_that_of_the_log_are_fetched_once() -> None:
    managing, client, key = late()
    behind(managing, key, 92, 90, 91)
    [(name, fetch)] = fetches(managing)
    give(managing, name, fetch, 90, 91, 92)
    assert received(client) == [92, 90, 91]
    assert fetches(managing) == []


def questions(managing: Managing) -> list[tuple[str, link.AskPending]]:
    found = [(name, frame) for name, frame in managing.asked if isinstance(frame, link.AskPending)]
    managing.asked.clear()
    return found


def deny(managing: Managing) -> list[tuple[str, link.AskPending]]:
    """The backup and then the primary have nothing of what they are asked for; gives what is asked after that."""
    for server in ("mm2", "mm1"):
        [(name, fetch)] = fetches(managing)
        assert name == server
        give(managing, name, fetch)
    return questions(managing)


def test_a_message_that_nobody_has_any_more_and_the_primary_neither_does_not_hold_up_those_behind_it() -> None:
    managing, client, key = late()
    behind(managing, key, 90, 91)
    [(name, question)] = deny(managing)
    assert (name, question.destination, question.subscription) == ("mm1", 5, 0)
    assert (question.sequence, question.first, question.last) == (90, 1, 1)
    managing.tell(link.Answered(question.request, 0))
    pass_time(managing, AGAIN_S)
    [(name, fetch)] = fetches(managing)
    give(managing, name, fetch, 91)
    assert received(client) == [91]
    [(name, fetch)] = fetches(managing)
    give(managing, name, fetch)
    assert managing.manager.next_deadline() == float("inf"), "nobody waits for it any more"
    assert managing.manager.describe()["consuming"]["waiting"] == 0  # type: ignore[index]


def test_a_message_that_the_primary_still_has_is_waited_for_and_asked_for_again() -> None:
    managing, client, key = late()
    behind(managing, key, 90)
    [(_, question)] = deny(managing)
    managing.tell(link.Answered(question.request, 1))
    pass_time(managing, AGAIN_S)
    [(name, fetch)] = fetches(managing)
    give(managing, name, fetch, 90)
    assert received(client) == [90]


def test_what_the_primary_has_no_more_is_dropped_once_however_often_it_says_so() -> None:
    managing, client, key = late()
    behind(managing, key, 90, 90)
    [(_, first)] = deny(managing)
    pass_time(managing, AGAIN_S)
    [(_, second)] = deny(managing)
    managing.tell(link.Answered(first.request, 0))
    managing.tell(link.Answered(second.request, 0))
    pass_time(managing, 2 * AGAIN_S)
    [(name, fetch)] = fetches(managing)
    give(managing, name, fetch, 90)
    assert received(client) == [90], "the other message of the same entry"
