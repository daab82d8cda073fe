"""A subscription is ended on whichever channel its topic is, or comes to."""

import pytest

from alphorn.model import commands, link
from alphorn.model.conversation import Done, Failed, Unsubscribe
from tests.client_manager.test_moving import Two

NONE = "InvalidDestination"


@pytest.fixture
def two() -> Two:
    made = Two()
    made.say(Unsubscribe(4, "news"))
    return made


def answer(two: Two, *answers: tuple[int, str | int]) -> None:
    """Each channel in turn is asked for the subscription, and says why it has none, or its topic and number."""
    for channel, said in answers:
        asked = [(number, each) for number, each in two.asked if isinstance(each, link.FindSubscription)]
        assert [number for number, _ in asked] == [channel]
        request = asked[0][1].request
        two.asked.clear()
        two.tell(channel, link.Answered(request, 0, said) if isinstance(said, str) else link.Answered(request, said))


def end(two: Two, channel: int) -> None:
    """The log and its primary take what was ordered."""
    [(_, entry)] = two.ordered[channel]
    assert entry.commands == [commands.Unsubscribe(5, 2)]
    two.commit(channel)
    two.tell(channel, link.Answered(entry.requests[0]))


@pytest.mark.requirement("CM-19")
def test_a_subscription_is_ended_where_its_topic_went_while_channels_were_asked(two: Two) -> None:
    answer(two, (0, NONE), (1, NONE), (0, 5 << 32 | 2))
    end(two, 0)
    answer(two, (0, NONE), (1, NONE), (0, NONE), (1, NONE))
    assert two.take(Done) == [Done(4)]


def test_a_subscription_on_its_way_with_its_topic_is_waited_for(two: Two) -> None:
    answer(two, (0, NONE), (1, "Moved"))
    assert (two.take(Failed), two.take(Done)) == ([], [])
    two.pass_time()
    answer(two, (0, 5 << 32 | 2))
    end(two, 0)
    answer(two, (0, NONE), (1, NONE), (0, NONE), (1, NONE))
    assert two.take(Done) == [Done(4)]


def test_a_subscription_that_no_channel_has_is_refused(two: Two) -> None:
    answer(two, (0, NONE), (1, NONE), (0, NONE), (1, NONE))
    [failed] = two.take(Failed)
    assert failed.reason == "this client has no subscription named 'news'"
