"""Joining, telling, leaving, failing: the same events, in the same place of the log, at every member."""

import pytest

from alphorn.bus.config import CHANNEL_BUDGET, Budget, Timing
from alphorn.bus.entries import Assignment, MemberLeft, encode_system
from alphorn.bus.frames import Data, Join, Status, Welcome
from alphorn.bus.machine import CONTROL_GROUP, Goodbye, MemberChanged, PrimaryChanged, Refused, Stop
from alphorn.bus.membership import Membership
from alphorn.bus.sender import Sender
from tests.bus.group import Group, Node, make_config
from tests.bus.stations import EPOCH, Bench, batch_id, numbered

STATUS = Status(0, 0, 0, 0, 0, False, "S2")
Event = tuple[int, str, str, str, int]


def events(node: Node) -> list[Event]:
    return [(e.sequence, e.event, e.member.name, e.member.tag, e.member.rank) for e in node.of(MemberChanged)]


def names(node: Node, event: str) -> list[str]:
    return [e.member.name for e in node.of(MemberChanged) if e.event == event]


@pytest.mark.requirement("BUS-6", "BUS-7")
def test_every_member_sees_the_same_joins_at_the_same_numbers_with_tag_and_rank() -> None:
    group = Group(make_config(servers=2, witnesses=1)).found()
    group.client("C")
    group.run(0.5)
    seen = events(group["S1"])
    assert sorted(event[2:] for event in seen if event[1] == "joined") == [
        ("C", "client", 0),
        ("S1", "store", 1),
        ("S2", "store", 2),
        ("W1", "witness", 3),
    ]
    assert events(group["S2"]) == events(group["W1"]) == seen


@pytest.mark.requirement("BUS-6")
def test_a_goodbye_is_reported_at_once_and_as_such() -> None:
    group = Group().found()
    group.client("C")
    group.run(0.5)
    began = group.now
    group["C"].feed(Goodbye())
    group.run_until(lambda: all(names(group[name], "left") == ["C"] for name in ("S1", "S2", "S3")))
    assert group.now - began < 0.2


@pytest.mark.requirement("BUS-6", "HA-7")
def test_a_member_that_falls_silent_is_reported_as_failed() -> None:
    group = Group().found()
    group.client("C")
    group.run(0.5)
    group["C"].crash()
    began = group.now
    group.run_until(lambda: all(names(group[name], "failed") == ["C"] for name in ("S1", "S2", "S3")))
    assert group.now - began == pytest.approx(Timing().evict_s, abs=0.5)


def test_a_run_that_was_reported_as_failed_joins_again_and_its_batch_is_stored_once() -> None:
    group = Group().found()
    group.client("C")
    group.run(0.5)
    group.order_and_wait("C", b"before")
    heal = group.cut("C")
    group.order("C", b"meanwhile")
    group.run(Timing().evict_s + 1.0)
    assert names(group["S1"], "failed") == ["C"]
    heal()
    group.order_and_wait("C", b"after")
    group.run(0.5)
    assert names(group["S1"], "joined").count("C") == 2
    assert group["S1"].state == [b"before", b"meanwhile", b"after"] == group["C"].state


def test_clients_get_numbers_of_their_own() -> None:
    group = Group().found()
    for name in ("A", "B", "C"):
        group.client(name)
    group.run(0.5)
    numbers = [group[name].describe("number") for name in ("A", "B", "C")]
    assert len(set(numbers)) == 3
    assert all(isinstance(number, int) and number >= 0x8000 for number in numbers)


def test_a_member_with_another_configuration_is_told_so_and_stops() -> None:
    group = Group().found("S1", "S2")
    config = group.config
    group.config = make_config(checkpoint_interval=99)
    group["S3"].start(founding=True)
    group.config = config
    group.run_until(lambda: bool(group["S3"].of(Stop)))
    assert group["S3"].of(Stop)[0].reason.startswith("the configuration of S3 differs from the group's")


def test_a_batch_ordered_before_the_member_has_joined_waits_for_it() -> None:
    group = Group().found()
    node = group.client("C")
    group.order_and_wait("C", b"early")
    assert node.state == [b"early"]


@pytest.mark.requirement("HA-7")
def test_a_new_primary_is_announced_to_every_member_at_the_same_number() -> None:
    group = Group().found()
    group.client("C")
    group.run(0.5)
    group["S1"].crash()
    group.run_until(lambda: all(len(group[name].of(PrimaryChanged)) == 2 for name in ("S2", "S3", "C")))
    changes = [group[name].of(PrimaryChanged)[-1] for name in ("S2", "S3", "C")]
    assert len({(change.sequence, change.epoch, change.number) for change in changes}) == 1
    assert [change.is_self for change in changes].count(True) == 1


def test_a_member_tells_where_it_stands_more_often_while_its_batches_are_under_way() -> None:
    group = Group().found()
    group.client("C")
    group.run(0.5)
    group.drop(lambda hop: hop.source == "C" and hop.name == "Data")
    began = group.now
    group.order("C", b"lost on its way")
    group.run_until(lambda: group["S1"].state == [b"lost on its way"])
    assert group.now - began < Timing().status_s


def statuses_after_an_order(group: Group, name: str) -> list[Status]:
    """What a member tells of itself for a while after it ordered a batch, beside what it tells at intervals."""
    before = len(group.frames(Status, source=name))
    group.run_until(lambda: len(group.frames(Status, source=name)) > before)
    group.order(name, b"a batch")
    group.run(Timing().status_s / 2)
    return group.frames(Status, source=name)[before + 1 :]


def test_a_member_whose_batches_have_arrived_tells_nothing_of_them() -> None:
    group = Group().found()
    group.client("C")
    group.run(0.5)
    assert statuses_after_an_order(group, "C") == []
    assert group["C"].state == [b"a batch"]


def test_a_sequencer_tells_nothing_of_batches_that_have_their_numbers() -> None:
    group = Group().found()
    group.run(0.5)
    group.drop(lambda hop: hop.target == "S1")
    assert statuses_after_an_order(group, "S1") == []
    assert group["S1"].state == []


def test_a_sequencer_tells_of_batches_that_others_must_report_first() -> None:
    group = Group(make_config(report_quorum=2)).found()
    group.run(0.5)
    group.drop(lambda hop: hop.source == "S1" and hop.name == "Data")
    assert statuses_after_an_order(group, "S1") != []


class Joining:
    """Member 2 of three in its first run, with nothing sent; the log knows this run."""

    def __init__(self, *, founding: bool = True, budget: Budget | None = None) -> None:
        self.bench = Bench(number=2, founding=founding, budget=budget)
        self.bench.join(1, 2, 3)
        self.sender = Sender(self.bench.station)
        self.membership = Membership(self.bench.station, self.sender, lambda: STATUS, now=0.0)

    def welcome(self, number: int, sequence: int) -> bool:
        body = Welcome(number, sequence, EPOCH, b"", sequence)
        return self.membership.on_welcome(self.bench.frame(1, body), body, 1.0)

    def may_send(self) -> bool:
        return self.membership.may_send(1.0)

    def asks(self, now: float) -> list[tuple[bytes, int]]:
        """The names it asks for by now, each with the number through which it was not used."""
        self.membership.on_time(now)
        return [(join.member.origin, join.unused) for to, join in self.bench.sent(Join) if to == CONTROL_GROUP]

    def send_first(self) -> Assignment:
        """Sends its first batch, with the handle 7; gives what the log will say of it."""
        self.welcome(2, 3)
        self.sender.order(b"x", 7)
        self.sender.flush(1.0, may_send=self.may_send())
        return Assignment(EPOCH, batch_id(1, self.bench.station.origin))


def test_nothing_is_sent_before_the_sequencer_has_welcomed_this_run() -> None:
    joining = Joining()
    assert not joining.may_send()
    joining.welcome(2, 3)
    assert joining.may_send()


def test_nothing_is_sent_before_this_member_knows_the_log_as_far_as_its_welcome() -> None:
    joining = Joining()
    joining.welcome(2, 4)
    assert not joining.may_send()
    joining.bench.fold(numbered(1))
    assert joining.may_send()


def test_a_welcome_without_a_number_is_no_welcome_and_joining_goes_on() -> None:
    joining = Joining()
    assert not joining.welcome(0, 0)
    assert not joining.may_send()
    assert joining.bench.station.number == 2
    joining.membership.on_time(5.0)
    assert joining.bench.sent(Join) != []


@pytest.mark.parametrize("founding", [True, False], ids=["whole", "lost"])
def test_a_member_that_joins_says_whether_its_disk_is_lost(*, founding: bool) -> None:
    joining = Joining(founding=founding)
    joining.membership.on_time(1.0)
    assert {join.is_blank for _, join in joining.bench.sent(Join)} == {not founding}


def test_a_run_whose_start_is_taken_takes_a_new_start_before_it_sends() -> None:
    joining = Joining()
    station = joining.bench.station
    taken = station.origin
    joining.bench.fold(Assignment(EPOCH, batch_id(5, taken)))  # an earlier run of the same name sent five batches
    joining.sender.order(b"x", 1)
    joining.welcome(2, 4)
    joining.sender.flush(1.0, may_send=joining.may_send())
    assert joining.bench.sent(Data) == []
    assert (station.origin[:6], station.origin > taken) == (taken[:6], True)
    joining.bench.settle()
    meta = joining.bench.storage.meta()
    assert meta is not None
    assert meta.start == int.from_bytes(station.origin[6:], "big")
    joining.membership.on_time(1.0)
    assert {join.member.origin for _, join in joining.bench.sent(Join)} == {station.origin}
    assert not joining.may_send(), "the new run has to be welcomed first"


def test_a_new_start_sends_what_waited_and_counts_from_one() -> None:
    joining = Joining()
    joining.bench.fold(Assignment(EPOCH, batch_id(5, joining.bench.station.origin)))
    joining.sender.order(b"x", 1)
    joining.welcome(2, 4)
    assert not joining.may_send()
    joining.bench.join(2)
    joining.welcome(2, 5)
    joining.sender.flush(2.0, may_send=joining.may_send())
    assert [data.id for _, data in joining.bench.sent(Data)] == [batch_id(1, joining.bench.station.origin)]


def test_a_run_that_the_group_has_forgotten_says_that_the_fate_of_its_batches_is_unknown() -> None:
    joining = Joining()
    joining.send_first()
    del joining.bench.ledger.state.senders[joining.bench.station.origin]
    assert not joining.may_send()
    assert [(out.handle, out.is_unknown) for out in joining.bench.outputs(Refused)] == [(7, True)]


def test_a_run_that_goes_on_keeps_its_name_while_its_own_batches_are_committed() -> None:
    joining = Joining()
    first = joining.send_first()
    origin = joining.bench.station.origin
    joining.bench.fold(first)
    assert joining.may_send()
    assert joining.bench.station.origin == origin


def test_a_run_that_was_forgotten_and_admitted_again_before_it_noticed_takes_a_new_start() -> None:
    joining = Joining()
    first = joining.send_first()
    origin = joining.bench.station.origin
    joining.bench.fold(first)
    joining.sender.on_committed(joining.bench.ledger.committed, first)
    assert joining.sender.settled == 1
    joining.bench.ledger.state.senders[origin] = 0
    assert not joining.may_send(), "its next batch would wait for ever for one that the log has"
    assert joining.bench.station.origin != origin


def test_a_run_that_was_given_up_and_forgotten_takes_a_new_start_before_it_is_welcomed_again() -> None:
    joining = Joining()
    joining.send_first()
    origin = joining.bench.station.origin
    joining.membership.join_again(1.0)
    del joining.bench.ledger.state.senders[origin]
    joining.sender.on_state()
    assert not joining.may_send()
    assert joining.bench.station.origin > origin
    assert [asked for asked, _ in joining.asks(1.0)] == [joining.bench.station.origin]


def test_a_run_that_has_joined_nowhere_yet_keeps_its_name() -> None:
    joining = Joining()
    origin = joining.bench.station.origin
    del joining.bench.ledger.state.senders[origin]
    assert not joining.may_send()
    assert joining.bench.station.origin == origin


def test_a_run_asks_with_what_it_knows_of_the_log_until_it_has_sent_something() -> None:
    joining = Joining()
    origin = joining.bench.station.origin
    joining.bench.fold(numbered(1))
    assert joining.asks(1.0) == [(origin, 4)]
    joining.welcome(2, 4)
    joining.sender.order(b"x", 7)
    joining.sender.flush(1.0, may_send=joining.may_send())
    joining.bench.fold(numbered(2), numbered(3))
    joining.membership.join_again(2.0)
    assert joining.asks(2.0) == [(origin, 4)]


def test_a_run_that_has_sent_nothing_asks_again_at_once_when_it_is_told_where_others_were_forgotten() -> None:
    joining = Joining()
    origin = joining.bench.station.origin
    assert joining.asks(1.0) == [(origin, 3)]
    assert not joining.welcome(0, 9)
    assert joining.asks(1.0) == [(origin, 9)]
    joining.welcome(0, 9)
    assert joining.asks(1.0) == [], "it heard that already, and waits for its turn"


def test_a_run_that_has_sent_something_asks_with_the_same_whatever_it_is_told() -> None:
    joining = Joining()
    joining.send_first()
    joining.membership.join_again(1.0)
    joining.welcome(0, 9)
    assert joining.asks(1.0) == [(joining.bench.station.origin, 3)]


def final() -> Joining:
    """Where no departed senders are remembered."""
    joining = Joining(budget=CHANNEL_BUDGET)
    joining.welcome(2, 3)
    assert joining.may_send()
    return joining


def refused(joining: Joining) -> list[tuple[int, bool]]:
    return [(out.handle, out.is_unknown) for out in joining.bench.outputs(Refused)]


@pytest.mark.parametrize("has_sent", [True, False])
def test_who_is_given_up_for_good_sends_nothing_of_what_it_had_in_hand(has_sent: bool) -> None:
    joining = final()
    if has_sent:
        joining.send_first()
    joining.sender.order(b"y", 8)
    joining.bench.fold(Assignment(EPOCH, b"", system=encode_system(MemberLeft(2, joining.bench.station.origin, True))))
    assert not joining.may_send()
    assert refused(joining) == [(7, True)] * has_sent + [(8, True)], "in the order in which it was to be sent"
    joining.bench.join(2)
    joining.welcome(2, joining.bench.ledger.committed)
    joining.sender.order(b"z", 9)
    joining.sender.flush(1.0, may_send=joining.may_send())
    assert [bytes(data.payload) for _, data in joining.bench.sent(Data)][-1:] == [b"z"]


def test_who_stood_still_for_as_long_as_the_group_waits_sends_nothing_from_before() -> None:
    """It was no member yet, so that nobody gave it up: whoever asked for it has not waited either."""
    joining = Joining(budget=CHANNEL_BUDGET)
    joining.sender.order(b"y", 8)
    assert not joining.membership.may_send(Timing().evict_s)
    assert refused(joining) == []
    assert not joining.membership.may_send(2.1 * Timing().evict_s)
    assert refused(joining) == [(8, True)]


def test_where_departed_senders_are_remembered_who_stood_still_goes_on() -> None:
    joining = Joining()
    joining.sender.order(b"y", 8)
    joining.welcome(2, 3)
    joining.sender.flush(9.0, may_send=joining.membership.may_send(9.0))
    assert len(joining.bench.sent(Data)) == 1


def test_a_batch_of_a_member_that_was_given_up_for_good_is_never_ordered_and_its_next_one_is() -> None:
    group = Group(budget=CHANNEL_BUDGET).found()
    group.client("C")
    group.run(0.5)
    group.order_and_wait("C", b"before")
    heal = group.cut("C")
    group.order("C", b"meanwhile")
    group.run(Timing().evict_s + 1.0)
    heal()
    group.run_until(lambda: [out.is_unknown for out in group["C"].of(Refused)] == [True])
    group.order_and_wait("C", b"after")
    group.run(1.0)
    assert group["S1"].state == [b"before", b"after"] == group["C"].state
