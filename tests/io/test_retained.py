"""How many entries a store retains outside the log, which it follows instead of counting them again and again."""

import random
from pathlib import Path

import pytest

from alphorn.bus.machine import DropAfter, DropThrough, Persist, Retain
from alphorn.io.store import Store
from alphorn.model.ranges import RangeSet
from alphorn.testing.check_storage import make_payload, put_log


class Owner:
    """Writes a log as a member does, whatever is drawn, and collects it."""

    def __init__(self, path: Path, seed: int) -> None:
        self._random = random.Random(seed)
        self.store = open_store(path)
        self._last = self._collected = self._token = 0
        self._needed: set[int] = set()

    def act(self) -> None:
        draw = self._random
        acts = (self._append, self._append, self._append, self._collect, self._cut, self._put_back)
        draw.choice(acts)()
        if draw.random() < 0.5:  # otherwise it goes into one commit with what follows
            self.store.flush()

    def _persist(self, *writes: object) -> None:
        self._token += 1
        self.store.submit(Persist(self._token, list(writes)))  # type: ignore[arg-type]

    def _append(self) -> None:
        first, self._last = self._last + 1, self._last + self._random.randint(1, 6)
        self._persist(*put_log(first, self._last))

    def _collect(self) -> None:
        through = self._random.randint(self._collected, self._last)
        candidates = self._needed | set(range(self._collected + 1, through + 1))
        self._needed = {number for number in candidates if self._random.random() < 0.7}
        self._collected = through
        kept = RangeSet([(number, number) for number in sorted(self._needed)])
        self._persist(Retain(through, kept), DropThrough(through, True))

    def _cut(self) -> None:
        self._last = self._random.randint(self._collected, self._last)
        self._persist(DropAfter(self._last))

    def _put_back(self) -> None:
        if self._needed:
            number = self._random.choice(sorted(self._needed))
            self.store.put_retained(number, make_payload(number), lambda: None)


def open_store(path: Path) -> Store:
    return Store(path, on_durable=lambda token: None, on_failure=lambda reason: None, map_bytes=64 << 20)


@pytest.mark.parametrize("seed", range(40))
def test_what_is_followed_is_what_is_counted_when_the_store_is_opened(tmp_path: Path, seed: int) -> None:
    owner = Owner(tmp_path, seed)
    for _ in range(6):
        for _ in range(10):
            owner.act()
        owner.store.flush()
        followed = owner.store.describe()
        owner.store.close()
        owner.store = open_store(tmp_path)
        counted = owner.store.describe()
        assert [followed[name] for name in ("retained", "retained_bytes")] == [
            counted[name] for name in ("retained", "retained_bytes")
        ]
    owner.store.close()
