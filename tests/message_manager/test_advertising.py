"""Destinations advertise themselves, and whoever creates a topic waits for those who watch for it."""

import pytest

from alphorn.message_manager import advertising
from alphorn.message_manager.advertising import WAIT_S
from alphorn.message_manager.machine import ClientManagerJoined, ClientManagerLeft, LinkClosed, Promoted
from alphorn.model import link
from alphorn.model.commands import CreateDestination, DeleteDestination, Entry, SetPolicy
from alphorn.model.destinations import Policy, parse_destination
from tests.message_manager.test_core import FIRST, ME, SECOND, Serving

CREATOR, WATCHER = 1, 2
THIRD = b"3" * 10


def watched(*, known: tuple[bytes, ...] = ()) -> Serving:
    """Link 1 is a Client Manager whose clients create, link 2 one that watches and has noted all so far."""
    serving = Serving(known=known)
    serving.introduce(CREATOR, FIRST)
    serving.introduce(WATCHER, SECOND)
    serving.ask(WATCHER, link.Watch(77))
    serving.ask(WATCHER, link.Noted(0))
    serving.told.clear()
    return serving


def create(serving: Serving, name: str, request: int = 5, owner: bytes = b"") -> None:
    command = CreateDestination(parse_destination(name), Policy(), owner)
    serving.commit(Entry([command], [request]), FIRST)


def advertised(serving: Serving, number: int = WATCHER) -> list[link.Advertised]:
    return [frame for to, frame in serving.told if to == number and isinstance(frame, link.Advertised)]


def answered(serving: Serving) -> list[int]:
    return [answer.request for answer in serving.answers(CREATOR)]


@pytest.mark.requirement("WLD-3")
def test_who_watches_is_told_all_that_is_there_and_then_that_this_was_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advertising, "LISTED_MAX", 2)
    serving = Serving()
    for name in ("topic:a", "topic:b", "queue:temporary.x"):
        create(serving, name, owner=b"c" * 16 if "temporary" in name else b"")
    serving.introduce(WATCHER, SECOND)
    serving.ask(WATCHER, link.Watch(77))
    told = [(n, str(destination)) for frame in advertised(serving) for n, destination in frame.made]
    assert told == [(1, "queue:q"), (2, "topic:a"), (3, "topic:b")]
    assert serving.told[-1] == (WATCHER, link.Answered(77))


def test_who_watches_an_empty_channel_hears_its_turn() -> None:
    serving = Serving()
    serving.apply(DeleteDestination(1))
    serving.introduce(WATCHER, SECOND)
    serving.ask(WATCHER, link.Watch(77))
    assert advertised(serving) == [link.Advertised(0, [])]


@pytest.mark.requirement("WLD-4", "CM-18")
def test_what_comes_and_goes_is_advertised_but_nothing_temporary() -> None:
    serving = watched()
    create(serving, "queue:new")
    create(serving, "queue:temporary.x", owner=b"c" * 16)
    serving.apply(DeleteDestination(2), DeleteDestination(3))
    assert [(frame.made, frame.gone) for frame in advertised(serving)] == [
        ([(2, parse_destination("queue:new"))], []),
        ([], [2]),
    ]


@pytest.mark.requirement("WLD-4")
def test_the_creator_of_a_topic_is_answered_after_all_who_watch_have_noted_it() -> None:
    serving = watched()
    create(serving, "topic:new")
    assert answered(serving) == []
    create(serving, "topic:new", request=6)
    assert answered(serving) == [], "nobody else learns its number either"
    serving.ask(WATCHER, link.Noted(1))
    assert answered(serving) == [5, 6]


def test_the_creator_of_a_queue_waits_for_nobody() -> None:
    serving = watched()
    create(serving, "queue:new")
    assert answered(serving) == [5]


def test_a_creator_waits_for_nobody_where_nobody_watches() -> None:
    serving = Serving()
    serving.introduce(CREATOR, FIRST)
    create(serving, "topic:new")
    assert answered(serving) == [5]


@pytest.mark.parametrize(
    "leaves",
    [
        lambda serving: serving.receive(ClientManagerLeft(SECOND)),
        lambda serving: serving.ask(WATCHER, link.Watch(78, is_on=False)),
        lambda serving: serving.pass_time(WAIT_S),
    ],
    ids=["it left the group", "it watches no more", "it says nothing"],
)
def test_a_creator_does_not_wait_for_ever(leaves) -> None:  # type: ignore[no-untyped-def]
    serving = watched()
    create(serving, "topic:new")
    leaves(serving)
    assert answered(serving) == [5]


@pytest.mark.requirement("WLD-4")
def test_one_that_left_the_group_and_has_its_link_hears_what_comes_and_is_waited_for_once_it_notes_it() -> None:
    serving = watched()
    serving.receive(ClientManagerLeft(SECOND))  # nobody heard it for a while, and it joins again as it was
    create(serving, "topic:new")
    assert answered(serving) == [5]
    assert [frame.made for frame in advertised(serving)] == [[(2, parse_destination("topic:new"))]]
    serving.ask(WATCHER, link.Noted(1))
    create(serving, "topic:other", request=6)
    assert answered(serving) == [5]
    serving.ask(WATCHER, link.Noted(2))
    assert answered(serving) == [5, 6]


@pytest.mark.requirement("WLD-4")
def test_one_that_joins_the_group_again_with_its_link_as_it_was_is_waited_for_at_once() -> None:
    serving = watched()
    serving.receive(ClientManagerLeft(SECOND))
    create(serving, "topic:missed", request=4)
    serving.receive(ClientManagerJoined(SECOND))
    create(serving, "topic:new")
    assert answered(serving) == [4]
    serving.ask(WATCHER, link.Noted(2))
    assert answered(serving) == [4, 5]


def test_one_that_left_the_group_is_not_named_among_those_that_were_waited_for_in_vain() -> None:
    serving = watched()
    serving.introduce(3, THIRD)
    serving.ask(3, link.Watch(78))
    create(serving, "topic:new")
    serving.receive(ClientManagerLeft(SECOND))
    serving.pass_time(WAIT_S)
    assert answered(serving) == [5]
    (warning,) = [log for log in serving.logs if log.event == "topic_not_noted"]
    assert THIRD.hex() in warning.details
    assert SECOND.hex() not in warning.details


def test_one_that_left_the_group_and_then_lost_its_link_is_not_waited_for() -> None:
    serving = watched()
    serving.receive(ClientManagerLeft(SECOND))
    serving.receive(LinkClosed(WATCHER))
    create(serving, "topic:new")
    assert answered(serving) == [5]


def test_one_that_joined_again_under_another_origin_hears_everything_once() -> None:
    serving = watched()
    serving.receive(ClientManagerLeft(SECOND))
    serving.introduce(WATCHER, THIRD)
    serving.ask(WATCHER, link.Watch(78))
    serving.told.clear()
    create(serving, "queue:new")
    assert len(advertised(serving)) == 1


def test_a_creator_waits_for_one_whose_link_was_lost_until_it_has_watched_again() -> None:
    serving = watched()
    create(serving, "topic:new")
    serving.receive(LinkClosed(WATCHER))
    assert answered(serving) == []
    serving.introduce(3, SECOND)
    serving.ask(3, link.Watch(79))
    assert [name for frame in advertised(serving, 3) for _, name in frame.made][-1] == parse_destination("topic:new")
    assert answered(serving) == []
    serving.ask(3, link.Noted(1))
    assert answered(serving) == [5]


def test_one_that_was_waited_for_in_vain_and_has_no_link_is_not_waited_for_again() -> None:
    serving = watched()
    serving.receive(LinkClosed(WATCHER))
    create(serving, "topic:new")
    serving.pass_time(WAIT_S)
    assert answered(serving) == [5]
    create(serving, "topic:other", request=6)
    assert answered(serving) == [5, 6]


def test_who_watches_no_more_hears_nothing_more() -> None:
    serving = watched()
    serving.ask(WATCHER, link.Watch(78, is_on=False))
    assert link.Answered(78) in serving.answers(WATCHER)
    create(serving, "topic:new")
    assert advertised(serving) == []


def test_a_turn_that_was_never_told_is_not_noted() -> None:
    serving = watched()
    serving.ask(WATCHER, link.Noted(1_000_000))
    create(serving, "topic:new")
    assert answered(serving) == []


def test_a_changed_policy_is_no_reason_to_tell_who_does_not_watch() -> None:
    serving = watched()
    serving.apply(SetPolicy(1, Policy(ttl=1.0)))
    assert advertised(serving, CREATOR) == []


@pytest.mark.requirement("WLD-4", "HA-20")
def test_a_new_primary_answers_creators_after_every_client_manager_has_spoken() -> None:
    serving = watched()
    create(serving, "topic:new")
    serving.receive(Promoted(2, ME, (FIRST, SECOND)))
    serving.ask(CREATOR, link.Introduce("cm1", FIRST, 1, "", []))
    serving.ask(CREATOR, link.Settled())
    create(serving, "topic:new", request=6)
    assert answered(serving) == [], "the other one may watch"
    serving.ask(WATCHER, link.Introduce("cm2", SECOND, 1, "", []))
    serving.ask(WATCHER, link.Watch(79))
    serving.ask(WATCHER, link.Settled())
    assert answered(serving) == [], "and does"
    serving.ask(WATCHER, link.Noted(0))
    assert answered(serving) == [6]
