"""The engine once more, as simply as can be: one object a message, lists searched from end to end.

It knows well-formed commands only, and leaves out what tests of their own look at: counters, time to live by policy,
retention, last value.
"""

from dataclasses import dataclass, field

from alphorn.model.messages import Packed

Identity = tuple[int, int]  # log entry, place within its batch
Place = tuple[str, str]  # destination, subscription


@dataclass
class Item:
    """A message where it waits."""

    identity: Identity
    position: int
    priority: int = 4
    expiration: int = 0
    due: int = 0
    delay: int = 0  # begins with the next tick
    count: int = 0
    history: tuple[Place, str, int] | None = None  # where it was, why it died, how often it had come back


@dataclass
class Reference:
    """Queues are places with an empty subscription; topics are places with a name."""

    limits: dict[str, int]  # delivery limits
    topics: dict[str, list[str]]  # subscriptions
    items: dict[Place, list[Item]] = field(default_factory=dict)
    positions: dict[str, int] = field(default_factory=dict)
    now: int = 0

    def at(self, place: Place) -> list[Item]:
        return self.items.setdefault(place, [])

    def take_positions(self, destination: str, count: int) -> int:
        first = self.positions.get(destination, 1)
        self.positions[destination] = first + count
        return first

    def publish(self, sequence: int, destination: str, messages: list[Packed]) -> None:
        first = self.take_positions(destination, len(messages))
        late: list[tuple[Place, Item]] = []
        for subscription in self.topics.get(destination, [""]):
            for index, message in enumerate(messages):
                due = message.deliver_at if message.deliver_at > self.now else 0
                item = Item((sequence, index), first + index, message.priority, message.expiration, due)
                self.at((destination, subscription)).append(item)
                if 0 < item.expiration <= self.now:
                    late.append(((destination, subscription), item))
        for place, item in late:
            self.bury(place, item, "expired")

    def find(self, place: Place, first: int, last: int) -> list[Item]:
        return [item for item in self.at(place) if first <= item.position <= last]

    def acknowledge(self, place: Place, first: int, last: int) -> None:
        for item in self.find(place, first, last):
            self.at(place).remove(item)

    def give_back(self, place: Place, first: int, last: int, delay: int, *, is_dead: bool) -> None:
        returned = self.find(place, first, last)
        for item in returned:
            item.count += 1
        limit = self.limits.get(place[0], 0)
        for item in returned:
            if is_dead:
                self.bury(place, item, "rejected")
            elif limit and item.count >= limit:
                self.bury(place, item, "delivery limit")
            elif delay:
                item.delay, item.due = delay, 0

    def bury(self, place: Place, item: Item, reason: str) -> None:
        self.at(place).remove(item)
        if item.history is None:
            position = self.take_positions("queue:_DMQ", 1)
            dead = Item(item.identity, position, item.priority, history=(place, reason, item.count))
            self.at(("queue:_DMQ", "")).append(dead)

    def tick(self, now: int) -> None:
        if now <= self.now:
            return
        self.now = now
        places = [*self.topics, *sorted({name for name, _ in self.items} - set(self.topics))]
        for destination in sorted(places):
            for subscription in self.topics.get(destination, [""]):
                for item in list(self.at((destination, subscription))):
                    if 0 < item.expiration <= now:
                        self.bury((destination, subscription), item, "expired")
        for item in [item for items in self.items.values() for item in items]:
            if item.delay:
                item.due, item.delay = now + item.delay, 0
            if item.due <= now:
                item.due = 0

    def redrive(self) -> None:
        dead = self.at(("queue:_DMQ", ""))
        for item in list(dead):
            assert item.history is not None
            place, reason, deliveries = item.history
            dead.remove(item)
            count = deliveries if reason == "expired" else 0
            self.at(place).append(Item(item.identity, self.take_positions(place[0], 1), item.priority, count=count))

    def candidates(self, place: Place) -> list[tuple[int, Identity, int, int]]:
        """What could be given out now, in order: position, identity, count, priority."""
        ready = [item for item in self.at(place) if not item.due and not item.delay]
        ready.sort(key=lambda item: (-item.priority, item.position))
        return [(item.position, item.identity, item.count, item.priority) for item in ready]
