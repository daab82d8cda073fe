"""The protocol core with scripted frames: no sockets, no threads, no clock."""

import pytest

from alphorn.client.core import Core, State
from alphorn.client.inbox import LAZY_S, AckMode, Inbox
from alphorn.client.outbox import Outbox, Parcel
from alphorn.client.packing import pack_bodies, pack_body
from alphorn.client.requests import Answer
from alphorn.client.silence import DEAD_AFTER_S, PING_AFTER_S
from alphorn.doors.native import LENGTH_BYTES, VERSION, decode_client, encode
from alphorn.model import conversation as c
from alphorn.model.conversation import place_of
from alphorn.model.errors import AccessDenied, Error, InvalidDestination, PeerViolation, Unavailable, UnknownOutcome

CONNECTION = bytes(range(16))


class Script:
    """A core and what it says and hears."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.answers: list[Answer | Error] = []
        self.now = 0.0
        self.core = Core(user="u", password="p", on_event=lambda name, detail: self.events.append(name))
        self.connect()

    def connect(self) -> None:
        self.core.on_connected(self.now)
        self.hello = self.said()[0]
        self.hear(c.Welcome(VERSION, CONNECTION, "cm", ["other:7701"]))

    def hear(self, *frames: c.ServerFrame) -> None:
        self.core.receive([memoryview(encode(frame))[LENGTH_BYTES:] for frame in frames], self.now)

    def said(self) -> list[c.ClientFrame]:
        return [decode_client(data[LENGTH_BYTES:]) for data in self.core.take_output(1000)]

    def cut(self) -> None:
        self.core.on_disconnected("cut")
        self.connect()

    def producer(self) -> Outbox:
        return self.core.open_outbox(self.core.open_session(AckMode.AUTO), 7, is_persistent=True)

    def consumer(self, mode: AckMode = AckMode.AUTO, prefetch: int = 100) -> Inbox:
        consume = c.Consume(0, 0, 0, 7, prefetch)
        return self.core.open_inbox(self.core.open_session(mode), consume, "queue:q", self.answers.append)

    def resolve(self) -> None:
        """Answers the questions of a resumed connection."""
        for frame in self.said():
            assert isinstance(frame, c.Resolve)
            self.hear(c.Resolved(frame.request, 9, frame.destination))


def delivered(inbox: Inbox, position: int, count: int, delivery_count: int = 1) -> c.Delivered:
    (_, blob), *_ = pack_bodies(list(range(position, position + count)))
    return c.Delivered(inbox.number, position, delivery_count, 5, 0, bytes(20), position, 1000, b"", memoryview(blob))


def bodies(inbox: Inbox, maximum: int = 1000) -> list[object]:
    return [message.body for message in inbox.take(maximum)]


def kinds(frames: list[c.ClientFrame]) -> list[str]:
    return [type(frame).__name__ for frame in frames]


def test_credentials_go_into_hello_and_nowhere_else() -> None:
    script = Script()
    assert script.hello == c.Hello(VERSION, "", "u", "p", b"")
    assert "password" not in str(script.core.describe())


def test_what_waits_becomes_one_batch_with_counters_from_one() -> None:
    script = Script()
    outbox = script.producer()
    for body in "abc":
        outbox.add_plain(pack_body(body))
    *_, publish = script.said()
    assert isinstance(publish, c.Publish)
    assert (publish.counter, publish.count, publish.place, publish.timestamp) == (1, 3, 7, 1000)
    outbox.add_plain(pack_body("d"))
    (publish,) = script.said()
    assert isinstance(publish, c.Publish)
    assert publish.counter == 4


def test_small_batches_wait_for_a_confirmation_when_enough_are_under_way() -> None:
    script = Script()
    outbox = script.producer()
    for _ in range(4):
        outbox.add_plain(pack_body("x"))
        assert script.said()
    outbox.add_plain(pack_body("x"))
    outbox.add_plain(pack_body("x"))
    assert script.said() == []
    script.hear(c.Confirmed(outbox.number, 1))
    (publish,) = script.said()
    assert isinstance(publish, c.Publish)
    assert (publish.counter, publish.count) == (5, 2)


def test_unconfirmed_batches_are_resent_as_they_were_and_in_order() -> None:
    script = Script()
    outbox = script.producer()
    for body in ("a", "b", "c"):
        outbox.add_plain(pack_body(body))
        script.said()
    script.hear(c.Confirmed(outbox.number, 1))
    script.cut()
    session, *resent = script.said()
    assert session == c.OpenSession(outbox.session, True)
    assert [frame.counter for frame in resent if isinstance(frame, c.Publish)] == [2, 3]
    assert script.hello.connection == CONNECTION
    script.hear(c.Confirmed(outbox.number, 3))
    assert outbox.is_flushed


def test_a_refusal_before_earlier_confirmations_leaves_them_open() -> None:
    script = Script()
    outbox = script.producer()
    for body in ("a", "b"):
        outbox.add_plain(pack_body(body))
        script.said()
    script.hear(c.Refused(outbox.number, 2, 1, "AccessDenied", "no"))
    assert isinstance(outbox.outcome(2), AccessDenied)
    assert (outbox.outcome(1), outbox.confirmed) == (False, 0)
    script.hear(c.Confirmed(outbox.number, 1))
    assert outbox.outcome(1) is True
    assert outbox.is_flushed
    assert isinstance(outbox.take_refusal(), AccessDenied)
    assert outbox.take_refusal() is None


def test_giving_up_tells_what_was_sent_from_what_was_not() -> None:
    script = Script()
    outbox = script.producer()
    outbox.add_plain(pack_body("sent"))
    script.said()
    outbox.add_plain(pack_body("waiting"))
    script.core.fail(Unavailable("gone"))
    assert isinstance(outbox.outcome(1), UnknownOutcome)
    assert isinstance(outbox.outcome(2), Unavailable)


def test_flags_and_places_decide_which_messages_share_a_batch() -> None:
    script = Script()
    outbox = script.producer()
    outbox.add_plain(pack_body("a"))
    outbox.add(Parcel(7, 1, 0, pack_body("b")))
    outbox.add(Parcel(8, 0, 0, pack_body("c")))
    outbox.add(Parcel(7, 0, 2, pack_bodies(["d", "e"])[0][1]))
    published = [frame for frame in script.said() if isinstance(frame, c.Publish)]
    assert [(frame.place, frame.counter, frame.count, frame.flags) for frame in published] == [
        (7, 1, 2, 1),
        (8, 3, 1, 0),
        (7, 4, 2, 0),
    ]


def test_acknowledgements_are_one_range_for_all_that_was_handed_out() -> None:
    script = Script()
    inbox = script.consumer(prefetch=8)
    script.said()
    script.hear(delivered(inbox, 1, 4), delivered(inbox, 5, 4))
    assert bodies(inbox, 6) == [1, 2, 3, 4, 5, 6]
    assert script.said() == []
    assert bodies(inbox, 1) == [7]
    (frame,) = script.said()
    assert isinstance(frame, c.Acknowledge)
    assert frame.positions == [1, 6]


def test_what_is_held_or_acknowledged_without_answer_is_not_handed_out_twice() -> None:
    script = Script()
    inbox = script.consumer()
    script.said()
    script.hear(delivered(inbox, 1, 4))
    assert bodies(inbox, 2) == [1, 2]
    inbox.finish()
    (acknowledge,) = script.said()
    script.cut()
    script.resolve()
    frames = script.said()
    assert kinds(frames) == ["OpenSession", "Consume", "Acknowledge"]
    assert isinstance(frames[1], c.Consume)
    assert (frames[1].held, frames[1].place) == ([1, 4], 9)
    assert frames[2] == acknowledge
    script.hear(delivered(inbox, 1, 6, delivery_count=2))
    assert bodies(inbox) == [3, 4, 5, 6]


def test_what_the_program_went_on_with_while_cut_off_is_claimed_and_then_told() -> None:
    script = Script()
    inbox = script.consumer(AckMode.INDIVIDUAL)
    script.said()
    script.hear(delivered(inbox, 1, 4))
    first, second, _ = inbox.take(3)
    script.core.on_disconnected("cut")
    first.acknowledge()
    second.reject()
    script.connect()
    script.resolve()
    _, consume, acknowledge, returned = script.said()
    assert isinstance(consume, c.Consume)
    assert isinstance(acknowledge, c.Acknowledge)
    assert isinstance(returned, c.Return)
    assert (consume.held, acknowledge.positions, returned.positions) == ([1, 4], [1, 1], [2, 2])


def test_a_consumer_that_was_closing_is_resumed_so_that_its_acknowledgements_count() -> None:
    script = Script()
    inbox = script.consumer(AckMode.INDIVIDUAL)
    script.said()
    script.hear(delivered(inbox, 1, 2))
    inbox.take(1)[0].acknowledge()
    script.core.close_inbox(inbox, script.answers.append)
    assert kinds(script.said()) == ["Acknowledge", "CloseConsumer"]
    script.cut()
    script.resolve()
    frames = script.said()
    assert kinds(frames) == ["OpenSession", "Consume", "Acknowledge", "CloseConsumer"]
    assert isinstance(frames[1], c.Consume)
    assert frames[1].held == [1, 2]
    assert isinstance(frames[3], c.CloseConsumer)
    script.hear(c.Done(frames[3].request))
    script.cut()
    assert kinds(script.said()) == ["OpenSession"]


def test_recovering_gives_back_what_was_handed_out_apart_from_what_nobody_saw() -> None:
    script = Script()
    inbox = script.consumer(AckMode.CLIENT)
    script.said()
    script.hear(delivered(inbox, 1, 5))
    assert bodies(inbox, 2) == [1, 2]
    inbox.recover()
    [recover] = script.said()
    assert isinstance(recover, c.Recover)
    assert (recover.seen, recover.unseen) == ([1, 2], [3, 5])
    script.hear(c.Done(recover.request), delivered(inbox, 1, 2, delivery_count=2))
    assert [message.delivery_count for message in inbox.take(10)] == [2, 2]


def test_what_comes_while_everything_goes_back_is_not_handed_out() -> None:
    script = Script()
    inbox = script.consumer(AckMode.CLIENT)
    script.said()
    script.hear(delivered(inbox, 1, 2))
    assert bodies(inbox, 1) == [1]
    inbox.recover()
    [recover] = script.said()
    script.hear(delivered(inbox, 3, 1))
    assert bodies(inbox) == []
    script.hear(c.Done(recover.request), delivered(inbox, 1, 2), delivered(inbox, 3, 1))
    assert bodies(inbox) == [1, 2, 3]


def test_a_recovery_without_an_answer_is_asked_for_again_with_what_is_held() -> None:
    script = Script()
    inbox = script.consumer(AckMode.CLIENT)
    script.said()
    script.hear(delivered(inbox, 1, 3))
    bodies(inbox, 1)
    inbox.recover()
    script.said()
    script.cut()
    script.resolve()
    _, consume, recover = script.said()
    assert isinstance(consume, c.Consume)
    assert consume.held == [1, 3]
    assert isinstance(recover, c.Recover)
    assert (recover.seen, recover.unseen) == ([1, 1], [2, 3])


def test_a_producer_whose_destination_was_deleted_looks_for_it_when_it_has_something_to_send() -> None:
    script = Script()
    session = script.core.open_session(AckMode.AUTO)
    outbox = script.core.open_outbox(session, 7, is_persistent=True, destination="queue:q")
    script.said()
    script.hear(c.Vanished(7))
    assert script.said() == []
    outbox.add_plain(pack_body("plain"))
    outbox.add(Parcel(7, 0, 0, pack_body("with a place")))
    [resolve] = script.said()
    assert isinstance(resolve, c.Resolve)
    assert not script.core.has_output
    script.hear(c.Resolved(resolve.request, 8, "queue:q"))
    [publish] = script.said()
    assert isinstance(publish, c.Publish)
    assert (publish.place, publish.counter, publish.count) == (8, 1, 2)
    assert script.core.places == {"queue:q": 8}


def test_each_channel_hears_which_of_its_messages_came_before() -> None:
    script = Script()
    outbox = script.producer()
    one, other = place_of(0, 7), place_of(1, 7)
    for place in (one, other, other, one):
        outbox.add(Parcel(place, 0, 0, pack_body("x")))
        script.said()
    frames = [decode_client(memoryview(frame)[LENGTH_BYTES:]) for frame in outbox.unconfirmed_frames()]
    assert [(frame.place, frame.counter, frame.after) for frame in frames] == [  # type: ignore[union-attr]
        (one, 1, -1),
        (other, 2, 0),
        (other, 3, -1),
        (one, 4, 1),
    ]


def test_a_place_that_vanished_is_not_remembered() -> None:
    script = Script()
    script.core.remember_place("queue:q", c.Resolved(1, 7, "queue:q"))
    script.core.remember_place("queue:r", c.Resolved(1, 8, "queue:r"))
    script.hear(c.Vanished(7))
    assert script.core.places == {"queue:r": 8}


def test_a_lazy_consumer_acknowledges_when_half_of_its_prefetch_is_used_up() -> None:
    script = Script()
    inbox = script.consumer(AckMode.DUPS_OK, prefetch=10)
    script.said()
    script.hear(delivered(inbox, 1, 10))
    assert bodies(inbox, 5) == [1, 2, 3, 4, 5]
    inbox.take(0)
    [acknowledge] = script.said()
    assert isinstance(acknowledge, c.Acknowledge)
    assert acknowledge.positions == [1, 5]
    assert bodies(inbox, 4) == [6, 7, 8, 9]
    inbox.take(1)
    assert not script.core.has_wishes
    assert script.said() == []


def test_a_lazy_consumer_acknowledges_after_a_while_and_when_it_closes() -> None:
    script = Script()
    inbox = script.consumer(AckMode.DUPS_OK)
    script.said()
    script.hear(delivered(inbox, 1, 3))
    bodies(inbox, 1)
    inbox.take(1)
    for now in (1.0, 1.0 + LAZY_S / 2):
        script.core.on_time(now)
        assert script.said() == []
    script.core.on_time(1.0 + LAZY_S)
    [acknowledge] = script.said()
    assert isinstance(acknowledge, c.Acknowledge)
    assert acknowledge.positions == [1, 1]
    inbox.take(1)
    script.core.on_time(1.0 + LAZY_S)
    assert script.said() == []
    script.core.close_inbox(inbox, script.answers.append)
    assert kinds(script.said()) == ["Acknowledge", "CloseConsumer"]


def test_a_lazy_consumer_with_little_prefetch_does_not_stop() -> None:
    for prefetch in (1, 2, 3):
        script = Script()
        inbox = script.consumer(AckMode.DUPS_OK, prefetch=prefetch)
        script.said()
        script.hear(delivered(inbox, 1, prefetch))
        bodies(inbox)
        inbox.take(1)
        assert kinds(script.said()) == ["Acknowledge"]


def test_of_a_message_that_came_again_only_the_newest_word_is_repeated() -> None:
    script = Script()
    inbox = script.consumer(AckMode.INDIVIDUAL)
    script.said()
    script.hear(delivered(inbox, 1, 3))
    for message in inbox.take(3):
        message.reject()
    script.said()
    script.hear(delivered(inbox, 1, 3, delivery_count=2))
    first, second, _ = inbox.take(3)
    first.acknowledge()
    script.said()
    second.acknowledge()  # nobody is told before the stream is cut
    script.cut()
    script.resolve()
    _, consume, *words = script.said()
    assert isinstance(consume, c.Consume)
    assert consume.held == [1, 3]
    assert kinds(words) == ["Return", "Acknowledge", "Acknowledge"]
    assert [word.positions for word in words] == [[], [1, 1], [2, 2]]


def test_a_batch_that_cannot_be_read_is_dead_and_the_next_one_is_handed_out() -> None:
    script = Script()
    inbox = script.consumer()
    script.said()
    broken = c.Delivered(inbox.number, 1, 1, 5, 0, bytes(20), 1, 0, b"", memoryview(b"\x91\xc1"))
    script.hear(broken, delivered(inbox, 2, 1))
    assert bodies(inbox) == [2]
    (frame,) = script.said()
    assert isinstance(frame, c.Return)
    assert (frame.positions, frame.is_dead) == ([1, 1], True)


def test_a_destination_that_cannot_be_found_again_closes_its_consumers_only() -> None:
    script = Script()
    inbox, outbox = script.consumer(), script.producer()
    script.said()
    script.cut()
    (resolve,) = script.said()
    assert isinstance(resolve, c.Resolve)
    assert script.core.state is State.RESUMING
    script.hear(c.Failed(resolve.request, "InvalidDestination", "it is gone"))
    assert isinstance(inbox.failure, InvalidDestination)
    assert script.core.state is State.OPEN
    assert outbox.is_open


def test_a_question_is_repeated_until_its_answer_comes() -> None:
    script = Script()
    script.core.request(c.Status, script.answers.append)
    (status,) = script.said()
    script.cut()
    assert script.said() == [status]
    assert isinstance(status, c.Status)
    script.hear(c.StatusAnswer(status.request, b"{}"), c.StatusAnswer(status.request, b"late"))
    assert script.answers == [c.StatusAnswer(status.request, b"{}")]


def test_a_quiet_server_is_asked_and_then_left() -> None:
    script = Script()
    assert script.core.next_deadline() == PING_AFTER_S
    script.core.on_time(PING_AFTER_S)
    script.core.on_time(PING_AFTER_S)
    assert script.said() == [c.Ping()]
    script.core.on_time(DEAD_AFTER_S - 1)
    assert not script.core.wants_reconnection
    script.core.on_time(DEAD_AFTER_S)
    assert script.core.wants_reconnection


def test_a_server_of_which_something_comes_is_not_left_though_it_is_asked() -> None:
    script = Script()
    script.core.silence.on_movement(DEAD_AFTER_S - 1)
    script.core.on_time(DEAD_AFTER_S)
    assert script.said() == [c.Ping()]
    assert not script.core.wants_reconnection
    assert script.core.next_deadline() == DEAD_AFTER_S + PING_AFTER_S
    script.core.on_time(2 * DEAD_AFTER_S - 1)
    assert script.core.wants_reconnection


def test_goodbye_is_final_for_those_who_did_wrong_and_an_invitation_for_others() -> None:
    script = Script()
    script.hear(c.Goodbye("Unavailable", "restarting"))
    assert script.core.wants_reconnection
    assert script.core.failure is None
    script.hear(c.Goodbye("AccessDenied", "no"))
    assert isinstance(script.core.failure, AccessDenied)


def test_events_tell_what_happened_to_the_stream() -> None:
    script = Script()
    script.cut()
    script.core.fail(Unavailable("over"))
    assert script.events == ["connected", "disconnected", "resumed", "closed"]


def test_a_frame_that_makes_no_sense_is_the_servers_violation() -> None:
    script = Script()
    with pytest.raises(PeerViolation):
        script.core.receive([memoryview(b"\x93\xcc\xff")], 0.0)


def test_a_producer_that_is_closed_with_unconfirmed_messages_tells_that_it_gave_them_up() -> None:
    script = Script()
    outbox = script.producer()
    outbox.add_plain(pack_body("sent"))
    script.said()
    outbox.add_plain(pack_body("not sent"))
    told: list[bool] = []
    outbox.on_progress = lambda: told.append(outbox.is_open)
    script.core.close_outbox(outbox)
    sent, unsent = outbox.outcome(1), outbox.outcome(2)
    assert (type(sent), type(unsent)) == (UnknownOutcome, Unavailable)
    assert "closed before" in str(sent)
    assert told == [False]
