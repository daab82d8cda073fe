"""When writers, and what they have staged, are forgotten: at the same Tick as if all were looked at each time."""

from collections.abc import Iterator
from random import Random

import pytest

from alphorn.message_manager.writers import STAGED_IDLE_MS, WRITER_IDLE_MS, StagedPart, Writer, Writers


def stage(writer: Writer, batch: int) -> None:
    writer.add((batch, 0, 1), StagedPart(0, 1, 0, 1, b"p" * 20, 1, 1, 0, 1000, 10))


def forget(known: dict[str, tuple[int, bool]], now_ms: int) -> dict[str, tuple[int, bool]]:
    """What a Tick leaves of writers: when each was first seen by a Tick, and whether it has staged anything."""
    left = {}
    for name, (used_ms, has_staged) in known.items():
        if used_ms < 0:
            left[name] = (now_ms, has_staged)
        elif used_ms + WRITER_IDLE_MS > now_ms:
            left[name] = (used_ms, has_staged and used_ms + STAGED_IDLE_MS > now_ms)
    return left


@pytest.mark.parametrize("seed", range(30))
def test_writers_are_forgotten_when_they_were_silent_too_long(seed: int) -> None:
    random, writers, now_ms = Random(seed), Writers(), 1
    known: dict[str, tuple[int, bool]] = {}
    for batch in range(300):
        name, draw = random.choice("abcdefgh"), random.random()
        if draw < 0.4:
            stage(writers.use(name), batch)
            known.pop(name, None)
            known[name] = (-1, True)
        elif draw < 0.5:
            writers.use(name).publish(batch, [1], batch, 0)
            known.pop(name, None)
            known[name] = (-1, False)
        else:
            now_ms += random.choice([1, STAGED_IDLE_MS // 3, STAGED_IDLE_MS, WRITER_IDLE_MS // 3])
            writers.on_tick(now_ms)
            known = forget(known, now_ms)
            assert writers.next_idle() is None or writers.next_idle() > now_ms, "a Tick leaves nothing that is due"
        assert [(name, writer.used_ms, bool(writer.staged)) for name, writer in writers] == [
            (name, *seen) for name, seen in known.items()
        ]
        dues = [used + (STAGED_IDLE_MS if staged else WRITER_IDLE_MS) for used, staged in known.values() if used >= 0]
        assert (writers.next_idle() or 0) <= min(dues, default=1 << 62), "nothing is due before it is said to be"


class Unwalked(dict[str, Writer]):
    """Writers that may be looked up, and not gone through."""

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("what is asked in every turn must not cost by the number of writers")

    values = items = __iter__  # type: ignore[assignment]


def test_when_something_is_forgotten_next_costs_nothing_by_the_number_of_writers() -> None:
    writers = Writers()
    stage(writers.use("a"), 1)
    writers.on_tick(5)
    writers._by_name = Unwalked(writers._by_name)
    assert writers.next_idle() == 5 + STAGED_IDLE_MS
