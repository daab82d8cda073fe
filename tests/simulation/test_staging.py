"""Jobs that publish in stages, in the simulator: they do all they can do, and their checker objects where it must."""

import types
from collections.abc import Callable

import pytest

from alphorn.testing.book import Book, Receipt
from alphorn.testing.checkers.staged import StagedIsSeenOnce
from alphorn.testing.cluster_plan import SECOND_STAGED_QUEUE, STAGED_QUEUE, make_channel_plan, make_cluster_plan
from alphorn.testing.cluster_run import ClusterRun
from alphorn.testing.staging import Attempt, BatchName, Publication, StagingBook
from alphorn.testing.watch import Violation

BATCH = ("J1", 3)
SEEDS = (3, 4, 5)  # with two jobs each
CHANNEL_SEEDS = (3, 4)


def test_jobs_publish_let_go_and_do_again_under_faults() -> None:
    published = dropped = again = spare = late = 0
    for seed in SEEDS:
        run = ClusterRun(make_cluster_plan(seed))
        result = run.finish()
        assert not result.failure, f"alphorn sim --seed {seed} --kind cluster\n{result.failure}\n{result.details}"
        book = run.cluster.staging_book
        published += len(book.done)
        dropped += book.dropped
        again += sum(len(publications) > 1 for publications in book.batches.values())
        spare += sum(attempt.publication is None for _, attempt in book.staged.values())
        late += book.late
    assert published > 20
    assert min(dropped, again, spare, late) > 0


def test_jobs_meet_moves_of_their_destinations() -> None:
    published = moved = refused = several = 0
    for seed in CHANNEL_SEEDS:
        run = ClusterRun(make_channel_plan(seed))
        result = run.finish()
        assert not result.failure, f"alphorn sim --seed {seed} --kind channels\n{result.failure}\n{result.details}"
        book = run.cluster.staging_book
        published += len(book.done)
        moved += book.moves
        refused += sum(attempt.is_refused for _, attempt in book.staged.values())
        several += sum(len(each.channels) > 1 for asked in book.batches.values() for each in asked)
    assert min(published, moved, several) > 5
    assert refused > 0


def test_somebody_receives_what_jobs_publish() -> None:
    for seed in range(50):
        plan = make_cluster_plan(seed)
        assert STAGED_QUEUE in {reading.destination for client in plan.clients for reading in client.readings}
        assert not set(plan.job_targets) & set(plan.limits.max_lengths)
        readings = [reading for client in make_channel_plan(seed).clients for reading in client.readings]
        assert {STAGED_QUEUE, SECOND_STAGED_QUEUE} <= {reading.destination for reading in readings}


class Bench:
    """A checker, and two publications of one batch: tokens 1 to 3, and 4. Token 5 is of an attempt without a name."""

    def __init__(self, channels: int = 1) -> None:
        self.book, self.staging_book = Book(), StagingBook()
        self.first = self.publish(BATCH, STAGED_QUEUE, 1, 2, 3)
        self.second = self.publish(BATCH, STAGED_QUEUE, 4)
        self._stage(BATCH, STAGED_QUEUE, Attempt(1, 5, [], None), 5)
        self.book.cover(STAGED_QUEUE, 0.0)
        cluster = types.SimpleNamespace(book=self.book, staging_book=self.staging_book, channels=[None] * channels)
        self.checker = StagedIsSeenOnce(cluster)  # type: ignore[arg-type]

    def publish(self, batch: BatchName, destination: str, *tokens: int) -> Publication:
        made = Publication([], False, is_asked=True)
        made.attempts.append(Attempt(0, tokens[0], [], made))
        self.staging_book.batches.setdefault(batch, []).append(made)
        self._stage(batch, destination, made.attempts[0], *tokens)
        return made

    def _stage(self, batch: BatchName, destination: str, attempt: Attempt, *tokens: int) -> None:
        for token in tokens:
            assert self.book.send(destination, b"p", token, 0.0) == token
            self.staging_book.staged[token] = (batch, attempt)
            attempt.tokens.setdefault(destination, []).append(token)

    def receive(self, *pairs: tuple[int, int]) -> None:
        for token, position in pairs:
            self.book.receive(Receipt(STAGED_QUEUE, STAGED_QUEUE, b"c", token, position, 1, b"p", token))


def test_a_whole_publication_is_well_and_counts_as_confirmed() -> None:
    bench = Bench()
    bench.staging_book.done.add(BATCH)
    bench.receive((2, 8), (1, 7), (3, 9), (1, 7))
    bench.checker.finish()
    assert [sent.token for sent in bench.book.confirmed()] == [1, 2, 3]


def test_nothing_at_all_is_well_where_nothing_was_heard() -> None:
    bench = Bench()
    bench.checker.finish()
    assert bench.book.confirmed() == []


def test_what_nobody_had_subscribed_to_is_not_missed() -> None:
    bench = Bench()
    bench.staging_book.done.add(BATCH)
    bench.first.attempts[0].tokens = {"topic:t": [1, 2, 3]}
    bench.checker.finish()
    bench.second.attempts[0].tokens = {"topic:t": [4]}
    bench.book.cover("topic:t/news/", 1.0)
    bench.checker.finish()


def test_on_several_channels_each_destination_may_have_another_publication() -> None:
    bench = Bench(channels=2)
    bench.publish(BATCH, SECOND_STAGED_QUEUE, 6)
    bench.staging_book.done.add(BATCH)
    bench.receive((4, 1))
    bench.book.receive(Receipt(SECOND_STAGED_QUEUE, SECOND_STAGED_QUEUE, b"c", 6, 1, 1, b"p", 6))
    bench.checker.finish()


def test_on_several_channels_a_destination_without_its_part_is_a_violation() -> None:
    bench = Bench(channels=2)
    for publication, tokens in ((bench.first, [6]), (bench.second, [7])):
        assert [bench.book.send(SECOND_STAGED_QUEUE, b"p", token, 0.0) for token in tokens] == tokens
        publication.attempts[0].tokens[SECOND_STAGED_QUEUE] = tokens
    bench.book.cover(SECOND_STAGED_QUEUE, 0.0)
    bench.staging_book.done.add(BATCH)
    bench.receive((4, 1))
    with pytest.raises(Violation, match="nothing of it came"):
        bench.checker.finish()


def test_batches_out_of_their_order_are_a_violation() -> None:
    bench = Bench()
    bench.publish(("J1", 4), STAGED_QUEUE, 6)
    bench.receive((4, 2), (6, 1))
    with pytest.raises(Violation, match=r"batch \('J1', 4\) is in queue:s at 1, and batch 3 behind it"):
        bench.checker.finish()


def nothing_was_seen(bench: Bench) -> None:
    bench.staging_book.done.add(BATCH)


def not_named(bench: Bench) -> None:
    bench.receive((5, 1))


def not_asked_for(bench: Bench) -> None:
    bench.first.is_asked = False
    bench.receive((1, 1))


@pytest.mark.parametrize(
    ("happen", "words"),
    [
        (nothing_was_seen, "was said to be published, and nothing of it came"),
        (not_named, "was seen, and never published"),
        (not_asked_for, "was seen, and never published"),
        (lambda bench: bench.receive((4, 1), (1, 2)), "was published twice"),
        (lambda bench: bench.receive((1, 7), (2, 8)), r"at \[7, 8, None\]"),
        (lambda bench: bench.receive((2, 8), (3, 9)), r"at \[None, 8, 9\]"),
        (lambda bench: bench.receive((1, 7), (2, 8), (3, 10)), r"at \[7, 8, 10\]"),
        (lambda bench: bench.receive((1, 8), (2, 7), (3, 9)), r"at \[8, 7, 9\]"),
    ],
)
def test_whatever_is_not_once_and_all_together_is_a_violation(happen: Callable[[Bench], None], words: str) -> None:
    with pytest.raises(Violation, match=words):
        judge(happen)


def judge(happen: Callable[[Bench], None]) -> None:
    bench = Bench()
    happen(bench)
    bench.checker.finish()
