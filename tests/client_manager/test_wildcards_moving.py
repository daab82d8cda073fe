"""Patterns while destinations move between channels: nothing joins twice, and what comes late harms nobody."""

from alphorn.client_manager.machine import Said
from alphorn.model import link, moving_link
from alphorn.model.conversation import ClosePattern, ConsumePattern, Done, Goodbye, Joined, place_of
from alphorn.model.destinations import parse_destination
from tests.client_manager.test_moving import Two

TOPIC = parse_destination("topic:prices.eu")


def consume(two: Two, *joined: int) -> None:
    wish = ConsumePattern(request=5, session=1, watch=3, pattern="glob:topic:prices.*", prefetch=10, joined=[*joined])
    two.receive(Said(1, wish))


def asked(two: Two, kind: type) -> list:  # type: ignore[type-arg]
    return [(channel, frame) for channel, frame in two.asked if isinstance(frame, kind)]


def test_an_advertisement_that_a_move_has_overtaken_joins_where_the_destination_is() -> None:
    two = Two()
    consume(two)
    for channel, frame in asked(two, link.Watch):
        two.tell(channel, link.Answered(frame.request))
    # It was created on the first channel, whose link stalls; meanwhile it has moved to the second.
    two.tell(1, moving_link.Landed(9, 0, 4, 100))
    for channel, frame in asked(two, link.Name):
        two.tell(channel, link.Answered(frame.request, destination=TOPIC))
    two.tell(0, link.Advertised(1, [(4, TOPIC)]))
    assert [frame.place for frame in two.heard if isinstance(frame, Joined)] == [place_of(1, 9)]


def test_a_client_that_comes_back_joins_nothing_before_it_is_known_where_it_receives_already() -> None:
    """Another Client Manager knew that it had moved; this one has to find out, or the same one would join once more."""
    two = Two()
    consume(two, place_of(0, 4))
    assert asked(two, link.Watch) == []
    [(channel, name)] = asked(two, link.Name)
    assert (channel, name.destination) == (0, 4)
    two.tell(0, link.Answered(name.request, error="Moved", home=moving_link.Home(1, 9, 100)))
    two.tell(1, moving_link.Landed(9, 0, 4, 100))
    for channel, frame in asked(two, link.Name)[1:]:
        two.tell(channel, link.Answered(frame.request, destination=TOPIC))
    for channel, frame in asked(two, link.Watch):
        if channel == 1:
            two.tell(1, link.Advertised(0, [(9, TOPIC)]))
        two.tell(channel, link.Answered(frame.request))
    assert asked(two, link.Watch)
    assert [frame for frame in two.heard if isinstance(frame, Joined)] == []


def test_a_wish_that_is_made_twice_ends_the_connection_also_while_it_is_found_out_where_others_are() -> None:
    """Noticed later, when the answer comes, nobody would be there to be told; the node would end instead."""
    two = Two()
    consume(two, place_of(0, 4))
    consume(two)
    assert [frame.error for frame in two.heard if isinstance(frame, Goodbye)] == ["PeerViolation"]
    [(_, name)] = asked(two, link.Name)
    two.tell(0, link.Answered(name.request, destination=TOPIC))
    assert asked(two, link.Watch) == []


def test_a_wish_that_ends_while_it_is_found_out_where_others_are_is_answered_and_may_be_made_again() -> None:
    two = Two()
    consume(two, place_of(0, 4))
    two.receive(Said(1, ClosePattern(6, 3)))
    assert [frame.request for frame in two.heard if isinstance(frame, Done)] == [5, 6]
    consume(two, place_of(0, 4))
    [(_, name)] = asked(two, link.Name)
    two.tell(0, link.Answered(name.request, destination=TOPIC))
    assert len(asked(two, link.Watch)) == 2
