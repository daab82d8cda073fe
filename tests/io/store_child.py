"""Run as a process of its own by the tests of the store, so that it can be killed or given a failing disk."""

import os
import resource
import signal
import sys
import threading
from pathlib import Path

from alphorn.bus.machine import DropThrough, Persist
from alphorn.bus.storage import DAMAGED
from alphorn.io.store import Store
from alphorn.model.errors import Corruption, Unavailable
from alphorn.testing.check_storage import make_payload, put_assignments, put_entry

KEPT = 50
SMALL, LARGE = 3000, 40_000


def say(line: str) -> None:
    print(line, flush=True)


def write(path: Path, *, paces_itself: bool, goes_ahead: bool, size: int) -> None:
    """Persists number after number until it is killed or refused; where it goes ahead, some are dropped seldom."""
    has_failed = threading.Event()
    durable = 0

    def on_durable(token: int) -> None:
        nonlocal durable
        durable = token
        say(f"durable {token}")

    def on_failure(sentence: str) -> None:
        say(f"failed {sentence}")
        has_failed.set()

    store = Store(
        path,
        on_durable=on_durable,
        on_failure=on_failure,
        map_bytes=256 << 20,
        ahead_bytes_max=16 << 10 if goes_ahead else 0,
    )
    sequence = 0
    try:
        while True:
            sequence += 1
            drops = [DropThrough(max(0, sequence - KEPT))] if not goes_ahead or sequence % KEPT == 0 else []
            store.submit(
                Persist(
                    sequence,
                    [put_assignments(sequence, sequence), put_entry(sequence, make_payload(sequence, size)), *drops],
                )
            )
            if paces_itself or (sequence % 7 == 0 and not goes_ahead):
                store.flush()
            store.end_turn()
            if goes_ahead and durable < sequence:
                store.flush()
    except Unavailable:
        has_failed.wait()
    try:
        store.submit(Persist(sequence + 1, [put_assignments(sequence + 1, sequence + 1)]))
    except Unavailable as error:
        say(f"refused {error}")


def read(path: Path) -> None:
    """Says how each entry reads."""
    try:
        store = Store(path, on_durable=print, on_failure=print, map_bytes=256 << 20)
    except Corruption as error:
        say(str(error))
        sys.exit(3)
    for sequence in range(1, 32):
        entry = store.entry(sequence)
        say(f"{sequence} {'damaged' if entry is DAMAGED else type(entry).__name__}")


def main() -> None:
    mode, path = sys.argv[1], Path(sys.argv[2])
    if mode == "read":
        read(path)
        return
    if mode == "limited":
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    paces_itself = mode == "limited" or "FAIL_FDATASYNC_AT" in os.environ
    size = LARGE if mode == "bodies" else SMALL
    write(path, paces_itself=paces_itself, goes_ahead=mode in ("ahead", "bodies"), size=size)


if __name__ == "__main__":
    main()
