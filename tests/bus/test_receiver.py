"""Delivery: in order, once, without a gap, with the group's events at their place."""

import msgspec
import pytest

from alphorn.bus.config import Budget
from alphorn.bus.entries import (
    Assignment,
    CheckpointMark,
    EpochBegun,
    MemberJoined,
    MemberLeft,
    VoterRemoved,
    digest_of,
)
from alphorn.bus.follower import Follower
from alphorn.bus.frames import Fetch, fragment_batch
from alphorn.bus.machine import Deliver, MemberChanged, Output, PrimaryChanged, PutGroupState, TakeCheckpoint
from alphorn.bus.nack import Requests
from alphorn.bus.receiver import Receiver
from alphorn.bus.repair import Repairer
from tests.bus.group import make_config
from tests.bus.stations import EPOCH, SENDER, Bench, batch_id, joined, numbered, origin_of_member, system


class Delivering:
    """Member 2 of three."""

    def __init__(
        self, *, number: int = 2, reads: bool = True, nack_numbers_max: int = 64, held_bytes_max: int = 1 << 20
    ) -> None:
        budget = Budget(datagram_bytes=1200, nack_numbers_max=nack_numbers_max, held_bytes_max=held_bytes_max)
        self.bench = Bench(make_config(servers=3, witnesses=1), number, reads=reads, budget=budget)
        station = self.bench.station
        self.requests = Requests(station)
        follower = Follower(station, durable=0, now=0.0)
        self.receiver = Receiver(station, follower, self.requests, Repairer(station, 0.0), delivered=0)
        station.ledger.on_committed = self.receiver.on_committed

    def commit(self, *assignments: Assignment) -> None:
        self.bench.fold(*assignments)

    def outputs(self) -> list[Output]:
        self.receiver.advance(1.0)
        return self.bench.outputs(Output)

    def delivered(self) -> list[int]:
        return [output.sequence for output in self.outputs() if isinstance(output, Deliver)]


@pytest.mark.requirement("BUS-18")
def test_batches_are_delivered_in_the_order_of_their_numbers_whatever_order_they_came_in() -> None:
    delivering = Delivering()
    delivering.bench.hold(3, 1)
    delivering.commit(numbered(1), numbered(2), numbered(3))
    assert delivering.delivered() == [1]
    delivering.bench.hold(2)
    assert delivering.delivered() == [2, 3]


def test_nothing_is_delivered_before_it_is_committed_and_nothing_twice() -> None:
    delivering = Delivering()
    delivering.bench.hold(1, 2)
    delivering.bench.ledger.append(numbered(1))
    delivering.bench.ledger.append(numbered(2))
    assert delivering.delivered() == []
    delivering.bench.ledger.commit(1)
    assert delivering.delivered() == [1]
    assert delivering.delivered() == []


@pytest.mark.requirement("BUS-19", "BUS-22")
def test_a_missing_batch_and_those_missing_after_it_are_asked_for_by_number() -> None:
    delivering = Delivering()
    delivering.bench.join(1, 3)
    delivering.bench.hold(2)
    delivering.commit(numbered(1), numbered(2), numbered(3), numbered(4))
    assert delivering.delivered() == []
    assert delivering.receiver.is_waiting
    delivering.requests.on_time(2.0)
    assert [fetch.sequences for _, fetch in delivering.bench.sent(Fetch)] == [[(3, 3), (5, 6)]]


def test_no_more_than_a_bounded_run_of_missing_numbers_is_asked_for() -> None:
    delivering = Delivering(nack_numbers_max=4)
    delivering.bench.join(1, 3)
    delivering.commit(*[numbered(counter) for counter in range(1, 40)])
    delivering.outputs()
    delivering.requests.on_time(2.0)
    assert [fetch.sequences for _, fetch in delivering.bench.sent(Fetch)] == [[(3, 7)]]


@pytest.mark.requirement("BUS-6", "BUS-7")
def test_joins_and_departures_are_events_with_tag_and_rank_at_their_place_in_the_order() -> None:
    delivering = Delivering()
    delivering.bench.hold(1)
    config = delivering.bench.config
    delivering.commit(
        system(joined(config, 3)),
        numbered(1),
        system(MemberLeft(3, origin_of_member(3), True)),
        system(joined(config, 4)),
    )
    outputs = delivering.outputs()
    assert [type(output) for output in outputs] == [MemberChanged, Deliver, MemberChanged, MemberChanged]
    events = [output for output in outputs if isinstance(output, MemberChanged)]
    assert [(e.sequence, e.event, e.member.name, e.member.tag, e.member.rank) for e in events] == [
        (1, "joined", "S3", "store", 3),
        (3, "failed", "S3", "store", 3),
        (4, "joined", "W1", "witness", 4),
    ]


@pytest.mark.requirement("BUS-6", "BUS-7")
def test_a_member_that_comes_back_as_another_run_has_failed_as_the_one_before() -> None:
    delivering = Delivering()
    config = delivering.bench.config
    later = joined(config, 3, origin=bytes(9) + b"3", incarnation=2)
    delivering.commit(system(joined(config, 3)), system(joined(config, 3)), system(later))
    events = [output for output in delivering.outputs() if isinstance(output, MemberChanged)]
    assert [(e.sequence, e.event, e.member.origin) for e in events] == [
        (1, "joined", origin_of_member(3)),
        (2, "joined", origin_of_member(3)),
        (3, "failed", origin_of_member(3)),
        (3, "joined", later.member.origin),
    ]


def test_a_member_that_left_before_it_came_back_is_not_told_to_have_failed_as_well() -> None:
    delivering = Delivering()
    config = delivering.bench.config
    later = joined(config, 3, origin=bytes(9) + b"3", incarnation=2)
    delivering.commit(system(joined(config, 3)), system(MemberLeft(3, origin_of_member(3), False)), system(later))
    events = [output.event for output in delivering.outputs() if isinstance(output, MemberChanged)]
    assert events == ["joined", "left", "joined"]


def test_a_goodbye_is_told_apart_from_a_failure() -> None:
    delivering = Delivering()
    config = delivering.bench.config
    delivering.commit(system(joined(config, 3)), system(MemberLeft(3, origin_of_member(3), False)))
    assert [output.event for output in delivering.outputs() if isinstance(output, MemberChanged)] == ["joined", "left"]


def test_an_event_waits_for_the_batches_before_it() -> None:
    delivering = Delivering()
    delivering.commit(numbered(1), system(VoterRemoved(4, True)))
    assert delivering.outputs() == []
    delivering.bench.hold(1)
    assert [type(output) for output in delivering.outputs()] == [Deliver, MemberChanged]


@pytest.mark.requirement("HA-9")
def test_a_new_epoch_names_the_members_at_its_own_place_of_the_log_however_far_that_has_gone_on() -> None:
    delivering = Delivering()
    config = delivering.bench.config
    later = joined(config, 3, origin=bytes(9) + b"3", incarnation=2)
    delivering.commit(system(joined(config, 3)), system(EpochBegun(EPOCH, 2)), system(later))
    [event] = [output for output in delivering.outputs() if isinstance(output, PrimaryChanged)]
    assert [member.origin for member in event.members if member.number == 3] == [origin_of_member(3)]


@pytest.mark.parametrize(("number", "is_self"), [(2, True), (3, False)])
def test_a_new_epoch_names_the_primary_and_whether_it_is_this_member(number: int, *, is_self: bool) -> None:
    delivering = Delivering()
    delivering.bench.station.follow(EPOCH, number)
    delivering.commit(system(EpochBegun(EPOCH, number)))
    [event] = delivering.outputs()
    assert isinstance(event, PrimaryChanged)
    assert (event.sequence, event.epoch, event.number, event.is_self) == (1, EPOCH, number, is_self)


@pytest.mark.requirement("HA-6")
def test_a_member_that_reads_its_log_again_is_not_the_primary_it_was_in_an_earlier_run() -> None:
    delivering = Delivering()
    delivering.commit(system(EpochBegun(EPOCH, 2)))
    assert [output.is_self for output in delivering.outputs() if isinstance(output, PrimaryChanged)] == [False]


@pytest.mark.requirement("CKP-1", "CKP-3")
def test_at_a_mark_the_upper_layer_is_asked_for_its_state_after_exactly_the_batches_before_it() -> None:
    delivering = Delivering()
    delivering.bench.hold(1, 2)
    delivering.commit(numbered(1), system(CheckpointMark()), numbered(2))
    outputs = delivering.outputs()
    assert [type(output) for output in outputs] == [Deliver, TakeCheckpoint, Deliver]
    taken = next(output for output in outputs if isinstance(output, TakeCheckpoint))
    assert (taken.sequence, taken.epoch) == (2, EPOCH)
    (kept,) = [write for write in delivering.bench.settle() if isinstance(write, PutGroupState)]
    assert (kept.sequence, kept.data) == (2, taken.state)


def test_a_witness_keeps_the_groups_state_at_a_mark_and_takes_no_checkpoint() -> None:
    delivering = Delivering(number=4, reads=False)
    delivering.commit(system(CheckpointMark()))
    assert delivering.outputs() == []
    assert [write.sequence for write in delivering.bench.settle() if isinstance(write, PutGroupState)] == [1]


def test_a_witness_passes_batches_without_having_them() -> None:
    delivering = Delivering(number=4, reads=False)
    delivering.commit(numbered(1), numbered(2))
    assert delivering.delivered() == []
    assert delivering.receiver.delivered == 2


@pytest.mark.requirement("CKP-5")
def test_nothing_is_delivered_while_a_checkpoint_is_installed() -> None:
    delivering = Delivering()
    delivering.bench.hold(1)
    delivering.commit(numbered(1))
    delivering.receiver.hold(7)
    assert delivering.outputs() == []
    assert delivering.receiver.on_installed(7)
    assert delivering.delivered() == [1]


def test_delivery_goes_on_after_the_checkpoint() -> None:
    delivering = Delivering()
    delivering.commit(numbered(1), system(EpochBegun(EPOCH, 1)), numbered(2))
    delivering.receiver.reset(2)
    delivering.bench.hold(2)
    assert [type(output) for output in delivering.outputs()] == [Deliver]


def test_batches_are_let_go_once_delivered() -> None:
    delivering = Delivering()
    delivering.bench.hold(1, 2)
    delivering.commit(numbered(1), numbered(2))
    delivering.outputs()
    delivering.receiver.release(1)
    assert [batch_id(counter) in delivering.bench.station.holdings for counter in (1, 2)] == [False, True]


def test_a_long_replay_is_delivered_in_turns() -> None:
    delivering = Delivering()
    delivering.bench.hold(*range(1, 401))
    delivering.commit(*[numbered(counter) for counter in range(1, 401)])
    assert delivering.receiver.advance(1.0)
    assert delivering.receiver.delivered == 256
    assert not delivering.receiver.advance(1.0)
    assert delivering.receiver.delivered == 400


def pruning() -> Delivering:
    """A client is a member; its batches 1 to 4 are here, 1 and 2 are numbers 2 and 3, and only 1 is passed."""
    delivering = Delivering()
    client = msgspec.structs.replace(joined(delivering.bench.config, 1).member, number=0x8000, origin=SENDER)
    delivering.commit(system(MemberJoined(client)), numbered(1), numbered(2))
    delivering.receiver.reset(2)
    delivering.bench.hold(1, 2, 3, 4)
    return delivering


def kept(delivering: Delivering) -> list[bytes]:
    delivering.receiver.prune()
    return delivering.bench.station.holdings.ids()


def test_batches_whose_numbers_are_behind_are_let_go_and_those_still_waited_for_are_kept() -> None:
    delivering = pruning()
    assert kept(delivering) == [batch_id(2), batch_id(3), batch_id(4)]


def test_a_batch_with_a_number_that_was_forgotten_long_ago_is_let_go() -> None:
    delivering = pruning()
    delivering.receiver.reset(3)
    delivering.bench.ledger.collect(3)
    assert kept(delivering) == [batch_id(3), batch_id(4)]


def test_batches_without_a_number_are_let_go_once_their_sender_left() -> None:
    delivering = pruning()
    delivering.commit(system(MemberLeft(0x8000, SENDER, True)))
    assert kept(delivering) == [batch_id(2)]


def test_fragments_of_a_stranger_are_let_go() -> None:
    delivering = pruning()
    stranger = batch_id(1, origin_of_member(77))
    payload = bytes(5000)
    first, *_ = fragment_batch(stranger, payload, digest=digest_of(payload), timestamp=0, limit=1200)
    delivering.bench.station.holdings.add(first)
    assert stranger not in kept(delivering)


def test_a_batch_with_an_open_number_is_kept_although_its_sender_left() -> None:
    delivering = pruning()
    delivering.commit(system(MemberLeft(0x8000, SENDER, True)))
    delivering.bench.ledger.append(numbered(3))
    assert kept(delivering) == [batch_id(2), batch_id(3)]


def test_this_members_own_batches_are_kept_until_they_are_behind() -> None:
    delivering = Delivering()
    origin = delivering.bench.station.origin
    own = [batch_id(counter, origin) for counter in (1, 2)]
    for batch in own:
        delivering.bench.station.holdings.put_own(batch, b"x", 0, digest_of(b"x"))
    assert kept(delivering) == own
    state = delivering.bench.ledger.state
    state.senders[origin] = 1  # as a checkpoint tells, which this member went on from
    assert kept(delivering) == own[1:]


def test_durable_batches_behind_a_missing_one_are_let_go_when_memory_is_tight() -> None:
    delivering = Delivering()
    delivering.bench.join(1, 3)
    delivering.bench.hold(2, 3)
    delivering.commit(numbered(1), numbered(2), numbered(3))
    assert delivering.delivered() == []
    settled = {4, 5}
    delivering.receiver.release_settled(settled)
    assert settled == {4, 5}
    assert batch_id(2) in delivering.bench.station.holdings
    filler = bytes(delivering.bench.station.budget.held_bytes_max)
    delivering.bench.station.holdings.put_own(batch_id(99), filler, 0, 0)
    delivering.receiver.release_settled(settled)
    assert settled == set()
    assert batch_id(2) not in delivering.bench.station.holdings
