"""A member's own batches: one counter each, in order, within a window, kept until they are committed."""

import pytest

from alphorn.bus.config import Budget
from alphorn.bus.entries import Assignment, digest_of
from alphorn.bus.frames import Data
from alphorn.bus.machine import CONTROL_GROUP, DATA_GROUP, Ordered, Refused, WindowChanged
from alphorn.bus.sender import LITTLE_BYTES, Sender
from alphorn.model.ids import Kind, counter_of, kind_of, make_id, origin_of
from tests.bus.stations import EPOCH, Bench, numbered

BUDGET = Budget(datagram_bytes=1200, window_bytes=4000, window_batches=3, batch_bytes_max=3000)


def sender() -> tuple[Bench, Sender]:
    bench = Bench(budget=BUDGET)
    bench.join(1)
    return bench, Sender(bench.station)


def flush(machine: Sender, now: float, *, may_send: bool = True) -> None:
    machine.flush(now, may_send=may_send)


def commit(bench: Bench, machine: Sender, counter: int) -> None:
    assignment = Assignment(EPOCH, make_id(bench.station.origin, Kind.BATCH, counter))
    bench.fold(assignment)
    machine.on_committed(bench.ledger.committed, assignment)


@pytest.mark.requirement("BUS-5", "BUS-23")
def test_each_batch_has_an_id_of_its_own_that_counts_up() -> None:
    bench, machine = sender()
    for handle in range(3):
        machine.order(b"x", handle)
    flush(machine, 1.0)
    ids = [data.id for _, data in bench.sent(Data)]
    assert [(origin_of(batch), kind_of(batch)) for batch in ids] == [(bench.station.origin, Kind.BATCH)] * 3
    assert [counter_of(batch) for batch in ids] == [1, 2, 3]


@pytest.mark.requirement("BUS-10", "BUS-2")
def test_a_batch_is_sent_once_to_the_group_however_many_members_it_has() -> None:
    bench, machine = sender()
    machine.order(b"x" * 2500, 1)
    flush(machine, 1.0)
    flush(machine, 2.0)
    sent = bench.sent(Data)
    assert {to for to, _ in sent} == {DATA_GROUP}
    assert b"".join(data.payload for _, data in sent) == b"x" * 2500


def test_a_sequencers_own_batch_goes_where_its_number_goes_unless_it_is_large() -> None:
    bench = Bench(budget=Budget())
    bench.join(1)
    machine = Sender(bench.station)
    bench.station.sequencer = bench.station.number
    machine.order(b"x" * LITTLE_BYTES, 1)
    machine.order(b"x" * (LITTLE_BYTES + 1), 2)
    flush(machine, 1.0)
    assert [to for to, _ in bench.sent(Data)] == [CONTROL_GROUP, DATA_GROUP]


def test_a_batch_that_leaves_no_room_for_its_number_does_not_go_with_it() -> None:
    bench, machine = sender()
    bench.station.sequencer = bench.station.number
    machine.order(b"x" * (BUDGET.datagram_bytes // 2 + 1), 1)
    flush(machine, 1.0)
    assert [to for to, _ in bench.sent(Data)] == [DATA_GROUP]


@pytest.mark.requirement("BUS-27")
def test_a_batch_carries_the_newest_number_its_sender_knew_when_it_first_sent_it() -> None:
    bench, machine = sender()
    bench.join(2)
    machine.order(b"x", 1)
    flush(machine, 1.0)
    bench.join(3)
    machine.order(b"y", 2)
    flush(machine, 2.0)
    assert [data.timestamp for _, data in bench.sent(Data)] == [2, 3]


def test_nothing_is_sent_before_it_may_be() -> None:
    bench, machine = sender()
    machine.order(b"x", 1)
    flush(machine, 1.0, may_send=False)
    assert bench.sent(Data) == []
    flush(machine, 2.0)
    assert len(bench.sent(Data)) == 1


def test_a_committed_batch_is_told_to_its_owner_by_its_handle() -> None:
    bench, machine = sender()
    machine.order(b"x", 17)
    flush(machine, 1.0)
    commit(bench, machine, 1)
    assert bench.outputs(Ordered) == [Ordered(17, bench.ledger.committed)]
    assert not machine.is_pending


def test_a_number_that_is_committed_again_is_not_told_again() -> None:
    bench, machine = sender()
    machine.order(b"x", 17)
    flush(machine, 1.0)
    commit(bench, machine, 1)
    machine.on_committed(9, Assignment(EPOCH, make_id(bench.station.origin, Kind.BATCH, 1)))
    assert len(bench.outputs(Ordered)) == 1


def test_a_sender_keeps_its_batch_in_memory_until_somebody_drops_it() -> None:
    bench, machine = sender()
    machine.order(b"x", 1)
    flush(machine, 1.0)
    kept = bench.station.holdings.get(make_id(bench.station.origin, Kind.BATCH, 1))
    assert kept is not None
    assert (kept.payload, kept.digest) == (b"x", digest_of(b"x"))


def test_no_more_than_a_window_of_batches_is_under_way() -> None:
    bench, machine = sender()
    for handle in range(5):
        machine.order(b"x", handle)
    flush(machine, 1.0)
    assert machine.describe()["in_flight"] == 3
    commit(bench, machine, 1)
    flush(machine, 2.0)
    assert (machine.sent, machine.describe()["waiting"]) == (4, 1)


def test_no_more_than_the_senders_share_of_bytes_is_under_way() -> None:
    _, machine = sender()
    machine.set_share(1500)
    for handle in range(3):
        machine.order(bytes(1000), handle)
    flush(machine, 1.0)
    assert machine.describe()["in_flight"] == 1
    machine.set_share(2500)
    flush(machine, 2.0)
    assert machine.describe()["in_flight"] == 2


def test_one_batch_larger_than_the_share_goes_alone() -> None:
    _, machine = sender()
    machine.set_share(100)
    machine.order(bytes(1000), 1)
    flush(machine, 1.0)
    assert machine.describe()["in_flight"] == 1


def test_a_batch_over_the_limit_is_refused_with_the_way_out() -> None:
    bench, machine = sender()
    machine.order(bytes(3001), 4)
    (refused,) = bench.outputs(Refused)
    assert (refused.handle, refused.is_unknown) == (4, False)
    assert refused.reason == "a batch of 3001 bytes is over the limit of 3000; send smaller batches"


def test_the_upper_layer_is_told_when_to_wait_and_when_to_go_on() -> None:
    bench, machine = sender()
    for handle in range(8):
        machine.order(bytes(1000), handle)
    flush(machine, 1.0)
    assert bench.outputs(WindowChanged) == [WindowChanged(False)]
    for counter in range(1, 6):
        commit(bench, machine, counter)
        flush(machine, 2.0)
    assert bench.outputs(WindowChanged) == [WindowChanged(True)]


def test_what_a_checkpoint_covers_is_known_to_be_committed_without_its_number() -> None:
    bench, machine = sender()
    for handle in (5, 6, 7):
        machine.order(b"x", handle)
    flush(machine, 1.0)
    bench.ledger.state.senders[bench.station.origin] = 2
    machine.on_state()
    assert [output.handle for output in bench.outputs(Ordered)] == [5, 6]
    assert machine.is_pending


def test_what_the_group_forgot_has_an_unknown_outcome() -> None:
    bench, machine = sender()
    machine.order(b"x", 5)
    flush(machine, 1.0)
    machine.lose("this run was forgotten")
    assert bench.outputs(Refused) == [Refused(5, "this run was forgotten", True)]
    assert not machine.is_pending


def test_a_sender_whose_run_was_forgotten_counts_anew_only_under_another_name() -> None:
    bench, machine = sender()
    forgotten = bench.station.origin
    machine.order(b"x", 5)
    flush(machine, 1.0)
    machine.lose("this run was forgotten")
    bench.sent(Data)
    machine.order(b"y", 6)
    flush(machine, 2.0)
    ((_, data),) = bench.sent(Data)
    assert data.id == make_id(bench.station.origin, Kind.BATCH, 1)
    assert bench.station.origin > forgotten


def test_a_checkpoint_that_does_not_know_the_sender_resolves_nothing() -> None:
    bench, machine = sender()
    machine.order(b"x", 5)
    flush(machine, 1.0)
    bench.ledger.state.senders.clear()
    machine.on_state()
    assert (machine.sent, machine.is_pending) == (1, True)
    assert not bench.outputs(Ordered)


def test_a_sender_remembers_how_far_it_knew_the_log_when_it_sent_its_first_batch() -> None:
    bench, machine = sender()
    known = bench.ledger.committed
    for handle in (5, 6):
        machine.order(b"x", handle)
        flush(machine, 1.0)
        bench.fold(numbered(handle - 4))
    assert (machine.began_at, bench.ledger.committed) == (known, known + 2)
