"""What belongs to the system has a part on each channel: its name means all of them, on both shells."""

from collections.abc import Iterator
from typing import Any

import pytest

import alphorn
from alphorn.model import conversation as c
from alphorn.model.log_conversation import ChannelKnown, Channels, ChannelsAnswer
from tests.client.broker import Broker, Stream
from tests.client.shells import Connect

SERVERS = [("mm", "127.0.0.1:7740")]
CHANNELS = [ChannelKnown("one", 0, SERVERS), ChannelKnown("removed", 0, []), ChannelKnown("three", 0, SERVERS)]


class SeveralChannels(Broker):
    """A broker that says it has these channels."""

    def on_channels(self, stream: Stream, frame: Channels) -> None:
        stream.send(ChannelsAnswer(frame.request, CHANNELS))


@pytest.fixture
def broker() -> Iterator[Broker]:
    with SeveralChannels() as running:
        yield running


def fill(connection: Any, **bodies: int) -> None:
    """Puts messages where no cluster would let anybody put them."""
    session = connection.session()
    for part, count in bodies.items():
        name = "queue:_DMQ" if part == "one" else f"queue:_DMQ@{part}"
        session.producer(name).send_many([f"{part} {number}" for number in range(count)])
    session.close()


@pytest.mark.requirement("DMQ-1", "WKD-1")
@pytest.mark.parametrize("name", ["queue:_DMQ", "topic:_LOG", "topic:_AUDIT", "topic:_ADMIN"])
def test_a_consumer_of_a_whole_wishes_for_all_its_parts(broker: Broker, connect: Connect, name: str) -> None:
    with connect(broker.url) as connection:
        session = connection.session()
        consumer = session.consumer(name, selector="a = 1")
        assert repr(consumer) == f"<Consumer of {name}>"
        queue, _, bare = name.partition(":")
        session.consumer(session.queue(bare) if queue == "queue" else session.topic(bare))
    wishes = broker.frames(c.ConsumePattern)
    assert [(wish.pattern, wish.selector) for wish in wishes] == [(f"glob:{name}", "a = 1"), (f"glob:{name}", "")]
    assert broker.frames(c.Consume) == []


@pytest.mark.parametrize("name", ["queue:_DMQ@three", "queue:_LOG", "queue:orders"])
def test_a_consumer_of_a_part_or_of_any_other_name_wishes_for_that_alone(
    broker: Broker, connect: Connect, name: str
) -> None:
    with connect(broker.url) as connection:
        connection.session().consumer(name)
    assert len(broker.frames(c.Consume)) == 1
    assert broker.frames(c.ConsumePattern) == []


def test_what_a_whole_cannot_be_asked_for_is_told_by_its_name(broker: Broker, connect: Connect) -> None:
    with connect(broker.url) as connection:
        session = connection.session()
        with pytest.raises(alphorn.Misuse, match=r"^queue:_DMQ is a queue; subscription"):
            session.consumer("queue:_DMQ", start="earliest")
        with pytest.raises(alphorn.InvalidSelector):
            session.consumer("queue:_DMQ", selector="nonsense is")
        with pytest.raises(alphorn.InvalidDestination, match="only queues can be browsed"):
            session.browser("topic:_LOG")


@pytest.mark.requirement("DMQ-1", "DMQ-3")
def test_a_browser_of_a_whole_looks_into_every_part_and_says_which_it_was(broker: Broker, connect: Connect) -> None:
    with connect(broker.url) as connection:
        fill(connection, one=1500, three=1)
        browser = connection.session().browser("queue:_DMQ")
        found = [(message.destination, message.body) for message in browser]
        assert found == [
            *(("queue:_DMQ", f"one {number}") for number in range(1500)),
            ("queue:_DMQ@three", "three 0"),
        ]
        fill(connection, three=1)
        assert [message.destination for message in browser][1500:] == ["queue:_DMQ@three"] * 2, "each time anew"
        assert "queue:_DMQ@removed" not in broker.queues


def test_a_browser_of_one_part_shows_only_that(broker: Broker, connect: Connect) -> None:
    with connect(broker.url) as connection:
        fill(connection, one=2, three=1)
        assert [message.body for message in connection.session().browser("queue:_DMQ@three")] == ["three 0"]


def test_a_browser_of_a_whole_goes_on_after_a_reconnection_between_its_parts(broker: Broker, connect: Connect) -> None:
    with connect(broker.url) as connection:
        fill(connection, one=2, three=2)
        found = []
        for message in connection.session().browser("queue:_DMQ"):
            if message.body == "one 1":
                broker.cut("hear Browse", 2)  # its next page, and then that of the other part
            found.append(message.body)
        assert found == ["one 0", "one 1", "three 0", "three 1"]
