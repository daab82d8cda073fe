"""One message under way at a time: how long it takes, and what each process does for it.

    python benchmarks/round_trip.py [--messages 2000] [--pause 0.003] [--together] [--json]

`send`, `receive`, a pause where one is wanted, and again, through a cluster of real processes. For each process:
processor microseconds for a message, and how often it went to sleep; for all of them: log entries for a message. With a
pause, what a cluster does by itself at such a pace is in the figures too.
"""

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import alphorn.testing
from alphorn.testing.clusters import Cluster

WARM_UP = 100
BODY = bytes(100)
WAIT_S = 10.0


def spent(pid: int) -> tuple[float, int]:
    """Processor microseconds of all threads of a process, and how often they went to sleep."""
    tasks = list(Path(f"/proc/{pid}/task").iterdir())
    ran_ns = sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)
    lines = [line for task in tasks for line in (task / "status").read_text().splitlines()]
    sleeps = sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))
    return ran_ns / 1000, sleeps


def entries(cluster: Cluster) -> int:
    """How many entries the log has."""
    return int(cluster.status()["channels"][0]["sequence"])


def measure(messages: int, pause_s: float, *, together: bool) -> dict[str, Any]:
    """The figures of a cluster and of this process."""
    with alphorn.testing.cluster(together=together) as cluster, cluster.connect() as connection:
        if together:
            cluster.make_primary(cluster.beside(cluster.client_managers[0])[0])
        producer = connection.session().producer("queue:there-and-back")
        consumer = connection.session().consumer("queue:there-and-back")
        pids = {**cluster.nodes, "client": os.getpid()}
        seconds: list[float] = []
        for number in range(WARM_UP + messages):
            if number == WARM_UP:
                begun_at, before = entries(cluster), {name: spent(pid) for name, pid in pids.items()}
            began = time.perf_counter()
            producer.send(BODY)
            assert consumer.receive(WAIT_S) is not None
            seconds.append(time.perf_counter() - began)
            if pause_s:
                time.sleep(pause_s)
        after = {name: spent(pid) for name, pid in pids.items()}
        ordered = entries(cluster) - begun_at
    times = sorted(seconds[WARM_UP:])
    each = {name: [(b - a) / messages for a, b in zip(before[name], after[name], strict=True)] for name in pids}
    return {
        "messages": messages,
        "pause_s": pause_s,
        "together": together,
        "ms": {name: round(1000 * times[int(share * len(times))], 2) for name, share in (("p50", 0.5), ("p99", 0.99))},
        "entries": round(ordered / messages, 2),
        "processes": {name: {"cpu_us": round(cpu), "sleeps": round(slept, 1)} for name, (cpu, slept) in each.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=2000)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between two of them")
    parser.add_argument("--together", action="store_true", help="the Client Manager in the primary's process")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = measure(arguments.messages, arguments.pause, together=arguments.together)
    if arguments.json:
        print(json.dumps(found))
        return
    console = Console()
    table = Table("process", "CPU µs", "sleeps", title="for one message")
    for name, figures in found["processes"].items():
        table.add_row(name, str(figures["cpu_us"]), str(figures["sleeps"]))
    console.print(table)
    console.print(f"there and back: p50 {found['ms']['p50']} ms, p99 {found['ms']['p99']} ms")
    console.print(f"log entries for a message and its acknowledgement: {found['entries']}")


if __name__ == "__main__":
    main()
