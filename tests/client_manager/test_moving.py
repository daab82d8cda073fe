"""A Client Manager of two channels, driven by hand: what waits for a destination on its way, and goes on there."""

import msgspec
import pytest

from alphorn.client_manager.channel import Channel
from alphorn.client_manager.core import ClientManager
from alphorn.client_manager.desk import Settings
from alphorn.client_manager.directory import Directory
from alphorn.client_manager.machine import Ask, Closed, Committed, Linked, Lost, Opened, Order, Reply, Said, Told
from alphorn.doors.native import VERSION
from alphorn.model import commands, link, moving_link
from alphorn.model.commands import Entry, Move, MoveStage, decode_entry
from alphorn.model.conversation import (
    Acknowledge,
    AnyClientFrame,
    Close,
    CloseConsumer,
    Confirmed,
    Consume,
    Delivered,
    Goodbye,
    Hello,
    OpenSession,
    Publish,
    Resolve,
    Resolved,
    ServerFrame,
    Welcome,
    place_of,
)
from alphorn.model.destinations import Destination, DestinationKind, parse_destination
from alphorn.model.ids import IdSource
from tests.client_manager.proving import DRAFT, SIGNET

QUEUE = parse_destination("queue:q")
NAMES = ("one", "two")


class Two:
    """One Client Manager, its client, and two channels with the primaries `a` and `b`."""

    def __init__(self) -> None:
        ids = IdSource(b"\x7f\x00\x00\x01", 7700, unix_s=1_800_000_000.0)
        settings = Settings(name="cm1", channels=2, channel_names=NAMES)
        self.manager = ClientManager(settings, ids, origins=[b"o" * 10, b"p" * 10], signet=DRAFT)
        self.sequences = [0, 0]
        self.ordered: list[list[tuple[int, Entry]]] = [[], []]  # by channel: handle and entry
        self.asked: list[tuple[int, link.Asked]] = []
        self.heard: list[ServerFrame] = []
        for channel, name in enumerate("ab"):
            self.receive(Linked(channel, name, True))
            self.tell(channel, link.Role(name, 1, True))
        [(_, entry)] = self.ordered[0]
        self.commit(0)
        self.tell(0, link.Answered(entry.requests[0], signet=SIGNET))
        self.open(1)
        self.connection = next(frame for frame in self.heard if isinstance(frame, Welcome)).connection

    def open(self, stream: int) -> None:
        """A client comes."""
        self.receive(Opened(stream))
        self.receive(Said(stream, Hello(VERSION)))
        self.receive(Said(stream, OpenSession(1)))

    def receive(self, item: object) -> None:
        self.manager.receive(item, 0.0)  # type: ignore[arg-type]
        self.perform()

    def pass_time(self, now: float = 1.0) -> None:
        self.manager.on_time(now)
        self.perform()

    def perform(self) -> None:
        for output in self.manager.take_outputs():
            match output:
                case Order(channel, handle, payload):
                    self.ordered[channel].append((handle, decode_entry(payload)))
                case Reply(_, frame):
                    self.heard.append(frame)
                case Ask(channel, _, asked):
                    self.asked.append((channel, asked))

    def say(self, *frames: AnyClientFrame) -> None:
        for frame in frames:
            self.receive(Said(1, frame))

    def tell(self, channel: int, frame: link.Told) -> None:
        self.receive(Told(channel, "ab"[channel], frame))  # type: ignore[arg-type]

    def commit(self, channel: int) -> None:
        """The log takes what was ordered."""
        ordered, self.ordered[channel] = self.ordered[channel], []
        for handle, entry in ordered:
            self.hear(channel, *entry.commands, handle=handle)

    def hear(self, channel: int, *said: commands.AnyCommand, handle: int = 0) -> int:
        self.sequences[channel] += 1
        payload = msgspec.msgpack.encode(Entry(list(said)))
        self.receive(Committed(channel, self.sequences[channel], handle, payload))
        return self.sequences[channel]

    def take(self, kind: type) -> list:  # type: ignore[type-arg]
        found = [frame for frame in self.heard if isinstance(frame, kind)]
        self.heard = [frame for frame in self.heard if not isinstance(frame, kind)]
        return found

    def wanted(self, channel: int) -> list[commands.AnyCommand]:
        return [command for _, entry in self.ordered[channel] for command in entry.commands]

    def resolve(self, channel: int, number: int = 5) -> int:
        self.manager._desk.directory.learn(place_of(channel, number), QUEUE, commands.Policy())
        self.say(Resolve(9, str(QUEUE)))
        return self.take(Resolved)[0].place

    def publish(self, place: int, counter: int, producer: int = 1, *, stream: int = 1) -> None:
        self.receive(Said(stream, Publish(1, producer, place, counter, 1, 0, 5, memoryview(b"\x91\x91\x01"))))

    def land(self, begun_at: int) -> None:
        """The primaries say their part of a move from 5 of the first channel to 7 of the second."""
        self.tell(0, moving_link.Departed(5, moving_link.Home(1, 7, begun_at)))
        self.tell(1, moving_link.Landed(7, 0, 5, begun_at))


@pytest.fixture
def two() -> Two:
    return Two()


def test_what_was_refused_by_the_old_log_goes_into_the_new_one_before_what_came_later(two: Two) -> None:
    place = two.resolve(0)
    two.publish(place, 1)
    begun_at = two.hear(0, Move(5, MoveStage.BEGUN, 1, 7))
    two.publish(place, 2)
    two.tell(0, moving_link.Departed(5, moving_link.Home(1, 7, begun_at)))
    two.tell(1, moving_link.Landed(7, 0, 5, begun_at))
    assert two.wanted(1) == []  # the first may yet turn out to have come in time
    two.commit(0)
    assert [(c.destination, c.counter) for c in two.wanted(1) if isinstance(c, commands.Publish)] == [(7, 1), (7, 2)]
    assert not two.take(Confirmed)
    two.commit(1)
    assert two.take(Confirmed)[-1].counter == 2


def test_what_the_old_log_took_in_time_is_not_sent_again(two: Two) -> None:
    place = two.resolve(0)
    two.publish(place, 1)
    two.commit(0)
    assert two.take(Confirmed)[-1].counter == 1
    two.land(two.hear(0, Move(5, MoveStage.BEGUN, 1, 7)))
    assert two.wanted(1) == []


def test_confirmations_come_in_order_over_channels(two: Two) -> None:
    places = two.resolve(0, 5), two.resolve(1, 6)
    two.publish(places[0], 1)
    two.publish(places[1], 2)
    [request] = [request for _, entry in two.ordered[1] for request in entry.requests]
    two.commit(1)
    two.tell(1, link.Answered(request))
    assert two.take(Confirmed) == []
    two.commit(0)
    assert [frame.counter for frame in two.take(Confirmed)] == [2]


@pytest.mark.usefixtures("alone")
def test_a_publish_names_the_one_before_it_in_the_same_log(two: Two) -> None:
    places = two.resolve(0, 5), two.resolve(1, 6)
    for counter, channel in enumerate((0, 0, 1, 0), 1):
        two.publish(places[channel], counter)
    assert [command.after for command in two.wanted(0)] == [-1, -1, 2]  # type: ignore[union-attr]
    assert [command.after for command in two.wanted(1)] == [0]  # type: ignore[union-attr]


def test_a_consumer_follows_with_what_it_holds_and_then_the_primary_is_told(two: Two) -> None:
    place = two.resolve(0)
    two.say(Consume(1, 1, 3, place, 10, held=[1, 4]))
    two.say(Acknowledge(2, 3, [1, 2]))
    begun_at = two.hear(0, Move(5, MoveStage.BEGUN, 1, 7))
    two.asked.clear()
    two.tell(1, moving_link.Landed(7, 0, 5, begun_at))
    two.commit(0)
    assert two.asked == []  # the old primary may have said more
    two.tell(0, moving_link.Departed(5, moving_link.Home(1, 7, begun_at)))
    attach = next(asked for _, asked in two.asked if isinstance(asked, link.Attach))
    assert (attach.destination, attach.held) == (7, [1, 4])
    assert [command.positions for command in two.wanted(1)] == [[1, 2], []]  # type: ignore[union-attr]
    assert not [asked for _, asked in two.asked if isinstance(asked, moving_link.Followed)]
    two.commit(1)
    assert (1, moving_link.Followed(7)) in two.asked


def test_a_delivery_that_was_on_its_way_reaches_its_consumer(two: Two) -> None:
    place = two.resolve(0)
    two.say(Consume(1, 1, 3, place, 10))
    key = commands.key_of(two.connection, 3)
    sequence = two.hear(0, commands.Publish(5, key, 1, 1, 0, 5, memoryview(b"\x91\x91\x01")))
    begun_at = two.hear(0, Move(5, MoveStage.BEGUN, 1, 7))
    two.tell(0, link.Deliver(key, 5, [link.DeliveredRun(sequence, 0, 0, 1, 8, 1)]))
    assert [frame.position for frame in two.take(Delivered)] == [8]
    two.land(begun_at)
    attach = [asked for _, asked in two.asked if isinstance(asked, link.Attach)][-1]
    assert (attach.destination, attach.held) == (7, [8, 8])


def test_a_lost_primary_has_nothing_more_to_say(two: Two) -> None:
    place = two.resolve(0)
    two.say(Consume(1, 1, 3, place, 10))
    begun_at = two.hear(0, Move(5, MoveStage.BEGUN, 1, 7))
    two.tell(1, moving_link.Landed(7, 0, 5, begun_at))
    two.receive(Linked(0, "a", False))
    assert (1, moving_link.Followed(7)) in two.asked


def test_what_a_connection_had_under_way_when_it_ended_holds_up_nobody(two: Two) -> None:
    two.publish(place_of(0, 5), 1)  # a place that the client learned elsewhere: the primary is asked to answer
    assert [request for _, entry in two.ordered[0] for request in entry.requests]
    two.say(Close())
    two.commit(0)
    two.tell(1, moving_link.Landed(7, 0, 5, 9))
    assert (1, moving_link.Followed(7)) in two.asked


@pytest.mark.usefixtures("alone")
def test_what_the_old_log_refuses_after_others_have_gone_on_is_not_lost(two: Two) -> None:
    """Goal: nothing stays behind. Method: the bus loses one entry, so nobody waits for the other, which is refused."""
    place = two.resolve(0)
    two.publish(place, 1)
    two.say(Consume(1, 1, 3, place, 10, held=[1, 4]), Acknowledge(2, 3, [1, 2]))
    (lost, _), (handle, entry) = two.ordered[0]
    two.land(two.hear(0, Move(5, MoveStage.BEGUN, 1, 7)))
    two.receive(Lost(0, lost, "no word of it"))
    two.ordered[1].clear()
    two.hear(0, *entry.commands, handle=handle)
    assert [c.positions for c in two.wanted(1) if isinstance(c, commands.Acknowledge)] == [[1, 2]]


def test_what_waited_behind_a_lost_message_does_not_overtake_it(two: Two) -> None:
    place = two.resolve(0)
    two.publish(place, 1)
    [(lost, _)] = two.ordered[0]
    two.land(two.hear(0, Move(5, MoveStage.BEGUN, 1, 7)))
    two.publish(place, 2)
    two.receive(Lost(0, lost, "no word of it"))
    assert [command for command in two.wanted(1) if isinstance(command, commands.Publish)] == []
    assert (1, moving_link.Followed(7)) not in two.asked
    two.commit(1)
    assert (1, moving_link.Followed(7)) in two.asked


def test_an_entry_whose_number_is_not_known_confirms_nothing(two: Two) -> None:
    """The move may be among the entries before it that were passed over."""
    two.publish(two.resolve(0), 1)
    [(handle, _)] = two.ordered[0]
    two.receive(Committed(0, 0, handle, b""))
    assert two.take(Confirmed) == []
    assert two.take(Goodbye)


def test_what_a_consumer_held_that_went_on_its_way_is_told(two: Two) -> None:
    place = two.resolve(0)
    two.say(Consume(1, 1, 3, place, 10, held=[1, 4]))
    begun_at = two.hear(0, Move(5, MoveStage.BEGUN, 1, 7))
    two.receive(Closed(1, "gone"))
    two.land(begun_at)
    assert (1, moving_link.Followed(7, [], [(0, [1, 4])])) in two.asked


def test_what_a_consumer_held_that_ended_on_its_way_is_told(two: Two) -> None:
    """The primary that knew of it may be gone: it counts as delivered all the same, but for what was never handed."""
    place = two.resolve(0)
    two.say(Consume(1, 1, 3, place, 10, held=[1, 4]))
    begun_at = two.hear(0, Move(5, MoveStage.BEGUN, 1, 7))
    two.say(CloseConsumer(2, 3, unseen=[4, 4]))
    two.land(begun_at)
    two.commit(1)
    assert (1, moving_link.Followed(7, [], [(0, [1, 3])])) in two.asked


def test_what_a_consumer_said_that_ended_on_its_way_is_in_the_log_before_the_primary_is_told(two: Two) -> None:
    place = two.resolve(0)
    two.say(Consume(1, 1, 3, place, 10, held=[1, 4]))
    begun_at = two.hear(0, Move(5, MoveStage.BEGUN, 1, 7))
    two.say(Acknowledge(2, 3, [1, 2]), CloseConsumer(3, 3))
    two.land(begun_at)
    assert not [asked for _, asked in two.asked if isinstance(asked, moving_link.Followed)]
    two.commit(1)
    assert [asked for _, asked in two.asked if isinstance(asked, moving_link.Followed)]


def test_what_was_told_of_consumers_is_told_to_the_next_primary_until_all_have_followed(two: Two) -> None:
    place = two.resolve(0)
    two.say(Consume(1, 1, 3, place, 10, held=[1, 4]))
    begun_at = two.hear(0, Move(5, MoveStage.BEGUN, 1, 7))
    two.receive(Closed(1, "gone"))
    two.land(begun_at)
    told = (1, moving_link.Followed(7, [], [(0, [1, 4])]))
    for _ in range(2):
        assert told in two.asked
        two.asked.clear()
        two.tell(1, link.Role("b", 2, True))
        two.tell(1, moving_link.Landed(7, 0, 5, begun_at))
    two.hear(1, commands.Settle(7))
    two.asked.clear()
    two.tell(1, moving_link.Landed(7, 0, 5, begun_at))
    assert two.asked == [(1, moving_link.Followed(7))]


def test_a_destination_that_came_while_its_primary_could_not_be_reached_is_found(two: Two) -> None:
    """Goal: nobody waits for ever. Method: it comes, and all others have followed, while there is no link."""
    place = two.resolve(0)
    two.hear(0, Move(5, MoveStage.BEGUN, 1, 7))
    two.publish(place, 1)
    [early] = [asked for _, asked in two.asked if isinstance(asked, link.Name)]
    two.tell(1, link.Answered(early.request, 0, "InvalidDestination", "it is not there"))
    two.receive(Linked(1, "b", False))
    two.receive(Linked(1, "b", True))
    two.asked.clear()
    two.tell(1, link.Role("b", 1, True))
    [late] = [asked for _, asked in two.asked if isinstance(asked, link.Name)]
    two.tell(1, link.Answered(late.request, 7, destination=QUEUE, policy=commands.Policy()))
    assert [(c.destination, c.counter) for c in two.wanted(1) if isinstance(c, commands.Publish)] == [(7, 1)]


@pytest.mark.usefixtures("alone")
def test_what_was_lost_with_an_entry_does_not_end_the_wait_for_what_came_later(two: Two) -> None:
    place = two.resolve(0)
    two.publish(place, 1)
    two.publish(place, 2)
    (lost, _), (late, entry) = two.ordered[0]
    two.receive(Lost(0, lost, "no word of it"))
    two.ordered[0].clear()
    two.open(2)
    two.publish(place, 1, stream=2)
    begun_at = two.hear(0, Move(5, MoveStage.BEGUN, 1, 7))
    two.land(begun_at)
    two.hear(0, *entry.commands, handle=late)
    assert two.wanted(1) == []
    two.commit(0)
    two.commit(1)
    assert [asked for _, asked in two.asked if isinstance(asked, moving_link.Followed)]


def test_a_client_manager_that_heard_nothing_of_a_move_is_told_by_the_primary(two: Two) -> None:
    two.publish(place_of(0, 5), 1)  # a place that the client learned elsewhere
    [request] = [request for _, entry in two.ordered[0] for request in entry.requests if request]
    two.commit(0)
    home = moving_link.Home(1, 7, 1)
    two.tell(0, link.Answered(request, 0, "Moved", "gone", home=home))
    names = [(channel, asked) for channel, asked in two.asked if isinstance(asked, link.Name)]
    [(_, asked)] = [each for each in names if each[0] == 1]
    two.tell(1, link.Answered(asked.request, 7, destination=QUEUE, policy=commands.Policy()))
    assert [(c.destination, c.counter) for c in two.wanted(1) if isinstance(c, commands.Publish)] == [(7, 1)]


def test_a_move_is_the_last_command_of_its_entry() -> None:
    channel = Channel(cache_bytes=0)
    channel.want(commands.Forget(bytes(16)))
    channel.request(Move(1, MoveStage.BEGUN, 1, 2), lambda answer: None)
    channel.want(commands.Forget(bytes(16)))
    entries = [decode_entry(payload) for _, payload in channel.take_entries(0.0)]
    assert [[type(command) for command in entry.commands] for entry in entries] == [
        [commands.Forget, Move],
        [commands.Forget],
    ]


def test_a_channel_that_closes_moves_nothing_but_its_own_names() -> None:
    directory = Directory(4)
    names = [Destination(DestinationKind.QUEUE, f"q{number}") for number in range(400)]
    before = {name: directory.channel_for(name) for name in names}
    assert all(60 < list(before.values()).count(channel) < 140 for channel in range(4))
    directory.closed.add(2)
    after = {name: directory.channel_for(name) for name in names}
    assert {before[name] for name in names if before[name] != after[name]} == {2}
    assert 2 not in after.values()
