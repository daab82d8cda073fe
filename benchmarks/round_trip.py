"""One message under way at a time: how long it takes, and what each process does for it.

    python benchmarks/round_trip.py [--messages 2000] [--json]

`send`, `receive`, and again, through a cluster of real processes. For each process: processor microseconds for a
message, in its own code and in the kernel's, and how often it went to sleep. Beside it a piece of plain Python is timed
when it runs again and again, and when the process slept before: what is slow after a sleep is slow for everybody.
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

WARM_UP = 100
BODY = bytes(100)
WAIT_S = 10.0
ROUNDS = 400


def cpu_s(pid: int) -> tuple[float, float]:
    """Processor time of a process, in its own code and in the kernel's."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    ticks = os.sysconf("SC_CLK_TCK")
    return int(fields[11]) / ticks, int(fields[12]) / ticks


def sleeps(pid: int) -> int:
    """How often the threads of a process went to sleep."""
    lines = [
        line for task in Path(f"/proc/{pid}/task").iterdir() for line in (task / "status").read_text().splitlines()
    ]
    return sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))


def measure(messages: int) -> dict[str, Any]:
    """The figures of a cluster and of this process."""
    with alphorn.testing.cluster() as cluster, cluster.connect() as connection:
        producer = connection.session().producer("queue:there-and-back")
        consumer = connection.session().consumer("queue:there-and-back")
        pids = {**cluster.nodes, "client": os.getpid()}
        seconds: list[float] = []
        for number in range(WARM_UP + messages):
            if number == WARM_UP:
                before = {name: (*cpu_s(pid), sleeps(pid)) for name, pid in pids.items()}
            began = time.perf_counter()
            producer.send(BODY)
            assert consumer.receive(WAIT_S) is not None
            seconds.append(time.perf_counter() - began)
        after = {name: (*cpu_s(pid), sleeps(pid)) for name, pid in pids.items()}
    times = sorted(seconds[WARM_UP:])
    spent = {name: [(b - a) / messages for a, b in zip(before[name], after[name], strict=True)] for name in pids}
    return {
        "messages": messages,
        "ms": {name: round(1000 * times[int(share * len(times))], 2) for name, share in (("p50", 0.5), ("p99", 0.99))},
        "processes": {
            name: {"own_us": round(1e6 * own), "kernel_us": round(1e6 * kernel), "sleeps": round(count, 1)}
            for name, (own, kernel, count) in spent.items()
        },
        "plain_python_us": {
            "again and again": _plain_python_us(0.0),
            "after 1 ms of sleep": _plain_python_us(0.001),
            "after 5 ms of sleep": _plain_python_us(0.005),
        },
    }


def _plain_python_us(pause_s: float) -> float:
    times = []
    for _ in range(ROUNDS):
        if pause_s:
            time.sleep(pause_s)
        began = time.perf_counter()
        counts: dict[int, int] = {}
        for number in range(300):
            counts[number % 17] = counts.get(number % 17, 0) + number
        times.append(time.perf_counter() - began)
    return round(1e6 * sorted(times)[ROUNDS // 2], 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=2000)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = measure(arguments.messages)
    if arguments.json:
        print(json.dumps(found))
        return
    console = Console()
    table = Table("process", "own µs", "kernel µs", "sleeps", title="for one message")
    for name, spent in found["processes"].items():
        table.add_row(name, str(spent["own_us"]), str(spent["kernel_us"]), str(spent["sleeps"]))
    console.print(table)
    console.print(f"there and back: p50 {found['ms']['p50']} ms, p99 {found['ms']['p99']} ms")
    plain = ", ".join(f"{us} µs {when}" for when, us in found["plain_python_us"].items())
    console.print(f"a piece of plain Python: {plain}")


if __name__ == "__main__":
    main()
