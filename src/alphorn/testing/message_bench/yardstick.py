"""Runs the yardstick (limit.py) beside a figure, in processes of its own."""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import msgspec

DATAGRAM_BYTES = 64_000
OVERHEAD_BYTES = 40  # the yardstick's own estimate, for each message
WINDOW = 64
DEADLINE_S = 60.0


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """What the yardstick did."""

    per_second: float  # confirmed and received
    p50_ms: float
    p99_ms: float
    cpu_s_per_million: dict[str, float]
    paced: "Limit | None" = None  # of latency, where the above is of one message in flight: the same at the work's pace


def run_limit(
    *, messages: int, size: int, directory: Path | None, per_second: float = 0.0, is_one_in_flight: bool = False
) -> Limit | None:
    """One run, as fast as it can or at a pace; None when it lost a datagram and stands still, for it has no repair."""
    batch = 1 if is_one_in_flight or per_second else DATAGRAM_BYTES // (size + OVERHEAD_BYTES)
    drawn = random.SystemRandom()
    third, fourth = drawn.randrange(255), drawn.randrange(1, 255)
    options = {
        "messages": max(messages, batch),
        "size": size,
        "batch": batch,
        "window": 1 if is_one_in_flight else WINDOW,
        "per-second": per_second,
        "group": f"239.198.{third}.{fourth}",
        "host": f"127.{drawn.randrange(1, 255)}.{third}.{fourth}",
        **({"directory": directory} if directory is not None else {}),
    }
    command = [sys.executable, "-m", "alphorn.testing.message_bench.limit"]
    command += [f"--{name}={value}" for name, value in options.items()]
    # Its processes are a group of their own, so that they end together where it stands still.
    started = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        output, _ = started.communicate(timeout=DEADLINE_S)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if started.poll() is None:
            os.killpg(started.pid, signal.SIGKILL)
            started.communicate()
    found = json.loads(output or b"{}")
    if "received_per_s" not in found or "confirmed_per_s" not in found:
        return None
    ending = "_cpu_s_per_million"
    return Limit(
        per_second=min(found["confirmed_per_s"], found["received_per_s"]),
        p50_ms=found["latency_ms_p50"],
        p99_ms=found["latency_ms_p99"],
        cpu_s_per_million={name.removesuffix(ending): value for name, value in found.items() if name.endswith(ending)},
    )
