"""Work processes that tell each other things while message servers are killed: nothing acknowledged is lost or doubled.

The servers are real nodes in processes of their own, killed with -9 in turn and started again. The work processes live
here, so that every answer and everything they were given can be compared in the end.
"""

import asyncio
import contextlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from alphorn.io.cluster_file import NodeTable
from alphorn.io.local_cluster import FILE_NAME, LocalShape, lay_out, write_cluster_file
from alphorn.io.work_process import Given, WorkProcessRunner
from alphorn.message_server.process_machine import Told
from alphorn.model.errors import Error, Unavailable
from alphorn.model.internal import OTHERS, PROGRAM, SECRET_BYTES, Row, run_of
from alphorn.testing.process_bench.measure import free_addresses

WORKERS = 8
TIMEOUT_S = 30.0
WELL_S = 60.0  # generous: only servers that hang meet it
LOOK_S = 0.02
WINDOW = 20  # messages of one worker that are not acknowledged

Key = tuple[str, str]  # sender and receiver; no receiver is everybody


class ProcessChaosResult(msgspec.Struct, kw_only=True):
    """What came of it."""

    kills: int = 0
    told: int = 0  # acknowledged, to one process
    told_others: int = 0  # acknowledged, to all others
    unknown: int = 0  # whose outcome nobody could tell
    received: int = 0
    longest_s: float = 0.0  # that anybody waited for an acknowledgement
    seconds: float = 0.0
    faults: list[str] = msgspec.field(default_factory=list)


class _Server:
    """One message server's process."""

    def __init__(self, path: Path, name: str) -> None:
        self._command = [sys.executable, "-m", "alphorn.node.main", "--config", str(path), "--name", name]
        self.name = name
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stderr=subprocess.DEVNULL)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        self._process.terminate()
        self._process.wait()


class _Worker:
    """One work process: numbers what it says to each, and keeps what it was given."""

    def __init__(self, name: str, servers: list[tuple[str, str]], result: ProcessChaosResult) -> None:
        self.name = name
        self._result = result
        self.given: dict[Key, list[int]] = {}
        self.acknowledged: dict[Key, set[int]] = {}
        self._next: dict[str, int] = {}
        self.standing: dict[str, dict[str, object]] = {}
        secret = os.urandom(SECRET_BYTES)
        self.runner = WorkProcessRunner(
            Row(name, run_of(secret), PROGRAM, os.getpid()),
            servers,
            secret=secret,
            on_given=self._on_given,
            on_standing=lambda server, data: self.standing.__setitem__(server, msgspec.json.decode(data)),
        )

    def _on_given(self, given: Given) -> None:
        self.runner.take(given)
        if isinstance(given, Told):
            return
        receiver, number = msgspec.json.decode(given.body, type=tuple[str, int])
        self.given.setdefault((given.sender, receiver), []).append(number)
        self._result.received += 1

    async def say(self, to: str) -> None:
        """Says the next thing to somebody, or to all others, and notes how it went."""
        number = self._next[to] = self._next.get(to, 0) + 1
        began = time.monotonic()
        try:
            await self.runner.tell(to, msgspec.json.encode((to, number)), TIMEOUT_S)
        except Error:
            self._result.unknown += 1
            return
        self._result.longest_s = max(self._result.longest_s, time.monotonic() - began)
        self.acknowledged.setdefault((self.name, to), set()).add(number)
        if to == OTHERS:
            self._result.told_others += 1
        else:
            self._result.told += 1

    async def work(self, draw: random.Random, others: list[str], ended: asyncio.Event) -> None:
        """Says things until it is told to end, a few of them at a time."""

        async def some() -> None:
            while not ended.is_set():
                await self.say(OTHERS if draw.random() < 0.05 else draw.choice(others))

        await asyncio.gather(*(some() for _ in range(WINDOW)))


async def kill_servers(
    directory: Path, *, kills: int, seed: int, step: Callable[[str], None] = lambda what: None
) -> ProcessChaosResult:
    """Kills message servers in turn, so many times, under load; each is back and knows all before the next one dies."""
    result, began, draw = ProcessChaosResult(), time.monotonic(), random.Random(seed)
    addresses = free_addresses(2)
    path = directory / FILE_NAME
    file = lay_out(directory, LocalShape(), host=addresses[0][1].rpartition(":")[0])
    nodes = tuple(node for node in file.nodes if node.kind != "message_server")
    own = tuple(NodeTable(name=name, kind="message_server", internal=address) for name, address in addresses)
    write_cluster_file(path, msgspec.structs.replace(file, nodes=(*nodes, *own)))
    workers = [_Worker(f"worker-{number}", addresses, result) for number in range(WORKERS)]
    names = [worker.name for worker in workers]
    with contextlib.ExitStack() as stack:
        servers = [_Server(path, name) for name, _ in addresses]
        for server in servers:
            stack.callback(server.end)
        for worker in workers:
            await worker.runner.start()
        try:
            await _until_well(workers, servers)
            ended = asyncio.Event()
            working = [
                asyncio.ensure_future(
                    worker.work(random.Random(draw.random()), [n for n in names if n != worker.name], ended)
                )
                for worker in workers
            ]
            for number in range(kills):
                server = servers[number % len(servers)]
                await asyncio.sleep(draw.uniform(0.0, 0.3))
                server.kill()
                await asyncio.sleep(draw.uniform(0.0, 0.3))
                server.start()
                await _until_well(workers, servers)
                result.kills += 1
                step(f"kill -9 {server.name}")
            ended.set()
            await asyncio.gather(*working)
            await _until_silent(workers)
        finally:
            for worker in workers:
                await worker.runner.close()
    _check(workers, result)
    result.seconds = time.monotonic() - began
    return result


async def _until_well(workers: list[_Worker], servers: list[_Server]) -> None:
    """Waits until every worker has joined every server, and the servers have each other."""
    deadline = time.monotonic() + WELL_S
    while time.monotonic() < deadline:
        workers[0].standing.clear()
        workers[0].runner.ask_servers()
        await asyncio.sleep(LOOK_S)
        names = {worker.name for worker in workers}
        met = [state for state in workers[0].standing.values() if state["peer"] and names <= _here(state)]
        if len(met) == len(servers) and all(len(worker.runner.half.joined) == len(servers) for worker in workers):
            return
    raise Unavailable(f"message servers were not well within {WELL_S:.0f} s: {workers[0].standing}")


def _here(state: dict[str, object]) -> set[str]:
    """Who has a connection to a server, as it says."""
    processes = state["processes"]
    assert isinstance(processes, dict)
    return {name for name, process in processes.items() if process["here"]}


async def _until_silent(workers: list[_Worker]) -> None:
    """Waits until nobody has anything on its way."""
    deadline = time.monotonic() + WELL_S
    while any(worker.runner.describe()["outbox"] for worker in workers):
        if time.monotonic() > deadline:
            raise Unavailable(f"messages were not settled within {WELL_S:.0f} s")
        await asyncio.sleep(LOOK_S)


def _check(workers: list[_Worker], result: ProcessChaosResult) -> None:
    for worker in workers:
        for (sender, to), numbers in worker.given.items():
            what = f"what {sender} said to {to or 'all others'}"
            if len(set(numbers)) < len(numbers):
                result.faults.append(f"{worker.name} was given twice {what}: {_repeated(numbers)}")
            if numbers != sorted(numbers):
                result.faults.append(f"{worker.name} was given out of order {what}")
        for other in workers:
            if other is worker:
                continue
            for to in (worker.name, OTHERS):
                wanted = other.acknowledged.get((other.name, to), set())
                lost = wanted - set(worker.given.get((other.name, to), []))
                if lost:
                    what = f"{len(lost)} acknowledged messages of {other.name} to {to or 'all others'}"
                    result.faults.append(f"{worker.name} was not given {what}, such as {min(lost)}")


def _repeated(numbers: list[int]) -> list[int]:
    return sorted({number for number in numbers if numbers.count(number) > 1})[:5]
