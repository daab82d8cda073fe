"""Staging by the client library: where destinations are looked up, and what is published together."""

import threading
import types
from collections.abc import Callable

import pytest

from alphorn.client.staging import Staged, Stager, Staging, publish_staged, shares_of
from alphorn.client.whereabouts import Whereabouts
from alphorn.model.conversation import Done, Resolve, Resolved, place_of
from alphorn.model.errors import Blocked, Postponed, Unavailable
from alphorn.model.log_conversation import PublishStaged, Stage


class Line:
    """A connection whose questions are answered at once. Destinations are where `homes` says."""

    def __init__(self) -> None:
        self.homes = {"queue:a": 0, "queue:b": 1}
        self.numbers = {"queue:a": 7, "queue:b": 8}
        self.asked: list[object] = []
        self.full = 0  # so many batches more find no room
        self.slow: list[Callable[[object], None]] | None = None  # or they are answered later: these are to be told
        self.lock = threading.Lock()
        self.core = types.SimpleNamespace(request=self._request, remember_place=Whereabouts().remember)

    def _request(self, make: Callable[[int], object], on_answer: Callable[[object], None]) -> None:
        frame = make(len(self.asked) + 1)
        self.asked.append(frame)
        if isinstance(frame, Resolve):
            name = frame.destination
            on_answer(Resolved(1, place_of(self.homes[name], self.numbers[name]), name))
        elif isinstance(frame, Stage) and self.full:
            self.full -= 1
            on_answer(Postponed("the store of mm1 is full"))
        elif isinstance(frame, Stage) and self.slow is not None:
            self.slow.append(on_answer)
        else:
            on_answer(Done(1))

    def check(self) -> None:
        pass

    def wake(self) -> None:
        pass

    def wait_for(self, condition: Callable[[], object], timeout_s: float) -> bool:
        return bool(condition())


@pytest.fixture
def line() -> Line:
    return Line()


def stager_of(line: Line, partition: int) -> Stager:
    staging = Staging(writer="nightly", batch=7, partition=partition, attempt=partition + 10)
    return Stager(types.SimpleNamespace(_line=line), staging)  # type: ignore[arg-type]


def stage(line: Line, partition: int, *destinations: str) -> Staged:
    stager = stager_of(line, partition)
    for destination in destinations:
        stager.add(destination, b"blob", 2, 0)
    return stager.finish()


def test_an_attempt_looks_for_each_of_its_destinations_once(line: Line) -> None:
    staged = stage(line, 0, "queue:a", "queue:b", "queue:a")
    assert [type(frame) for frame in line.asked] == [Resolve, Stage, Resolve, Stage, Stage]
    assert staged == Staged(0, 10, {0: (2, 4), 1: (1, 2)}, {"queue:a": place_of(0, 7), "queue:b": place_of(1, 8)})


def test_the_next_attempt_on_the_same_connection_finds_a_destination_where_it_went(line: Line) -> None:
    stage(line, 0, "queue:a")
    line.homes["queue:a"] = 1
    assert stage(line, 0, "queue:a").channels == {1: (1, 2)}


def test_each_channel_is_asked_once_for_all_its_attempts(line: Line) -> None:
    staged = [stage(line, 1, "queue:b"), stage(line, 0, "queue:a", "queue:b")]
    line.asked.clear()
    publish_staged(types.SimpleNamespace(_line=line), "nightly", 7, staged)  # type: ignore[arg-type]
    assert line.asked == [
        PublishStaged(1, 0, "nightly", 7, [(0, 10, 1, 2)], [7]),
        PublishStaged(2, 1, "nightly", 7, [(0, 10, 1, 2), (1, 11, 1, 2)], [8]),
    ]


def test_what_finds_no_room_is_staged_again_as_it_was(line: Line) -> None:
    line.full = 3
    assert stage(line, 0, "queue:a", "queue:a").channels == {0: (2, 4)}
    parts = [frame.part for frame in line.asked if isinstance(frame, Stage)]
    assert parts == [0, 0, 0, 0, 1]


def test_nobody_waits_for_the_answer_to_what_was_sent_again_while_there_is_room_for_more(line: Line) -> None:
    line.full, line.slow = 1, []
    stager = stager_of(line, 0)
    stager.add("queue:a", b"blob", 2, 0)
    stager.add("queue:a", b"blob", 2, 0)
    for answer in line.slow:
        answer(Done(1))
    assert stager.finish().channels == {0: (2, 4)}


def test_a_disk_that_stays_full_is_named(line: Line) -> None:
    line.full = 3
    stager = Stager(
        types.SimpleNamespace(_line=line),  # type: ignore[arg-type]
        Staging(writer="nightly", batch=7, partition=0, attempt=1),
        timeout_s=0.0,
    )
    with pytest.raises(Blocked, match="the store of mm1 is full"):
        stager.add("queue:a", b"blob", 2, 0)


def test_nothing_is_published_where_a_destination_was_found_on_two_channels(line: Line) -> None:
    first = stage(line, 0, "queue:a", "queue:b")
    line.homes["queue:a"] = 1
    second = stage(line, 1, "queue:a")
    with pytest.raises(Unavailable, match="queue:a was moved to another channel while batch 7 was staged; run the bat"):
        shares_of(7, [first, second])
