"""Random lives of a queue, against a model that knows every message by itself.

Goal: a message is with one consumer at a time, nobody has more than its prefetch, whose client is slow gets nothing,
order holds per priority, what came back to wait is not overtaken in its group, nothing that can be given out waits
while a consumer that wants it has room, and counts never tell less than the truth.
Method: a seeded sequence of everything that can happen; the model follows deliveries, and checks each of them.
"""

import random

import pytest

from alphorn.message_manager.backlog import Backlog
from alphorn.model.commands import Return, connection_of
from alphorn.model.messages import PRIORITY_DEFAULT, Packed
from tests.message_manager.stage import Stage, key

SELECTORS = ("", "", "colour = 'red'", "colour <> 'red' OR colour IS NULL")
STEPS = 300


class Life:
    """One queue, its consumers, and what the model knows of both."""

    def __init__(self, seed: int, *, is_choosy: bool, has_groups: bool) -> None:
        self.dice = random.Random(seed)
        self.is_choosy = is_choosy
        self.has_groups = has_groups
        self.stage = Stage()
        self.queue = self.stage.queue(groups=has_groups)
        self.messages: list[Packed] = [Packed()]  # by position
        self.consumers: dict[str, tuple[str, int]] = {}  # name → selector, prefetch
        self.holder: dict[int, str] = {}
        self.given: dict[int, int] = {}  # position → how often it was given out
        self.commands: list[Return] = []
        self.leaving: set[str] = set()  # what they held is not back yet
        self.slow: set[str] = set()  # their clients take nothing

    @property
    def backlog(self) -> Backlog:
        backlog = self.stage.engine.destinations[self.queue].backlog_of(0)
        assert backlog is not None
        return backlog

    def step(self) -> None:
        acts = [self.publish] * 4 + [self.attach] * 3 + [self.acknowledge] * 5 + [self.give_back, self.detach]
        acts += [self.apply_returns] * 2 + [self.slow_down] * 2
        self.dice.choice([*acts, self.attach_again, self.go_on, self.tick])()
        self.deliver()

    def publish(self) -> None:
        batch = []
        for _ in range(self.dice.randrange(1, 12)):
            colour = self.dice.choice(("red", "blue", None))
            properties = {"colour": colour} if self.is_choosy and colour else None
            priority = self.dice.choice((4, 4, 4, 9, 1)) if self.is_choosy else PRIORITY_DEFAULT
            name = self.dice.choice(("x", "y", "z", None)) if self.has_groups else None
            batch.append(Packed("body", properties, priority, key=name))
        self.messages += batch
        self.stage.publish(self.queue, batch)

    def attach(self) -> None:
        name = self.dice.choice("abcdef")
        if name not in self.consumers and name not in self.leaving:
            selector = self.dice.choice(SELECTORS) if self.is_choosy else ""
            self.slow.discard(name)
            self.consumers[name] = selector, self.dice.choice((0, 1, 5, 20))
            self.stage.attach(name, self.queue, self.consumers[name][1], selector=selector)

    def attach_again(self) -> None:
        if not self.consumers:
            return
        name = self.dice.choice(sorted(self.consumers))
        self.slow.discard(name)
        kept = [position for position in self.held(name) if self.dice.random() < 0.7]
        for position in set(self.held(name)) - set(kept):
            del self.holder[position]
        selector, prefetch = self.consumers[name]
        held = [number for position in kept for number in (position, position)]
        self.stage.attach(name, self.queue, prefetch, selector=selector, held=held)

    def slow_down(self) -> None:
        if self.consumers:
            name = self.dice.choice(sorted(self.consumers))
            self.slow.add(name)
            self.stage.dispatcher.regulate_client(connection_of(key(name)), 1, is_slow=True)

    def go_on(self) -> None:
        for name in sorted(self.slow):
            self.stage.dispatcher.regulate_client(connection_of(key(name)), 1, is_slow=False)
        self.slow.clear()

    def acknowledge(self) -> None:
        if self.holder:
            first = self.dice.choice(sorted(self.holder))
            last = first + self.dice.randrange(6)
            for position in range(first, last + 1):
                self.holder.pop(position, None)
            self.stage.acknowledge("anyone", self.queue, first, last)
            self.check_leaving()

    def give_back(self) -> None:
        attached = [position for position, name in sorted(self.holder.items()) if name in self.consumers]
        if attached:
            position = self.dice.choice(attached)
            name = self.holder.pop(position)
            delay_ms = self.dice.choice((0, 0, 50))
            self.stage.give_back(name, self.queue, position, position, delay_ms=delay_ms)

    def detach(self) -> None:
        if self.consumers:
            name = self.dice.choice(sorted(self.consumers))
            del self.consumers[name]
            lost = self.stage.detach(name)
            positions = [p for command in lost for p in _expand(command.positions)]
            assert positions == self.held(name)
            self.commands += lost
            if lost:
                self.leaving.add(name)

    def apply_returns(self) -> None:
        if self.commands:
            command = self.commands.pop(0)
            self.stage.order(command)
            for position in _expand(command.positions):
                self.holder.pop(position, None)
            self.check_leaving()

    def tick(self) -> None:
        self.stage.tick(self.stage.engine.now_ms + self.dice.choice((1, 100)))

    def check_leaving(self) -> None:
        self.leaving &= set(self.holder.values())

    def held(self, name: str) -> list[int]:
        return sorted(position for position, holder in self.holder.items() if holder == name)

    def wants(self, name: str, position: int) -> bool:
        message = self.messages[position]
        colour = (message.properties or {}).get("colour")
        selector = self.consumers[name][0]
        return selector == "" or (colour == "red") == (selector == "colour = 'red'")

    def deliver(self) -> None:
        before = dict(self.holder)
        for name, received in self.stage.deliver().items():
            assert name not in self.slow
            for position, count in received:
                assert position not in self.holder, f"{position} is with {self.holder.get(position)} and {name}"
                assert self.wants(name, position)
                assert position in self.backlog.pending
                assert position not in self.backlog.deferred
                assert not self.is_held_up(position)
                self.given[position] = self.given.get(position, 0) + 1
                assert min(2, self.given[position]) <= count <= self.given[position]
                self.holder[position] = name
            ranks = [(-self.messages[position].priority, position) for position, _ in received]
            assert ranks == sorted(ranks)
        self.check_order(before)
        for name, (_, prefetch) in self.consumers.items():
            assert len(self.held(name)) <= prefetch
            assert self.is_busy(name, prefetch)
        if self.has_groups and not self.is_choosy:
            self.check_groups()

    def check_order(self, before: dict[int, str]) -> None:
        """What went out came before what stayed, among what its consumer could have had instead."""
        waiting = self.waiting()
        for position in self.holder.keys() - before.keys():
            name = self.holder[position]
            rank = (-self.messages[position].priority, position)
            for other in waiting:
                if self.wants(name, other) and self.is_free(name, other):
                    assert rank < (-self.messages[other].priority, other)

    def waiting(self) -> list[int]:
        ready = [p for first, last in self.backlog.ready(0, len(self.messages)) for p in range(first, last + 1)]
        return [position for position in ready if position not in self.holder and not self.is_held_up(position)]

    def is_held_up(self, position: int) -> bool:
        """Whether it is to follow one of its group that came back and waits for its time."""
        message, backlog = self.messages[position], self.backlog
        return message.key is not None and any(
            self.messages[other].key == message.key
            and (-self.messages[other].priority, other) < (-message.priority, position)
            for other in backlog.deferred
            if other in backlog.counts
        )

    def is_free(self, name: str, position: int) -> bool:
        """Whether no group keeps this message from this consumer."""
        if not self.has_groups or self.messages[position].key is None:
            return True
        groups = self.stage.dispatcher._outlets[self.queue][0]._supply.groups
        assert groups is not None
        owner = groups.owner_of(self.messages[position].key or "")
        if owner is None or owner.key == key(name):
            return True
        return owner.is_attached and not self.wants(owner.key.decode().rstrip("-"), position)

    def is_busy(self, name: str, prefetch: int) -> bool:
        if name in self.slow or len(self.held(name)) == prefetch:
            return True
        return not any(self.wants(name, position) and self.is_free(name, position) for position in self.waiting())

    def check_groups(self) -> None:
        """Messages with one key are with one consumer."""
        owners: dict[str, str] = {}
        for position, name in self.holder.items():
            group = self.messages[position].key
            if group is not None:
                assert owners.setdefault(group, name) == name


def _expand(flat: list[int]) -> list[int]:
    return [position for first, last in zip(flat[::2], flat[1::2], strict=True) for position in range(first, last + 1)]


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.requirement("MM-7", "MM-10", "API-9")
def test_plain_messages_go_out_as_a_model_of_single_messages_allows(seed: int) -> None:
    life = Life(seed, is_choosy=False, has_groups=False)
    for _ in range(STEPS):
        life.step()
    assert len(life.given) > 100


@pytest.mark.parametrize("seed", range(25))
def test_selected_and_prioritised_messages_go_out_as_a_model_of_single_messages_allows(seed: int) -> None:
    life = Life(seed, is_choosy=True, has_groups=False)
    for _ in range(STEPS):
        life.step()
    assert len(life.given) > 100


@pytest.mark.parametrize("seed", range(25))
def test_grouped_messages_go_out_as_a_model_of_single_messages_allows(seed: int) -> None:
    life = Life(seed, is_choosy=False, has_groups=True)
    for _ in range(STEPS):
        life.step()
    assert len(life.given) > 60


@pytest.mark.parametrize("seed", range(25))
def test_grouped_and_selected_messages_go_out_as_a_model_of_single_messages_allows(seed: int) -> None:
    life = Life(seed, is_choosy=True, has_groups=True)
    for _ in range(STEPS):
        life.step()
    assert len(life.given) > 60
