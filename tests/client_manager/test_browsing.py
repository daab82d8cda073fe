"""Looking into a queue: what the primary found goes to the client, and so does the place to go on from."""

from collections import Counter

import pytest

from alphorn.client_manager import runs
from alphorn.model import commands, link
from alphorn.model.conversation import Browse, Delivered, Done, Failed
from tests.client_manager.managing import Client, Managing, bodies_of, encode, entry_of


def browsing() -> tuple[Managing, Client, link.Look]:
    """A client that browses queue:q from 3 on, and what the primary was asked."""
    managing = Managing()
    client = managing.connect()
    client.say(Browse(9, client.resolve(), "a = 1", 3, 1000))
    [look] = [frame for _, frame in managing.asked if isinstance(frame, link.Look)]
    assert (look.destination, look.selector, look.start, look.maximum) == (5, "a = 1", 3, 1000)
    return managing, client, look


def run(sequence: int, index: int, count: int, position: int, delivery_count: int = 1) -> link.DeliveredRun:
    return link.DeliveredRun(sequence, 0, index, count, position, delivery_count)


def test_runs_are_cut_out_of_the_entries_that_came_with_them() -> None:
    managing, client, look = browsing()
    entries = [(7, memoryview(encode(entry_of(*"abcdef")))), (8, memoryview(encode(entry_of("x", counter=40))))]
    found = [run(7, 1, 2, 4), run(8, 0, 1, 6, 3), run(7, 5, 1, 9, 2)]
    managing.tell(link.Looked(look.request, found, entries))
    managing.tell(link.Answered(look.request, 10))
    told = client.heard()
    shown = [
        (bodies_of(frame), frame.consumer, frame.position, frame.counter, frame.delivery_count)
        for frame in told[:-1]
        if isinstance(frame, Delivered)
    ]
    assert shown == [(["b", "c"], 0, 4, 2, 1), (["x"], 0, 6, 40, 3), (["f"], 0, 9, 6, 2)]
    assert told[-1] == Done(9, 10)


def test_an_entry_is_unpacked_once_however_many_runs_are_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    unpacked: Counter[str] = Counter()

    def decode_entry(payload: memoryview) -> commands.Entry:
        unpacked["entries"] += 1
        return commands.decode_entry(payload)

    def split_batch(blob: memoryview) -> object:
        unpacked["batches"] += 1
        return original(blob)

    original = runs.split_batch
    entry = memoryview(encode(entry_of(*range(100))))
    found = link.Looked(1, [run(7, place, 1, 1 + place) for place in range(0, 100, 2)], [(7, entry)])
    monkeypatch.setattr(runs, "split_batch", split_batch)
    monkeypatch.setattr(runs, "decode_entry", decode_entry)
    assert [bodies_of(frame) for frame in runs.looked(found)] == [[place] for place in range(0, 100, 2)]
    assert unpacked == {"entries": 1, "batches": 1}


def test_a_page_that_shows_nothing_says_where_to_go_on() -> None:
    managing, client, look = browsing()
    managing.tell(link.Answered(look.request, 2003))
    assert client.heard() == [Done(9, 2003)]


def test_a_refusal_is_passed_on() -> None:
    managing, client, look = browsing()
    managing.tell(link.Answered(look.request, 0, "InvalidSelector", "no such thing"))
    assert client.heard() == [Failed(9, "InvalidSelector", "no such thing")]


def test_nothing_is_remembered_of_a_look_that_was_refused_or_whose_client_is_gone() -> None:
    managing, _, look = browsing()
    managing.tell(link.Answered(look.request, 0, "InvalidSelector", "no such thing"))
    assert managing.manager._administration._browsing == {}
    managing, client, look = browsing()
    client.close()
    managing.tell(link.Answered(look.request, 0))
    assert managing.manager._administration._browsing == {}
