"""The simulated program that streams bodies: what it takes for confirmed, and what it may be refused."""

from types import SimpleNamespace
from typing import Any

import pytest

from alphorn.client.lane import Lane
from alphorn.message_manager.streams import IDLE_MS_MAX
from alphorn.model.conversation import Refused
from alphorn.testing.pouring import Pouring
from alphorn.testing.watch import Violation

PRODUCER = 7


class Program:
    """One whose lane is driven by hand. It has sent a body of two frames, and the next one has begun."""

    def __init__(self, *, ticks: tuple[int, ...]) -> None:
        self.lane = Lane(number=PRODUCER, session=1)
        self.confirmed: list[int] = []
        book = SimpleNamespace(ticks=ticks, confirm=lambda producer, counter: self.confirmed.append(counter))
        core: Any = SimpleNamespace(connection=b"c" * 16)
        self.pouring: Any = Pouring("C1", core, book, None)  # type: ignore[arg-type]
        self.pouring._lane = self.lane
        self.lane.begin(1)
        self.lane.add(b"body")
        self.pouring._awaited = [self.lane.finish(b"message", 0, 0)]
        while self.lane.wants_packing:
            self.lane.pack(0)
        self.lane.on_confirmed(1)
        self.lane.begin(1)
        self.pouring._destination = "queue:a"

    def refuse(self, error: str = "Unavailable") -> None:
        refused = Refused(PRODUCER, 2, 1, error, "this body was given up")
        self.pouring.hear(refused)
        self.lane.on_refused(2, 1, RuntimeError())  # type: ignore[arg-type]
        self.pouring.look()


def test_a_message_that_is_refused_behind_the_next_body_is_not_taken_for_confirmed() -> None:
    program = Program(ticks=(0, IDLE_MS_MAX))
    program.refuse()
    assert program.confirmed == []
    assert program.pouring.find_unfinished(), "the next body is still on its way"


@pytest.mark.parametrize(("ticks", "error"), [((0, IDLE_MS_MAX - 1), "Unavailable"), ((0, IDLE_MS_MAX), "Misuse")])
def test_it_is_refused_for_nothing_but_an_hour_without_more_of_it(ticks: tuple[int, ...], error: str) -> None:
    with pytest.raises(Violation, match="stream refused"):
        Program(ticks=ticks).refuse(error)


def test_what_is_not_refused_is_confirmed() -> None:
    program = Program(ticks=())
    program.lane.on_confirmed(2)
    program.pouring.look()
    assert program.confirmed == [2]
