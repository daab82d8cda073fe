"""What a browser is shown, and what a look costs: counted in messages, log entries and bytes."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from alphorn.message_manager import contents, looking
from alphorn.message_manager.looking import LOOK_BYTES_MAX, LOOK_MESSAGES_MAX
from alphorn.message_manager.questions import answer_question
from alphorn.message_manager.selector import Selector
from alphorn.model.commands import encode_entry
from alphorn.model.link import Answered, Look, Looked
from alphorn.model.messages import Packed
from tests.message_manager.stage import Stage

ALL = 1 << 31


class Browsing(Stage):
    """A stage with somebody who looks."""

    def __init__(self) -> None:
        super().__init__()
        self.read_entries: Counter[int] = Counter()

    def read_bytes(self, sequence: int) -> bytes | None:
        self.read_entries[sequence] += 1
        return None if sequence in self.unreadable else encode_entry(self.log[sequence])

    def look(self, queue: int, selector: str = "", start: int = 0, maximum: int = ALL) -> tuple[Looked, int]:
        """What one look shows, and where to go on."""
        *shown, answered = answer_question(self.engine, Look(7, queue, selector, start, maximum), self.read_bytes)
        assert isinstance(answered, Answered)
        assert len(shown) <= 1
        looked = shown[0] if shown else Looked(7, [], [])
        assert isinstance(looked, Looked)
        assert {sequence for sequence, _ in looked.entries} == {run.sequence for run in looked.runs}
        return looked, answered.number

    def pages(self, queue: int, selector: str = "", maximum: int = ALL) -> list[list[tuple[int, int]]]:
        """Positions with their delivery counts, page by page, to the end."""
        pages, start = [], 0
        while True:
            looked, after = self.look(queue, selector, start, maximum)
            pages.append(shown(looked))
            if not after:
                return pages
            assert after > start, "each look gets on"
            start = after

    def leave_every_other(self, queue: int, count: int) -> list[int]:
        """A batch of so many messages of which every other one is consumed; gives the positions of the rest."""
        self.publish(queue, [Packed("x", {"color": "red"})] * count)
        self.acknowledge("c", queue, *(position for place in range(2, count + 1, 2) for position in (place, place)))
        return list(range(1, count + 1, 2))


def shown(looked: Looked) -> list[tuple[int, int]]:
    return [(run.position + place, run.delivery_count) for run in looked.runs for place in range(run.count)]


def positions(looked: Looked) -> list[int]:
    return [position for position, _ in shown(looked)]


def counting(calls: Counter[str], name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function; its calls are counted."""

    def counted(*arguments: Any) -> Any:
        calls[name] += 1
        return function(*arguments)

    return counted


@pytest.mark.parametrize("selector", ["", "color = 'red'", "color = 'blue'"])
def test_an_entry_is_read_and_unpacked_once_however_many_runs_are_left_of_it(
    selector: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    unpacked: Counter[str] = Counter()
    for module, name in ((looking, "decode_entry"), (contents, "headers_of")):
        monkeypatch.setattr(module, name, counting(unpacked, name, getattr(module, name)))
    stage = Browsing()
    queue = stage.queue()
    left = stage.leave_every_other(queue, 1000)
    found, after = stage.look(queue, selector)
    assert (positions(found), after) == ([] if "blue" in selector else left, 0)
    assert list(stage.read_entries.values()) == [1]
    assert unpacked == ({"decode_entry": 1, "headers_of": 1} if selector else {})


def test_an_entry_is_in_the_answer_once() -> None:
    stage = Browsing()
    queue = stage.queue()
    left = stage.leave_every_other(queue, 1000)
    found, _ = stage.look(queue)
    assert [(run.index, run.count) for run in found.runs] == [(position - 1, 1) for position in left]
    [(sequence, entry)] = found.entries
    assert bytes(entry) == encode_entry(stage.log[sequence])


def test_batches_that_take_turns_are_read_once_each() -> None:
    stage = Browsing()
    dead = stage.queue("dead")
    queue = stage.queue(delivery_limit=1, dead_letter="dead")
    stage.publish(queue, 3)
    stage.publish(queue, 3)
    for position in (1, 4, 2, 5, 3, 6):
        stage.give_back("c", queue, position, position)
    found, after = stage.look(dead, "JMSPriority = 4")
    assert ([run.index for run in found.runs], after) == ([0, 0, 1, 1, 2, 2], 0)
    assert list(stage.read_entries.values()) == [1, 1]
    assert len(found.entries) == 2


def test_a_look_ends_after_so_many_messages_be_they_shown_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    judged: Counter[str] = Counter()
    monkeypatch.setattr(Selector, "matches", counting(judged, "matches", Selector.matches))
    stage = Browsing()
    queue = stage.queue()
    count = 2 * LOOK_MESSAGES_MAX + 1
    stage.publish(queue, [*[Packed("x", {"color": "red"})] * (count - 1), Packed("x", {"color": "blue"})])
    found, after = stage.look(queue, "color = 'blue'")
    assert (found.runs, after, judged.total()) == ([], LOOK_MESSAGES_MAX + 1, LOOK_MESSAGES_MAX)
    assert stage.pages(queue, "color = 'blue'") == [[], [], [(count, 1)]]
    assert [len(page) for page in stage.pages(queue)] == [LOOK_MESSAGES_MAX, LOOK_MESSAGES_MAX, 1]


def test_messages_that_are_not_due_count_as_looked_at() -> None:
    stage = Browsing()
    queue = stage.queue()
    stage.tick(1_000)
    stage.publish(queue, [Packed("later", deliver_at=9_000)] * LOOK_MESSAGES_MAX)
    stage.publish(queue, 1)
    assert stage.pages(queue) == [[], [(LOOK_MESSAGES_MAX + 1, 1)]]
    assert len(stage.read_entries) == 1, "what is not shown is not read"


@pytest.mark.parametrize("selector", ["", "JMSPriority = 4", "JMSPriority = 9"])
def test_a_look_ends_after_so_many_bytes_of_the_log(selector: str) -> None:
    stage = Browsing()
    queue = stage.queue()
    for _ in range(8):
        stage.publish(queue, [Packed("x" * (LOOK_BYTES_MAX // 8))] * 2)
    found, after = stage.look(queue, selector)
    size = sum(len(encode_entry(stage.log[sequence])) for sequence in stage.read_entries)
    largest = max(len(encode_entry(entry)) for entry in stage.log.values())
    assert LOOK_BYTES_MAX <= size < LOOK_BYTES_MAX + largest
    assert after == 2 * len(stage.read_entries) + 1
    assert len(msgspec.msgpack.encode(found)) < size + 100 * (1 + len(found.runs))
    pages = stage.pages(queue, selector)
    expected = [] if "9" in selector else list(range(1, 17))
    assert [position for page in pages for position, _ in page] == expected
    assert len(pages) == 2


def test_an_entry_that_is_larger_than_an_answer_is_shown_all_the_same() -> None:
    stage = Browsing()
    queue = stage.queue()
    for _ in range(2):
        stage.publish(queue, [Packed("x" * LOOK_BYTES_MAX)] * 2)
    assert stage.pages(queue) == [[(1, 1), (2, 1)], [(3, 1), (4, 1)]]


def test_pages_have_as_many_messages_as_asked_for_and_leave_nothing_out() -> None:
    stage = Browsing()
    queue = stage.queue()
    left = stage.leave_every_other(queue, 25)
    pages = stage.pages(queue, "color = 'red'", maximum=4)
    assert [len(page) for page in pages] == [4, 4, 4, 1]
    assert [position for page in pages for position, _ in page] == left
    assert stage.look(queue, start=25, maximum=1)[1] == 0, "after the last one there is no more"


def test_each_message_is_shown_with_its_own_delivery_count() -> None:
    stage = Browsing()
    queue = stage.queue()
    stage.publish(queue, 6)
    stage.give_back("c", queue, 1, 1, 3, 4)
    stage.give_back("c", queue, 1, 1)
    expected = [(1, 3), (2, 1), (3, 2), (4, 2), (5, 1), (6, 1)]
    for selector in ("", "JMSPriority = 4"):
        found, _ = stage.look(queue, selector)
        assert shown(found) == expected
        assert [run.count for run in found.runs] == [1, 1, 2, 2], "what is alike is one run"
    stage.attach("c", queue)
    assert stage.deliver() == {"c": expected}, "as its next consumer gets it"


def test_each_dead_message_is_shown_with_its_own_history() -> None:
    stage = Browsing()
    dead = stage.queue("dead")
    queue = stage.queue(dead_letter="dead")
    stage.publish(queue, 2)
    stage.tick(1_000)
    stage.give_back("c", queue, 1, 1, is_dead=True)
    stage.tick(2_000)
    stage.give_back("c", queue, 2, 2, is_dead=True)
    found, _ = stage.look(dead)
    assert [msgspec.msgpack.decode(run.history)["time"] for run in found.runs] == [1_000, 2_000]


def test_a_message_is_shown_when_its_time_has_come() -> None:
    stage = Browsing()
    queue = stage.queue(redelivery_delay=5.0)
    stage.tick(1_000)
    stage.publish(queue, [Packed("now"), Packed("later", deliver_at=9_000), Packed("now")])
    assert stage.pages(queue) == [[(1, 1), (3, 1)]]
    stage.give_back("c", queue, 1, 1)
    assert stage.pages(queue) == [[(3, 1)]]
    stage.tick(2_000)
    stage.tick(9_000)
    assert stage.pages(queue) == [[(1, 2), (2, 1), (3, 1)]]


def test_what_cannot_be_read_now_is_left_out_and_asked_for_once() -> None:
    stage = Browsing()
    queue = stage.queue()
    stage.publish(queue, 3)
    stage.unreadable.add(stage.engine.sequence)
    stage.publish(queue, 1)
    assert stage.pages(queue) == [[(4, 1)]]
    assert list(stage.read_entries.values()) == [1, 1]
