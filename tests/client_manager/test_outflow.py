"""The way out to clients: what one does not take waits by reference, and the primary hears of it."""

import pytest

from alphorn.client_manager.machine import Gauge, Hang, Output, Writable
from alphorn.client_manager.outflow import PATIENCE_S, STUCK_S
from alphorn.model import commands, frame_kinds, link
from alphorn.model.conversation import Delivered, Regulate
from tests.client_manager.managing import Client, Managing, attached, batch, bodies_of, consuming

BODY = "x" * 1000


class Slow:
    """A client with one consumer of queue:q, and a limit of about three messages on their way to it."""

    def __init__(self, **settings: int) -> None:
        self.managing = Managing(consumer_bytes_max=3000, **settings)
        self.client: Client = self.managing.connect()
        self.key = consuming(self.managing, self.client)
        self.connection = commands.connection_of(self.key)
        self.position = 0
        self.now = 0.0

    def deliver(self, count: int) -> None:
        for _ in range(count):
            self.position += 1
            sequence = batch(self.managing, [self.position, BODY], counter=self.position)
            runs = [link.DeliveredRun(sequence, 0, 0, 1, self.position, 1)]
            self.managing.tell(link.Deliver(self.key, 5, runs))

    def received(self) -> list[int]:
        return [bodies_of(frame)[0][0] for frame in self.client.take(Delivered)]  # type: ignore[index]

    def writable(self, *, is_writable: bool) -> None:
        self.managing.manager.receive(Writable(self.client.stream, is_writable), self.now)
        self.managing.turn()

    def pass_time(self, seconds: float) -> list[Output]:
        self.now += seconds
        if self.managing.manager.next_deadline() > self.now:
            return []
        self.managing.manager.on_time(self.now)
        outputs = self.managing.manager.take_outputs()
        self.managing.asked += [(output.name, output.frame) for output in outputs if hasattr(output, "name")]
        return outputs

    def regulated(self) -> list[frame_kinds.Asked]:
        found = [frame for _, frame in self.managing.asked if isinstance(frame, link.Regulate | link.RegulateClient)]
        self.managing.asked.clear()
        return found  # type: ignore[return-value]


@pytest.mark.requirement("FC-4", "FC-8")
def test_no_more_is_handed_to_a_stream_than_it_is_known_to_take() -> None:
    slow = Slow()
    slow.deliver(10)
    assert slow.received() == [1, 2, 3]
    slow.writable(is_writable=True)
    assert slow.received() == [4, 5, 6]


def test_whether_a_stream_takes_more_is_asked_for_once_at_the_limit() -> None:
    slow = Slow()
    asked: list[Output] = []
    for _ in range(5):
        slow.position += 1
        sequence = batch(slow.managing, BODY, counter=slow.position)
        run = link.DeliveredRun(sequence, 0, 0, 1, slow.position, 1)
        slow.managing.manager._consuming.on_deliver(0, link.Deliver(slow.key, 5, [run]))
        asked += [output for output in slow.managing.manager.take_outputs() if isinstance(output, Gauge)]
    assert asked == [Gauge(slow.client.stream)]


@pytest.mark.requirement("FC-8", "CM-23")
def test_a_client_that_does_not_take_what_it_is_sent_is_told_of_to_the_primary_and_again_when_it_does() -> None:
    slow = Slow()
    slow.deliver(1)
    slow.writable(is_writable=False)
    slow.deliver(2)
    assert slow.received() == [1]
    slow.pass_time(PATIENCE_S / 2)
    assert slow.regulated() == []
    slow.pass_time(PATIENCE_S)
    assert slow.regulated() == [link.RegulateClient(slow.connection, True)]
    slow.writable(is_writable=True)
    assert slow.received() == [2, 3]
    assert slow.regulated() == [link.RegulateClient(slow.connection, False)]


def test_a_slow_client_that_is_gone_is_slow_no_more() -> None:
    slow = Slow()
    slow.writable(is_writable=False)
    slow.pass_time(2 * PATIENCE_S)
    slow.managing.asked.clear()
    slow.client.close()
    assert slow.regulated() == [link.RegulateClient(slow.connection, False)]


@pytest.mark.requirement("FC-5", "FC-8")
def test_a_new_primary_hears_of_a_slow_client_after_its_consumers_were_attached() -> None:
    slow = Slow()
    slow.writable(is_writable=False)
    slow.pass_time(2 * PATIENCE_S)
    slow.managing.asked.clear()
    slow.managing.link_up("mm2", is_primary=True, epoch=2)
    frames = [frame for name, frame in slow.managing.asked if name == "mm2"]
    kinds = [type(frame) for frame in frames]
    assert kinds.index(link.Attach) < kinds.index(link.RegulateClient) < kinds.index(link.Settled)


def test_a_stream_that_is_busy_for_a_moment_troubles_nobody() -> None:
    slow = Slow()
    slow.writable(is_writable=False)
    slow.writable(is_writable=True)
    slow.pass_time(1.0)
    assert slow.regulated() == []


@pytest.mark.requirement("FC-9", "FC-10")
def test_a_client_that_takes_nothing_delays_no_other() -> None:
    slow = Slow()
    other = slow.managing.connect()
    key = consuming(slow.managing, other)
    slow.writable(is_writable=False)
    slow.deliver(1)
    sequence = batch(slow.managing, "for the other", counter=99)
    slow.managing.tell(link.Deliver(key, 5, [link.DeliveredRun(sequence, 0, 0, 1, 50, 1)]))
    assert [bodies_of(frame) for frame in other.take(Delivered)] == [["for the other"]]


def test_a_client_that_takes_nothing_for_long_is_cut_off() -> None:
    slow = Slow()
    slow.writable(is_writable=False)
    slow.pass_time(STUCK_S / 2)
    hung = [output for output in slow.pass_time(STUCK_S) if isinstance(output, Hang)]
    assert [(output.stream, output.at_once) for output in hung] == [(slow.client.stream, True)]
    assert slow.managing.manager.next_deadline() == float("inf")


@pytest.mark.requirement("FC-5")
def test_a_consumer_that_can_use_no_more_is_passed_nothing_and_the_primary_hears_of_it() -> None:
    slow = Slow()
    slow.client.say(Regulate(1, True))
    assert slow.regulated() == [link.Regulate([slow.key], True)]
    slow.deliver(2)
    assert slow.received() == []
    slow.client.say(Regulate(1, False), Regulate(77, True))
    assert slow.received() == [1, 2]
    assert slow.regulated() == [link.Regulate([slow.key], False)]


@pytest.mark.requirement("FC-5", "FC-8")
def test_a_new_primary_hears_who_takes_nothing_after_it_was_attached() -> None:
    slow = Slow()
    slow.client.say(Regulate(1, True))
    slow.managing.asked.clear()
    slow.managing.link_up("mm2", is_primary=True, epoch=2)
    frames = [frame for name, frame in slow.managing.asked if name == "mm2"]
    kinds = [type(frame) for frame in frames]
    assert kinds.index(link.Attach) < kinds.index(link.Regulate) < kinds.index(link.Settled)


def test_what_waits_for_a_client_that_takes_nothing_is_fetched_when_it_does() -> None:
    slow = Slow(cache_bytes=1)
    slow.writable(is_writable=False)
    slow.deliver(1)
    assert not [frame for _, frame in slow.managing.asked if isinstance(frame, link.Fetch)]
    slow.writable(is_writable=True)
    wanted = [frame.sequences for _, frame in slow.managing.asked if isinstance(frame, link.Fetch)]
    assert wanted == [[slow.managing.sequence]]
    assert attached(slow.managing) == []
