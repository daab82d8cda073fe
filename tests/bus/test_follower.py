"""Following the sequencer: what is taken, what is fenced, what is asked for, and what is durable."""

from itertools import pairwise
from typing import Any

import pytest

from alphorn.bus.config import Role
from alphorn.bus.entries import Assignment, digest_of
from alphorn.bus.follower import Follower
from alphorn.bus.frames import AssignmentAnswer, AssignmentQuery, Commit, CommitSubmit, Heartbeat
from alphorn.bus.machine import DropAfter, PutAssignments, PutEntry
from alphorn.bus.storage import DAMAGED
from alphorn.io.memory_storage import MemoryStorage
from tests.bus.stations import EPOCH, NEXT_EPOCH, Bench, batch_id, numbered, payload_of


class Following:
    """Member 2 of three, following sequencer 1 of the first epoch."""

    def __init__(self, *, keeps_log: bool = True) -> None:
        self.bench = Bench(number=2, roles=None if keeps_log else Role.NONE)
        self.follower = Follower(self.bench.station, durable=0, now=0.0)
        self.cuts: list[int] = []
        self.follower.on_cut = self.cuts.append

    def submit(
        self,
        previous: int,
        *assignments: Assignment,
        epoch: int = EPOCH,
        previous_epoch: int = EPOCH,
        committed: int = 0,
        now: float = 1.0,
    ) -> None:
        body = CommitSubmit(previous, previous_epoch, committed, list(assignments))
        self.follower.on_submit(self.bench.frame(epoch & 0xFFFF, body, epoch), body, now)

    def commit(self, committed: int, first: int, *assignments: Assignment, epoch: int = EPOCH) -> None:
        body = Commit(committed, first, list(assignments))
        self.follower.on_commit(self.bench.frame(epoch & 0xFFFF, body, epoch), body, 1.0)

    def beat(self, committed: int, assigned: int, *, epoch: int = EPOCH, collected: int = 0) -> None:
        body = Heartbeat(committed, assigned, collected, 1000)
        self.follower.on_heartbeat(self.bench.frame(epoch & 0xFFFF, body, epoch), body, 1.0)

    @property
    def log(self) -> list[Assignment]:
        return self.bench.ledger.slice(0, self.bench.ledger.last)

    def asks(self) -> list[tuple[str, AssignmentQuery]]:
        self.follower.on_time(self.follower.next_deadline())
        return self.bench.sent(AssignmentQuery)


def test_a_submit_that_joins_on_is_taken_and_confirmed_but_not_committed() -> None:
    following = Following()
    following.submit(0, numbered(1), numbered(2))
    ledger = following.bench.ledger
    assert (ledger.last, ledger.confirmed_epoch, ledger.confirmed, ledger.committed) == (2, EPOCH, 2, 0)


def test_a_submit_after_a_gap_is_not_taken_and_the_gap_is_asked_for() -> None:
    following = Following()
    following.submit(1, numbered(2))
    assert (following.bench.ledger.last, following.bench.ledger.confirmed) == (0, 0)
    assert following.asks() == [("S1", AssignmentQuery(0, 2))]


def test_a_submit_commits_what_it_says_is_committed_and_no_more() -> None:
    following = Following()
    following.submit(0, numbered(1), numbered(2), numbered(3), committed=2)
    assert following.bench.ledger.committed == 2


def test_a_submit_of_an_older_epoch_is_refused() -> None:
    following = Following()
    following.submit(0, numbered(1, NEXT_EPOCH), epoch=NEXT_EPOCH)
    following.submit(0, numbered(5), numbered(6))
    following.commit(2, 1, numbered(5), numbered(6))
    following.beat(2, 2)
    assert following.log == [numbered(1, NEXT_EPOCH)]
    assert following.bench.ledger.committed == 0
    assert following.follower.known_committed == 0
    assert following.bench.station.sequencer == 2


def test_a_member_that_did_not_claim_the_epoch_is_not_believed() -> None:
    following = Following()
    body = CommitSubmit(0, 0, 0, [numbered(1)])
    following.follower.on_submit(following.bench.frame(3, body, EPOCH), body, 1.0)
    assert following.log == []
    assert following.bench.station.epoch == 0


def test_a_conflicting_tail_of_an_older_epoch_is_cut_off_here_and_on_disk() -> None:
    following = Following()
    following.submit(0, numbered(1), numbered(2), numbered(3))
    following.bench.settle()
    following.submit(1, numbered(7, NEXT_EPOCH), epoch=NEXT_EPOCH)
    assert following.log == [numbered(1), numbered(7, NEXT_EPOCH)]
    assert following.cuts == [1]
    writes = following.bench.settle()
    assert [w for w in writes if isinstance(w, DropAfter | PutAssignments)] == [
        DropAfter(1),
        PutAssignments(2, [numbered(7, NEXT_EPOCH)]),
    ]
    assert following.bench.storage.assignment_bounds() == (1, 2)


def test_a_longer_log_is_confirmed_only_as_far_as_the_new_sequencer_named_it() -> None:
    following = Following()
    following.submit(0, numbered(1), numbered(2), numbered(3))
    following.submit(0, numbered(1), epoch=NEXT_EPOCH)
    ledger = following.bench.ledger
    assert (ledger.last, ledger.confirmed_epoch, ledger.confirmed) == (3, NEXT_EPOCH, 1)


def test_an_old_tail_is_never_committed_on_the_word_of_a_new_sequencer_that_did_not_name_it() -> None:
    following = Following()
    following.submit(0, numbered(1), numbered(2), numbered(3))
    following.submit(0, numbered(1), epoch=NEXT_EPOCH)
    following.beat(3, 3, epoch=NEXT_EPOCH)
    following.submit(9, numbered(9, NEXT_EPOCH), epoch=NEXT_EPOCH, committed=3)
    assert following.bench.ledger.committed == 1


def test_assignments_count_as_durable_only_once_they_are_on_disk() -> None:
    following = Following()
    following.submit(0, numbered(1), numbered(2))
    token, _ = following.bench.hand_over()
    assert following.follower.durable == 0
    following.bench.station.journal.on_durable(token)
    assert following.follower.durable == 2


def test_a_write_that_was_cut_meanwhile_does_not_count_when_it_becomes_durable() -> None:
    following = Following()
    following.submit(0, numbered(1), numbered(2), numbered(3))
    token, _ = following.bench.hand_over()
    following.submit(1, numbered(7, NEXT_EPOCH), epoch=NEXT_EPOCH)
    following.bench.station.journal.on_durable(token)
    assert following.follower.durable == 1
    following.bench.settle()
    assert following.follower.durable == 2


def test_a_commit_of_confirmed_numbers_needs_nothing_else() -> None:
    following = Following()
    following.submit(0, numbered(1), numbered(2))
    following.commit(2, 1)
    assert following.bench.ledger.committed == 2


def test_a_commit_of_a_new_sequencer_makes_nothing_final_but_what_it_names() -> None:
    following = Following()
    following.submit(0, numbered(1), numbered(2), numbered(3))
    facts = [numbered(7, NEXT_EPOCH), numbered(8, NEXT_EPOCH)]
    following.commit(2, 1, *facts, epoch=NEXT_EPOCH)
    assert following.bench.ledger.committed == 2
    assert following.log == facts


def test_a_commit_brings_its_assignments_to_one_that_missed_the_submit() -> None:
    following = Following()
    following.commit(2, 1, numbered(1), numbered(2))
    assert following.bench.ledger.committed == 2
    assert following.log == [numbered(1), numbered(2)]


def test_committed_facts_after_a_gap_wait_until_the_gap_is_closed() -> None:
    following = Following(keeps_log=False)
    following.commit(3, 3, numbered(3))
    following.commit(2, 2, numbered(2))
    assert following.bench.ledger.committed == 0
    body = AssignmentAnswer(0, [numbered(1)])
    following.follower.on_answer(following.bench.frame(3, body), body, 1.0)
    assert following.bench.ledger.committed == 3
    assert following.log == [numbered(1), numbered(2), numbered(3)]


def test_a_member_without_a_log_takes_only_what_is_committed() -> None:
    following = Following(keeps_log=False)
    following.submit(0, numbered(1), numbered(2), committed=1)
    assert following.log == [numbered(1)]
    following.bench.station.journal.then(lambda: None)
    assert not any(isinstance(write, PutAssignments) for write in following.bench.settle())


@pytest.mark.requirement("BUS-20")
def test_a_member_that_misses_the_meaning_of_a_number_asks_a_commit_server() -> None:
    following = Following(keeps_log=False)
    following.commit(3, 3, numbered(3))
    assert following.asks() == [("S3", AssignmentQuery(0, 3))]


@pytest.mark.requirement("BUS-24")
def test_a_heartbeat_finds_the_loss_of_the_last_message() -> None:
    following = Following(keeps_log=False)
    following.commit(1, 1, numbered(1))
    assert following.follower.next_deadline() == float("inf")
    following.beat(2, 2)
    assert following.asks() == [("S3", AssignmentQuery(1, 2))]


def test_a_commit_server_asks_when_an_assigned_number_was_lost_too() -> None:
    following = Following()
    following.submit(0, numbered(1))
    following.beat(0, 2)
    assert following.asks() == [("S1", AssignmentQuery(0, 2))]


def test_a_question_without_an_answer_is_asked_again_and_of_others_and_later_each_time() -> None:
    following = Following()
    following.beat(0, 2)
    times, targets = [], []
    for _ in range(6):
        times.append(following.follower.next_deadline())
        targets += [to for to, _ in following.asks()]
    waits = [round(later - earlier, 3) for earlier, later in pairwise(times)]
    assert targets == ["S1", "S3"] * 3
    assert waits == sorted(waits)


def test_nothing_is_asked_once_it_has_come() -> None:
    following = Following()
    following.beat(0, 2)
    following.submit(0, numbered(1), numbered(2))
    assert following.follower.next_deadline() == float("inf")
    assert following.follower.queries == 0


def test_what_is_collected_is_not_asked_for_number_by_number() -> None:
    following = Following()
    following.beat(50, 50, collected=40)
    assert following.asks() == []
    assert following.follower.collected == 40


def test_the_batch_of_a_taken_number_can_be_found_by_its_id() -> None:
    following = Following()
    following.submit(0, numbered(1))
    assert following.bench.ledger.find(batch_id(1)) == 1


class Healing:
    """Member 2 could read its log through number 1 and had accepted numbers through 9; sequencer 1 is at number 3."""

    def __init__(self) -> None:
        self.bench = Bench(number=2)
        self.bench.fold(numbered(1))
        self.bench.station.impaired_until = 9
        self.follower = Follower(self.bench.station, durable=1, now=0.0)

    def submit(self, *counters: int) -> None:
        body = CommitSubmit(1, EPOCH, 1, [numbered(counter) for counter in counters])
        self.follower.on_submit(self.bench.frame(1, body, EPOCH), body, 1.0)

    def heal(self, now: float = 1.0) -> bool:
        self.follower.heal(now)
        return self.bench.station.is_whole


def test_a_damaged_log_is_whole_once_it_has_all_that_the_sequencer_had_assigned_when_it_heard_this_run() -> None:
    healing = Healing()
    healing.follower.on_welcome(EPOCH, 3)
    healing.submit(2, 3)
    assert healing.heal()
    assert any(write == DropAfter(3) for write in healing.bench.settle())
    assert healing.follower.next_deadline() == float("inf")


def test_a_damaged_log_is_not_whole_before_it_has_all_that_the_sequencer_had_assigned() -> None:
    healing = Healing()
    healing.follower.on_welcome(EPOCH, 3)
    healing.submit(2)
    assert not healing.heal()
    assert healing.follower.next_deadline() > 1.0


def test_a_damaged_log_is_not_whole_while_no_sequencer_has_heard_this_run() -> None:
    healing = Healing()
    healing.submit(2, 3)
    assert not healing.heal()
    ((to, query),) = healing.bench.sent(AssignmentQuery)
    assert to in ("S1", "S3")
    assert query.previous == 1


def test_the_word_of_an_older_epochs_sequencer_does_not_make_a_damaged_log_whole() -> None:
    healing = Healing()
    healing.follower.on_welcome(EPOCH, 3)
    healing.submit(2, 3)
    healing.bench.station.raise_fence(NEXT_EPOCH)
    assert not healing.heal()


def test_a_damaged_log_is_whole_once_others_filled_it_as_far_as_it_went() -> None:
    healing = Healing()
    healing.submit(*range(2, 10))
    assert healing.heal()


def test_a_damaged_log_is_whole_once_a_later_epoch_has_made_void_what_it_cannot_read() -> None:
    healing = Healing()
    healing.submit(2, 3)
    body = AssignmentAnswer(1, [numbered(4, NEXT_EPOCH)])
    healing.follower.on_answer(healing.bench.frame(3, body), body, 1.0)
    assert healing.bench.station.is_whole
    assert DropAfter(1) in healing.bench.settle()


class Rotten(MemoryStorage):
    """A disk on which number 2 cannot be read, and perhaps its batch neither."""

    is_batch_rotten = False

    def assignment(self, sequence: int) -> Any:
        return DAMAGED if sequence == 2 else super().assignment(sequence)

    def entry(self, sequence: int) -> Any:
        return DAMAGED if sequence == 2 and self.is_batch_rotten else super().entry(sequence)


class Comparing:
    """Member 2 has numbers 1 through 5 of the first epoch with their batches, and cannot read what number 2 means."""

    def __init__(self) -> None:
        self.storage = Rotten(on_durable=lambda token: None)
        before = Bench(number=2, storage=self.storage)
        before.station.journal.write(PutAssignments(1, [numbered(counter) for counter in range(1, 6)]))
        for counter in range(1, 6):
            payload = payload_of(counter)
            before.station.journal.write(PutEntry(counter, payload, digest_of(payload)))
        before.settle()
        self.bench = Bench(number=2, storage=self.storage, founding=False)
        self.follower = Follower(self.bench.station, durable=1, now=0.0)
        self.bench.ledger.commit(1)
        assert not self.bench.station.is_whole

    def answer(self, previous: int, *assignments: Assignment) -> list[int]:
        """After which numbers the disk is dropped in this turn."""
        body = AssignmentAnswer(previous, list(assignments))
        self.follower.on_answer(self.bench.frame(3, body), body, 1.0)
        return [write.sequence for write in self.bench.settle() if isinstance(write, DropAfter)]


def test_a_number_that_means_something_else_makes_void_what_was_behind_a_damaged_record() -> None:
    comparing = Comparing()
    assert comparing.answer(1, numbered(2), numbered(3), numbered(9, NEXT_EPOCH)) == [3]
    assert comparing.storage.assignment_bounds() == (1, 4)
    assert [comparing.storage.entry(sequence) for sequence in (4, 5)] == [None, None]
    assert comparing.bench.station.is_whole


def test_a_batch_that_is_not_the_numbers_own_makes_void_what_was_behind_a_damaged_record() -> None:
    comparing = Comparing()
    assert comparing.answer(1, numbered(9, NEXT_EPOCH)) == [1]
    assert comparing.storage.entry(2) is None


def test_a_later_epoch_before_what_was_behind_a_damaged_record_makes_it_void() -> None:
    comparing = Comparing()
    comparing.storage.is_batch_rotten = True
    assert comparing.answer(1, numbered(9, NEXT_EPOCH)) == [2]


def test_numbers_that_mean_what_the_disk_says_leave_what_was_behind_a_damaged_record() -> None:
    comparing = Comparing()
    assert comparing.answer(1, numbered(2), numbered(3)) == []
    assert not comparing.bench.station.is_whole
    assert comparing.storage.assignment_bounds() == (1, 5)


def test_a_fact_of_a_later_epoch_raises_the_fence_because_older_sequencers_are_deposed() -> None:
    following = Following()
    body = AssignmentAnswer(0, [numbered(1), numbered(2, NEXT_EPOCH)])
    following.follower.on_answer(following.bench.frame(3, body), body, 1.0)
    assert following.bench.station.epoch == NEXT_EPOCH
    following.submit(2, numbered(3), previous_epoch=NEXT_EPOCH)
    assert following.log == [numbered(1), numbered(2, NEXT_EPOCH)]


def test_a_write_that_a_reset_forgot_does_not_speak_for_one_that_ends_at_the_same_number() -> None:
    bench = Bench()
    bench.join(1, 2, 3)
    bench.settle()
    station, follower = bench.station, Follower(bench.station, durable=3, now=0.0)
    station.epoch = station.durable_epoch = EPOCH
    old = CommitSubmit(3, EPOCH, 3, [numbered(counter) for counter in range(1, 6)])
    follower.on_submit(bench.frame(1, old), old, 0.0)
    first, _ = bench.hand_over()
    state = station.ledger.state.copy(station.config)
    for counter in (1, 2):
        state.fold(state.sequence + 1, numbered(counter, NEXT_EPOCH))
    station.ledger.reset(state)  # a checkpoint at 5, of the next epoch
    follower.restart()
    station.journal.write(DropAfter(0))
    second, _ = bench.hand_over()
    new = CommitSubmit(5, NEXT_EPOCH, 5, [numbered(counter, NEXT_EPOCH) for counter in range(3, 6)])
    follower.on_submit(bench.frame(2, new, NEXT_EPOCH), new, 0.0)
    third, _ = bench.hand_over()
    station.journal.on_durable(first)
    station.journal.on_durable(second)
    assert follower.durable == 5
    station.journal.on_durable(third)
    assert follower.durable == 8
