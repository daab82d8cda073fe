"""When a member asks for what it misses: back-off, suppression, ranges, another server each time."""

from itertools import pairwise

import pytest

from alphorn.bus.config import Budget, Timing
from alphorn.bus.entries import Assignment
from alphorn.bus.frames import Fetch
from alphorn.bus.nack import Requests, as_ranges
from tests.bus.group import Group, make_config
from tests.bus.stations import Bench, batch_id, numbered

TIMING = Timing()


class Asking:
    """A client's or server's requests among live servers 1, 2 and 3, of which 1 is sequencer."""

    def __init__(self, number: int = 2, budget: Budget | None = None) -> None:
        self.bench = Bench(make_config(), number, budget=budget)
        self.bench.join(1, 2, 3)
        self.bench.station.sequencer = 1
        self.requests = Requests(self.bench.station)

    def fetches(self, now: float) -> list[Fetch]:
        self.requests.on_time(now)
        return [fetch for _, fetch in self.bench.sent(Fetch)]

    def next_fetches(self) -> tuple[float, list[Fetch]]:
        """What is asked at the next deadline."""
        due = self.requests.next_deadline()
        return due, self.fetches(due)


@pytest.mark.requirement("BUS-19")
def test_the_first_request_waits_a_random_time_around_the_back_off() -> None:
    asking = Asking()
    dues = []
    for sequence in range(100, 140):
        fresh = Requests(asking.bench.station)
        fresh.want_sequence(sequence, 10.0)
        dues.append(fresh.next_deadline() - 10.0)
    assert 0.5 * TIMING.nack_s <= min(dues) < max(dues) <= 1.5 * TIMING.nack_s
    assert len(set(dues)) == len(dues)


def test_nothing_is_asked_before_the_back_off_is_over() -> None:
    asking = Asking()
    asking.requests.want_sequence(9, 10.0)
    assert asking.fetches(asking.requests.next_deadline() - 1e-6) == []


def test_what_arrives_within_the_back_off_is_never_asked_for() -> None:
    asking = Asking()
    asking.requests.want_sequence(9, 10.0)
    asking.requests.satisfied(9)
    assert asking.fetches(20.0) == []
    assert asking.requests.asked == 0


def test_numbers_that_are_due_together_are_asked_for_as_ranges_in_one_frame() -> None:
    asking = Asking()
    for sequence in (12, 10, 11, 20):
        asking.requests.want_sequence(sequence, 10.0)
    (fetch,) = asking.fetches(10.0 + 1.5 * TIMING.nack_s)
    assert (fetch.sequences, fetch.ids) == ([(10, 12), (20, 20)], [])


@pytest.mark.parametrize(
    ("numbers", "ranges"),
    [([], []), ([5], [(5, 5)]), ([3, 1, 2], [(1, 3)]), ([1, 2, 4, 6, 7], [(1, 2), (4, 4), (6, 7)])],
)
def test_numbers_become_the_fewest_ranges(numbers: list[int], ranges: list[tuple[int, int]]) -> None:
    assert as_ranges(numbers) == ranges


def test_each_attempt_waits_longer_up_to_a_limit() -> None:
    asking = Asking()
    asking.requests.want_sequence(9, 0.0)
    times = [asking.next_fetches()[0] for _ in range(12)]
    waits = [later - earlier for earlier, later in pairwise(times)]
    for attempt, wait in enumerate(waits):
        mean = min(TIMING.nack_repeat_s * 2**attempt, TIMING.nack_repeat_s_max)
        assert 0.8 * mean <= wait <= 1.2 * mean + 1e-9


def test_attempts_turn_to_one_data_server_after_another_and_backups_come_before_the_primary() -> None:
    asking = Asking(number=2)
    asking.requests.want_sequence(9, 0.0)
    targets = [asking.next_fetches()[1][0].target for _ in range(4)]
    assert targets[0] == 3
    assert set(targets) == {1, 3}


def test_backups_are_asked_before_the_primary_by_every_member() -> None:
    asking = Asking(number=3)
    asking.requests.want_sequence(9, 0.0)
    assert asking.next_fetches()[1][0].target == 2


def test_a_run_of_missing_numbers_is_asked_for_in_few_frames() -> None:
    group = Group().found()
    group.client("C")
    group.client("D")
    group.run(0.3)
    group.drop(lambda hop: hop.target == "D" and hop.source == "C" and hop.name == "Data")
    group.order_and_wait("C", *[b"%d" % place for place in range(30)])
    group.run_until(lambda: len(group["D"].state) == 30)
    assert len(group.frames(Fetch, source="D")) <= 6


def test_hearing_another_ask_for_the_same_holds_ones_own_request_back() -> None:
    asking = Asking()
    asking.requests.want_sequence(9, 10.0)
    asking.requests.want_sequence(30, 10.0)
    asking.requests.overheard(Fetch(3, [(8, 10)], []), 10.001)
    (fetch,) = asking.fetches(10.0 + 1.5 * TIMING.nack_s)
    assert fetch.sequences == [(30, 30)]
    assert asking.requests.suppressed == 1


def test_a_suppressed_request_is_made_all_the_same_if_nothing_comes() -> None:
    asking = Asking()
    asking.requests.want_sequence(9, 10.0)
    asking.requests.overheard(Fetch(3, [(9, 9)], []), 10.001)
    (fetch,) = asking.fetches(10.001 + 1.5 * TIMING.nack_repeat_s)
    assert fetch.sequences == [(9, 9)]


def test_a_batch_without_a_number_is_asked_of_its_sender() -> None:
    asking = Asking(number=2)
    batch = batch_id(1, asking.bench.ledger.state.members[3].origin)  # type: ignore[arg-type]
    asking.requests.want_batch(batch, 0.0)
    _, (fetch,) = asking.next_fetches()
    assert (fetch.target, fetch.ids) == (3, [(batch, 0, 0)])


def test_a_batch_with_an_open_number_is_asked_of_its_sender_and_of_data_servers_in_turn() -> None:
    asking = Asking(number=2)
    origin = asking.bench.ledger.state.members[3].origin
    batch = batch_id(1, origin)  # type: ignore[arg-type]
    asking.bench.ledger.append(Assignment(1, batch))
    asking.requests.want_batch(batch, 0.0)
    targets = [asking.next_fetches()[1][0].target for _ in range(6)]
    assert targets[::2] == [3, 3, 3]
    assert 1 in targets[1::2]


def test_a_batch_that_got_its_final_number_is_asked_for_by_that_number_from_then_on() -> None:
    asking = Asking()
    asking.requests.want_batch(batch_id(1), 0.0)
    asking.bench.fold(numbered(1))
    assert asking.fetches(1.0) == []
    assert asking.requests.describe()["open"] == 0


def test_numbers_that_everybody_may_forget_are_not_asked_for() -> None:
    asking = Asking()
    asking.requests.want_sequence(2, 0.0)
    asking.bench.ledger.collect(3)
    assert asking.fetches(1.0) == []


@pytest.mark.requirement("BUS-8")
def test_the_number_of_open_requests_is_bounded() -> None:
    asking = Asking(budget=Budget(nack_numbers_max=8))
    for sequence in range(1000):
        asking.requests.want_sequence(100 + sequence, 0.0)
    assert asking.requests.describe()["open"] == 32


def test_numbers_that_were_passed_are_forgotten() -> None:
    asking = Asking()
    for sequence in (8, 9, 10):
        asking.requests.want_sequence(sequence, 0.0)
    asking.requests.want_batch(batch_id(5), 0.0)
    asking.requests.forget_sequences_through(9)
    assert asking.requests.describe()["open"] == 2
