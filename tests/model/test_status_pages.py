"""Pages of a state, put together."""

from typing import Any

import msgspec
import pytest

from alphorn.model.conversation import Done, StatusAnswer
from alphorn.model.errors import Misuse, PeerViolation, Unavailable
from alphorn.model.status_pages import StatusPages, check_complete


def page(cursor: int, *names: str, **more: object) -> StatusAnswer:
    return StatusAnswer(1, msgspec.json.encode({**more, "destinations": [{"name": name} for name in names]}), cursor)


@pytest.mark.parametrize("most", [-1, 1.5, "5", True, []])
def test_a_number_of_destinations_that_cannot_be_is_misuse(most: Any) -> None:
    with pytest.raises(Misuse, match="it is an int of 0 or more, or None for all"):
        StatusPages(most)


def test_pages_are_one_state_in_the_end() -> None:
    pages = StatusPages()
    for answer, asked in ((page(3, "a", "b", readers=[1]), 0), (page(4), 3), (page(0, "c"), 4)):
        assert (pages.cursor, pages.is_complete) == (asked, False)
        pages.add(answer)
    assert pages.is_complete
    assert pages.status == {"readers": [1], "lost": [], "destinations": [{"name": name} for name in "abc"]}


def test_channels_without_a_primary_are_told_as_lost() -> None:
    nodes = [{"name": name, "channel": channel} for name, channel in (("cm1", ""), ("mm1", "one"), ("mm2", "two"))]
    pages = StatusPages()
    pages.add(page(0, "a", nodes=nodes, channels=[{"name": "one"}]))
    assert pages.status["lost"] == ["two"]
    with pytest.raises(Unavailable, match="this is not all: two has no primary now; try again soon"):
        check_complete(pages.status["lost"])


@pytest.mark.parametrize(("most", "questions", "names"), [(0, 1, ""), (2, 1, "ab"), (3, 2, "abc"), (9, 2, "abcd")])
def test_no_more_is_asked_for_than_is_wanted(most: int, questions: int, names: str) -> None:
    pages = StatusPages(most)
    answers = iter([page(3, "a", "b"), page(0, "c", "d")])
    asked = 0
    while not pages.is_complete:
        pages.add(next(answers))
        asked += 1
    assert asked == questions
    assert [row["name"] for row in pages.status["destinations"]] == list(names)


@pytest.mark.parametrize("wrong", [Done(1), page(3, "c"), page(2, "c"), page(-1)])
def test_what_is_no_next_page_is_refused(wrong: object) -> None:
    pages = StatusPages()
    pages.add(page(3, "a"))
    with pytest.raises(PeerViolation):
        pages.add(wrong)
