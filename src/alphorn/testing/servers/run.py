"""One seed of message servers from start to verdict.

As in the other runs the *safety phase* demands that no checker objects, and after healing the *liveness phase* that all
is well again: everybody has joined, everything is answered, and what is said now reaches everybody. Then some chapters
follow, in each of which one thing goes wrong while all else is well (chapters.py).
"""

import random

import xxhash

from alphorn.testing.run import Result, judged
from alphorn.testing.servers.bounds import HoldsNoMore, PeersAreUnderstood
from alphorn.testing.servers.chapters import Chapters
from alphorn.testing.servers.checkers import (
    AcknowledgedIsTaken,
    AnswersAreTrue,
    EventsAreToldOnce,
    GivenOnceInOrder,
    NamesAreOwned,
    NothingIsMissed,
    SynchronisedHasAll,
)
from alphorn.testing.servers.cluster import NOTICES_MAX, ServersCluster
from alphorn.testing.servers.faults import ServersNemesis
from alphorn.testing.servers.frame_text import describe_frame
from alphorn.testing.servers.once import LAPSE_S, RunsOnce
from alphorn.testing.servers.plan import ServersPlan, make_servers_plan
from alphorn.testing.timeline import Timeline

CALM_START_S = 2.0
LOOK_S = 0.1
OUTBOX_MAX = 50  # messages of one process that wait, below which it is never told to wait


def run_servers(seed: int, *, timeline: Timeline | None = None) -> Result:
    """Runs one seed. Every failure, of a checker or of a machine, is in the result."""
    return ServersRun(make_servers_plan(seed), timeline).finish()


class ServersRun:
    """A cluster, its programs, and what goes wrong."""

    def __init__(self, plan: ServersPlan, timeline: Timeline | None) -> None:
        self.plan = plan
        self.result = Result(seed=plan.seed, kind="servers")
        self._timeline = timeline
        self._hash = xxhash.xxh3_128(str(plan.seed).encode())
        self._stream = random.Random(f"{plan.seed}/run")
        self.cluster = ServersCluster(plan, self._stream, record=self._hash.update, tell=self._tell)
        facts = self.cluster.facts
        self.checkers = (
            GivenOnceInOrder(facts),
            AcknowledgedIsTaken(facts, is_narrow=plan.is_narrow),
            NothingIsMissed(facts, is_narrow=plan.is_narrow),
            SynchronisedHasAll(facts, is_narrow=plan.is_narrow),
            EventsAreToldOnce(facts),
            AnswersAreTrue(facts, nodes=frozenset(self.cluster.nodes), limit=OUTBOX_MAX),
            NamesAreOwned(facts),
            RunsOnce(facts),
            HoldsNoMore(self.cluster),
            PeersAreUnderstood(self.cluster),
        )
        self.nemesis = ServersNemesis(self.cluster)
        self.chapters = Chapters(self.cluster)
        if timeline is not None:
            self.cluster.streams.said.append(self._on_said)

    def finish(self) -> Result:
        """Runs to the end and gives the verdict."""
        with judged(self.result):
            self._run_safety()
            start = self.cluster.schedule.now
            self.nemesis.heal()
            self.cluster.start()
            self.chapters.settle()
            self.result.healed_s = self.cluster.schedule.now - start
            self.chapters.speak()
            for chapter in self.plan.chapters:
                self.chapters.run(chapter)
            for callback in self.cluster.facts.watch.finished:
                callback()
        self._sum_up()
        return self.result

    def _run_safety(self) -> None:
        cluster = self.cluster
        cluster.start()
        cluster.schedule.after(LOOK_S, self._look)
        cluster.schedule.run_until(CALM_START_S)
        for program in cluster.programs:
            program.is_calm = False
        self._happen_later()
        self.nemesis.start()
        cluster.schedule.run_until(CALM_START_S + self.plan.safety_s)

    def _look(self) -> None:
        self.cluster.facts.look(LAPSE_S)
        self.cluster.schedule.after(LOOK_S, self._look)

    def _happen_later(self) -> None:
        self.cluster.schedule.after(self._stream.expovariate(1.0) * self.plan.occurrence_s, self._happen)

    def _happen(self) -> None:
        up = [worker for worker in self.cluster.workers if worker.is_up]
        if self.cluster.schedule.now > CALM_START_S + self.plan.safety_s:
            return
        if up:
            self.cluster.happen(self._stream.sample(up, min(len(up), self._stream.randint(1, NOTICES_MAX))))
        self._happen_later()

    def _tell(self, name: str, details: str) -> None:
        self._hash.update(f"{self.cluster.schedule.now} {name} {details}".encode())
        if self._timeline is not None:
            self._timeline.note(self.cluster.schedule.now, name, details)

    def _on_said(self, speaker: str, listener: str, data: bytes | None) -> None:
        assert self._timeline is not None
        names = {server.name for server in self.cluster.servers}
        self._timeline.note(
            self.cluster.schedule.now,
            speaker,
            f"say      {describe_frame(data, is_server=speaker in names)} → {listener}",
        )

    def _sum_up(self) -> None:
        result, facts, schedule = self.result, self.cluster.facts, self.cluster.schedule
        result.virtual_s, result.events = schedule.now, schedule.events
        result.messages = sum(saying.is_acknowledged for saying in facts.sayings)
        result.unknown = sum(saying.error == "UnknownOutcome" for saying in facts.sayings)
        result.refused = sum(bool(saying.error) for saying in facts.sayings) - result.unknown
        result.receipts = sum(len(saying.given) for saying in facts.sayings)
        result.faults = dict(self.nemesis.counts)
        for chapter in self.plan.chapters:
            result.faults[chapter] = result.faults.get(chapter, 0) + 1
        result.trace_hash = self._hash.hexdigest()
