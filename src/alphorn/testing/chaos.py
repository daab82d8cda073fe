"""Faults of real processes, under load: kill -9, freezing, restarts, and all at once; then the account is checked.

Every fault waits until the group has healed before the next one, so that each is known by its own effect. Loss on the
network is left to the simulator, and to tests in network namespaces: on loopback it would strike others too.
"""

import asyncio
import enum
import random
import signal
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec

from alphorn.io.control import Described, StartLoad
from alphorn.model.errors import Unavailable
from alphorn.testing.account import Account
from alphorn.testing.processes import DEADLINE_S, GroupShape, MemberProcess, ProcessGroup

BATCH_BYTES = 4096
BATCHES_PER_S = 400.0
PAUSE_S_MAX = 3.0
NEVER = 1 << 30  # a checkpoint interval that keeps the whole log
MIXED_INTERVAL = 512

Step = Callable[[str], None]


class Fault(enum.StrEnum):
    """What is done to the group."""

    KILL_PRIMARY = "kill -9 primary"
    KILL_BACKUP = "kill -9 backup"
    KILL_CLIENT = "kill -9 client"
    KILL_SERVERS = "kill -9 all servers"
    KILL_ALL = "kill -9 all at once"
    FREEZE_PRIMARY = "freeze primary"
    FREEZE_BACKUP = "freeze backup"
    RESTART_PRIMARY = "restart primary in good order"
    RESTART_BACKUP = "restart backup in good order"


_OF_PRIMARY = (Fault.KILL_PRIMARY, Fault.FREEZE_PRIMARY, Fault.RESTART_PRIMARY)


class ChaosResult(msgspec.Struct, frozen=True, kw_only=True):
    """What was done, how long ordering stood still, and what was found."""

    injected: dict[str, int]
    outages_s: dict[str, list[float]]  # from the fault, or the restart of all servers, to a commit under a new epoch
    ordered: int
    refused: int
    unknown: int
    epoch: int
    faults: list[str]  # promises that were broken; must be empty

    def outage_s(self, fault: str) -> tuple[float, float]:
        """Median and longest."""
        times = self.outages_s.get(fault) or [0.0]
        return statistics.median(times), max(times)


class Chaos:
    """One group, its account, and the faults done to it. `step` is called after each fault with its name."""

    def __init__(self, directory: Path, *, keeps_log: bool, step: Step | None = None, trace: bool = False) -> None:
        self.account = Account()
        self._keeps_log = keeps_log
        interval = NEVER if keeps_log else MIXED_INTERVAL
        shape = GroupShape(servers=3, clients=2, checkpoint_interval=interval, tally_every=64, trace=trace)
        self.group = ProcessGroup(directory, shape, watch=self.account.hear)
        self._step = step or (lambda fault: None)
        self._injected: dict[str, int] = {}
        self._outages_s: dict[str, list[float]] = {}

    @property
    def _loader(self) -> MemberProcess:
        return self.group.members["client-1"]

    async def begin(self) -> None:
        """Starts the group and its load."""
        await self.group.start()
        await self._start_load()

    async def inject(self, fault: Fault, *, pause_s: float = 1.0) -> None:
        """One fault, and waits until the group has healed: all members follow, and batches are committed."""
        self._injected[fault] = self._injected.get(fault, 0) + 1
        if fault is Fault.KILL_ALL:
            await self._kill_all()
        elif fault is Fault.KILL_SERVERS:
            await self._kill_servers()
        elif fault is Fault.KILL_CLIENT:
            await self._loader.kill()
            await self._loader.start()
            await self.group.until_whole()
            await self._start_load()
        else:
            await self._strike(fault, await self._victim(fault), pause_s)
        await self.group.until_whole()
        await self._until_commits()
        self._step(fault)

    async def finish(self) -> None:
        """Stops the load, and compares what members delivered and what servers have on disk."""
        await self._loader.stop_load()
        described = await self.settle()
        self.account.check_all(described)
        await self.group.stop()
        batches = described["primary"].tally.batches
        self.account.check_stores(self.group.servers, batches=batches, is_whole=self._keeps_log)

    def result(self) -> ChaosResult:
        """What was done and found so far."""
        return ChaosResult(
            injected=self._injected,
            outages_s=self._outages_s,
            ordered=self.account.ordered,
            refused=self.account.refused,
            unknown=self.account.unknown,
            epoch=self.account.epoch,
            faults=self.account.faults,
        )

    async def settle(self) -> dict[str, Described]:
        """Waits until every member has delivered the same number of batches; gives their states, equal or not."""
        members = list(self.group.members.values())
        described: dict[str, Described] = {}
        try:
            async with asyncio.timeout(DEADLINE_S):
                while True:
                    answers = await asyncio.gather(*(member.describe() for member in members))
                    described = {member.name: answer for member, answer in zip(members, answers, strict=True)}
                    if len({answer.tally.batches for answer in answers}) == 1:
                        return described
        except TimeoutError:
            return described

    async def _start_load(self) -> None:
        await self._loader.start_load(StartLoad(size=BATCH_BYTES, per_s=BATCHES_PER_S))
        await self._until_commits()

    async def _until_commits(self) -> None:
        """Waits for a batch that is ordered from now on."""
        before = self.account.ordered
        await self.group.until(lambda: self.account.ordered > before, "the next commit")

    async def _victim(self, fault: Fault) -> MemberProcess:
        await self.group.until(lambda: self.group.primary() is not None, "a primary")
        primary = self.group.primary()
        assert primary is not None
        if fault in _OF_PRIMARY:
            return primary
        return next(server for server in self.group.servers if server is not primary)

    async def _strike(self, fault: Fault, victim: MemberProcess, pause_s: float) -> None:
        epoch, began = self.account.epoch, time.monotonic()
        if fault in (Fault.FREEZE_PRIMARY, Fault.FREEZE_BACKUP):
            victim.signal(signal.SIGSTOP)
        elif fault in (Fault.KILL_PRIMARY, Fault.KILL_BACKUP):
            await victim.kill()
        else:
            await victim.stop()
        if fault in _OF_PRIMARY:
            await self._measure_outage(fault, epoch, began)
        if victim.is_running:
            await asyncio.sleep(max(0.0, began + pause_s - time.monotonic()))
            victim.signal(signal.SIGCONT)
        else:
            await victim.start()

    async def _measure_outage(self, fault: Fault, epoch: int, began: float) -> None:
        name = self._loader.name
        await self.group.until(
            lambda: self.account.commit_after(epoch, name) is not None, f"the next commit after: {fault}"
        )
        resumed = self.account.commit_after(epoch, name)
        assert resumed is not None
        self._outages_s.setdefault(fault, []).append(resumed - began)

    async def _kill_servers(self) -> None:
        """The clients live on, with batches under way that nobody has answered."""
        epoch = self.account.epoch
        await _kill_together(self.group.servers)
        began = time.monotonic()
        for server in self.group.servers:
            await server.start()
        await self._measure_outage(Fault.KILL_SERVERS, epoch, began)

    async def _kill_all(self) -> None:
        await _kill_together(list(self.group.members.values()))
        await self.group.start(founding=False)
        await self._start_load()


async def _kill_together(members: list[MemberProcess]) -> None:
    for member in members:
        member.signal(signal.SIGKILL)
    await asyncio.gather(*(member.ended() for member in members))


async def kill_primaries(directory: Path, *, kills: int, step: Step | None = None, trace: bool = False) -> ChaosResult:
    """kill -9 of the primary under load, so many times in a row, and at last of all processes at once."""
    faults = [Fault.KILL_PRIMARY] * kills + [Fault.KILL_ALL]
    return await _run(Chaos(directory, keeps_log=True, step=step, trace=trace), ((fault, 0.0) for fault in faults))


async def mix_faults(
    directory: Path, *, seconds: float, seed: int, step: Step | None = None, trace: bool = False
) -> ChaosResult:
    """Faults of every kind, one after the other, for so long."""
    return await _run(
        Chaos(directory, keeps_log=False, step=step, trace=trace), _draw_faults(random.Random(seed), seconds)
    )


def _draw_faults(drawn: random.Random, seconds: float) -> Iterator[tuple[Fault, float]]:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield drawn.choice(list(Fault)), drawn.uniform(0.05, PAUSE_S_MAX)


async def _run(chaos: Chaos, faults: Iterable[tuple[Fault, float]]) -> ChaosResult:
    """All of it; a group that does not heal is a broken promise too."""
    async with chaos.group:
        try:
            await chaos.begin()
            for fault, pause_s in faults:
                await chaos.inject(fault, pause_s=pause_s)
            await chaos.finish()
        except Unavailable as error:
            chaos.account.blame(str(error))
            await chaos.group.dump()
        return chaos.result()
