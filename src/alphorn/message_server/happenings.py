"""The events of the last while: each is told once, by whomever it is reported, and the last ones can be asked for."""

from collections import OrderedDict, deque

from alphorn.model.events import Event

REMEMBERED = 4  # times as many as are kept are told from new ones


class Happenings:
    """Events that were reported."""

    __slots__ = ("_events", "_maximum", "_names", "repeated")

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self._events: deque[Event] = deque(maxlen=maximum)
        self._names: OrderedDict[tuple[object, ...], None] = OrderedDict()
        self.repeated = 0  # reports of what was known

    def add(self, event: Event) -> bool:
        """Whether it is new."""
        name = event.name
        if name in self._names:
            self._names.move_to_end(name)
            self.repeated += 1
            return False
        self._names[name] = None
        if len(self._names) > REMEMBERED * self._maximum:
            self._names.popitem(last=False)
        self._events.append(event)
        return True

    def last(self, maximum: int) -> list[Event]:
        """The last ones, oldest first."""
        return list(self._events)[-maximum:] if maximum > 0 else []

    def __len__(self) -> int:
        return len(self._events)
