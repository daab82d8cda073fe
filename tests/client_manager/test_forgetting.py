"""A client that the cluster has forgotten is told nothing that does not hold.

Goal: what the log does not take because it knows the producer no more is never confirmed.
Method: clients, a Client Manager and a Message Manager as machines that talk at once; time passes.
"""

import msgspec
import pytest

from alphorn.client_manager import machine as front
from alphorn.message_manager import machine as back
from alphorn.message_manager.absent import RESUME_S
from alphorn.model.commands import Forget
from alphorn.model.conversation import Confirmed, Goodbye, Publish, Refused, Resolve, Resolved, Welcome
from tests.client_manager.meeting import LINK, Meeting


class Sending:
    """A client of queue:q, on one stream after the other, whose first message is confirmed."""

    def __init__(self) -> None:
        self.meeting = Meeting(channels=1)
        self.stream = self.meeting.connect(1)
        [welcome] = [frame for frame in self.meeting.heard(self.stream) if isinstance(frame, Welcome)]
        self.connection = welcome.connection
        self.meeting.say(self.stream, Resolve(5, "queue:q"))
        [resolved] = [frame for frame in self.meeting.heard(self.stream) if isinstance(frame, Resolved)]
        self.place = resolved.place
        self.publish(1)
        assert self.heard() == [Confirmed(1, 1)]

    def publish(self, counter: int, *, producer: int = 1) -> None:
        blob = memoryview(msgspec.msgpack.encode([["body"]]))
        self.meeting.say(self.stream, Publish(1, producer, self.place, counter, 1, 0, 1000, blob))

    def come_back(self) -> None:
        self.stream = self.meeting.connect(1, connection=self.connection)
        self.meeting.heard(self.stream)

    def heard(self) -> list[object]:
        return list(self.meeting.heard(self.stream))

    def refusals(self) -> list[tuple[int, str]]:
        return [(frame.counter, frame.error) for frame in self.heard() if isinstance(frame, Refused)]

    @property
    def stored(self) -> int:
        destinations = self.meeting.replicas[0][0].manager.engine.destinations.values()
        return sum(each.count for each in destinations if str(each.destination) == "queue:q")


@pytest.fixture
def sending() -> Sending:
    return Sending()


@pytest.mark.requirement("API-10", "API-11")
def test_nothing_is_confirmed_of_a_producer_that_comes_back_after_it_was_forgotten(sending: Sending) -> None:
    sending.meeting.close(sending.stream)
    sending.meeting.pass_time(RESUME_S)
    sending.come_back()
    for counter in (2, 3):
        sending.publish(counter)
        assert sending.refusals() == [(counter, "UnknownOutcome")], "be it the first one or a later one"
    assert sending.stored == 1
    sending.publish(1, producer=2)
    assert (sending.heard(), sending.stored) == ([Confirmed(2, 1)], 2), "another one of the same connection sends on"


def test_nothing_is_confirmed_of_a_producer_that_sends_for_the_first_time_after_its_connection_was_forgotten(
    sending: Sending,
) -> None:
    sending.publish(1, producer=9)
    assert sending.heard() == [Confirmed(9, 1)]
    sending.meeting.close(sending.stream)
    sending.meeting.pass_time(RESUME_S)
    sending.come_back()
    sending.publish(1, producer=4)  # the log takes it for one that was used before the end, as 9 was
    assert (sending.refusals(), sending.stored) == ([(1, "UnknownOutcome")], 2)


def test_one_that_comes_back_in_time_goes_on(sending: Sending) -> None:
    sending.meeting.close(sending.stream)
    sending.meeting.pass_time(RESUME_S - 1)
    sending.come_back()
    sending.publish(2)
    assert (sending.heard(), sending.stored) == ([Confirmed(1, 2)], 2)


@pytest.mark.requirement("API-11", "CM-6")
def test_clients_behind_a_link_that_was_cut_for_long_start_over_and_nothing_is_confirmed_that_is_not_stored(
    sending: Sending,
) -> None:
    meeting, primary = sending.meeting, sending.meeting.replicas[0][0]
    primary.manager.receive(back.LinkClosed(LINK), meeting.now)
    meeting.manager.receive(front.Linked(0, primary.name, False), meeting.now)
    meeting.pass_time(RESUME_S)
    [goodbye] = sending.heard()
    assert isinstance(goodbye, Goodbye)
    assert (goodbye.error, sending.stream in meeting.hung) == ("Unavailable", True)
    sending.publish(2)
    assert (sending.heard(), sending.stored) == ([], 1)


def test_after_a_gap_nothing_is_confirmed_that_the_log_does_not_take(sending: Sending) -> None:
    sending.publish(3)
    assert sending.refusals() == [(3, "Unavailable")]
    sending.publish(4)
    assert (sending.refusals(), sending.stored) == ([(4, "Unavailable")], 1)


def test_a_client_that_only_an_earlier_primary_took_for_gone_goes_on(sending: Sending) -> None:
    meeting = sending.meeting
    meeting.take_over(0)
    meeting.commit_other(0, Forget(sending.connection), epoch=1)
    sending.publish(2)
    assert (sending.heard(), sending.stored) == ([Confirmed(1, 2)], 2)
