"""Many seeds on every core, and what they add up to.

Each seed can be run twice, which must give the same trace: a difference is a failure of its own. Worker processes are
started fresh with hash randomisation on, so that a dependence on the order of hashed strings shows between them.
"""

import multiprocessing
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from multiprocessing.pool import Pool

import msgspec

from alphorn.testing.kinds import Kind, run_seed
from alphorn.testing.mutants import MUTANTS, find_mutant
from alphorn.testing.run import Result

TWICE_EVERY = 10  # one seed in so many is run a second time
CHUNK = 4


class Totals(msgspec.Struct, kw_only=True):
    """A campaign so far."""

    seeds: int = 0
    clusters: int = 0  # of these seeds
    transfers: int = 0  # of these seeds
    servers: int = 0  # of these seeds
    transactions: int = 0
    failures: list[Result] = msgspec.field(default_factory=list)
    virtual_s: float = 0.0
    events: int = 0
    committed: int = 0
    ordered: int = 0
    unknown: int = 0
    messages: int = 0
    faults: dict[str, int] = msgspec.field(default_factory=dict)
    healed_s_max: float = 0.0
    replayed: int = 0
    elapsed_s: float = 0.0

    def add(self, result: Result) -> None:
        """Counts one more seed."""
        self.seeds += 1
        self.clusters += result.kind in ("cluster", "channels")
        self.transfers += result.kind == "transfers"
        self.servers += result.kind == "servers"
        self.transactions += result.transactions
        self.messages += result.messages
        self.virtual_s += result.virtual_s
        self.events += result.events
        self.committed += result.committed
        self.ordered += result.ordered
        self.unknown += result.unknown
        self.healed_s_max = max(self.healed_s_max, result.healed_s)
        self.replayed += result.seed % TWICE_EVERY == 0
        for fault, count in result.faults.items():
            self.faults[fault] = self.faults.get(fault, 0) + count
        if result.failure:
            self.failures.append(result)


def run_campaign(
    seeds: Iterable[int],
    *,
    jobs: int = 0,
    mutant: str = "",
    kind: Kind = Kind.ALL,
    on_result: Callable[[Totals, Result], bool] = lambda totals, result: False,
) -> Totals:
    """Runs all seeds, or until `on_result` says that it is enough."""
    totals = Totals()
    started = time.perf_counter()
    for result in _results(list(seeds), jobs or multiprocessing.cpu_count(), mutant, kind):
        totals.add(result)
        totals.elapsed_s = time.perf_counter() - started
        if on_result(totals, result):
            break
    return totals


def run_checked(seed: int, mutant: str = "", kind: Kind = Kind.ALL) -> Result:
    """Runs one seed, now and then twice, and compares the traces."""
    chosen = find_mutant(mutant) if mutant else None
    with chosen.apply() if chosen else nullcontext():
        result = run_seed(seed, kind)
        if seed % TWICE_EVERY == 0 and not result.failure:
            again = run_seed(seed, kind)
            if again.trace_hash != result.trace_hash:
                result.checker = "one seed, one trace"
                result.failure = f"{result.checker}: {result.trace_hash} and then {again.trace_hash}"
    return result


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one mutant: the first seed that shows it and the checker that objects, or neither."""

    mutant: str
    description: str
    seeds: int  # how many were tried
    seed: int | None = None
    checker: str = ""
    failure: str = ""

    @property
    def is_caught(self) -> bool:
        """Whether any checker objected."""
        return self.seed is not None


def hunt(name: str, seeds: Iterable[int]) -> Verdict:
    """Runs a mutant through seeds, in order, until one shows it: fails with it and is well without it."""
    mutant = find_mutant(name)
    kind = Kind(mutant.kind)
    tried = 0
    for tried, seed in enumerate(seeds, 1):
        with mutant.apply():
            result = run_seed(seed, kind)
        if result.failure and not run_seed(seed, kind).failure:
            return Verdict(
                mutant=name,
                description=mutant.description,
                seeds=tried,
                seed=seed,
                checker=result.checker,
                failure=result.failure,
            )
    return Verdict(mutant=name, description=mutant.description, seeds=tried)


def hunt_all(seeds: Iterable[int], *, jobs: int = 0) -> Iterator[Verdict]:
    """Hunts every mutant, one process each at a time; gives each verdict as it comes."""
    names = [mutant.name for mutant in MUTANTS]
    work = partial(hunt, seeds=list(seeds))
    if jobs == 1:
        yield from map(work, names)
        return
    with _pool(jobs or multiprocessing.cpu_count()) as pool:
        yield from pool.imap_unordered(work, names)


def _results(seeds: list[int], jobs: int, mutant: str, kind: Kind) -> Iterator[Result]:
    work = partial(run_checked, mutant=mutant, kind=kind)
    if jobs == 1:
        yield from map(work, seeds)
        return
    with _pool(jobs) as pool:
        yield from pool.imap_unordered(work, seeds, chunksize=CHUNK)


@contextmanager
def _pool(jobs: int) -> Iterator[Pool]:
    """Workers that do not hear Ctrl-C: it is for this process, which ends them. For the main thread only."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # they inherit it, so that not even their start is disturbed
    try:
        pool = multiprocessing.get_context("spawn").Pool(jobs)
    finally:
        signal.signal(signal.SIGINT, before)
    with pool:
        yield pool
