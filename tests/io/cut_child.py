"""Writes to a store as a seed says, in a process of its own whose writes are traced (traced_writes.c).

The tokens that became durable are written to the file `marker`, so that the trace tells when.
"""

import os
import random
import sys
from pathlib import Path

from alphorn.bus.machine import DropAfter, DropThrough, Persist, Retain, Write
from alphorn.model.ranges import RangeSet
from alphorn.testing.check_storage import put_assignments, put_entry

JOBS = 60
MAP_BYTES = 40 << 20
SIZES = (50, 300, 2_000, 9_000, 16_384, 20_000, 50_000, 130_000)

State = tuple[dict[int, bytes], tuple[int, int]]  # entries by number, and the bounds of the log


def jobs_of(seed: int) -> tuple[list[list[Write]], list[State]]:
    """Writes to be persisted one after another, and the state before and after each of them."""
    chance = random.Random(seed)
    entries: dict[int, bytes] = {}
    first, last = 1, 0
    jobs: list[list[Write]] = []
    states: list[State] = [({}, (1, 0))]
    while len(jobs) < JOBS:
        kind = chance.choices(("put", "drop through", "retain", "drop after", "put again"), (11, 2, 2, 1, 2))[0]
        writes: list[Write] = []
        if kind == "put":
            first = last + 1 if first > last else first
            made = {last + place: _payload(chance, last + place) for place in range(1, chance.choice((1, 1, 1, 6)) + 1)}
            writes = [put_assignments(last + 1, max(made)), *(put_entry(n, payload) for n, payload in made.items())]
            entries, last = entries | made, max(made)
        elif first > last:
            continue
        elif kind == "drop through":
            through = chance.randint(first - 1, last)
            writes, first = [DropThrough(through)], through + 1
            entries = {n: payload for n, payload in entries.items() if n > through}
        elif kind == "retain":
            through = chance.randint(first, last)
            needed = {n for n in entries if n <= through and chance.random() < 0.3}
            writes, first = [Retain(through, RangeSet([(n, n) for n in sorted(needed)]))], through + 1
            writes.append(DropThrough(through, True))
            entries = {n: payload for n, payload in entries.items() if n > through or n in needed}
        elif kind == "drop after":
            last = chance.randint(max(first, last - 3), last)
            writes = [DropAfter(last)]
            entries = {n: payload for n, payload in entries.items() if n <= last}
        else:
            number = chance.randint(first, last)
            entries = entries | {number: _payload(chance, number)}
            writes = [put_entry(number, entries[number])]
        jobs.append(writes)
        states.append((entries, (first, last) if first <= last else (1, 0)))
    return jobs, states


def _payload(chance: random.Random, number: int) -> bytes:
    size = chance.choice(SIZES)
    return (b"%08d %08x " % (number, chance.getrandbits(32)) * (size // 18 + 1))[:size]


def main() -> None:
    path, seed, is_hasty = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:] == ["hasty"]
    if is_hasty:
        os.O_DSYNC = 0  # a mistake that must be found: what is reported durable is not
    from alphorn.io import bodies, store, store_writer

    chance = random.Random(-seed)
    store_writer.APPLY_S = store.APPLY_S = chance.choice((0.0, 0.003, 0.5))
    bodies.SPARE_BYTES = chance.choice((1, 100_000, 64 << 20))
    bodies.TABLES_BYTES = chance.choice((0, 64 << 20))  # with the latter every gap becomes a hole
    path.mkdir()
    marker = os.open(path / "marker", os.O_RDWR | os.O_CREAT)
    durable, failures = [0], []

    def on_durable(token: int) -> None:
        durable.append(token)
        os.pwrite(marker, b"%d" % token, 0)

    def open_store() -> store.Store:
        return store.Store(
            path, on_durable=on_durable, on_failure=failures.append, map_bytes=MAP_BYTES, ahead_bytes_max=8 << 10
        )

    opened = open_store()
    for token, writes in enumerate(jobs_of(seed)[0], 1):
        opened.submit(Persist(token, writes))
        if chance.random() < 0.2:  # a checkpoint that needs everything, and for which nobody waits
            checkpoint = opened.begin_checkpoint(token, 1, b"state")
            checkpoint.add(_payload(chance, token))
            checkpoint.seal(RangeSet([(0, 1 << 40)]), lambda info: None)
        if chance.random() < 0.8:
            opened.end_turn()
        if chance.random() < 0.5:
            opened.flush()
        if chance.random() < 0.1:
            opened.end_turn()
            while durable[-1] < token:
                os.sched_yield()
            (opened.abandon if chance.random() < 0.6 else opened.close)()  # some of it is only written ahead
            opened = open_store()
    opened.close()
    sys.exit(failures[0] if failures else 0)


if __name__ == "__main__":
    main()
