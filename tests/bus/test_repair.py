"""Answers to fetches: from memory or log, once per linger time, within a budget, and honest about what is not there."""

import random

import pytest

from alphorn.bus.config import Budget, Timing
from alphorn.bus.entries import digest_of
from alphorn.bus.frames import Absent, Data, Fetch
from alphorn.bus.machine import DATA_GROUP, Persist, PutAssignments, PutEntry, Write
from alphorn.bus.repair import Repairer
from alphorn.model.ids import origin_of
from tests.bus.stations import EPOCH, NEXT_EPOCH, Bench, batch_id, numbered, payload_of

TIMING = Timing()
BUDGET = Budget(datagram_bytes=1200)


class Answering:
    """Data server 1 with numbers 4 (held in memory), 5 (on disk) and 6 (neither), committed; 1 to 3 are joins."""

    def __init__(self, budget: Budget = BUDGET) -> None:
        self.bench = Bench(budget=budget)
        self.bench.join(1, 2, 3)
        self.bench.fold(numbered(4), numbered(5), numbered(6))
        self.bench.hold(4)
        writes = [PutAssignments(4, [numbered(n) for n in (4, 5, 6)]), PutEntry(5, payload_of(5), digest_of(b""))]
        self.bench.storage.submit(Persist(1, writes))
        self.bench.station.epoch = self.bench.station.durable_epoch = EPOCH
        self.repairer = Repairer(self.bench.station, now=0.0)

    def ask(
        self, number: int, now: float, *, sequences: tuple[tuple[int, int], ...] = (), ids: tuple[int, ...] = ()
    ) -> None:
        fetch = Fetch(1, list(sequences), [(batch_id(counter), 0, 0) for counter in ids])
        self.repairer.on_fetch(self.bench.frame(number, fetch), fetch, now)

    def repairs(self) -> list[tuple[str, int, bytes]]:
        return [(to, data.sequence, bytes(data.payload)) for to, data in self.bench.sent(Data)]


@pytest.mark.requirement("BUS-22")
def test_numbers_are_answered_from_memory_and_from_the_log() -> None:
    answering = Answering()
    answering.ask(2, 1.0, sequences=((4, 6),))
    assert answering.repairs() == [("S2", 4, b"batch 4"), ("S2", 5, b"batch 5")]


@pytest.mark.requirement("BUS-21")
def test_a_batch_is_answered_by_its_id_and_told_its_number() -> None:
    answering = Answering()
    answering.ask(2, 1.0, ids=(5,))
    assert answering.repairs() == [("S2", 5, b"batch 5")]


def sent_of_cut(cuts: list[int]) -> list[tuple[int, int]]:
    """What is sent, of a batch cut into ten here, when the third and the fourth fragment are wanted."""
    answering = Answering(Budget(datagram_bytes=92 + 100))
    payload = random.Random(950).randbytes(950)
    answering.bench.station.holdings.put(batch_id(50), payload, 0, digest_of(payload))
    fetch = Fetch(1, [], [(batch_id(50), 3, 5)], cuts=cuts)
    answering.repairer.on_fetch(answering.bench.frame(2, fetch), fetch, 1.0)
    sent = [data for _, data in answering.bench.sent(Data)]
    assert all(data.payload == payload[data.offset : data.offset + len(data.payload)] for data in sent)
    return [(data.fragment, data.fragments) for data in sent]


def test_only_the_missing_fragments_are_sent() -> None:
    assert sent_of_cut([10]) == [(3, 10), (4, 10)]


def test_fragments_smaller_than_those_here_are_cut_as_the_asker_has_them() -> None:
    assert sent_of_cut([19]) == [(3, 19), (4, 19)]


@pytest.mark.parametrize("cuts", [[9], [951], []], ids=["larger", "absurd", "unknown"])
def test_a_batch_that_cannot_be_cut_as_the_asker_has_it_is_sent_whole(cuts: list[int]) -> None:
    assert sent_of_cut(cuts) == [(fragment, 10) for fragment in range(10)]


def test_a_fetch_for_somebody_else_is_not_answered() -> None:
    answering = Answering()
    fetch = Fetch(3, [(4, 5)], [])
    answering.repairer.on_fetch(answering.bench.frame(2, fetch), fetch, 1.0)
    assert answering.repairs() == []


def test_an_open_number_is_not_answered_because_it_may_still_change() -> None:
    answering = Answering()
    answering.bench.ledger.append(numbered(7))
    answering.bench.hold(7)
    answering.ask(2, 1.0, sequences=((7, 7),))
    assert answering.repairs() == []


def test_two_who_ask_are_answered_alone_and_a_third_within_the_linger_time_makes_it_the_group() -> None:
    answering = Answering()
    step = TIMING.repair_linger_s / 2
    for attempt, asker in enumerate((2, 3, 4)):
        answering.ask(asker, 1.0 + attempt * step, sequences=((4, 4),))
    assert [to for to, _, _ in answering.repairs()] == ["S2", "S3", DATA_GROUP]


def test_a_third_who_asks_after_the_linger_time_is_answered_alone() -> None:
    answering = Answering()
    answering.ask(2, 1.0, sequences=((4, 4),))
    answering.ask(3, 1.0, sequences=((4, 4),))
    answering.ask(2, 1.0 + 1.01 * TIMING.repair_linger_s, sequences=((4, 4),))
    assert [to for to, _, _ in answering.repairs()] == ["S2", "S3", "S2"]


@pytest.mark.requirement("BUS-8")
def test_a_repair_is_not_sent_twice_within_the_linger_time() -> None:
    answering = Answering()
    step = TIMING.repair_linger_s / 10
    answering.ask(2, 1.0, sequences=((4, 4),))
    answering.ask(2, 1.0 + step, sequences=((4, 4),))
    answering.ask(3, 1.0 + 2 * step, sequences=((4, 4),))
    answering.ask(2, 1.0 + 3 * step, sequences=((4, 4),))
    answering.ask(4, 1.0 + 4 * step, sequences=((4, 4),))
    for attempt in range(5, 14):
        answering.ask(2 + attempt % 3, 1.0 + attempt * step, sequences=((4, 4),))
    assert [to for to, _, _ in answering.repairs()] == ["S2", "S3", DATA_GROUP]


def test_after_the_linger_time_a_repair_is_sent_again() -> None:
    answering = Answering()
    for now in (1.0, 1.0 + 1.01 * TIMING.repair_linger_s):
        answering.ask(2, now, sequences=((4, 4),))
    assert [to for to, _, _ in answering.repairs()] == ["S2", "S2"]


@pytest.mark.requirement("BUS-8")
def test_repairs_stay_within_their_budget_and_it_fills_again_with_time() -> None:
    answering = Answering(Budget(datagram_bytes=1200, repair_bytes_per_s=1000))
    for counter in range(20, 40):
        payload = b"%3d" % counter * 100
        answering.bench.station.holdings.put(batch_id(counter), payload, 0, digest_of(payload))
    answering.ask(2, 0.0, ids=tuple(range(20, 40)))
    assert len(answering.repairs()) == 2
    assert answering.repairer.over_budget == 18
    answering.ask(2, 0.7, ids=tuple(range(30, 40)))
    assert len(answering.repairs()) == 2


def test_headers_count_so_nobody_gets_past_the_budget_by_asking_for_tiny_fragments() -> None:
    answering = Answering(Budget(datagram_bytes=1200, repair_bytes_per_s=1000))
    payload = bytes(900)
    answering.bench.station.holdings.put(batch_id(20), payload, 0, digest_of(payload))
    tiny = Fetch(1, [], [(batch_id(20), 0, 900)], cuts=[900])
    answering.repairer.on_fetch(answering.bench.frame(2, tiny), tiny, 0.0)
    assert (answering.repairs(), answering.repairer.over_budget) == ([], 1)
    answering.ask(2, 0.0, ids=(20,))
    assert len(answering.repairs()) == 1


def test_a_batch_that_was_never_here_is_denied() -> None:
    answering = Answering()
    answering.ask(2, 1.0, ids=(4, 77))
    assert [(to, absent.ids) for to, absent in answering.bench.sent(Absent)] == [("S2", [batch_id(77)])]


@pytest.mark.parametrize(("epoch", "durable"), [(0, 0), (EPOCH, 0), (NEXT_EPOCH, NEXT_EPOCH)])
def test_nothing_is_denied_but_behind_the_fence_of_who_asks_and_that_on_disk(epoch: int, durable: int) -> None:
    answering = Answering()
    answering.bench.station.epoch, answering.bench.station.durable_epoch = epoch, durable
    answering.ask(2, 1.0, ids=(77,))
    assert answering.bench.sent(Absent) == []


def test_a_barred_disk_denies_nothing_because_it_may_have_forgotten() -> None:
    answering = Answering()
    answering.bench.station.is_barred = True
    assert not answering.repairer.lacks(batch_id(77))
    answering.ask(2, 1.0, ids=(77,))
    assert answering.bench.sent(Absent) == []


def test_a_damaged_ledger_denies_nothing_because_it_may_have_stored_it() -> None:
    answering = Answering()
    answering.bench.station.impaired_until = answering.bench.ledger.last + 1
    assert not answering.repairer.lacks(batch_id(77))


def test_an_entry_that_does_not_match_its_number_is_not_given() -> None:
    answering = Answering()
    answering.bench.storage.submit(Persist(2, [PutEntry(5, b"what 5 meant before", 0)]))
    assert answering.repairer.payload_of(5) is None
    answering.ask(2, 1.0, sequences=((5, 5),))
    assert answering.repairs() == []


def test_what_the_log_has_passed_is_not_denied_even_where_only_a_checkpoint_tells_so() -> None:
    answering = Answering()
    state = answering.bench.ledger.state
    answering.bench.ledger.reset(state)  # as after a restart: numbers behind the checkpoint are not looked up by batch
    assert answering.bench.ledger.find(batch_id(5)) == 0
    answering.ask(2, 1.0, ids=(5, 77))
    assert [absent.ids for _, absent in answering.bench.sent(Absent)] == [[batch_id(77)]]


def test_a_number_whose_meaning_cannot_be_read_is_noted_as_damaged() -> None:
    answering = Answering()
    answering.bench.ledger._recent.pop(5)
    answering.ask(2, 1.0, sequences=((5, 5),))
    assert answering.repairs() == []
    assert answering.repairer.damaged == [5]


def test_a_batch_behind_a_number_that_cannot_be_read_is_served_from_the_disk() -> None:
    answering = Answering()
    ledger = answering.bench.ledger
    assignment, payload = numbered(70), payload_of(70)
    behind = ledger.last + 2  # the number between them is the damaged one
    answering.bench.storage.submit(
        Persist(2, [PutAssignments(behind, [assignment]), PutEntry(behind, payload, assignment.digest)])
    )
    answering.ask(2, 1.0, ids=(70,))
    assert answering.repairs() == [], "nothing is missing as far as it knows"
    answering.bench.station.impaired_until = behind
    answering.ask(2, 2.0, ids=(70,))
    assert answering.repairs() == [("S2", 0, payload)]


@pytest.mark.parametrize("is_covered", [False, True], ids=["the-ledger-ends-there", "a-checkpoint-covers-it"])
def test_a_batch_whose_number_itself_cannot_be_read_is_known_by_the_digest_that_a_candidate_seeks(
    is_covered: bool,
) -> None:
    answering = Answering()
    behind, payload = answering.bench.ledger.last + 1, payload_of(70)
    answering.bench.storage.submit(Persist(2, [PutEntry(behind, payload, digest_of(payload))]))
    answering.bench.station.impaired_until = 0 if is_covered else behind

    def seek(*digests: int) -> None:
        fetch = Fetch(1, [(behind, behind)], [(batch_id(70), 0, 0)], list(digests))
        answering.repairer.on_fetch(answering.bench.frame(2, fetch), fetch, 1.0)

    seek()
    seek(digest_of(b"what the number means elsewhere"))
    assert (answering.repairs(), answering.bench.sent(Absent)) == ([], [])
    seek(digest_of(payload), 0, 1)  # it is not known whose they are
    assert (answering.repairs(), answering.bench.sent(Absent)) == ([], [])
    seek(digest_of(payload))
    assert answering.repairs() == [("S2", 0, payload)]


@pytest.mark.parametrize(
    ("writes", "is_barred", "denied"),
    [
        ([PutAssignments(8, [numbered(70)])], False, True),
        ([PutAssignments(8, [numbered(70)]), PutEntry(8, payload_of(70), digest_of(b""))], False, False),
        ([PutAssignments(8, [numbered(71)]), PutEntry(8, payload_of(71), digest_of(b""))], False, True),
        ([PutEntry(8, b"whatever", digest_of(b""))], False, False),
        ([PutAssignments(8, [numbered(70)])], True, False),
    ],
    ids=["never-written", "stored", "something-else", "number-damaged", "lost-disk"],
)
def test_a_disk_that_cannot_read_all_of_its_log_denies_what_it_can_tell_of_its_number(
    writes: list[Write], is_barred: bool, denied: bool
) -> None:
    answering = Answering()
    station = answering.bench.station
    answering.bench.storage.submit(Persist(2, writes))
    station.impaired_until, station.is_barred = 9, is_barred  # 7 cannot be read
    fetch = Fetch(1, [(8, 8)], [(batch_id(70), 0, 0)], [digest_of(b"elsewhere it is damaged, too")])
    answering.repairer.on_fetch(answering.bench.frame(2, fetch), fetch, 1.0)
    assert [body.ids for _, body in answering.bench.sent(Absent)] == [[batch_id(70)]] * denied


def test_a_disk_that_cannot_read_all_of_its_log_denies_what_comes_after_it() -> None:
    answering = Answering()
    answering.bench.station.impaired_until = 9
    assert answering.repairer.lacks(batch_id(70), 10)
    assert not answering.repairer.lacks(batch_id(70), 9)
    assert not answering.repairer.lacks(batch_id(70)), "no number is named"


class Restarted(Answering):
    """The same after a restart: batches are found by their numbers only, and the group has forgotten their sender."""

    def __init__(self) -> None:
        super().__init__()
        ledger = self.bench.ledger
        ledger.reset(ledger.state)
        ledger.base = 3
        self.bench.station.holdings.drop(batch_id(4))
        ledger.state.senders.pop(origin_of(batch_id(5)))


def test_what_a_forgotten_sender_sent_is_not_denied_but_served() -> None:
    answering = Restarted()
    assert answering.bench.ledger.find(batch_id(5)) == 0
    answering.ask(2, 1.0, ids=(5,))
    assert answering.repairs() == [("S2", 5, b"batch 5")]
    answering.ask(2, 1.0, ids=(5, 6, 77))
    assert [absent.ids for _, absent in answering.bench.sent(Absent)] == [[batch_id(6), batch_id(77)]]


def test_a_number_that_cannot_be_read_may_be_that_of_a_forgotten_senders_batch() -> None:
    answering = Restarted()
    answering.bench.storage._assignments.pop(4)
    answering.ask(2, 1.0, ids=(5, 77))
    assert answering.repairs() == []
    assert answering.bench.sent(Absent) == []


def test_who_knows_that_a_number_is_final_denies_nothing_of_one_who_does_not() -> None:
    answering = Restarted()
    answering.bench.ledger.base = 6  # a checkpoint stands for all of it
    answering.ask(2, 1.0, sequences=((5, 5),), ids=(5,))
    assert answering.repairs() == []
    assert answering.bench.sent(Absent) == []


def test_numbers_that_came_since_are_looked_at_too() -> None:
    answering = Restarted()
    answering.bench.ledger._floor = 4
    assert answering.repairer.lacks(batch_id(5))
    answering.bench.ledger._floor = 6
    assert not answering.repairer.lacks(batch_id(5))
