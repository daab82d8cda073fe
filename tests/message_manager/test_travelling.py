"""Primaries on both sides of a move: who is asked, who is waited for, and what counts as delivered afterwards."""

import msgspec
import pytest

from alphorn.message_manager.absent import HOLD_S
from alphorn.message_manager.awaited import UNLINKED_S
from alphorn.message_manager.farewells import LATELY_S
from alphorn.message_manager.machine import ClientManagerLeft, Demoted, LinkClosed, LinkOpened, Promoted
from alphorn.model import link, moving_link
from alphorn.model.commands import Arrive, Carried, Expect, Move, MoveStage, Return, SetPolicy, Settle, Tick
from alphorn.model.destinations import Policy, parse_destination
from tests.client_manager.managing import encode
from tests.message_manager.test_core import CONNECTION, CONSUMER, FIRST, ME, QUEUE, SECOND, Serving

MOVED = 2  # the number of the queue where it comes to
NAME = parse_destination("queue:moved")
EVERYTHING = [1, 3]


class Source(Serving):
    """The primary of the channel that a queue with three messages leaves; `cm1` and `cm2` are there."""

    def __init__(self) -> None:
        super().__init__(known=(FIRST, SECOND))
        self.settle(1, FIRST)
        self.settle(2, SECOND)
        for counter in (1, 2, 3):
            self.publish(counter)
        self.apply(Move(QUEUE, MoveStage.PLANNED, 1))

    def settle(self, number: int, origin: bytes) -> None:
        """A Client Manager without consumers has said all there is to say."""
        if number not in self.manager._links:
            self.receive(LinkOpened(number))
        self.ask(number, link.Introduce(f"cm{number}", origin, 1, "", []))
        self.ask(number, link.Settled())

    def begin(self) -> None:
        self.apply(Move(QUEUE, MoveStage.BEGUN, 1, MOVED))

    def be_replaced(self) -> None:
        """Another replica becomes primary, which knows what the log says and nothing else."""
        self.receive(Demoted(2))
        self.receive(Promoted(3, ME, (FIRST, SECOND)))

    def export(self) -> list[link.Told]:
        self.told.clear()
        self.ask(1, moving_link.Export(7, QUEUE, -1))
        return [frame for to, frame in self.told if to == 1]

    def record(self) -> bytes:
        [frame] = self.export()
        assert isinstance(frame, moving_link.Exported)
        assert frame.is_last
        return bytes(frame.record)


class Target(Serving):
    """The primary of the channel that the queue comes to; `cm1` and `cm2` are there."""

    def __init__(self) -> None:
        super().__init__(known=(FIRST, SECOND))
        self.settle(1, FIRST)
        self.settle(2, SECOND)
        self.apply(Expect(NAME, Policy(), 0, QUEUE))
        blob = memoryview(encode([["1"], ["2"], ["3"]]))
        self.apply(Carried(MOVED, b"p" * 20, 1, 3, 0, 1000, blob, position=1))

    settle = Source.settle

    def land(self, record: bytes) -> None:
        self.apply(Arrive(MOVED, b"attempt", 0, [record], is_last=True))

    def follow(self, number: int, *, unseen: tuple[int, ...] = (), loose: tuple[int, ...] = ()) -> None:
        """A Client Manager says that its consumers have followed."""
        told = [[(0, list(positions))] if positions else [] for positions in (unseen, loose)]
        self.ask(number, moving_link.Followed(MOVED, *told))

    def returned(self) -> list[int]:
        """What counts as delivered; the landing must be over."""
        assert isinstance(self.ordered[-1], Settle)
        assert not self.manager.engine.moves.landing
        return [position for command in self.ordered if isinstance(command, Return) for position in command.positions]


def test_whoever_drains_a_channel_hears_of_what_is_still_on_its_way_there() -> None:
    target = Target()
    target.told.clear()
    target.ask(1, moving_link.Export(7, 0, -1))
    [(_, answer)] = target.told
    assert isinstance(answer, moving_link.Exported)
    known = msgspec.msgpack.decode(answer.record, type=list[moving_link.Inventoried])
    assert {each.name: each.is_here for each in known} == {"queue:q": True, str(NAME): True}


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def target() -> Target:
    return Target()


def test_what_nobody_ever_had_is_not_delivered_before(source: Source, target: Target) -> None:
    source.begin()
    target.land(source.record())
    target.follow(1)
    target.follow(2)
    assert target.returned() == []


@pytest.mark.parametrize("is_begun", [True, False])
def test_what_nobody_ever_had_is_not_delivered_before_although_the_primary_was_lost(
    source: Source, target: Target, *, is_begun: bool
) -> None:
    """Goal: no false mark. Method: it leaves before Client Managers could tell the new primary anything."""
    if is_begun:
        source.begin()
        source.be_replaced()
    else:
        source.be_replaced()
        source.begin()
    source.settle(1, FIRST)
    source.settle(2, SECOND)
    target.land(source.record())
    target.follow(1)
    target.follow(2)
    assert target.returned() == []


def test_what_a_new_primary_held_back_until_all_have_spoken_is_not_delivered_before(
    source: Source, target: Target
) -> None:
    source.be_replaced()
    source.ask(1, link.Introduce("cm1", FIRST, 1, "", [CONNECTION]))
    source.attach(1)
    source.begin()
    source.ask(1, link.Settled())
    source.settle(2, SECOND)
    target.land(source.record())
    target.follow(1)
    target.follow(2)
    assert target.returned() == []


def test_what_may_be_with_a_client_manager_that_a_new_primary_cannot_reach_counts_as_delivered(
    source: Source, target: Target
) -> None:
    source.begin()
    source.receive(LinkClosed(2))
    source.be_replaced()
    source.settle(1, FIRST)
    source.pass_time(UNLINKED_S)
    target.land(source.record())
    target.follow(1)
    target.follow(2)
    assert target.returned() == EVERYTHING


@pytest.mark.parametrize("is_begun", [True, False])
def test_what_a_client_manager_lost_counts_as_delivered_and_nothing_else(
    source: Source, target: Target, *, is_begun: bool
) -> None:
    if is_begun:
        source.begin()
    source.be_replaced()
    if not is_begun:
        source.begin()
    source.settle(1, FIRST)
    source.settle(2, SECOND)
    target.land(source.record())
    target.follow(1, loose=(2, 2))
    target.follow(2)
    assert target.returned() == [2, 2]


def test_what_was_with_a_consumer_counts_as_delivered_unless_it_never_reached_the_program(
    source: Source, target: Target
) -> None:
    source.attach(1)
    assert source.delivered(1) == [(1, 1), (2, 1), (3, 1)]
    source.begin()
    target.land(source.record())
    target.follow(1, unseen=(2, 3))
    target.follow(2)
    assert target.returned() == [1, 1]


def test_what_one_had_that_is_gone_counts_as_delivered_although_the_next_never_saw_it(
    source: Source, target: Target
) -> None:
    """Method: one had 1 and 2 and is gone with the primary; the next was to be given all, and it left before that."""
    source.be_replaced()
    source.ask(1, link.Introduce("cm1", FIRST, 1, "", [CONNECTION]))
    source.attach(1)
    source.ask(1, link.Settled([(QUEUE, 0, [1, 2])]))
    source.settle(2, SECOND)
    assert source.delivered(1) == [(1, 2), (2, 2), (3, 1)]
    source.begin()
    target.land(source.record())
    target.follow(2, unseen=(1, 3))
    target.follow(1, loose=(1, 2))
    assert target.returned() == [1, 2]


def test_the_rest_is_not_exported_before_client_managers_have_said_what_they_have(source: Source) -> None:
    source.begin()
    source.be_replaced()
    source.settle(1, FIRST)
    [answer] = source.export()
    assert isinstance(answer, link.Answered)
    assert answer.error == "Unavailable"
    source.settle(2, SECOND)
    assert source.record()


@pytest.mark.parametrize("when", ["before it left", "after it left", "after the primary"])
def test_what_may_have_been_with_a_client_manager_that_left_counts_as_delivered(
    source: Source, target: Target, when: str
) -> None:
    """Method: nobody is asked at once, so that only what replicas remember of it can tell."""
    if when == "before it left":
        source.receive(ClientManagerLeft(SECOND))
    source.begin()
    if when == "after it left":
        source.receive(ClientManagerLeft(SECOND))
    if when != "after the primary":
        source.now += 2 * LATELY_S
    source.receive(Demoted(2))
    source.receive(Promoted(3, ME, (FIRST,) if when != "after the primary" else (FIRST, SECOND)))
    source.settle(1, FIRST)
    if when == "after the primary":
        source.receive(ClientManagerLeft(SECOND))
    target.land(source.record())
    target.follow(1)
    target.follow(2)
    assert target.returned() == EVERYTHING


@pytest.mark.parametrize("when", ["before it came", "after it came"])
def test_who_left_where_a_destination_comes_to_may_have_had_what_is_unclear(
    source: Source, target: Target, when: str
) -> None:
    source.begin()
    source.be_replaced()
    source.settle(1, FIRST)
    source.settle(2, SECOND)
    record = source.record()
    if when == "before it came":
        target.receive(ClientManagerLeft(SECOND))
        target.now += 2 * LATELY_S
    target.land(record)
    target.follow(1)
    if when == "after it came":
        target.receive(ClientManagerLeft(SECOND))
    assert target.returned() == EVERYTHING


def test_who_has_said_all_and_then_leaves_takes_nothing_along(source: Source, target: Target) -> None:
    source.begin()
    source.be_replaced()
    source.settle(1, FIRST)
    source.settle(2, SECOND)
    target.land(source.record())
    target.follow(2)
    target.receive(ClientManagerLeft(SECOND))
    target.follow(1)
    assert target.returned() == []


def test_a_new_primary_where_it_comes_to_hears_everything_again(source: Source, target: Target) -> None:
    source.begin()
    source.be_replaced()
    source.settle(1, FIRST)
    source.settle(2, SECOND)
    target.land(source.record())
    target.follow(1, loose=(2, 2))
    target.receive(Demoted(2))
    target.receive(Promoted(3, ME, (FIRST, SECOND)))
    target.settle(1, FIRST)
    target.settle(2, SECOND)
    target.follow(1, loose=(2, 2))
    target.follow(2)
    assert target.returned() == [2, 2]


def test_who_was_never_a_member_is_waited_for_only_so_long(source: Source, target: Target) -> None:
    source.begin()
    target.settle(3, b"3" * 10)  # introduced itself, and ended before it had joined: no log says that it left
    target.land(source.record())
    target.follow(1)
    target.follow(2)
    target.receive(LinkClosed(3))
    assert target.manager.engine.moves.landing
    target.pass_time(HOLD_S)
    assert target.returned() == []


def test_who_is_to_carry_and_introduces_itself_again_is_told_again(source: Source) -> None:
    """What was said on a link that broke, or before it knew who is primary, is lost."""
    [(number, carry)] = [each for each in source.told if isinstance(each[1], moving_link.Carry)]
    source.told.clear()
    source.settle(number, (FIRST, SECOND)[number - 1])
    assert (number, carry) in source.told
    source.told.clear()
    source.settle(3 - number, (FIRST, SECOND)[2 - number])
    assert not [frame for _, frame in source.told if isinstance(frame, moving_link.Carry)]


def test_an_export_of_what_was_carried_by_another_meanwhile_is_refused(source: Source) -> None:
    [answer] = source.export()
    assert isinstance(answer, link.Answered)
    assert answer.error == "Misuse", "it has not left"
    source.begin()
    source.apply(Move(QUEUE, MoveStage.ENDED, 1, MOVED))
    [answer] = source.export()
    assert isinstance(answer, link.Answered)
    assert answer.error == "InvalidDestination"


def test_what_a_consumer_holds_stays_its_own_through_a_move(source: Source, target: Target) -> None:
    source.attach(1)
    source.begin()
    target.land(source.record())
    target.ask(1, link.ConnectionOpened(CONNECTION))
    target.ask(1, link.Attach(9, CONSUMER, MOVED, 0, "", 10, [1, 2], 0))
    target.follow(1)
    assert target.delivered(1) == []
    target.follow(2)
    assert target.returned() == [3, 3]
    assert target.delivered(1) == [(3, 2)]


@pytest.mark.parametrize("is_replaced", [False, True])
def test_what_lapsed_and_is_with_nobody_dies_where_it_comes_to(
    source: Source, target: Target, *, is_replaced: bool
) -> None:
    """Goal: nothing whose time is over stays. Method: its consumer is lost, and it leaves before it came back."""
    source.apply(SetPolicy(QUEUE, Policy(ttl=1.0)), Tick(10_000))
    source.apply(Tick(20_000, [], [(QUEUE, 0, [1, 2])]))
    source.begin()
    target.land(source.record())
    if is_replaced:
        Source.be_replaced(target)  # type: ignore[arg-type]
        target.settle(1, FIRST)
        target.settle(2, SECOND)
    target.follow(1)
    target.follow(2)
    queue = target.manager.engine.destinations[MOVED]
    assert [list(backlog.pending) for _, backlog in queue.backlogs()] == [[]]
    dead = target.manager.engine.destinations[target.manager.engine.numbers[parse_destination("queue:_DMQ")]]
    assert [len(backlog) for _, backlog in dead.backlogs()] == [2]
