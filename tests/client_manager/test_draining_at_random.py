"""Moves, drains, names that come and go, in any order and at once: no name is split, whichever channels are removed."""

from random import Random

import msgspec
import pytest

from alphorn.model.conversation import Administer, Done, Resolve
from alphorn.model.destinations import Policy
from alphorn.model.frame_kinds import ClientFrame
from alphorn.model.moving_conversation import Drain, Move
from alphorn.testing.drains import Drains
from tests.client_manager.operating import CHANNELS, Operator

DEAD = "queue:dead"
NAMES = [*(f"queue:n{number}" for number in range(5)), DEAD, "topic:t1", "topic:t2"]
WITH_DEAD_LETTERS = msgspec.msgpack.encode(Policy(dead_letter="dead"))


class Story:
    """What happens in one run."""

    def __init__(self, seed: int) -> None:
        self.draw = Random(seed)
        self.operator = Operator()
        self.awaited: list[int] = []

    def wish(self) -> ClientFrame:
        draw, name = self.draw, self.draw.choice(NAMES)
        is_other = name != DEAD
        match draw.choice(("move", "move", "drain", "drain", "want", "want", "bury", "delete", "policy")):
            case "move":
                return Move(0, name, f"channel-{draw.randrange(CHANNELS)}")
            case "drain":
                return Drain(0, f"channel-{draw.randrange(1, CHANNELS)}", draw.random() < 0.4)
            case "bury" if is_other:
                return Resolve(0, name, policy=WITH_DEAD_LETTERS)
            case "delete" if is_other:
                return Administer(0, "delete", name)
            case "policy" if is_other:
                return Administer(0, "policy", name, WITH_DEAD_LETTERS)
        return Resolve(0, name)

    def go_on(self) -> None:
        match self.draw.choice(("wish",) * 6 + ("wait", "renew", "take over")):
            case "wish":
                wishes = [self.wish() for _ in range(self.draw.choice((1, 2, 8)))]
                self.awaited += self.operator.begin_together(*wishes)
            case "wait":
                self.operator.meeting.pass_time(0.06)
            case "renew":
                self.operator.renew()
                self.awaited.clear()
            case _:
                self.operator.meeting.take_over(self.draw.randrange(CHANNELS))

    def do_all(self, *wishes: ClientFrame) -> None:
        for request in self.operator.begin_together(*wishes):
            self.operator.wait(request)

    def check(self, drains: Drains) -> None:
        split = {name: places for name in NAMES if len(places := self.operator.places(name)) > 1}
        assert split == {}
        drains.check([self.operator.engine(channel) for channel in range(CHANNELS)])
        self.operator.meeting.check_replicas()


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.requirement("CM-19", "TOP-4")
def test_no_name_is_split_whatever_is_moved_and_drained_at_once(seed: int) -> None:
    story, drains = Story(seed), Drains([f"channel-{number}" for number in range(CHANNELS)])
    draw, operator = story.draw, story.operator
    for _ in range(draw.randrange(5, 40)):
        story.go_on()
    for request in story.awaited:
        operator.wait(request)
    story.do_all(*(Drain(0, f"channel-{number}", True) for number in range(1, CHANNELS)))
    story.do_all(*(Move(0, name, f"channel-{draw.randrange(CHANNELS)}") for name in NAMES))
    story.check(drains)
    drained = draw.sample(range(1, CHANNELS), draw.randrange(1, CHANNELS))
    wishes = [Move(0, name, f"channel-{draw.randrange(CHANNELS)}") for name in NAMES]
    requests = operator.begin_together(*(Drain(0, f"channel-{number}") for number in drained), *wishes)
    for number, request in zip(drained, requests, strict=False):
        answer = operator.wait(request)
        assert isinstance(answer, Done), answer
        drains.drained(number)(answer)
    for request in requests:
        operator.wait(request)
    story.check(drains)
    homes = {name: operator.resolve(name) for name in NAMES}
    story.check(drains)
    operator.open(drained[0])
    operator.renew(*drained[1:])
    assert {name: operator.resolve(name) for name in NAMES} == homes
