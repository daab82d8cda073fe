"""Kills a streaming job and its cluster again and again, and compares what it wrote with what was sent.

    python -m tests.spark.chaos --kills 20 [--seed 7]

Each kill is of the driver (with its Java and all its workers), of one Python worker, or of the cluster's primary, at a
random moment after the job has done at least one more batch. Meanwhile messages are sent. At the end a plain consumer
must receive from the job's topic exactly what was sent, each message once.
"""

import argparse
import contextlib
import os
import queue
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import alphorn.testing
from tests.spark.chaos_driver import LIMIT, SOURCE, TARGET

KINDS = ("driver", "worker", "primary")
BATCH = 200
AHEAD = 10_000  # messages
PATIENCE_S = 600.0  # generous: only what hangs meets it


class Job:
    """The driver's process, in a process group of its own, started again whenever it ends."""

    def __init__(self, url: str, directory: Path) -> None:
        self._arguments = [url, str(directory / "checkpoint"), str(directory / "stop")]
        self._lines: queue.Queue[str] = queue.Queue()
        self.starts = 0
        self.batches = 0
        self.start()

    def start(self) -> None:
        self.starts += 1
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.chaos_driver", *self._arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        )
        threading.Thread(target=self._listen, args=(self._process,), daemon=True).start()

    def _listen(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.batches += line.startswith("batch")
            self._lines.put(line.strip())
        self._lines.put(f"ended {process.pid}")

    def await_batch(self) -> None:
        """Waits until another batch is done; starts the job again where it ended by itself."""
        while not (line := self._lines.get(timeout=PATIENCE_S)).startswith("batch"):
            if line == f"ended {self._process.pid}":
                self._process.wait()
                self.start()
            elif not line.startswith("ended"):
                print(line, flush=True)

    def kill(self) -> None:
        """The driver and everything it started; it is started again."""
        self._kill_group()
        self._process.wait()
        self.start()

    def kill_worker(self, chance: random.Random) -> bool:
        """One of the Python processes that Spark started."""
        workers = [
            pid
            for pid in _descendants(self._process.pid)
            if "pyspark/daemon" in _command(pid) or "pyspark.daemon" in _command(pid)
        ]
        if workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(chance.choice(workers), signal.SIGKILL)
        return bool(workers)

    def finish(self) -> None:
        """Waits until the job has ended in good order; starts it again until it does."""
        while self._process.wait(PATIENCE_S):
            self.start()

    def close(self) -> None:
        self._kill_group()
        self._process.wait()

    def _kill_group(self) -> None:
        """Its own session, whose leader it is."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    waiting = [pid]
    while waiting:
        parent = waiting.pop()
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                children = [int(child) for child in task.read_text().split()]
                found += children
                waiting += children
    return found


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


class Sender:
    """Sends numbered messages until it is told to stop, not much faster than the job takes them."""

    def __init__(self, cluster: alphorn.testing.Cluster, job: Job) -> None:
        self._cluster = cluster
        self._job = job
        self._is_over = threading.Event()
        self.sent = 0
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with self._cluster.connect(reconnect_timeout=PATIENCE_S) as connection:
                producer = connection.session().producer(SOURCE)
                while not self._is_over.wait(0.05):
                    if self.sent > AHEAD + LIMIT * self._job.batches:
                        continue
                    producer.send_many([f"{self.sent + number}" for number in range(BATCH)])
                    producer.flush()
                    self.sent += BATCH
        except BaseException as error:
            self.failure = error

    def stop(self) -> int:
        self._is_over.set()
        self._thread.join()
        if self.failure is not None:
            raise self.failure
        return self.sent


def run(kills: int, seed: int, say=print) -> dict[str, int]:
    """The campaign; raises AssertionError with what differs."""
    chance = random.Random(seed)
    done: Counter[str] = Counter()
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="alphorn-chaos-")))
        cluster = stack.enter_context(alphorn.testing.cluster(client_managers=1, backups=1))
        with cluster.connect() as connection:
            for name in (SOURCE, TARGET):
                connection.destinations.create(name, retain=86_400)
        job = Job(cluster.url, directory)
        stack.callback(job.close)
        sender = Sender(cluster, job)
        number = 0
        while number < kills:
            job.await_batch()
            kind = chance.choice(KINDS)
            time.sleep(chance.uniform(0.0, 1.0))
            if kind == "primary":
                cluster.wait_in_sync()
                victim = cluster.primary()
                cluster.kill(victim)
                cluster.restart(victim)
            elif kind == "driver":
                job.kill()
            elif not job.kill_worker(chance):
                continue  # none was there: that is no kill
            done[kind] += 1
            number += 1
            say(f"kill {number} of {kills}: {kind}; {sender.sent} messages sent, {job.starts} starts")
        sent = sender.stop()
        (directory / "stop").touch()
        job.finish()
        found = _received(cluster, sent)
        _compare(found, sent)
    return {"sent": sent, "starts": job.starts, **done}


def _received(cluster: alphorn.testing.Cluster, count: int) -> "Counter[str]":
    found: Counter[str] = Counter()
    with cluster.connect() as connection:
        consumer = connection.session().consumer(TARGET, start="earliest")
        while messages := consumer.receive_many(10_000, 30.0 if sum(found.values()) < count else 1.0):
            found.update(
                message.body.decode() if isinstance(message.body, bytes) else message.body for message in messages
            )
    return found


def _compare(found: "Counter[str]", sent: int) -> None:
    wanted = {str(number) for number in range(sent)}
    missing, foreign = wanted - set(found), set(found) - wanted
    doubled = [body for body, count in found.items() if count > 1]
    assert not missing, f"{len(missing)} of {sent} messages are missing: {sorted(missing)[:5]}"
    assert not doubled, f"{len(doubled)} of {sent} messages are there twice: {doubled[:5]}"
    assert not foreign, f"{len(foreign)} messages were never sent: {sorted(foreign)[:5]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=None, help="chooses the kills; shown at the start")
    arguments = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 32) if arguments.seed is None else arguments.seed
    print(f"seed {seed}")
    began = time.monotonic()
    result = run(arguments.kills, seed)
    told = ", ".join(f"{count} {name}" for name, count in result.items())
    print(f"every message arrived once: {told}; {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
