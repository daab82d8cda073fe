"""A Message Manager that is primary, and the Client Managers that come, go, and come back."""

from typing import Any

import msgspec
import pytest

from alphorn.message_manager.absent import HOLD_S, RESUME_S
from alphorn.message_manager.awaited import UNLINKED_S
from alphorn.message_manager.core import MessageManager
from alphorn.message_manager.fullness import Space
from alphorn.message_manager.machine import (
    Asked,
    ClientManagerLeft,
    Committed,
    Demoted,
    LinkClosed,
    LinkOpened,
    Log,
    Measured,
    Order,
    Promoted,
    Supply,
    Tell,
)
from alphorn.message_manager.status import About
from alphorn.model import frame_kinds, link
from alphorn.model.commands import (
    Acknowledge,
    AnyCommand,
    CreateDestination,
    Entry,
    Forget,
    Publish,
    Return,
    SetPolicy,
    Tick,
    decode_entry,
    encode_entry,
    key_of,
)
from alphorn.model.destinations import Policy, parse_destination
from alphorn.model.messages import Flag
from tests.client_manager.managing import encode

ME = b"m" * 10
FIRST, SECOND = b"1" * 10, b"2" * 10
CONNECTION = b"c" * 16
CONSUMER = key_of(CONNECTION, 1)
OTHER = key_of(b"d" * 16, 1)
QUEUE = 1


class Serving:
    """A primary with one queue; links 1 and 2 are Client Managers `cm1` and `cm2`."""

    def __init__(self, *, known: tuple[bytes, ...] = ()) -> None:
        about = About(name="mm1", pid=1, address="", channel="main")
        self.entries: dict[int, bytes] = {}
        self.manager = MessageManager(about, wall_ms=lambda now: int(now * 1000), read=self.entries.get)
        self.now = 0.0
        self.told: list[tuple[int, frame_kinds.Told]] = []
        self.ordered: list[AnyCommand] = []
        self.logs: list[Log] = []
        self.epoch = 1
        self.apply(CreateDestination(parse_destination("queue:q"), Policy()))
        self.receive(Promoted(1, ME, known))

    def receive(self, item: object) -> None:
        if isinstance(item, Promoted | Demoted):
            self.epoch = item.epoch
        self.manager.receive(item, self.now)  # type: ignore[arg-type]
        self.turn()

    def turn(self) -> None:
        for output in self.manager.take_outputs():
            if isinstance(output, Tell):
                self.told.append((output.link, output.frame))
            elif isinstance(output, Order):
                entry = decode_entry(output.payload)
                self.ordered += entry.commands
                self.commit(entry, ME)
            elif isinstance(output, Log):
                self.logs.append(output)

    def apply(self, *commands: AnyCommand) -> None:
        self.commit(Entry(list(commands)), b"x" * 10)

    def commit(self, entry: Entry, origin: bytes) -> None:
        sequence = len(self.entries) + 1
        self.entries[sequence] = encode_entry(entry)
        self.receive(Committed(sequence, origin, self.entries[sequence], self.epoch))

    def publish(self, counter: int, destination: int = QUEUE) -> None:
        blob = memoryview(encode([[f"body {counter}"]]))
        self.apply(Publish(destination, b"p" * 20, counter, 1, 0, 1000, blob))

    def pass_time(self, seconds: float) -> None:
        """Whatever is due meanwhile is done in time."""
        until = self.now + seconds
        while (due := self.manager.next_deadline()) <= until:
            self.now = max(self.now, due)
            self.manager.on_time(self.now)
            self.turn()
        self.now = until

    def introduce(self, number: int, origin: bytes, *connections: bytes) -> None:
        self.receive(LinkOpened(number))
        self.ask(number, link.Introduce(f"cm{number}", origin, 1, "", list(connections)))

    def ask(self, number: int, frame: link.AnyAsked) -> None:
        self.receive(Asked(number, frame))

    def describe(self, *, after: int = link.FIRST_PAGE, maximum: int = link.PAGE_ROWS) -> link.Described:
        """What is answered to a Client Manager that asks for a page of the state."""
        self.ask(1, link.Describe(7, maximum, after))
        [described] = [frame for _, frame in self.told if isinstance(frame, link.Described)]
        self.told = [(to, frame) for to, frame in self.told if frame is not described]
        return described

    def status(self) -> dict[str, Any]:
        """The first page of the state."""
        return msgspec.json.decode(self.describe().data, type=dict[str, Any])

    def attach(self, number: int, *, held: tuple[int, ...] = (), resumption: int = 0) -> None:
        self.ask(number, link.Attach(9, CONSUMER, QUEUE, 0, "", 10, list(held), resumption))

    def delivered(self, number: int) -> list[tuple[int, int]]:
        """Positions and delivery counts that went to a Client Manager since the last look."""
        runs = [
            run for to, frame in self.told if to == number and isinstance(frame, link.Deliver) for run in frame.runs
        ]
        self.told = [(to, frame) for to, frame in self.told if not isinstance(frame, link.Deliver)]
        return [
            (position, run.delivery_count) for run in runs for position in range(run.position, run.position + run.count)
        ]

    def answers(self, number: int) -> list[link.Answered]:
        return [frame for to, frame in self.told if to == number and isinstance(frame, link.Answered)]


def test_a_client_manager_that_has_only_introduced_itself_keeps_nobody_from_being_served() -> None:
    serving = Serving()
    serving.introduce(2, SECOND)
    serving.introduce(1, FIRST, CONNECTION)
    serving.attach(1)
    serving.publish(1)
    assert serving.delivered(1) == [(1, 1)]


@pytest.mark.requirement("HA-20", "API-10")
@pytest.mark.parametrize("notices", [link.ConnectionLost(CONNECTION), None], ids=["stream lost", "link lost"])
def test_a_connection_that_went_on_elsewhere_is_not_lost_when_the_first_client_manager_notices_late(
    notices: link.ConnectionLost | None,
) -> None:
    serving = Serving()
    serving.introduce(1, FIRST, CONNECTION)
    serving.introduce(2, SECOND)
    serving.attach(1)
    serving.ask(2, link.ConnectionOpened(CONNECTION))
    serving.attach(2, resumption=1)
    if notices is not None:
        serving.ask(1, notices)
    else:
        serving.receive(LinkClosed(1))
    serving.publish(1)
    assert serving.delivered(2) == [(1, 1)]
    serving.pass_time(RESUME_S + 1)
    assert serving.ordered == []


@pytest.mark.requirement("HA-20", "MM-11")
def test_a_connection_that_no_client_manager_has_gives_back_what_it_held_and_is_forgotten() -> None:
    serving = Serving()
    serving.introduce(1, FIRST, CONNECTION)
    serving.attach(1)
    serving.publish(1)
    serving.receive(LinkClosed(1))
    serving.pass_time(HOLD_S)
    assert [type(command) for command in serving.ordered] == [Return]
    serving.pass_time(RESUME_S - HOLD_S)
    assert serving.ordered[1:] == [Forget(CONNECTION)]


@pytest.mark.requirement("HA-20")
def test_a_primary_that_was_stopped_takes_nothing_from_clients_before_it_could_hear_that_they_are_back() -> None:
    serving = Serving()
    serving.introduce(1, FIRST, CONNECTION)
    serving.introduce(2, SECOND)
    serving.attach(1)
    serving.publish(1)
    serving.ask(1, link.ConnectionLost(CONNECTION))
    serving.now += 2 * RESUME_S  # stopped: what is due comes first when it goes on
    serving.manager.on_time(serving.now)
    serving.turn()
    serving.ask(2, link.ConnectionOpened(CONNECTION))
    serving.attach(2, held=(1, 1), resumption=1)
    serving.pass_time(RESUME_S)
    assert serving.ordered == []


@pytest.mark.requirement("HA-20")
def test_a_connection_without_consumers_that_opened_after_the_introduction_is_forgotten_too() -> None:
    serving = Serving()
    serving.introduce(1, FIRST)
    serving.ask(1, link.ConnectionOpened(CONNECTION))
    serving.receive(LinkClosed(1))
    serving.pass_time(RESUME_S)
    assert serving.ordered == [Forget(CONNECTION)]


def test_a_client_manager_that_speaks_for_an_earlier_stream_does_not_take_the_consumer_back() -> None:
    serving = Serving()
    serving.introduce(1, FIRST, CONNECTION)
    serving.introduce(2, SECOND, CONNECTION)
    serving.attach(2, resumption=2)
    serving.attach(1, resumption=1)
    assert serving.answers(1)[-1].error == "Misuse"
    serving.publish(1)
    assert serving.delivered(2) == [(1, 1)]


def test_the_name_of_a_destination_is_told_by_its_number() -> None:
    serving = Serving()
    serving.introduce(1, FIRST)
    serving.ask(1, link.Name(7, QUEUE))
    serving.ask(1, link.Name(8, 99))
    known, unknown = serving.answers(1)
    assert (known.request, str(known.destination), known.policy) == (7, "queue:q", Policy())
    assert (unknown.request, unknown.error) == (8, "InvalidDestination")


def test_requests_are_answered_to_the_newest_origin_of_a_link() -> None:
    serving = Serving()
    serving.introduce(1, FIRST)
    serving.ask(1, link.Introduce("cm1", SECOND, 1, "", []))
    create = CreateDestination(parse_destination("queue:q"), Policy())
    serving.commit(Entry([create], [9]), SECOND)
    serving.commit(Entry([create], [10]), FIRST)
    assert [answer.request for answer in serving.answers(1)] == [9]


@pytest.mark.requirement("HA-20", "MM-11")
def test_what_is_loose_is_given_out_as_a_redelivery() -> None:
    serving = Serving()
    serving.publish(1)
    serving.publish(2)
    serving.receive(Promoted(2, ME, (FIRST,)))
    serving.introduce(1, FIRST, CONNECTION)
    serving.attach(1)
    serving.ask(1, link.Settled([(QUEUE, 0, [2, 2])]))
    assert serving.delivered(1) == [(1, 1), (2, 2)]


def test_a_primary_names_what_consumers_have_of_what_expires() -> None:
    serving = Serving()
    serving.introduce(1, FIRST, CONNECTION)
    serving.attach(1)
    blob = memoryview(encode([[f"body {number}", None, 4, 2_000] for number in (1, 2)]))
    serving.apply(Publish(QUEUE, b"p" * 20, 1, 2, int(Flag.EXPIRATION), 1000, blob))
    serving.publish(3)
    serving.apply(Acknowledge(QUEUE, 0, CONSUMER, [1, 1]))
    serving.pass_time(2.5)
    assert serving.ordered == [Tick(2_000, [], [(QUEUE, 0, [2, 2])])]
    assert serving.manager.engine.next_due() is None
    assert [frame for _, frame in serving.told if isinstance(frame, link.Lapsed)] == [link.Lapsed(CONSUMER, [2, 2])]


@pytest.mark.parametrize(("passed_s", "deliveries"), [(1.0, 2), (60.0, 1)])
@pytest.mark.requirement("HA-20", "MM-11")
def test_soon_after_a_client_manager_left_a_new_primary_takes_all_for_redelivered(
    passed_s: float, deliveries: int
) -> None:
    serving = Serving()
    serving.publish(1)
    serving.receive(Demoted(2))
    serving.receive(ClientManagerLeft(SECOND))
    serving.pass_time(passed_s)
    serving.receive(Promoted(3, ME, ()))
    serving.introduce(1, FIRST, CONNECTION)
    serving.attach(1)
    serving.ask(1, link.Settled())
    assert serving.delivered(1) == [(1, deliveries)]


@pytest.mark.requirement("HA-20", "MM-11")
def test_a_connection_that_comes_back_without_a_consumer_gives_back_what_that_held() -> None:
    serving = Serving()
    serving.introduce(1, FIRST, CONNECTION)
    serving.attach(1)
    serving.publish(1)
    serving.receive(LinkClosed(1))
    serving.introduce(2, SECOND, CONNECTION)
    serving.pass_time(HOLD_S)
    assert serving.ordered == [Return(QUEUE, 0, CONSUMER, [1, 1], 0)]


@pytest.mark.requirement("HA-20", "MM-11")
def test_a_consumer_that_ended_while_its_client_manager_had_no_link_gives_back_what_it_held() -> None:
    serving = Serving()
    serving.introduce(1, FIRST, CONNECTION)
    serving.attach(1)
    serving.ask(1, link.Settled())
    serving.publish(1)
    serving.introduce(2, FIRST, CONNECTION)
    serving.ask(2, link.Settled())
    serving.receive(LinkClosed(1))
    serving.publish(2)
    assert serving.delivered(2) == [], "nobody is there to receive it"
    serving.pass_time(HOLD_S)
    assert serving.ordered == [Return(QUEUE, 0, CONSUMER, [1, 1], 0)]


def test_a_consumer_that_attached_again_on_another_link_keeps_what_it_holds() -> None:
    serving = Serving()
    serving.introduce(1, FIRST, CONNECTION)
    serving.attach(1)
    serving.ask(1, link.Settled())
    serving.publish(1)
    serving.introduce(2, FIRST, CONNECTION)
    serving.attach(2, held=(1, 1))
    serving.ask(2, link.Settled())
    serving.receive(LinkClosed(1))
    serving.pass_time(RESUME_S)
    assert serving.ordered == []


def test_a_connection_whose_loss_was_lost_with_an_earlier_link_is_forgotten() -> None:
    serving = Serving()
    serving.introduce(1, FIRST, CONNECTION)
    serving.introduce(2, FIRST)
    serving.receive(LinkClosed(1))
    serving.pass_time(RESUME_S)
    assert serving.ordered == [Forget(CONNECTION)]


def test_a_request_that_came_before_its_client_manager_had_a_link_is_answered_when_it_has_one() -> None:
    serving = Serving(known=(FIRST, SECOND))
    create = CreateDestination(parse_destination("queue:q"), Policy())
    serving.commit(Entry([create], [9]), FIRST)
    serving.commit(Entry([create], [8]), SECOND)
    serving.receive(ClientManagerLeft(SECOND))
    serving.pass_time(UNLINKED_S)
    serving.introduce(1, FIRST)
    serving.introduce(2, SECOND)
    assert [(answer.request, answer.number) for answer in serving.answers(1)] == [(9, QUEUE)]
    assert serving.answers(2) == [], "nobody waits for answers to one that left"


def test_a_client_manager_on_the_primarys_own_member_is_answered_and_not_taken_for_the_primary() -> None:
    serving = Serving(known=(ME,))
    serving.introduce(1, ME, CONNECTION)
    serving.ask(1, link.Settled())
    done: list[str] = []
    serving.manager._order(Forget(OTHER[:16]), lambda: done.append("applied"))
    create = CreateDestination(parse_destination("queue:q"), Policy())
    serving.commit(Entry([create], [1]), ME)
    assert [(answer.request, answer.number) for answer in serving.answers(1)] == [(1, QUEUE)]
    serving.turn()
    assert done == ["applied"]
    assert len(serving.answers(1)) == 1, "what the primary asked of itself is nobody else's"


def test_a_paused_consumer_gets_nothing_until_it_attaches_again_and_keeps_what_it_has() -> None:
    serving = Serving()
    serving.introduce(1, FIRST, CONNECTION)
    serving.attach(1)
    serving.publish(1)
    assert serving.delivered(1) == [(1, 1)]
    serving.ask(1, link.Pause(8, CONSUMER))
    assert serving.answers(1)[-1].request == 8
    serving.publish(2)
    assert serving.delivered(1) == []
    serving.apply(Return(QUEUE, 0, CONSUMER, [1, 1]))
    assert serving.delivered(1) == []
    serving.attach(1)
    assert serving.delivered(1) == [(1, 2), (2, 1)]


def test_the_pause_of_a_consumer_that_is_gone_is_answered() -> None:
    serving = Serving()
    serving.introduce(1, FIRST, CONNECTION)
    serving.ask(1, link.Pause(8, CONSUMER))
    assert [answer.request for answer in serving.answers(1)] == [8]


@pytest.mark.requirement("HA-20")
def test_a_consumer_is_attached_when_the_primary_has_applied_what_its_client_manager_had_heard() -> None:
    serving = Serving()
    serving.introduce(1, FIRST, CONNECTION)
    serving.publish(1)
    serving.publish(2)
    ahead = len(serving.entries) + 1
    serving.ask(1, link.Attach(9, CONSUMER, QUEUE, 0, "", 10, [], 0, ahead))
    serving.ask(1, link.Settled())
    assert serving.answers(1) == []
    serving.apply(Acknowledge(QUEUE, 0, CONSUMER, [1, 1]))
    assert [answer.request for answer in serving.answers(1)] == [9]
    assert serving.delivered(1) == [(2, 1)]


def test_what_waits_for_the_log_is_forgotten_with_its_link() -> None:
    serving = Serving()
    serving.introduce(1, FIRST, CONNECTION)
    ahead = len(serving.entries) + 1
    serving.ask(1, link.Attach(9, CONSUMER, QUEUE, 0, "", 10, [], 0, ahead))
    serving.receive(LinkClosed(1))
    serving.publish(1)
    assert serving.answers(1) == []
    assert serving.delivered(1) == []


def test_what_comes_back_from_a_paused_consumer_is_given_to_it_again_although_others_have_room() -> None:
    serving = Serving()
    serving.introduce(1, FIRST, CONNECTION)
    serving.attach(1)
    serving.publish(1)
    serving.publish(2)
    assert serving.delivered(1) == [(1, 1), (2, 1)]
    serving.introduce(2, SECOND)
    serving.ask(2, link.Attach(9, OTHER, QUEUE, 0, "", 10, []))
    serving.ask(1, link.Pause(8, CONSUMER))
    serving.apply(Return(QUEUE, 0, CONSUMER, [1, 1]), Return(QUEUE, 0, CONSUMER, [2, 2], is_unseen=True))
    assert serving.delivered(2) == []
    serving.attach(1)
    assert serving.delivered(1) == [(1, 2), (2, 1)]
    serving.apply(Acknowledge(QUEUE, 0, CONSUMER, [1, 2]))
    assert serving.manager.describe()["dispatcher"]["destinations"][QUEUE][0]["locked"] == 0  # type: ignore[index]


def test_a_paused_consumer_that_does_not_attach_again_leaves_everything_to_others() -> None:
    serving = Serving()
    serving.introduce(1, FIRST, CONNECTION)
    serving.attach(1)
    serving.publish(1)
    serving.introduce(2, SECOND)
    serving.ask(2, link.Attach(9, OTHER, QUEUE, 0, "", 10, []))
    serving.ask(1, link.Pause(8, CONSUMER))
    serving.apply(Return(QUEUE, 0, CONSUMER, [1, 1]))
    serving.ask(1, link.Detach(10, CONSUMER, []))
    assert serving.delivered(2) == [(1, 2)]


@pytest.mark.requirement("FC-6")
def test_every_client_manager_is_told_what_is_full_and_one_that_comes_later_too() -> None:
    serving = Serving()
    serving.introduce(1, FIRST)
    serving.apply(CreateDestination(parse_destination("queue:small"), Policy(max_length=1)))
    blob = memoryview(encode([["a"]]))
    serving.apply(Publish(2, b"p" * 20, 1, 1, 0, 1000, blob))
    reason = "queue:small is full with 1 messages; it waits for consumers"
    assert (1, link.Full([(2, reason)])) in serving.told
    serving.introduce(2, SECOND)
    assert (2, link.Full([(2, reason)], True)) in serving.told
    serving.told.clear()
    serving.apply(Acknowledge(2, 0, b"", [1, 1]))
    assert [(number, frame) for number, frame in serving.told if isinstance(frame, link.Full)] == [
        (1, link.Full([(2, "")])),
        (2, link.Full([(2, "")])),
    ]


@pytest.mark.requirement("FC-4")
def test_a_replica_says_by_itself_that_its_disk_is_full() -> None:
    serving = Serving()
    serving.receive(Demoted(2))
    serving.receive(LinkOpened(1))
    serving.receive(Measured(Space(used=90, limit=100, reserve=20)))
    serving.receive(LinkOpened(2))
    serving.receive(Measured(Space(used=10, limit=100, reserve=20)))
    told = [(number, bool(frame.reason)) for number, frame in serving.told if isinstance(frame, link.Stored)]
    assert told == [(1, True), (2, True), (1, False), (2, False)]


@pytest.mark.requirement("FC-6")
def test_the_status_says_what_is_full_and_how_many_producers_wait_for_it() -> None:
    serving = Serving()
    serving.introduce(1, FIRST)
    serving.introduce(2, SECOND)
    serving.apply(SetPolicy(QUEUE, Policy(max_length=1)))
    serving.publish(1)
    serving.ask(1, link.Waiting([(QUEUE, 2)]))
    serving.ask(2, link.Waiting([(QUEUE, 3)]))
    [row] = serving.status()["destinations"]
    assert (row["blocked_producers"], row["blocked"].partition(";")[0]) == (5, "queue:q is full with 1 messages")
    serving.receive(LinkClosed(2))
    [row] = serving.status()["destinations"]
    assert row["blocked_producers"] == 2


def test_only_what_is_applied_here_is_supplied_since_the_rest_of_the_disk_may_never_be_committed() -> None:
    serving = Serving()
    last = serving.manager.engine.sequence
    serving.manager.receive(Asked(1, link.Fetch(5, [last, last + 1])), serving.now)
    assert [output for output in serving.manager.take_outputs() if isinstance(output, Supply)] == [Supply(1, 5, [last])]
