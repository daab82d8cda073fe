"""Transfers between accounts on real processes that are killed at every step of a transaction.

Accounts are queues on three channels; every unit of money is a message. Programs move up to two units in one
transaction, many of them from one channel to another. At each crash point the node that takes the step kills itself,
again and again, while the transfers go on; it is started again each time. In the end every unit must be in exactly one
account.
"""

import contextlib
import random
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec

from alphorn.client.blocking.connection import Connection
from alphorn.client_manager.transactions import STEPS
from alphorn.io.crash_points import PRIMARY_STEPS
from alphorn.model.errors import Error, TransactionRolledBack, Unavailable, UnknownOutcome
from alphorn.testing.clusters import Cluster, cluster
from alphorn.testing.spreading import spread

CRASH_POINTS = (*STEPS, *PRIMARY_STEPS)
CHANNELS = 3
ACCOUNTS = tuple(spread("queue:account", 6, CHANNELS))  # two on each channel
UNITS = 60
WORKERS = 3
KILLS = 10  # at each crash point
RECEIVE_S = 0.1
PATIENCE = 5  # times as many transfers as asked for, before somebody must have died
ROLL_BACK_SHARE = 0.05
NEAR_SHARE = 0.4  # of transactions that concern one channel only
LOOK_S = 0.02
RESOLVED_S = 60.0  # above what a transaction in doubt may take

Step = Callable[[str], None]


class TransferChaosResult(msgspec.Struct, kw_only=True):
    """What was done and what was found."""

    committed: dict[str, int] = msgspec.field(default_factory=dict)  # by crash point
    rolled_back: int = 0
    unknown: int = 0
    kills: dict[str, int] = msgspec.field(default_factory=dict)
    faults: list[str] = msgspec.field(default_factory=list)  # promises that were broken; must be empty


class Teller:
    """One program: moves units for as long as it is told to."""

    def __init__(self, running: Cluster, seed: int) -> None:
        self.committed = self.rolled_back = self.unknown = 0
        self.failure = ""
        self._cluster = running
        self._random = random.Random(seed)
        self._is_ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"teller {seed}", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Rolls back what is open, and ends."""
        self._is_ending.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_ending.is_set():
            try:
                with self._cluster.connect(connect_timeout=RESOLVED_S) as connection:
                    self._work(connection)
            except Error as error:
                self.failure = f"a program was refused: {type(error).__name__}: {error}"
                return

    def _work(self, connection: Connection) -> None:
        session = connection.session(transacted=True)
        producer = session.producer()
        consumers = [session.consumer(account, prefetch=2) for account in ACCOUNTS]
        while not self._is_ending.is_set():
            is_near = self._random.random() < NEAR_SHARE
            for consumer in self._random.sample(consumers, 1 if is_near else 2):
                message = consumer.receive(timeout=RECEIVE_S)
                if message is not None:
                    target = message.destination if is_near else self._random.choice(ACCOUNTS)
                    producer.send(message.body, destination=target)
            if self._random.random() < ROLL_BACK_SHARE:
                session.rollback()
                continue
            try:
                session.commit()
                self.committed += 1
            except TransactionRolledBack:
                self.rolled_back += 1
            except UnknownOutcome:
                self.unknown += 1


def run_transfers(
    directory: Path,
    *,
    transfers: int,
    points: Sequence[str] = CRASH_POINTS,
    kills: int = KILLS,
    seed: int = 0,
    step: Step = lambda point: None,
) -> TransferChaosResult:
    """So many transfers at each crash point, on a cluster of three channels."""
    result = TransferChaosResult()
    with cluster(client_managers=2, channels=CHANNELS, directory=directory) as running:
        _fund(running)
        for number, point in enumerate(points):
            tellers = [Teller(running, seed + WORKERS * number + worker) for worker in range(WORKERS)]
            try:
                _kill_at(running, tellers, point, transfers, kills, result)
            finally:
                for teller in tellers:
                    teller.end()
            result.committed[point] = sum(teller.committed for teller in tellers)
            result.rolled_back += sum(teller.rolled_back for teller in tellers)
            result.unknown += sum(teller.unknown for teller in tellers)
            result.faults += [teller.failure for teller in tellers if teller.failure]
            _check(running, point, result)
            step(point)
    return result


def _fund(running: Cluster) -> None:
    with running.connect() as connection:
        session = connection.session(transacted=True)
        producer = session.producer()
        for unit in range(UNITS):
            producer.send(unit, destination=ACCOUNTS[unit % len(ACCOUNTS)])
        session.commit()


def _kill_at(
    running: Cluster, tellers: list[Teller], point: str, transfers: int, kills: int, result: TransferChaosResult
) -> None:
    """Lets nodes die at this point until the transfers are done and somebody died often enough."""
    names = running.client_managers if point in STEPS else running.message_managers
    pause = max(1, transfers // (8 * kills))  # steps of one node before it dies: no node takes all of them
    killed = 0
    _arm(running, names, point, pause)
    while (done := sum(teller.committed for teller in tellers)) < transfers or killed < kills:
        if done > PATIENCE * transfers or all(teller.failure for teller in tellers):
            result.faults.append(f"{killed} of {kills} nodes died at {point} in {done} transfers")
            break
        if not all(running.nodes[name] for name in names):
            killed += _mend(running, names, point)
            result.kills[point] = killed
            _arm(running, names, point, pause if killed < kills else 0)
        time.sleep(LOOK_S)
    _mend(running, names, point)


def _arm(running: Cluster, names: list[str], point: str, count: int) -> None:
    for name in names:
        with contextlib.suppress(Unavailable):  # it died just now
            running.die_at(name, point, count)


def _mend(running: Cluster, names: list[str], point: str) -> int:
    """Lets the others live, and starts again who died, be it meanwhile; gives how many."""
    _arm(running, names, point, 0)
    dead = [name for name in names if not running.nodes[name]]
    for name in dead:
        running.restart(name)
    running.wait_in_sync()
    return len(dead)


def _check(running: Cluster, point: str, result: TransferChaosResult) -> None:
    """Every unit is in one account, and no transaction is in doubt."""
    deadline = time.monotonic() + RESOLVED_S
    while unresolved := _unresolved(running):
        if time.monotonic() > deadline:
            result.faults.append(f"{unresolved} transactions are in doubt {RESOLVED_S:.0f} s after {point}")
            return
        time.sleep(LOOK_S)
    found: list[Any] = []
    with running.connect() as connection:
        session = connection.session()
        for account in ACCOUNTS:
            found += [message.body for message in session.browser(account)]
    if sorted(found) != list(range(UNITS)):
        lost = sorted(set(range(UNITS)) - set(found))
        made = sorted({unit for unit in found if found.count(unit) > 1})
        result.faults.append(f"after {point} units {lost} are in no account and {made} in two")


def _unresolved(running: Cluster) -> int:
    states = [cast(Any, running.describe(name)) for name in running.message_managers]
    return sum(
        state["message_manager"]["engine"]["transactions"]
        for node in states
        for state in node.values()
        if "message_manager" in state
    )
