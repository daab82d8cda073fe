"""The last events, for whoever asks, and the names of some more: an event is told once, whoever reports it."""

from collections import OrderedDict, deque

from alphorn.model.events import Event

REMEMBERED = 4  # times as many as are kept are told from new ones
OVERHEAD_BYTES = 200  # of an event without details
ANSWER_BYTES_MAX = 512 << 10  # of the events in one frame


def size_of(event: Event) -> int:
    """About so many bytes of memory, or on the wire."""
    return OVERHEAD_BYTES + sum(10 + len(key) + len(str(value)) for key, value in event.details.items())


class Happenings:
    """Events that were reported."""

    __slots__ = ("_events", "_names", "repeated")

    def __init__(self, maximum: int) -> None:
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
        if len(self._names) > REMEMBERED * (self._events.maxlen or 0):
            self._names.popitem(last=False)
        self._events.append(event)
        return True

    def last(self, maximum: int) -> list[Event]:
        """The last ones that fit into a frame, oldest first."""
        found: list[Event] = []
        size = 0
        for event in reversed(self._events):
            size += size_of(event)
            if len(found) >= maximum or size > ANSWER_BYTES_MAX:
                break
            found.append(event)
        return found[::-1]

    def __len__(self) -> int:
        return len(self._events)
