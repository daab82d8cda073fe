import msgspec
import pytest

from alphorn.message_manager import exporting
from alphorn.message_manager.effects import Answer
from alphorn.message_manager.moves import Lent
from alphorn.message_manager.queue import Queue
from alphorn.message_manager.topic import Topic
from alphorn.model.commands import (
    Abandon,
    Acknowledge,
    Arrive,
    Carried,
    CreateDestination,
    DeleteDestination,
    Expect,
    Forget,
    Fragment,
    Move,
    MoveStage,
    Publish,
    Redrive,
    Return,
    Subscribe,
    Tick,
    decode_entry,
    key_of,
)
from alphorn.model.destinations import DEAD_MESSAGES, Destination, DestinationKind, Policy
from alphorn.model.messages import Flag, Packed, Streamed
from alphorn.model.ranges import RangeSet
from tests.message_manager.travel import ATTEMPT, Side, Travel

CONNECTION = b"sixteen bytes !!"
PRODUCER, OTHER = key_of(CONNECTION, 1), key_of(CONNECTION, 2)
CONSUMER = key_of(CONNECTION, 3)
QUEUE = Destination(DestinationKind.QUEUE, "orders")
TOPIC = Destination(DestinationKind.TOPIC, "prices")


def publish(number: int, counter: int, count: int = 1, *, after: int = -1, **fields: object) -> Publish:
    batch = [Packed(counter + place, **fields) for place in range(count)]  # type: ignore[arg-type]
    flags = Flag(0)
    flags |= Flag.PRIORITY if "priority" in fields else Flag(0)
    flags |= Flag.DELAY if "deliver_at" in fields else Flag(0)
    flags |= Flag.EXPIRATION if "expiration" in fields else Flag(0)
    flags |= Flag.KEY if "key" in fields else Flag(0)
    return Publish(
        number, PRODUCER, counter, count, int(flags), 5, memoryview(msgspec.msgpack.encode(batch)), after=after
    )


def without_time(side: Side, number: int) -> bytes:
    """What is exported of a destination, but for the first record, which says when."""
    exported = b"".join(side.engine.export(number, Lent({}, {})))
    return exported[4 + int.from_bytes(exported[:4], "big") :]


@pytest.fixture
def here() -> Side:
    return Side(0)


@pytest.fixture
def there() -> Side:
    side = Side(1)
    side.order(CreateDestination(Destination(DestinationKind.QUEUE, "another"), Policy()))
    return side


@pytest.fixture
def busy(here: Side) -> int:
    """A queue with messages of every kind, some of them consumed and returned."""
    here.order(Tick(1_000))
    here.order(CreateDestination(QUEUE, Policy(groups=True, ttl=100.0)))
    here.order(publish(1, 1, 10))
    here.order(publish(1, 11, 2, priority=9))
    here.order(publish(1, 13, 2, deliver_at=60_000), publish(1, 15, 2, expiration=90_000), publish(1, 17, key="k"))
    here.order(Acknowledge(1, 0, CONSUMER, [1, 3, 5, 5]), Return(1, 0, CONSUMER, [7, 8], delay_ms=500))
    return 1


def kept(side: Side, number: int) -> dict[str, object]:
    """What must be the same wherever the destination is."""
    source = side.engine.destinations[number]
    return {
        "destination": source.destination,
        "policy": source.policy,
        "next": source.next_position,
        "keys": source.keys if isinstance(source, Queue) else {},
        "backlogs": [
            (place, backlog.pending, backlog.counts, backlog.deferred, backlog.priorities)
            for place, backlog in source.backlogs()
        ],
        "messages": [
            (run.position, run.count)
            for positions in source.needed()
            for first, last in positions
            for run in source.segments.runs(first, last)
        ],
    }


def test_everything_known_of_a_queue_moves_along(here: Side, there: Side, busy: int) -> None:
    before = kept(here, busy)
    target = Travel(here, there, busy).run()
    assert kept(there, target) == before
    assert busy not in here.engine.destinations


def test_a_subscription_moves_with_its_cursor_its_name_and_its_owner(here: Side, there: Side) -> None:
    here.order(CreateDestination(TOPIC, Policy(retain_s=1000.0)))
    here.order(Subscribe(1, "news", "me", CONSUMER, "", True, False, b"", -1))
    here.order(Subscribe(1, "", "me", OTHER, "", False, False, b"", -1))
    here.order(publish(1, 1, 5))
    here.order(Acknowledge(1, 1, CONSUMER, [1, 2]))
    before = kept(here, 1)
    target = Travel(here, there, 1).run()
    assert kept(there, target) == before
    assert there.engine.find_subscription("me", "news") == (target, 1)
    assert here.engine.find_subscription("me", "news") is None
    there.order(Forget(CONNECTION))
    topic = there.engine.destinations[target]
    assert isinstance(topic, Topic)
    assert list(topic.subscriptions) == [1]


def test_a_topic_that_moved_replays_by_priority_and_not_before_the_time(here: Side, there: Side) -> None:
    here.order(Tick(1_000), CreateDestination(TOPIC, Policy(retain_s=1000.0)))
    here.order(publish(1, 1, 2), publish(1, 3, 2, priority=9), publish(1, 5, 2, deliver_at=60_000))
    target = Travel(here, there, 1).run()
    there.order(Tick(2_000))
    there.order(Subscribe(target, "late", "me", CONSUMER, "", True, False, b"", 0))
    topic = there.engine.destinations[target]
    assert isinstance(topic, Topic)
    backlog = topic.subscriptions[1].backlog
    assert list(backlog.candidates()) == [(3, 4), (1, 2)]
    there.order(Tick(60_000))
    assert list(backlog.candidates()) == [(3, 4), (1, 2), (5, 6)]
    assert topic.particulars.delays == {}


def test_what_a_topic_keeps_is_counted_by_its_batches_where_it_is(here: Side, there: Side) -> None:
    here.order(Tick(1_000), CreateDestination(TOPIC, Policy(retain_bytes=100_000)))
    batch = [Packed("long" * 100, expiration=2_000), *[Packed("short")] * 8]
    blob = memoryview(msgspec.msgpack.encode(batch))
    here.order(Publish(1, PRODUCER, 1, len(batch), int(Flag.EXPIRATION), 5, blob))
    here.order(Tick(2_000))
    target = Travel(here, there, 1).run()
    topic = there.engine.destinations[target]
    assert isinstance(topic, Topic)
    assert topic.retained_bytes == topic.segments.size
    topic.let_go(2, 8)
    assert topic.retained_bytes == sum(run.size for run in topic.segments.runs(9, 9))


def test_dead_messages_find_a_subscription_that_has_moved_away_and_come_back(here: Side, there: Side) -> None:
    here.order(CreateDestination(TOPIC, Policy()))
    here.order(Subscribe(1, "news", "me", CONSUMER, "", True, False, b"", -1))
    here.order(publish(1, 1, 2))
    here.order(Return(1, 1, CONSUMER, [1, 1], is_dead=True))
    dead = here.engine.numbers[Destination(DestinationKind.QUEUE, DEAD_MESSAGES)]
    back = Travel(there, here, Travel(here, there, 1).run()).run()
    here.order(Redrive(dead, []))
    backlog = here.engine.destinations[back].backlog_of(1)
    assert backlog is not None
    assert list(backlog.pending) == [(2, 3)]


def test_what_is_due_happens_where_the_destination_is(here: Side, there: Side, busy: int) -> None:
    target = Travel(here, there, busy).run()
    here.order(Tick(100_000))
    queue = there.engine.destinations[target]
    depth = queue.count
    there.order(Tick(61_000))
    assert isinstance(queue, Queue)
    assert not [due for due in queue.backlog.deferred.values() if due == 60_000]
    there.order(Tick(91_000))
    assert queue.count == depth - 2


@pytest.mark.parametrize("crash", range(9))
def test_a_replica_that_restarts_at_any_step_goes_on_as_if_nothing_had_happened(
    here: Side, there: Side, busy: int, crash: int
) -> None:
    travel = Travel(here, there, busy)
    before = kept(here, busy)
    for place, step in enumerate(travel.steps()):
        if place == crash:
            here.restart()
            there.restart()
        step()
    here.restart()
    there.restart()
    assert kept(there, travel.target) == before


@pytest.mark.parametrize("failure", range(1, 7))
def test_whoever_carries_on_after_a_failure_begins_at_the_beginning_and_changes_nothing_twice(
    here: Side, there: Side, busy: int, failure: int
) -> None:
    before = kept(here, busy)
    first = Travel(here, there, busy)
    for step in first.steps()[:failure]:
        step()
    second = Travel(here, there, busy)
    second.expect()
    has_come = second.start == 0
    for step in () if has_come else (second.begin, second.copy, lambda: second.arrive(b"another attempt")):
        step()
    second.end()
    assert first.target in (0, second.target)
    assert kept(there, second.target) == before
    assert here.engine.moves.gone[busy][:2] == (1, second.target)


def test_nothing_reaches_a_destination_that_has_begun_to_leave(here: Side, there: Side, busy: int) -> None:
    travel = Travel(here, there, busy)
    for step in travel.steps()[:4]:
        step()
    frozen = without_time(here, busy)
    for command in (
        publish(busy, 18),
        Acknowledge(busy, 0, CONSUMER, [4, 4]),
        Return(busy, 0, CONSUMER, [4, 4]),
        DeleteDestination(busy),
    ):
        assert here.answer(command).error == "Moved"
    here.order(Tick(500_000))
    assert without_time(here, busy) == frozen


def test_a_message_that_was_stored_before_the_move_is_known_after_it(here: Side, there: Side, busy: int) -> None:
    target = Travel(here, there, busy).run()
    depth = there.engine.destinations[target].count
    there.order(publish(target, 17, key="k"))
    assert there.engine.destinations[target].count == depth
    there.order(publish(target, 18))
    assert there.engine.destinations[target].count == depth + 1


def test_counters_of_a_moved_destination_are_its_own(here: Side, there: Side, busy: int) -> None:
    """The producer sends to another destination of that channel too; neither stands in the other's way."""
    target = Travel(here, there, busy).run()
    there.order(publish(1, 5, after=0))
    there.order(publish(target, 18, after=17), publish(1, 19, after=5), publish(target, 20, after=18))
    assert there.engine.destinations[1].count == 2
    assert there.engine.destinations[target].count == 15


@pytest.mark.parametrize(("after", "error"), [(-1, "Unavailable"), (17, ""), (18, "Unavailable"), (0, "")])
def test_a_gap_that_other_channels_explain_is_none(here: Side, busy: int, after: int, error: str) -> None:
    assert here.answer(publish(busy, 20, after=after)).error == error


def test_copies_that_overlap_are_taken_once(here: Side, there: Side, busy: int) -> None:
    travel = Travel(here, there, busy)
    travel.plan()
    travel.expect()
    blob = memoryview(msgspec.msgpack.encode([Packed(1), Packed(2), Packed(3)]))
    for position in (4, 5, 6):
        there.order(Carried(travel.target, PRODUCER, 4, 3, 0, 5, blob, position=position))
    runs = there.engine.moves.incoming[travel.target].made.segments.runs(0, 100)
    assert [(run.position, run.count, run.index) for run in runs] == [(4, 3, 0), (7, 1, 2), (8, 1, 2)]


def test_a_destination_whose_messages_were_not_all_carried_does_not_arrive(here: Side, there: Side, busy: int) -> None:
    travel = Travel(here, there, busy)
    for step in (travel.plan, travel.expect, travel.begin):
        step()
    [piece] = here.engine.export(busy, Lent({}, {}))
    assert there.answer(Arrive(travel.target, ATTEMPT, 0, [piece], is_last=True)).error == "Corruption"
    assert travel.target not in there.engine.destinations
    travel.copy()
    travel.arrive()
    assert travel.target in there.engine.destinations


def test_pieces_of_two_attempts_do_not_mix(here: Side, there: Side, busy: int) -> None:
    travel = Travel(here, there, busy)
    for step in (travel.plan, travel.expect, travel.begin, travel.copy):
        step()
    [piece] = here.engine.export(busy, Lent({}, {}))
    assert not there.answer(Arrive(travel.target, b"one", 0, [piece[:50]])).error
    assert not there.answer(Arrive(travel.target, b"two", 0, [piece[:50]])).error
    assert there.answer(Arrive(travel.target, b"one", 1, [piece[50:]], is_last=True)).error == "Unavailable"
    assert not there.answer(Arrive(travel.target, b"two", 1, [piece[50:]], is_last=True)).error
    assert travel.target in there.engine.destinations


def test_a_name_is_found_where_its_destination_went_and_when_it_comes_back(here: Side, there: Side, busy: int) -> None:
    wanted = CreateDestination(QUEUE, Policy())
    target = Travel(here, there, busy).run()
    assert (here.answer(wanted).error, here.answer(wanted).number) == ("Moved", 1)
    assert there.answer(wanted).number == target
    back = Travel(there, here, target).run()
    assert here.answer(wanted).number == back
    assert (there.answer(wanted).error, there.answer(wanted).number) == ("Moved", 0)
    assert here.engine.destinations[back].count == 13


def test_log_entries_are_kept_while_a_destination_is_on_its_way(here: Side, there: Side, busy: int) -> None:
    travel = Travel(here, there, busy)
    needed = list(here.engine.retained())
    for step in travel.steps()[:5]:
        step()
    assert list(here.engine.retained()) == needed
    assert there.engine.retained()
    travel.arrive()
    travel.end()
    assert not here.engine.retained()


def test_what_consumers_had_is_known_where_the_destination_comes(here: Side, there: Side, busy: int) -> None:
    travel = Travel(here, there, busy)
    travel.lent = Lent({0: RangeSet([(4, 4)])}, {0: RangeSet([(6, 17)])})
    for step in travel.steps()[:-1]:
        step()
    assert there.engine.moves.landing[travel.target].lent == travel.lent
    there.restart()
    assert there.engine.moves.landing[travel.target].lent == travel.lent


@pytest.mark.parametrize(
    ("prepare", "error"),
    [
        (CreateDestination(Destination(DestinationKind.QUEUE, "_DMQ"), Policy()), "AccessDenied"),
        (CreateDestination(Destination(DestinationKind.QUEUE, "temporary.x"), Policy(), CONNECTION), "Misuse"),
    ],
)
def test_what_belongs_to_the_system_or_to_a_connection_stays(
    here: Side, prepare: CreateDestination, error: str
) -> None:
    number = here.answer(prepare).number
    assert here.answer(Move(number, MoveStage.PLANNED, 1)).error == error


def test_another_destination_of_that_name_or_subscription_is_in_the_way(here: Side, there: Side) -> None:
    assert there.answer(Expect(Destination(DestinationKind.QUEUE, "another"), Policy(), 0, 9)).error == "Misuse"
    there.order(CreateDestination(TOPIC, Policy()))
    there.order(Subscribe(2, "news", "me", CONSUMER, "", True, False, b"", -1))
    other = Destination(DestinationKind.TOPIC, "other")
    assert there.answer(Expect(other, Policy(), 0, 9, [(True, "me", "news")])).error == "Misuse"


def test_a_plan_can_be_cancelled_and_what_has_begun_cannot(here: Side, there: Side, busy: int) -> None:
    travel = Travel(here, there, busy)
    travel.plan()
    here.order(Move(busy, MoveStage.CANCELLED, 1))
    assert not here.engine.moves.leaving
    for step in travel.steps()[:4]:
        step()
    here.order(Move(busy, MoveStage.CANCELLED, 1))
    assert busy in here.engine.moves.leaving


def test_a_destination_deleted_before_it_left_is_not_expected_any_more(here: Side, there: Side, busy: int) -> None:
    travel = Travel(here, there, busy)
    for step in travel.steps()[:3]:
        step()
    here.order(DeleteDestination(busy))
    assert not here.engine.moves.leaving
    there.order(Move(travel.target, MoveStage.CANCELLED, 0))
    assert not there.engine.moves.incoming
    assert not there.engine.retained()


def test_a_closed_channel_sends_new_destinations_elsewhere_and_keeps_those_it_has(here: Side, busy: int) -> None:
    here.order(Move(0, MoveStage.CLOSED, 0))
    here.restart()
    new = CreateDestination(Destination(DestinationKind.QUEUE, "new"), Policy(), otherwise=7)
    assert (here.answer(new).error, here.answer(new).number) == ("Moved", 7)
    assert here.answer(CreateDestination(QUEUE, Policy(), otherwise=7)) == Answer(0, busy)


def test_a_channel_that_is_open_again_knows_whither_it_sent_a_name(here: Side) -> None:
    """Whoever asked meanwhile has created it there."""
    new = CreateDestination(Destination(DestinationKind.QUEUE, "new"), Policy(), otherwise=7)
    here.order(Move(0, MoveStage.CLOSED, 0))
    here.order(new)
    here.order(Move(0, MoveStage.OPENED, 0))
    here.restart()
    assert (here.answer(new).error, here.answer(new).number) == ("Moved", 7)
    other = CreateDestination(Destination(DestinationKind.QUEUE, "other"), Policy(), otherwise=7)
    assert not here.answer(other).error


def test_a_channel_to_which_its_own_record_leads_back_has_the_name_itself(here: Side) -> None:
    new = CreateDestination(Destination(DestinationKind.QUEUE, "new"), Policy(), otherwise=7, is_sent_on=True)
    sent_on = here.answer(new)
    assert sent_on.number == 7
    here.restart()
    for recorded_at in (-1, sent_on.position - 1, sent_on.position + 1):
        again = here.answer(CreateDestination(new.destination, Policy(), recorded_at=recorded_at))
        assert (again.error, again.number, again.position) == ("Moved", 7, sent_on.position)
    assert not here.answer(CreateDestination(new.destination, Policy(), recorded_at=sent_on.position)).error
    assert new.destination in here.engine.numbers


def test_what_comes_late_of_a_connection_that_has_ended_is_not_stored_again(here: Side, busy: int) -> None:
    """A Client Manager that was cut off may have had it in hand, and does not know what came before."""
    depth = here.engine.destinations[busy].count
    here.order(Forget(CONNECTION))
    here.restart()
    assert here.answer(publish(busy, 9, after=0)).error == "UnknownOutcome"
    assert here.engine.destinations[busy].count == depth
    assert here.answer(publish(busy, 1)).error == "UnknownOutcome"
    newer = msgspec.structs.replace(publish(busy, 1), producer=key_of(CONNECTION, 99))
    assert not here.answer(newer).error  # it may come back with another producer


def test_a_destination_with_bodies_in_fragments_stays_and_takes_none_when_it_is_to_leave(here: Side, busy: int) -> None:
    here.order(Fragment(busy, OTHER, 1, 0, memoryview(b"piece")))
    assert here.answer(Move(busy, MoveStage.PLANNED, 1)).error == "Unavailable"
    here.order(Abandon(OTHER, 2, busy))
    assert not here.answer(Move(busy, MoveStage.PLANNED, 1)).error
    assert here.answer(Fragment(busy, OTHER, 3, 0, memoryview(b"piece"))).error == "Unavailable"
    here.order(Move(busy, MoveStage.CANCELLED, 1))
    assert not here.answer(Fragment(busy, OTHER, 4, 0, memoryview(b"piece"))).error


@pytest.mark.parametrize("is_swept", [False, True])
def test_a_destination_that_leaves_is_written_the_same_whether_or_not_somebody_looked(
    here: Side, busy: int, *, is_swept: bool
) -> None:
    twin = Side(0)
    for payload in here.log.values():
        twin.order(*decode_entry(payload).commands)
    for side in (here, twin):
        side.order(Move(busy, MoveStage.PLANNED, 1), Acknowledge(busy, 0, CONSUMER, [11, 12]))
    if is_swept:
        here.engine.describe()
    for side in (here, twin):
        side.order(Move(busy, MoveStage.BEGUN, 1, 7))
    assert b"".join(here.engine.checkpoint()) == b"".join(twin.engine.checkpoint())


@pytest.mark.parametrize("is_swept", [False, True])
def test_a_consumed_body_in_fragments_does_not_keep_its_destination_from_moving(
    here: Side, busy: int, *, is_swept: bool
) -> None:
    here.order(Fragment(busy, OTHER, 1, 0, memoryview(b"piece")))
    streamed = [Packed(None, stream=Streamed(1, 5, b""))]
    blob = memoryview(msgspec.msgpack.encode(streamed))
    end = here.engine.destinations[busy].next_position
    here.order(Publish(busy, OTHER, 2, 1, int(Flag.STREAM), 5, blob), publish(busy, 18))
    here.order(Acknowledge(busy, 0, CONSUMER, [end, end]))
    assert here.engine.destinations[busy].count, "its neighbour in the log is still there"
    if is_swept:
        here.engine.retained()
    assert not here.answer(Move(busy, MoveStage.PLANNED, 1)).error


def test_a_batch_that_was_consumed_here_and_there_is_unpacked_once_for_a_page(
    here: Side, there: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.order(CreateDestination(QUEUE, Policy()))
    here.order(publish(1, 1, 100))
    here.order(Acknowledge(1, 0, CONSUMER, [place for odd in range(1, 100, 2) for place in (odd, odd)]))
    unpacked = []

    def split_batch(blob: memoryview) -> list[msgspec.Raw]:
        unpacked.append(len(blob))
        return original(blob)

    original = exporting.split_batch
    monkeypatch.setattr(exporting, "split_batch", split_batch)
    target = Travel(here, there, 1).run()
    assert len(unpacked) == 1
    moved = there.engine.destinations[target]
    assert isinstance(moved, Queue)
    assert list(moved.backlog.pending) == [(place, place) for place in range(2, 101, 2)]
