"""Answers whose Client Manager has no link, or a new one while the old one is not known here to be broken."""

from alphorn.message_manager.machine import LinkClosed, LinkOpened
from alphorn.model import link
from alphorn.model.commands import CreateDestination, Entry
from alphorn.model.destinations import Policy, parse_destination
from tests.message_manager.test_core import FIRST, SECOND, Serving

OLD, NEW, OTHER = 1, 2, 3
CREATE = CreateDestination(parse_destination("queue:q"), Policy())


def requests_told(serving: Serving, number: int) -> list[int]:
    return [answer.request for answer in serving.answers(number)]


def introduce_on(serving: Serving, number: int, origin: bytes) -> None:
    """On a link that is open already."""
    serving.ask(number, link.Introduce("cm", origin, 1, "", []))


def test_a_request_that_is_repeated_before_the_introduction_on_a_new_link_is_answered_there() -> None:
    serving = Serving()
    serving.introduce(OLD, FIRST)
    serving.receive(LinkOpened(NEW))
    serving.commit(Entry([CREATE], [9]), FIRST)
    introduce_on(serving, NEW, FIRST)
    assert requests_told(serving, NEW) == [9], "the old link was broken, which only the Client Manager knew"


def test_it_is_answered_there_too_when_the_old_link_is_found_broken_in_between() -> None:
    serving = Serving()
    serving.introduce(OLD, FIRST)
    serving.receive(LinkOpened(NEW))
    serving.commit(Entry([CREATE], [9]), FIRST)
    serving.receive(LinkClosed(OLD))
    serving.commit(Entry([CREATE], [10]), FIRST)
    introduce_on(serving, NEW, FIRST)
    assert requests_told(serving, NEW) == [9, 10]


def test_a_new_link_that_breaks_before_the_introduction_leaves_the_answer_to_the_next_one() -> None:
    serving = Serving()
    serving.introduce(OLD, FIRST)
    serving.receive(LinkOpened(NEW))
    serving.receive(LinkOpened(OTHER))
    serving.commit(Entry([CREATE], [9]), FIRST)
    serving.receive(LinkClosed(NEW))
    introduce_on(serving, OTHER, FIRST)
    assert requests_told(serving, OTHER) == [9]


def test_an_answer_is_told_once_where_no_link_is_new() -> None:
    serving = Serving()
    serving.introduce(OLD, FIRST)
    serving.commit(Entry([CREATE], [9]), FIRST)
    introduce_on(serving, OLD, FIRST)
    assert requests_told(serving, OLD) == [9]


def test_what_was_told_is_kept_no_longer_when_every_new_link_turns_out_to_be_of_somebody_else() -> None:
    serving = Serving()
    serving.introduce(OLD, FIRST)
    serving.receive(LinkOpened(NEW))
    serving.receive(LinkOpened(OTHER))
    serving.commit(Entry([CREATE], [9]), FIRST)
    introduce_on(serving, NEW, SECOND)
    serving.ask(OTHER, link.Fetch(1, []))  # a reader of the log never introduces itself
    introduce_on(serving, OLD, FIRST)
    assert (requests_told(serving, OLD), requests_told(serving, NEW)) == ([9], [])


def test_who_introduces_itself_again_on_its_link_is_not_told_again_what_it_heard_there() -> None:
    serving = Serving()
    serving.introduce(OLD, FIRST)
    serving.receive(LinkOpened(NEW))
    serving.commit(Entry([CREATE], [9]), FIRST)
    introduce_on(serving, OLD, FIRST)
    assert requests_told(serving, OLD) == [9]
    introduce_on(serving, NEW, FIRST)
    assert requests_told(serving, NEW) == [9], "it may have lost the first link since"
