"""Faults of a whole cluster under load: every kind of node killed, frozen and restarted, and all of them at once.

Producers and consumers (traffic.py) go on all the time and keep an account. Every fault waits until the cluster has
healed before the next one, so that each is known by its own effect. Where one node is lost, service must go on without
it: it is started again only after every flow has received something new.
"""

import enum
import random
import signal
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec

from alphorn.model.errors import Misuse, Unavailable
from alphorn.testing.clusters import Cluster, cluster
from alphorn.testing.traffic import Shape, Traffic
from alphorn.testing.traffic_account import TrafficResult

CLIENT_MANAGERS = 2
CHECKPOINT_INTERVAL = 512  # small, so that backups that come back need checkpoints and retained entries
PAUSE_S_MAX = 3.0
LOOK_S = 0.02  # between two looks at a cluster that is to become empty
EMPTY_S = 60.0
BETWEEN_S = 0.3  # of undisturbed traffic before a fault

Step = Callable[[str, float], None]


class ClusterFault(enum.StrEnum):
    """What is done to the cluster."""

    KILL_PRIMARY = "kill -9 primary"
    KILL_BACKUP = "kill -9 backup"
    KILL_CLIENT_MANAGER = "kill -9 Client Manager"
    KILL_BOTH = "kill -9 primary and Client Manager"
    KILL_MESSAGE_MANAGERS = "kill -9 all Message Managers"
    KILL_ALL = "kill -9 all at once"
    FREEZE_PRIMARY = "freeze primary"
    FREEZE_BACKUP = "freeze backup"
    FREEZE_CLIENT_MANAGER = "freeze Client Manager"
    RESTART_PRIMARY = "restart primary in good order"
    RESTART_BACKUP = "restart backup in good order"
    RESTART_CLIENT_MANAGER = "restart Client Manager in good order"


SINGLE_KILLS = (ClusterFault.KILL_PRIMARY, ClusterFault.KILL_BACKUP, ClusterFault.KILL_CLIENT_MANAGER)
FREEZES = (ClusterFault.FREEZE_PRIMARY, ClusterFault.FREEZE_BACKUP, ClusterFault.FREEZE_CLIENT_MANAGER)
_STOPS = (ClusterFault.RESTART_PRIMARY, ClusterFault.RESTART_BACKUP, ClusterFault.RESTART_CLIENT_MANAGER)


class ClusterChaosResult(msgspec.Struct, frozen=True, kw_only=True):
    """What was done, how long deliveries stood still, and what was found."""

    injected: dict[str, int]
    gaps_s: dict[str, list[float]]  # by fault: the longest time without a delivery in any flow, for each time
    traffic: TrafficResult
    faults: list[str]  # promises that were broken; must be empty

    def gap_s(self, fault: str) -> tuple[float, float]:
        """Median and longest."""
        times = self.gaps_s.get(fault) or [0.0]
        return statistics.median(times), max(times)


class ClusterChaos:
    """A running cluster with traffic. `step` is called after each fault with its name and the gap in deliveries."""

    def __init__(self, running: Cluster, shape: Shape, *, seed: int = 0, step: Step | None = None) -> None:
        self.cluster = running
        self.traffic = Traffic(running.url, shape)
        self._random = random.Random(seed)
        self._step = step or (lambda fault, gap_s: None)
        self._injected: dict[str, int] = {}
        self._gaps_s: dict[str, list[float]] = {}

    def begin(self) -> None:
        """Starts the traffic."""
        self.traffic.start()

    def inject(self, fault: ClusterFault, *, pause_s: float = 1.0) -> float:
        """One fault; waits until the cluster has healed, and gives the longest gap in deliveries."""
        self._injected[fault] = self._injected.get(fault, 0) + 1
        self.traffic.until_all_receive()
        time.sleep(BETWEEN_S)
        victims = self._victims(fault)
        self.cluster.wait_in_sync()  # last of all: a machine that was slow meanwhile may have cost a copy
        began = time.monotonic()
        if fault in FREEZES:
            self._freeze(victims, pause_s)
        elif fault in _STOPS:
            for name in dict.fromkeys(victims):
                self.cluster.restart(name)
        else:
            self.cluster.kill_together(victims)
            if fault in SINGLE_KILLS:
                self.traffic.until_all_receive()
            self.cluster.start_together(victims)
        self._heal(fault, victims)
        gap_s = self.traffic.account.longest_gap(began, time.monotonic())
        self._gaps_s.setdefault(fault, []).append(gap_s)
        self._step(fault, gap_s)
        return gap_s

    def finish(self) -> ClusterChaosResult:
        """Ends the traffic, lets consumers receive the rest, and sees that nothing consumed is still there."""
        self.cluster.wait_in_sync()
        traffic = self.traffic.finish()
        faults = list(traffic.faults)
        if left := self._leftovers():
            faults.append(f"messages that were acknowledged are still there: {left}")
        return ClusterChaosResult(injected=self._injected, gaps_s=self._gaps_s, traffic=traffic, faults=faults)

    def abort(self, reason: str) -> ClusterChaosResult:
        """The cluster did not heal: that is a broken promise too."""
        traffic = self.traffic.abandon()
        faults = [reason, *traffic.faults]
        return ClusterChaosResult(injected=self._injected, gaps_s=self._gaps_s, traffic=traffic, faults=faults)

    def _victims(self, fault: ClusterFault) -> list[str]:
        primary = self.cluster.primary()
        backups = [name for name in self.cluster.message_managers if name != primary]
        client_manager = self._random.choice(self.cluster.client_managers)
        match fault:
            case ClusterFault.KILL_ALL:
                return list(self.cluster.nodes)
            case ClusterFault.KILL_MESSAGE_MANAGERS:
                return self.cluster.message_managers
            case ClusterFault.KILL_BOTH:
                return [primary, client_manager]
            case ClusterFault.KILL_PRIMARY | ClusterFault.FREEZE_PRIMARY | ClusterFault.RESTART_PRIMARY:
                return [primary]
            case ClusterFault.KILL_BACKUP | ClusterFault.FREEZE_BACKUP | ClusterFault.RESTART_BACKUP:
                return [self._random.choice(backups)]
            case _:
                return [client_manager]

    def _freeze(self, victims: list[str], pause_s: float) -> None:
        for name in victims:
            self.cluster.kill(name, signal.SIGSTOP)
        time.sleep(pause_s)
        for name in victims:
            self.cluster.kill(name, signal.SIGCONT)

    def _heal(self, fault: ClusterFault, victims: list[str]) -> None:
        """Everything is up and every flow goes on. Only a Client Manager that slept too long may have to start anew.

        Together, any node that is frozen may be one.
        """
        try:
            self.cluster.wait()
            self.traffic.until_all_receive()
        finally:
            for name, how in self.cluster.endings.items():
                is_allowed = fault in FREEZES and self._is_client_manager(name) and self._is_among(name, victims)
                if not is_allowed:
                    self.traffic.account.blame(f"after {fault}: {name} {how}")
        self.cluster.start_together(list(self.cluster.endings))

    def _is_client_manager(self, name: str) -> bool:
        return bool(set(self.cluster.beside(name)) & set(self.cluster.client_managers))

    def _is_among(self, name: str, victims: list[str]) -> bool:
        return bool(set(self.cluster.beside(name)) & set(victims))

    def _leftovers(self) -> dict[str, int]:
        deadline = time.monotonic() + EMPTY_S
        while True:
            destinations = self.cluster.status()["destinations"]
            left = {each["name"]: each["depth"] for each in destinations if each["depth"]}
            if not left or time.monotonic() > deadline:
                return left
            time.sleep(LOOK_S)


def kill_in_turn(
    directory: Path, *, kills: int, step: Step | None = None, per_s: float = 100.0, together: bool = False
) -> ClusterChaosResult:
    """kill -9 of a primary, a backup, a Client Manager, and so on, so many times; at last of all nodes at once."""
    faults = [SINGLE_KILLS[number % len(SINGLE_KILLS)] for number in range(kills)]
    every = [(fault, 0.0) for fault in (*faults, ClusterFault.KILL_ALL)]
    return _run(directory, every, Shape(per_s=per_s), seed=0, step=step, together=together)


def mix_cluster_faults(
    directory: Path,
    *,
    seconds: float,
    seed: int,
    step: Step | None = None,
    per_s: float = 100.0,
    together: bool = False,
) -> ClusterChaosResult:
    """Faults of every kind, one after the other, for so long."""
    faults = _draw(random.Random(seed), seconds)
    return _run(directory, faults, Shape(per_s=per_s), seed=seed, step=step, together=together)


def kill_primaries_of_cluster(
    directory: Path, *, kills: int, per_s: float, step: Step | None = None
) -> ClusterChaosResult:
    """kill -9 of the primary so many times, under one producer and one consumer of one queue."""
    shape = Shape(queues=1, shared_queues=0, topics=0, per_s=per_s)
    return _run(directory, [(ClusterFault.KILL_PRIMARY, 0.0)] * kills, shape, seed=0, step=step)


def _draw(drawn: random.Random, seconds: float) -> Iterator[tuple[ClusterFault, float]]:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield drawn.choice(list(ClusterFault)), drawn.uniform(0.05, PAUSE_S_MAX)


def _run(
    directory: Path,
    faults: Iterable[tuple[ClusterFault, float]],
    shape: Shape,
    *,
    seed: int,
    step: Step | None,
    together: bool = False,
) -> ClusterChaosResult:
    with cluster(
        client_managers=CLIENT_MANAGERS,
        directory=directory,
        checkpoint_interval=CHECKPOINT_INTERVAL,
        together=together,
    ) as running:
        chaos = ClusterChaos(running, shape, seed=seed, step=step)
        try:
            chaos.begin()
            for fault, pause_s in faults:
                chaos.inject(fault, pause_s=pause_s)
            return chaos.finish()
        except (Unavailable, Misuse) as error:
            return chaos.abort(str(error))
