"""One seed of transfers from start to verdict: transactions over several channels while processes die at every step.

As in the other runs the *safety phase* demands that no checker objects, and after healing the *liveness phase* that
everybody hears the outcome of what it did, that no transaction stays unresolved, and that every unit is in one account.
"""

import random

import msgspec
import xxhash

from alphorn.client.core import State
from alphorn.client.requests import Answer
from alphorn.client_manager.transactions import STEPS as MANAGER_STEPS
from alphorn.message_manager.queue import Queue
from alphorn.model.errors import Error
from alphorn.model.moving_conversation import Move
from alphorn.testing.model_channels import STEPS as REPLICA_STEPS
from alphorn.testing.model_channels import Process
from alphorn.testing.model_cluster import CHANNEL_NAMES, ModelCluster
from alphorn.testing.quoting import QuotingClient
from alphorn.testing.run import Result, judged
from alphorn.testing.spreading import spread
from alphorn.testing.timeline import Timeline
from alphorn.testing.transfers import MessageName, Told, TransferBook, TransferClient, units_of
from alphorn.testing.watch import Violation

CALM_START_S = 2.0
SAFETY_S = (6.0, 15.0)
LIVENESS_S = 90.0
POLL_S = 0.25
DOWN_S = (0.1, 3.0)
FREEZE_S = (0.5, 14.0)  # some longer than transactions wait for their end
STALL_S = (0.2, 8.0)
FAULTS = (
    "kill-manager",
    "kill-primary",
    "kill-client",
    "kill-at-step",
    "kill-primary-at-step",
    "break-streams",
    "freeze-manager",
    "stall-channel",
)
MOVE = "move-account"
MOVES = 4  # how often that stands among the faults to draw from, where accounts are moved


class TransferPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is drawn before a run begins."""

    seed: int
    channels: int
    managers: int
    clients: int
    accounts: int
    units: int
    faults: tuple[str, ...]
    pace_s: float
    safety_s: float
    quotes: bool = False  # beside the transfers a program consumes from a queue of last values (quoting.py)

    def describe(self) -> str:
        """One line for people."""
        return (
            f"seed {self.seed}: transfers of {self.units} units between {self.accounts} accounts on {self.channels} "
            f"channels, {self.managers} Client Managers and {self.clients} clients{' and quotes' * self.quotes}, "
            f"{self.safety_s:.0f} s of "
            f"{' '.join(self.faults)}"
        )


def make_transfer_plan(seed: int) -> TransferPlan:
    """Draws the plan of a seed."""
    stream = random.Random(f"{seed}/transfers")
    channels = stream.choice((1, 2, 2, 3))
    moves = MOVES if channels > 1 and random.Random(f"{seed}/moves").random() < 0.5 else 0
    return TransferPlan(
        seed=seed,
        channels=channels,
        managers=stream.randint(2, 3),
        clients=stream.randint(2, 4),
        accounts=stream.randint(channels, 5),
        units=stream.randint(4, 30),
        faults=(*sorted(stream.sample(FAULTS, stream.randint(3, len(FAULTS)))), *[MOVE] * moves),
        pace_s=stream.choice((0.2, 0.5, 1.0)),
        safety_s=stream.uniform(*SAFETY_S),
        quotes=random.Random(f"{seed}/quotes").random() < 0.5,
    )


def run_transfers(seed: int, *, timeline: Timeline | None = None) -> Result:
    """Runs one seed. Every failure, of a checker or of a machine, is in the result."""
    return TransferRun(make_transfer_plan(seed), timeline).finish()


class TransferRun:
    """A cluster, its clients, and what goes wrong."""

    def __init__(self, plan: TransferPlan, timeline: Timeline | None) -> None:
        self.plan = plan
        self.result = Result(seed=plan.seed, kind="transfers")
        self._timeline = timeline
        self._hash = xxhash.xxh3_128(str(plan.seed).encode())
        self._stream = random.Random(f"{plan.seed}/run")
        self.book = TransferBook()
        self.cluster = ModelCluster(
            self._stream, channels=plan.channels, managers=plan.managers, record=self._hash.update, tell=self._tell
        )
        self.accounts = accounts = spread("queue:account", plan.accounts, plan.channels)
        self.clients = [
            TransferClient(
                f"C{number + 1}",
                place=self.cluster.place_of(),
                accounts=accounts,
                managers=self.cluster.managers,
                streams=self.cluster.streams,
                stream=random.Random(f"{plan.seed}/C{number}"),
                book=self.book,
                tell=self._tell,
            )
            for number in range(plan.clients)
        ]
        self.quoting = self._make_quoting() if plan.quotes else None
        self._is_healed = False

    def _make_quoting(self) -> QuotingClient:
        return QuotingClient(
            place=self.cluster.place_of(),
            managers=self.cluster.managers,
            streams=self.cluster.streams,
            stream=random.Random(f"{self.plan.seed}/Q1"),
            tell=self._tell,
        )

    def finish(self) -> Result:
        """Runs to the end and gives the verdict."""
        with judged(self.result):
            self._run_safety()
            self._run_liveness()
            self._check_replicas()
            self.book.check(self._find_units(), self.plan.units)
        self._sum_up()
        return self.result

    def _run_safety(self) -> None:
        schedule = self.cluster.schedule
        self.cluster.start()
        for client in self.clients:
            client.is_calm = True
            client.start()
        schedule.run_until(CALM_START_S)
        if not self.clients[0].fund(self.plan.units):
            raise Violation("progress at the start", "the accounts cannot be funded")
        schedule.run_until(2 * CALM_START_S)
        if self.book.counts[Told.DONE] != 1:
            raise Violation("progress at the start", "the accounts were not funded")
        for client in self.clients:
            client.is_calm = False
        if self.quoting is not None:
            self.quoting.start()
        schedule.after(self.plan.pace_s, self._disturb)
        schedule.run_until(2 * CALM_START_S + self.plan.safety_s)

    def _run_liveness(self) -> None:
        self._is_healed = True
        schedule = self.cluster.schedule
        start = schedule.now
        for channel in self.cluster.channels:
            channel.stalled_until = 0.0
        for process in self.cluster.processes:
            process.dies_at = ""
        while True:
            self.cluster.start()
            schedule.run_until(schedule.now + POLL_S)
            for client in self._programs:
                client.is_calm = True
            unfinished = self._find_unfinished()
            if not unfinished:
                break
            if schedule.now - start > LIVENESS_S:
                raise Violation("progress after healing", unfinished)
        self.result.healed_s = schedule.now - start

    @property
    def _programs(self) -> list[TransferClient | QuotingClient]:
        return [*self.clients, *([] if self.quoting is None else [self.quoting])]

    def _find_unfinished(self) -> str:
        for client in self._programs:
            if unfinished := client.find_unfinished():
                return unfinished
        for channel in self.cluster.channels:
            if channel.primary is None:
                return f"channel {channel.number} has no primary"
            for replica in channel.replicas:
                if replica.applied < len(channel.log):
                    return f"{replica.name} has applied {replica.applied} of {len(channel.log)}"
                if moving := replica.engine.moves.under_way():
                    return f"{replica.name} has destinations on their way: {sorted(moving)}"
                if replica.engine.unresolved:
                    return f"{replica.name} has {len(replica.engine.unresolved)} unresolved transactions"
        return ""

    def _check_replicas(self) -> None:
        for channel in self.cluster.channels:
            states = {b"".join(replica.engine.checkpoint()) for replica in channel.replicas}
            if len(states) > 1:
                raise Violation("engines are equal", f"the replicas of channel {channel.number} differ in the end")

    def _find_units(self) -> list[tuple[str, MessageName, int]]:
        found = []
        for channel in self.cluster.channels:
            assert channel.primary is not None
            for queue in channel.primary.engine.destinations.values():
                if isinstance(queue, Queue) and str(queue.destination) in self.accounts:
                    units = units_of(queue, lambda sequence, log=channel.log: log[sequence - 1][2])  # type: ignore[misc]
                    found += [(str(queue.destination), *unit) for unit in units]
        return found

    # --- what goes wrong ---

    def _disturb(self) -> None:
        if self._is_healed:
            return
        fault = self._stream.choice(self.plan.faults)
        details = self._inject(fault)
        if details:
            self._tell("--", f"FAULT    {fault}: {details}")
            self.result.faults[fault] = self.result.faults.get(fault, 0) + 1
        self.cluster.schedule.after(self._stream.expovariate(1.0) * self.plan.pace_s, self._disturb)

    def _inject(self, fault: str) -> str:
        stream = self._stream
        manager, channel = stream.choice(self.cluster.managers), stream.choice(self.cluster.channels)
        match fault:
            case "kill-manager":
                return self._kill(manager)
            case "kill-primary":
                return "" if channel.primary is None else self._kill(channel.primary)
            case "kill-client":
                client = stream.choice(self.clients)
                client.crash()
                return client.name
            case "kill-at-step":
                manager.dies_at = stream.choice(MANAGER_STEPS)
                self._watch(manager)
                return f"{manager.name} at {manager.dies_at}"
            case "kill-primary-at-step":
                for replica in channel.replicas:
                    replica.dies_at = stream.choice(REPLICA_STEPS)
                    self._watch(replica)
                return f"channel {channel.number}"
            case "move-account":
                return self._move(stream.choice(self.clients), stream.choice(self.accounts), channel.number)
            case "break-streams":
                count = self.cluster.streams.break_some(stream.choice((0.2, 0.5, 1.0)))
                return f"{count} streams" if count else ""
            case "freeze-manager":
                manager.freeze(stream.uniform(*FREEZE_S))
                return manager.name
            case _:
                channel.stalled_until = self.cluster.schedule.now + stream.uniform(*STALL_S)
                return f"channel {channel.number}"

    def _move(self, client: TransferClient, account: str, channel: int) -> str:
        if client.core.state is not State.OPEN:
            return ""
        name = CHANNEL_NAMES[channel]
        client.core.request(lambda request: Move(request, account, name), self._on_moved)
        return f"{account} to {name}, asked by {client.name}"

    def _on_moved(self, answer: Answer | Error) -> None:
        if not isinstance(answer, Error):
            self.result.faults["moved"] = self.result.faults.get("moved", 0) + 1

    def _kill(self, process: Process) -> str:
        if not process.is_up:
            return ""
        process.crash("is killed")
        self._watch(process)
        return process.name

    def _watch(self, process: Process) -> None:
        """Starts a process again some time after it died."""
        later_s = self._stream.uniform(*DOWN_S)
        if process.is_up and not self._is_healed:
            self.cluster.schedule.after(later_s, self._watch, process)
        elif not process.is_up:
            self.cluster.schedule.after(later_s, self._restart, process)

    @staticmethod
    def _restart(process: Process) -> None:
        if not process.is_up:
            process.start()  # type: ignore[attr-defined]

    def _tell(self, name: str, details: str) -> None:
        self._hash.update(f"{self.cluster.schedule.now} {name} {details}".encode())
        if self._timeline is not None:
            self._timeline.note(self.cluster.schedule.now, name, details)

    def _sum_up(self) -> None:
        result, counts = self.result, self.book.counts
        result.virtual_s, result.events = self.cluster.schedule.now, self.cluster.schedule.events
        result.committed = sum(len(channel.log) for channel in self.cluster.channels)
        result.transactions, result.receipts = counts[Told.DONE], self.book.receipts
        result.refused, result.unknown = counts[Told.ROLLED_BACK], counts[Told.UNKNOWN]
        result.trace_hash = self._hash.hexdigest()
