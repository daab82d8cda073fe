"""How a member begins: founders, restarts, lost and old and damaged disks."""

import msgspec
import pytest

from alphorn.bus.config import Timing
from alphorn.bus.entries import Assignment, VoterAdded, VoterRemoved, decode_system
from alphorn.bus.follower import Follower
from alphorn.bus.frames import (
    CommitAcknowledge,
    CommitSubmit,
    Fetch,
    Join,
    Promise,
    Status,
    Welcome,
    encode,
    fragment_batch,
)
from alphorn.bus.machine import MemberChanged, Persist, PutAssignments, PutMeta, Received
from alphorn.bus.storage import DAMAGED, Damaged, Meta
from alphorn.io.memory_storage import MemoryStorage
from alphorn.model.errors import Misuse
from tests.bus.group import Group, Node, logs_agree, make_config
from tests.bus.stations import EPOCH, NEXT_EPOCH, Bench, numbered


def founded(servers: int = 3) -> Group:
    group = Group(make_config(servers=servers)).found()
    group.client("C")
    group.run(0.3)
    group.order_and_wait("C", b"one", b"two", b"three")
    group.run(0.2)
    return group


def voter_events(node: Node) -> list[tuple[str, str]]:
    return [(e.event, e.member.name) for e in node.of(MemberChanged) if e.event.startswith("voter")]


def test_a_founder_is_whole_and_a_blank_disk_without_founding_is_a_lost_one() -> None:
    founder, lost = Bench(founding=True), Bench(founding=False)
    assert (founder.station.is_barred, founder.station.is_whole) == (False, True)
    assert (lost.station.is_barred, lost.station.is_whole) == (True, False)


def test_every_start_is_a_new_incarnation_with_a_later_origin_even_if_the_clock_went_back() -> None:
    first = Bench()
    first.station.remember()
    first.settle()
    second = Bench(storage=first.storage, founding=False, unix_s=1_700_000_000.0)
    assert second.station.incarnation == first.station.incarnation + 1
    assert second.station.origin > first.station.origin
    assert second.station.is_whole
    assert second.restored.is_returning


def test_a_promise_survives_a_restart() -> None:
    first = Bench()
    first.station.raise_fence(77 << 16)
    first.settle()
    assert Bench(storage=first.storage, founding=False).station.epoch == 77 << 16


def test_a_store_of_another_member_is_misuse() -> None:
    first = Bench(number=1)
    first.station.remember()
    first.settle()
    with pytest.raises(Misuse, match="the store belongs to member 1, not to S2; each member needs its own"):
        Bench(number=2, storage=first.storage)


def test_a_store_of_another_group_is_misuse() -> None:
    first = Bench()
    first.station.remember()
    first.settle()
    with pytest.raises(Misuse, match=r"a group with another configuration: .* as they were, and keep the store"):
        Bench(make_config(checkpoint_interval=7), storage=first.storage)


def test_a_configuration_that_cannot_work_is_misuse_before_anything_is_read() -> None:
    with pytest.raises(Misuse, match="copies 5 needs as many data servers"):
        Bench(make_config(copies=5))


def test_nothing_is_said_before_the_new_incarnation_is_durable() -> None:
    group = Group()
    group["S1"].disk._syncing = 1  # an fsync that never ends
    group["S1"].start(founding=True)
    group.run(5.0)
    assert group.sent == []
    assert group["S1"].running.next_deadline() == float("inf")


def test_a_restarted_member_goes_on_with_what_its_disk_holds() -> None:
    group = founded()
    node = group.restart("S2")
    group.run_until(lambda: logs_agree(group, "S1", "S2", "C"))
    assert node.state == [b"one", b"two", b"three"]
    assert voter_events(group["S1"]) == []


def test_a_group_that_is_killed_whole_loses_nothing_that_was_committed() -> None:
    group = founded()
    for name in ("S1", "S2", "S3"):
        group[name].crash()
    for name in ("S1", "S2", "S3"):
        group.restart(name)
    group.run_until(lambda: all(group[name].state == [b"one", b"two", b"three"] for name in ("S1", "S2", "S3")))
    group.order_and_wait("C", b"four")
    group.run(0.2)
    assert group["S3"].state == [b"one", b"two", b"three", b"four"] == group["C"].state


def test_a_voter_that_lost_its_disk_is_removed_and_added_again_once_it_has_caught_up() -> None:
    group = founded()
    group["S3"].crash()
    group["S3"].disk.lose()
    node = group.restart("S3")
    began = group.now
    group.run_until(lambda: voter_events(group["S1"]) == [("voter_removed", "S3"), ("voter_added", "S3")])
    group.run(0.3)
    assert node.state == group["S1"].state
    assert group.frames(Join, source="S3", since=began)[0].is_blank


def test_a_voter_that_lost_its_disk_says_nothing_that_counts_until_it_is_added_again() -> None:
    group = founded()
    group["S3"].crash()
    group["S3"].disk.lose()
    group.drop(lambda hop: hop.source == "S3" and hop.name == "Join")  # so it is never readmitted
    group.restart("S3")
    began = group.now
    group["S1"].crash()
    group.run(8.0)
    assert group.frames(Promise, source="S3", since=began) == []
    assert all(word.accepted == 0 for word in group.frames(CommitAcknowledge, source="S3", since=began))
    assert all(word.accepted == 0 for word in group.frames(Status, source="S3", since=began))
    assert group.primary is None, "one voter and one that forgot its promises are no majority"


def test_founding_counts_on_a_disk_that_was_started_without_it_and_has_heard_of_no_log() -> None:
    group = Group()
    for member in group.config.members:
        group[member.name].start(founding=False)
    group.run(10 * Timing().suspect_s)
    assert group.primary is None
    assert all(group[member.name].running.lacking for member in group.config.members)
    for member in group.config.members:
        group[member.name].crash()
    group.found()
    assert not any(group[member.name].running.lacking for member in group.config.members)
    group.client("C")
    group.run(0.3)
    group.order_and_wait("C", b"one")
    group.run(0.3)
    assert logs_agree(group)


def test_a_majority_that_is_founded_later_takes_in_one_that_was_not() -> None:
    group = Group()
    for member in group.config.members:
        group[member.name].start(founding=False)
    group.run(10 * Timing().suspect_s)
    for name in ("S1", "S2"):
        group[name].crash()
        group[name].start(founding=True)
    group.run_until(lambda: group.primary is not None)
    group.run(2.0)
    assert not group["S3"].running.lacking
    assert ("voter_added", "S3") in voter_events(group["S1"])


@pytest.mark.parametrize("knows", ["promised", "committed", "stored", "removed"])
def test_founding_does_not_count_on_a_lost_disk_that_has_heard_of_a_log(knows: str) -> None:
    lost = Bench(founding=False)
    meta = msgspec.structs.replace(lost.station.meta, **{knows: 1})
    lost.storage.submit(Persist(1, [PutMeta(msgspec.msgpack.encode(meta))]))
    assert Bench(storage=lost.storage, founding=True).station.is_barred


def test_founding_does_not_count_on_a_lost_disk_that_has_numbers() -> None:
    lost = Bench(founding=False)
    lost.station.remember()
    lost.settle()
    lost.storage.submit(Persist(9, [PutAssignments(1, [numbered(1)])]))
    assert Bench(storage=lost.storage, founding=True).station.is_barred


def test_one_that_is_founded_at_a_later_start_waits_for_a_sequencer_that_may_know_more_of_its_disk() -> None:
    untold = Bench(founding=False)
    untold.station.remember()
    untold.settle()
    told = Bench(storage=untold.storage, founding=True)
    assert told.station.is_whole
    assert told.restored.is_returning
    assert told.station.incarnation == untold.station.incarnation + 1


def test_a_lost_disk_stays_barred_over_a_restart() -> None:
    lost = Bench(founding=False)
    lost.station.remember()
    lost.settle()
    again = Bench(storage=lost.storage, founding=False)
    assert again.station.is_barred
    assert not again.station.is_whole


def test_an_old_image_of_a_disk_is_found_out_and_its_vote_taken_back() -> None:
    group = founded()
    image = group["S3"].disk.durable.copy()
    group.restart("S3")
    group.run(1.0)
    group["S3"].crash()
    group["S3"].disk.restore(image)
    group.restart("S3")
    group.run_until(lambda: voter_events(group["S1"]) == [("voter_removed", "S3"), ("voter_added", "S3")])
    group.run(0.3)
    assert logs_agree(group, "S1", "S3")


def test_a_replaced_disk_counts_on_from_what_the_log_says_and_keeps_its_vote_at_the_next_start() -> None:
    group = founded()
    group["S3"].crash()
    group["S3"].disk.lose()
    group.restart("S3")
    group.run_until(lambda: ("voter_added", "S3") in voter_events(group["S1"]))
    known = group["S1"].running._station.ledger.state.members[3].incarnation
    group.restart("S3")
    group.run(1.0)
    assert voter_events(group["S1"]) == [("voter_removed", "S3"), ("voter_added", "S3")]
    assert group["S3"].running._station.incarnation == known + 1


def test_a_damaged_meta_record_is_a_lost_disk() -> None:
    group = founded()
    group["S3"].crash()
    group["S3"].disk.damage(("meta", 0, 0))
    group.restart("S3")
    group.run_until(lambda: ("voter_removed", "S3") in voter_events(group["S1"]))
    group.run_until(lambda: ("voter_added", "S3") in voter_events(group["S1"]))
    assert logs_agree(group, "S1", "S3")


def test_a_damaged_meta_record_is_a_lost_disk_whatever_a_founder_says() -> None:
    group = founded()
    group["S3"].crash()
    group["S3"].disk.damage(("meta", 0, 0))
    group["S3"].start(founding=True)
    assert not group["S3"].describe("commit_server", "whole")
    group.run_until(lambda: voter_events(group["S1"]) == [("voter_removed", "S3"), ("voter_added", "S3")])


def test_a_damaged_meta_record_is_a_lost_disk_though_nothing_else_was_written_there() -> None:
    group = Group(make_config())
    group["S3"].start(founding=True)
    group.run(0.01)
    group["S3"].crash()
    assert group["S3"].disk.assignment_bounds() == (1, 0)
    group["S3"].disk.damage(("meta", 0, 0))
    group["S3"].start(founding=True)
    assert not group["S3"].describe("commit_server", "whole")


def test_a_log_without_a_meta_record_is_no_blank_disk() -> None:
    first = Bench()
    first.storage.submit(Persist(1, [PutAssignments(1, [numbered(1)])]))
    assert not Bench(storage=first.storage, founding=True).station.is_whole


def test_a_damaged_assignment_is_fetched_from_a_peer_and_not_voted_over() -> None:
    group = founded()
    group["S3"].crash()
    _, last = group["S3"].disk.assignment_bounds()
    group["S3"].disk.damage(("assignment", last - 1, 0))
    node = group.restart("S3")
    group.run_until(lambda: node.state == [b"one", b"two", b"three"])
    group.run(0.5)
    assert node.disk.visible.damaged == set()
    assert node.describe("commit_server", "may_vote")


@pytest.mark.parametrize("back", [0, 1, 3])
def test_a_record_that_cannot_be_read_costs_a_member_no_vote(back: int) -> None:
    group = founded()
    group["S3"].crash()
    _, last = group["S3"].disk.assignment_bounds()
    group["S3"].disk.damage(("assignment", last - back, 0))
    node = group.restart("S3")
    group.run_until(lambda: bool(node.describe("commit_server", "may_vote")))
    group.run(1.0)
    assert voter_events(group["S1"]) == []
    assert logs_agree(group, "S1", "S3")


@pytest.mark.requirement("BUS-25")
def test_a_damaged_entry_is_fetched_from_a_peer_and_written_again() -> None:
    group = founded()
    group["S3"].crash()
    group["S3"].disk.damage(("entry", group["C"].history[1], 0))
    node = group.restart("S3")
    group.run_until(lambda: node.state == [b"one", b"two", b"three"])
    group.run(0.5)
    assert node.disk.visible.damaged == set()


def test_what_turned_out_to_be_on_the_disk_is_not_asked_for_again_and_again() -> None:
    group = founded()
    group.order_and_wait("C", b"four", b"five")  # the disk knows that those before are final
    group["S3"].crash()
    group["S3"].disk.damage(("entry", group["C"].history[0], 0))
    node = group.restart("S3")
    group.run_until(lambda: len(node.state) == 5)
    group.run(1.0)
    healed = group.now
    group.run(3.0)
    assert group.frames(Fetch, source="S3", since=healed) == []


def test_a_founder_that_is_started_as_a_founder_again_keeps_its_disk() -> None:
    group = founded()
    node = group["S2"]
    node.crash()
    node.start(founding=True)
    group.run_until(lambda: node.state == [b"one", b"two", b"three"])
    assert voter_events(group["S1"]) == []


def test_the_meta_record_tells_who_this_is_what_it_promised_and_how_far_the_log_was_at_least() -> None:
    group = founded()
    meta = group["S2"].disk.meta()
    assert isinstance(meta, Meta)
    assert 0 < meta.committed <= group["C"].history[-1]
    assert meta.promised == group["S2"].running._station.epoch
    assert (meta.number, meta.config) == (2, group.config.digest())


def test_removal_and_addition_of_a_voter_are_entries_of_the_log() -> None:
    group = founded()
    group["S3"].crash()
    group["S3"].disk.lose()
    group.restart("S3")
    group.run_until(lambda: ("voter_added", "S3") in voter_events(group["S1"]))
    entries = [decode_system(a.system) for a in group["S1"].disk.visible.assignments.values() if a.system]
    assert [e for e in entries if isinstance(e, VoterRemoved | VoterAdded)] == [VoterRemoved(3, False), VoterAdded(3)]


def test_a_store_whose_meta_is_newer_than_this_run_never_goes_back() -> None:
    first = Bench()
    meta = msgspec.structs.replace(first.station.meta, start=first.station.meta.start + 1000, incarnation=9)
    first.storage.submit(Persist(1, [PutMeta(msgspec.msgpack.encode(meta))]))
    again = Bench(storage=first.storage, founding=False)
    assert (again.station.incarnation, again.station.meta.start) == (10, meta.start + 1)


def test_a_silent_founding_of_less_than_a_majority_elects_nobody() -> None:
    group = Group()
    group["S1"].start(founding=True)
    group.run(10 * Timing().suspect_s)
    assert group.primary is None


def test_a_run_that_took_the_name_of_an_earlier_one_takes_another_before_it_sends() -> None:
    # Goal: no batch is mistaken for one of an earlier run. Method: an old image of the disk under a clock that went
    # back makes the third run begin with the second one's name.
    group = founded()
    image = group["S3"].disk.durable.copy()
    group.restart("S3")
    began, second = group.now, group["S3"].running.origin
    group.run(1.0)
    group.order_and_wait("S3", b"four", b"five")
    group["S3"].crash()
    group["S3"].disk.restore(image)
    group["S3"].start(founding=False, clock_s=began - group.now)
    assert group["S3"].running.origin == second
    group.order_and_wait("S3", b"six")
    group.run(0.3)
    assert group["S3"].running.origin > second
    assert group["S1"].state == [b"one", b"two", b"three", b"four", b"five", b"six"] == group["S3"].state


def test_a_damaged_disk_whose_vote_its_own_join_needs_is_told_how_far_the_log_goes_and_heals() -> None:
    # Goal: a damaged voter without which nothing can be committed becomes whole. Method: S1 accepted numbers that the
    # log never had, one of those records is damaged, and the third voter is down while S1 comes back.
    group = founded()
    heal = group.cut("S1")
    group.order("S1", *[b"nobody heard %d" % place for place in range(30)])
    group.run(0.05)
    group["S1"].crash()
    heal()
    group.run_until(lambda: group.primary is not None)
    group.order_and_wait("C", b"four")
    _, last = group["S1"].disk.assignment_bounds()
    assert last > group["C"].history[-1] + 1
    group["S1"].disk.damage(("assignment", last - 1, 0))
    other = {"S2", "S3"} - {group.leader.name}
    group[other.pop()].crash()
    node = group.restart("S1")
    group.order_and_wait("C", b"five")
    group.run_until(lambda: node.state == [b"one", b"two", b"three", b"four", b"five"])
    assert node.describe("commit_server", "may_vote")
    assert voter_events(node) == []


def test_a_lost_disk_is_added_again_where_its_own_acceptance_is_needed_for_that() -> None:
    group = founded(servers=2)
    group["S2"].crash()
    group["S2"].disk.lose()
    group.restart("S2")
    group.run_until(lambda: voter_events(group["S1"]) == [("voter_removed", "S2"), ("voter_added", "S2")])
    group.order_and_wait("C", b"four")
    group.run(0.3)
    assert group["S2"].state == [b"one", b"two", b"three", b"four"]
    assert group["S2"].describe("commit_server", "may_vote")


def test_a_lost_disk_that_restarts_while_its_addition_is_open_still_accepts_it() -> None:
    group = founded(servers=2)
    group["S2"].crash()
    group["S2"].disk.lose()
    group.restart("S2")
    group.run_until(lambda: any(is_adding(body) for body in group.frames(CommitSubmit, source="S1")))
    group.restart("S2")
    group.run_until(lambda: group["S2"].describe("commit_server", "may_vote"))
    group.order_and_wait("C", b"four")
    group.run(0.3)
    assert group["S2"].state == [b"one", b"two", b"three", b"four"]


def is_adding(submit: CommitSubmit) -> bool:
    entries = [decode_system(assignment.system) for assignment in submit.assignments if assignment.system]
    return any(isinstance(entry, VoterAdded) for entry in entries)


class SpoiltDisk(MemoryStorage):
    """A disk that cannot read the assignment of one number."""

    spoilt = 0

    def assignment(self, sequence: int) -> Assignment | Damaged | None:
        return DAMAGED if sequence == self.spoilt else super().assignment(sequence)


def test_what_an_older_epoch_left_behind_a_newer_one_is_void_and_dropped() -> None:
    """Numbers 4 to 8 of one epoch; 5 is damaged; the next epoch writes 5 and 6, and the member dies before it heals."""
    disk = SpoiltDisk(on_durable=lambda token: None)
    bench = Bench(storage=disk)
    bench.join(1, 2, 3)
    bench.station.journal.write(PutAssignments(1, bench.ledger.slice(0, 3)))
    bench.station.epoch = EPOCH
    bench.station.remember(promised=EPOCH)
    bench.settle()
    old = CommitSubmit(3, EPOCH, 3, [numbered(counter) for counter in range(1, 6)])
    Follower(bench.station, durable=3, now=0.0).on_submit(bench.frame(1, old), old, 0.0)
    bench.settle()
    disk.spoilt = 5
    bench = Bench(storage=disk, founding=False)
    assert (bench.ledger.last, bench.station.impaired_until) == (4, 8)
    disk.spoilt = 0
    new = CommitSubmit(4, EPOCH, 3, [numbered(3, NEXT_EPOCH), numbered(2, NEXT_EPOCH)])
    Follower(bench.station, durable=4, now=0.0).on_submit(bench.frame(2, new, NEXT_EPOCH), new, 0.0)
    bench.settle()
    bench = Bench(storage=disk, founding=False)
    assert bench.station.is_whole
    assert (bench.ledger.last, bench.ledger.last_epoch) == (6, NEXT_EPOCH)
    bench.settle()
    assert disk.assignment_bounds() == (1, 6)


def test_a_welcome_that_was_meant_for_an_earlier_run_says_nothing_of_this_ones_disk() -> None:
    group = founded()
    group.drop(lambda hop: hop.name == "Welcome" and hop.target == "S3")
    late = group.restart("S3")
    group.run(0.05)
    leader, station = group["S1"].running, late.running._station
    ledger = leader._station.ledger
    for nonce, is_returning in ((station.nonce ^ 1, True), (station.nonce, False)):
        body = Welcome(3, ledger.committed, ledger.last_epoch, ledger.state.encode(), ledger.last, nonce=nonce)
        epoch = leader._station.epoch
        late.feed(Received(b"".join(encode(group=7, epoch=epoch, number=1, origin=leader.origin, body=body))))
        assert late.describe("commit_server", "returning") is is_returning


def test_a_damaged_entry_is_not_written_again_from_another_batch() -> None:
    group = founded()
    backup, ledger = group["S3"], group["S1"].running._station.ledger
    damaged, other = ledger.last - 1, ledger.last
    backup.disk.damage(("entry", damaged, 0))
    backup.running._data.on_damaged(damaged, group.now)
    for sequence, is_mended in ((other, False), (damaged, True)):
        known, payload = ledger.get(sequence), group["S1"].disk.entry(sequence)
        assert known is not None
        assert isinstance(payload, bytes)
        (data,) = fragment_batch(known.id, payload, digest=known.digest, timestamp=known.timestamp, limit=1200)
        repair = msgspec.structs.replace(data, sequence=damaged, is_repair=True)
        frame = encode(group=7, epoch=0, number=1, origin=group["S1"].running.origin, body=repair)
        backup.feed(Received(b"".join(frame)))
        group.run(0.001)
        assert (backup.disk.entry(damaged) is not DAMAGED) is is_mended
