"""Free pages of a file: no page is given out twice, and the file does not grow without need."""

from hypothesis import given, settings
from hypothesis import strategies as st

from alphorn.io.free_pages import LOOKED_AT, FreePages

NO_LIMIT = 1 << 40


def test_pages_follow_one_another_in_a_new_file() -> None:
    pages = FreePages()
    assert [pages.take(count, NO_LIMIT) for count in (3, 1, 5)] == [0, 3, 4]
    assert (pages.end, pages.used) == (9, 9)


def test_a_file_whose_oldest_runs_are_given_back_is_written_round_and_round() -> None:
    pages = FreePages()
    runs = [pages.take(4, NO_LIMIT) for _ in range(10)]
    for first in runs[:5]:
        pages.give(first, 4)
    assert [pages.take(4, NO_LIMIT) for _ in range(5)] == runs[:5]
    assert pages.end == 40
    for first in runs[5:]:
        pages.give(first, 4)
    assert [pages.take(4, NO_LIMIT) for _ in range(5)] == runs[5:]
    assert pages.end == 40


def test_a_run_that_is_too_short_is_left_for_another() -> None:
    pages = FreePages()
    first, second, _ = pages.take(2, NO_LIMIT), pages.take(2, NO_LIMIT), pages.take(1, NO_LIMIT)
    pages.give(first, 2)
    assert pages.take(3, NO_LIMIT) == 5
    assert pages.take(2, NO_LIMIT) == first
    pages.give(second, 2)
    assert pages.take(1, NO_LIMIT) == second


def test_what_is_free_at_the_end_is_the_beginning_of_what_the_file_grows_by() -> None:
    pages = FreePages()
    pages.take(4, NO_LIMIT)
    pages.give(pages.take(2, NO_LIMIT), 2)
    assert pages.take(5, NO_LIMIT) == 4
    assert pages.end == 9


def test_a_file_does_not_grow_beyond_its_limit_and_is_used_within_it() -> None:
    pages = FreePages()
    assert pages.take(8, 10) == 0
    assert pages.take(3, 10) is None
    assert pages.take(2, 10) == 8
    pages.give(0, 8)
    assert pages.take(3, 10) == 0


def test_what_was_in_use_when_the_file_was_opened_is_not_given_out() -> None:
    pages = FreePages([(10, 12), (2, 4)])
    assert (pages.end, pages.used) == (13, 6)
    assert [pages.take(count, NO_LIMIT) for count in (2, 5, 1)] == [0, 5, 13]


def test_free_pages_at_the_end_can_be_cut_off() -> None:
    pages = FreePages([(0, 9)])
    assert pages.cut() == 0
    pages.give(6, 4)
    assert pages.free_at_end == 4
    assert pages.cut() == 4
    assert (pages.end, pages.used, pages.free_at_end) == (6, 6, 0)
    assert pages.take(2, NO_LIMIT) == 6


def test_many_small_gaps_are_looked_at_a_few_at_a_time_and_all_in_the_end() -> None:
    gaps = 4 * LOOKED_AT
    pages = FreePages([(2 * number + 1, 2 * number + 1) for number in range(gaps)] + [(2 * gaps + 8, 2 * gaps + 8)])
    taken = [pages.take(5, NO_LIMIT) for _ in range(6)]
    assert 2 * gaps in taken, "the one gap that is large enough lies behind all the small ones"


def test_a_long_free_run_at_the_end_that_was_not_looked_at_stays_within_the_file() -> None:
    pages = FreePages()
    gaps = [pages.take(1, NO_LIMIT) for _ in range(4 * LOOKED_AT)]
    rest = pages.take(20, NO_LIMIT)
    for gap in gaps[::2]:
        pages.give(gap, 1)
    pages.give(rest, 20)
    assert [pages.take(5, NO_LIMIT) for _ in range(5)] == [rest, rest + 5, rest + 10, rest + 15, rest + 20]
    assert pages.end == rest + 25


def test_holes_take_no_space_until_something_is_in_them_again() -> None:
    pages = FreePages([(0, 9), (20, 29), (40, 49)])
    assert (pages.kept, pages.free) == (50, 20)
    assert pages.runs(1) == [(10, 19)]
    pages.punch(5, 34)
    assert (pages.kept, pages.free, pages.used, pages.end) == (35, 5, 30, 50)
    assert pages.runs(9) == [(35, 39)]
    assert pages.take(4, 35) == 35, "what takes no more space goes first"
    assert pages.take(4, 35) is None
    assert pages.take(4, 39) == 14, "the search goes on from where it was"
    assert (pages.kept, pages.free, pages.used) == (39, 1, 38)


def test_holes_at_the_end_are_cut_off_as_other_free_pages_are() -> None:
    pages = FreePages([(0, 9), (20, 29)])
    pages.punch(15, 19)
    pages.give(20, 10)
    assert [pages.cut(), pages.cut(), pages.cut()] == [15, 5, 0]
    assert (pages.kept, pages.end) == (10, 10)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 1 << 30), st.booleans()), max_size=80))
def test_no_page_is_ever_in_two_runs(steps: list[tuple[int, int, bool]]) -> None:
    """Each step takes so many pages, or gives back one of the runs, or opens the file again.

    Two runs are looked at for each that is wanted: so there are some that nobody looked at.
    """
    pages, runs = FreePages(looked_at=2), {}
    for count, choice, takes in steps:
        if takes or not runs:
            first = pages.take(count, NO_LIMIT)
            taken = {page for start, length in runs.items() for page in range(start, start + length)}
            assert taken.isdisjoint(range(first, first + count))
            runs[first] = count
        else:
            first = sorted(runs)[choice % len(runs)]
            pages.give(first, runs.pop(first))
        if choice % 5 == 0:
            for first, last in pages.runs(choice % 3):
                pages.punch(first, last)
        if choice % 7 == 0:
            pages = FreePages(((first, first + length - 1) for first, length in runs.items()), looked_at=2)
        if choice % 11 == 0:
            pages.cut()
        assert pages.used == sum(runs.values()) <= pages.kept <= pages.end
        assert pages.end >= max((first + length for first, length in runs.items()), default=0)
