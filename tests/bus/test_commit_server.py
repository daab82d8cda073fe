"""A commit server: a promise is durable before it is said, older epochs are refused, lost disks do not vote."""

import msgspec
import pytest

from alphorn.bus.commit_server import CommitServer
from alphorn.bus.config import Timing
from alphorn.bus.entries import Assignment, MemberJoined, SystemEntry, VoterAdded, VoterRemoved
from alphorn.bus.follower import Follower
from alphorn.bus.frames import AssignmentAnswer, AssignmentQuery, CommitSubmit, Prepare, Promise
from alphorn.bus.machine import PutMeta
from tests.bus.group import make_config
from tests.bus.stations import EPOCH, NEXT_EPOCH, Bench, joined, numbered, system

TIMING = Timing()
LATER = TIMING.suspect_s + 1.0  # when an old sequencer's silence is long enough


class Voting:
    """Commit server 3 of three, or a witness, 4, beside them."""

    def __init__(self, *, number: int = 3, is_returning: bool = False) -> None:
        self.bench = Bench(make_config(servers=3, witnesses=1) if number == 4 else None, number)
        self.follower = Follower(self.bench.station, durable=0, now=0.0)
        self.server = CommitServer(self.bench.station, self.follower, is_returning=is_returning, now=0.0)

    def submit(self, *assignments: Assignment, committed: int = 0, now: float = 0.0) -> None:
        body = CommitSubmit(0, 0, committed, list(assignments))
        self.follower.on_submit(self.bench.frame(1, body, EPOCH), body, now)

    def prepare(self, epoch: int = NEXT_EPOCH, *, committed: int = 0, now: float = LATER) -> None:
        body = Prepare(committed, 1)
        self.server.on_prepare(self.bench.frame(epoch & 0xFFFF, body, epoch), body, now)

    def promises(self) -> list[tuple[str, Promise]]:
        return self.bench.sent(Promise)


def test_a_promise_is_durable_before_it_is_said() -> None:
    voting = Voting()
    voting.prepare()
    token, writes = voting.bench.hand_over()
    assert any(isinstance(write, PutMeta) for write in writes)
    assert voting.promises() == []
    meta = voting.bench.storage.meta()
    assert meta is not None
    assert meta.promised == NEXT_EPOCH
    voting.bench.station.journal.on_durable(token)
    ((to, promise),) = voting.promises()
    assert (to, promise.is_granted, promise.epoch, promise.promised) == ("S2", True, NEXT_EPOCH, NEXT_EPOCH)


def test_a_promise_tells_everything_accepted_after_what_the_candidate_has() -> None:
    voting = Voting()
    voting.submit(numbered(1), numbered(2), numbered(3), committed=1)
    voting.prepare(committed=1)
    voting.bench.settle()
    ((_, promise),) = voting.promises()
    assert (promise.previous, promise.last, promise.last_epoch, promise.committed) == (1, 3, EPOCH, 1)
    assert promise.assignments == [numbered(2), numbered(3)]


def test_an_older_epoch_is_refused_and_told_what_was_promised() -> None:
    voting = Voting()
    voting.prepare(NEXT_EPOCH)
    voting.bench.settle()
    voting.promises()
    voting.prepare(EPOCH)
    ((to, refusal),) = voting.promises()
    assert (to, refusal.is_granted, refusal.promised) == ("S1", False, NEXT_EPOCH)


def test_a_promise_superseded_before_it_was_durable_is_never_said() -> None:
    voting = Voting()
    voting.prepare(NEXT_EPOCH)
    voting.bench.hand_over()
    voting.prepare(NEXT_EPOCH + (1 << 16))
    voting.bench.settle()
    assert [promise.epoch for _, promise in voting.promises()] == [NEXT_EPOCH + (1 << 16)]


def test_a_lost_answer_is_the_same_promise_said_again() -> None:
    voting = Voting()
    for _ in range(2):
        voting.prepare()
        voting.bench.settle()
    assert [promise.is_granted for _, promise in voting.promises()] == [True, True]


def test_nothing_of_an_older_epoch_is_accepted_after_a_promise() -> None:
    voting = Voting()
    voting.submit(numbered(1))
    voting.bench.settle()
    assert voting.server.accepted == 1
    voting.prepare()
    voting.bench.settle()
    voting.submit(numbered(1), numbered(2), now=LATER)
    voting.bench.settle()
    assert voting.bench.ledger.last == 1
    assert voting.server.accepted == 0


@pytest.mark.requirement("BUS-14")
def test_an_assignment_is_acknowledged_only_once_it_is_durable() -> None:
    voting = Voting()
    voting.submit(numbered(1), numbered(2))
    token, _ = voting.bench.hand_over()
    assert voting.server.accepted == 0
    voting.bench.station.journal.on_durable(token)
    assert voting.server.accepted == 2


def test_a_live_sequencer_is_not_deserted_for_a_candidate() -> None:
    voting = Voting()
    voting.submit(numbered(1), now=5.0)
    voting.prepare(now=5.0 + TIMING.suspect_s / 2)
    voting.bench.settle()
    assert voting.promises() == []
    assert voting.bench.station.epoch == EPOCH
    voting.prepare(now=5.0 + TIMING.suspect_s)
    voting.bench.settle()
    assert len(voting.promises()) == 1


@pytest.mark.requirement("HA-8")
def test_one_that_holds_more_and_could_be_sequencer_gives_itself_time_before_it_promises() -> None:
    voting = Voting()
    voting.submit(numbered(1), numbered(2), committed=2)
    voting.prepare(committed=1, now=1.9 * TIMING.suspect_s)
    voting.bench.settle()
    assert voting.promises() == []
    assert voting.bench.station.epoch == EPOCH
    voting.prepare(committed=1, now=2.0 * TIMING.suspect_s)
    voting.bench.settle()
    assert [promise.is_granted for _, promise in voting.promises()] == [True]


@pytest.mark.parametrize(("number", "committed"), [(3, 2), (3, 9), (4, 1)], ids=["as-much", "more", "to-a-witness"])
def test_a_candidate_is_not_kept_waiting_by_one_that_would_not_be_better(number: int, committed: int) -> None:
    voting = Voting(number=number)
    voting.submit(numbered(1), numbered(2), committed=2)
    voting.prepare(committed=committed, now=TIMING.suspect_s)
    voting.bench.settle()
    assert [promise.is_granted for _, promise in voting.promises()] == [True]


def test_one_whose_own_log_removed_it_gives_its_word_and_leaves_the_counting_to_the_candidate() -> None:
    voting = Voting()
    voting.submit(system(VoterRemoved(3, False)), committed=1)
    voting.prepare(committed=1)
    voting.bench.settle()
    assert [promise.is_granted for _, promise in voting.promises()] == [True]


class Readmitting(Voting):
    """Commit server 3 lost its disk; the log removed it and knows its new run: numbers 1 and 2."""

    def __init__(self, *, origin: bytes | None = None, committed: int = 2, removed: int = 3, nonce: int = 0) -> None:
        super().__init__()
        self.bench.station.is_barred = True
        self.follower.on_appended = self.server.on_appended
        self.bench.ledger.on_committed = self._on_committed
        again = joined(self.bench.config, 3, origin or self.bench.station.origin, 2)
        again = MemberJoined(msgspec.structs.replace(again.member, nonce=nonce))
        self.submit(system(VoterRemoved(removed, False)), system(again), committed=committed)

    def _on_committed(self, sequence: int, assignment: Assignment, entry: SystemEntry | None) -> None:
        if entry is not None:
            self.server.on_committed(sequence, entry)

    def add(self, number: int) -> None:
        body = CommitSubmit(2, EPOCH, 0, [system(VoterAdded(number))])
        self.follower.on_submit(self.bench.frame(1, body, EPOCH), body, 0.0)
        self.bench.settle()


def test_a_lost_disk_is_readmitted_while_its_addition_is_still_open_and_accepts_it() -> None:
    readmitting = Readmitting()
    readmitting.bench.settle()
    assert readmitting.server.accepted == 0
    readmitting.add(3)
    assert readmitting.bench.ledger.committed == 2
    assert readmitting.server.may_vote
    assert readmitting.server.accepted == 3
    meta = readmitting.bench.storage.meta()
    assert meta is not None
    assert not meta.is_voter_barred


def test_a_lost_disk_is_not_readmitted_by_the_addition_of_another() -> None:
    readmitting = Readmitting()
    readmitting.add(2)
    assert not readmitting.server.may_vote


def test_a_lost_disk_is_not_readmitted_for_an_earlier_run_of_its_member() -> None:
    readmitting = Readmitting(origin=bytes(9) + b"x")
    readmitting.add(3)
    assert not readmitting.server.may_vote


def test_a_lost_disk_is_not_readmitted_for_an_earlier_run_of_the_same_name() -> None:
    readmitting = Readmitting(nonce=7)
    readmitting.add(3)
    assert not readmitting.server.may_vote


def test_a_lost_disk_is_readmitted_where_a_checkpoint_brought_its_removal() -> None:
    readmitting = Readmitting(committed=0)
    ledger = readmitting.bench.ledger
    ledger.on_committed = lambda *_: None
    ledger.commit(2)  # as a checkpoint's state stands for the numbers before it, which are not seen one by one
    readmitting.server.on_state()
    readmitting.add(3)
    assert readmitting.server.may_vote


def test_a_lost_disk_is_readmitted_where_a_checkpoint_brought_its_addition() -> None:
    readmitting = Readmitting()
    ledger = readmitting.bench.ledger
    ledger.append(system(VoterAdded(3)))
    readmitting.server.on_state()
    assert not readmitting.server.may_vote
    ledger.commit(3)
    readmitting.server.on_state()
    assert readmitting.server.may_vote


def test_a_lost_disk_is_not_readmitted_without_having_been_removed() -> None:
    readmitting = Readmitting(removed=2)
    readmitting.add(3)
    assert not readmitting.server.may_vote


def test_a_lost_disk_is_not_readmitted_while_its_removal_is_open() -> None:
    readmitting = Readmitting(committed=0)
    readmitting.add(3)
    assert not readmitting.server.may_vote


@pytest.mark.parametrize("state", ["barred", "damaged", "returning"])
def test_a_disk_that_may_have_forgotten_promises_and_acknowledges_nothing(state: str) -> None:
    voting = Voting(is_returning=state == "returning")
    voting.submit(numbered(1))
    voting.bench.settle()
    match state:
        case "barred":
            voting.bench.station.is_barred = True
        case "damaged":
            voting.bench.station.impaired_until = 9
    voting.prepare()
    voting.bench.settle()
    assert voting.promises() == []
    assert voting.server.accepted == 0
    assert not voting.server.may_vote


def test_one_that_returns_votes_once_the_sequencer_welcomed_it() -> None:
    voting = Voting(is_returning=True)
    voting.server.on_welcome()
    assert voting.server.may_vote


def test_one_that_returns_votes_when_no_sequencer_is_to_be_heard_because_the_whole_group_restarts() -> None:
    voting = Voting(is_returning=True)
    voting.server.on_time(voting.server.next_deadline())
    assert voting.server.may_vote


def test_one_that_returns_goes_on_waiting_while_a_sequencer_is_heard() -> None:
    voting = Voting(is_returning=True)
    due = voting.server.next_deadline()
    voting.submit(numbered(1), now=due - 0.01)
    voting.server.on_time(due)
    assert not voting.server.may_vote
    assert voting.server.next_deadline() > due


def ask(voting: Voting, previous: int) -> None:
    query = AssignmentQuery(previous, 9)
    voting.server.on_query(voting.bench.frame(2, query), query, LATER)


@pytest.mark.requirement("BUS-20")
def test_a_commit_server_tells_what_committed_numbers_mean_and_no_open_ones() -> None:
    voting = Voting()
    voting.submit(numbered(1), numbered(2), numbered(3), committed=2)
    ask(voting, 0)
    assert voting.bench.sent(AssignmentAnswer) == [("S2", AssignmentAnswer(0, [numbered(1), numbered(2)]))]


def test_the_sequencer_tells_its_open_numbers_too() -> None:
    voting = Voting()
    voting.submit(numbered(1), numbered(2), committed=1)
    voting.bench.station.sequencer = 3
    ask(voting, 1)
    assert voting.bench.sent(CommitSubmit) == [("S2", CommitSubmit(1, EPOCH, 1, [numbered(2)]))]


def test_a_question_about_forgotten_numbers_is_left_to_catch_up() -> None:
    voting = Voting()
    voting.submit(numbered(1), numbered(2), numbered(3), committed=3)
    voting.bench.ledger.collect(2)
    ask(voting, 1)
    assert voting.bench.sent(AssignmentAnswer) == []
