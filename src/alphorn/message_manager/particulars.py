"""What a batch asks for besides plain storing: looked up once, and only in batches whose flags say so.

Neighbours that ask for the same are one run. Numbers are places within the batch, counted from its first new message.
"""

from collections.abc import Callable, Iterable
from itertools import groupby

import msgspec

from alphorn.message_manager.selector import Selector
from alphorn.model.commands import Publish
from alphorn.model.messages import PRIORITY_DEFAULT, Flag, PackedHeader
from alphorn.model.ranges import Range, RangeSet

PRIORITY_MAX = 9
TIME_MS_MAX = 1 << 52  # later than this is never

PlacedRun = tuple[int, int, int]  # first place, last place, value


class Particulars(msgspec.Struct, frozen=True):
    """Runs of one batch; what is not named is at its default."""

    priorities: list[PlacedRun] = []
    expirations: list[PlacedRun] = []
    delays: list[PlacedRun] = []  # value: when to deliver
    keys: list[tuple[int, str]] = []


PLAIN = Particulars()


def particulars_of(headers: list[PackedHeader], watched: int) -> Particulars:
    """What these messages ask for, as far as the destination watches it (`Flag`)."""
    return Particulars(
        _runs((min(max(header.priority, 0), PRIORITY_MAX) for header in headers), PRIORITY_DEFAULT)
        if watched & Flag.PRIORITY
        else [],
        _runs(_time(header.expiration) for header in headers) if watched & Flag.EXPIRATION else [],
        _runs(_time(header.deliver_at) for header in headers) if watched & Flag.DELAY else [],
        [(place, header.key) for place, header in enumerate(headers) if header.key is not None]
        if watched & Flag.KEY
        else [],
    )


def select(
    selector: Selector, headers: list[PackedHeader], command: Publish, skip: int, priority: int | None
) -> list[Range]:
    """The places of the messages that a selector takes; `skip` messages of the batch come before them.

    `priority` is that of the destination's policy, if it has one.
    """
    is_uniform = not command.flags & ~Flag.VOLATILE and "JMSMessageID" not in selector.identifiers
    if is_uniform and headers:
        taken = selector.matches(None, header_of(headers[0], command, skip, priority))
        return [(0, len(headers) - 1)] if taken else []
    found = RangeSet()
    for place, header in enumerate(headers):
        if selector.matches(header.properties, header_of(header, command, skip + place, priority)):
            found.add(place, place)
    return list(found)


def header_of(header: PackedHeader, command: Publish, index: int, priority: int | None) -> Callable[[str], object]:
    """The header fields of a message as selectors see them; `index` is its place within the whole batch."""

    def field(name: str) -> object:
        match name:
            case "JMSPriority":
                return header.priority if priority is None else priority
            case "JMSTimestamp":
                return command.timestamp
            case "JMSDeliveryMode":
                return "NON_PERSISTENT" if command.flags & Flag.VOLATILE else "PERSISTENT"
            case "JMSMessageID":
                return f"ID:{command.producer.hex()}:{command.counter + index}"
            case "JMSCorrelationID":
                return header.correlation_id
            case "JMSType":
                return header.type
        return None

    return field


def _time(time_ms: int) -> int:
    return time_ms if 0 < time_ms < TIME_MS_MAX else 0


def _runs(values: Iterable[int], default: int = 0) -> list[PlacedRun]:
    """Runs of equal values other than the default."""
    found = []
    place = 0
    for value, same in groupby(values):
        count = sum(1 for _ in same)
        if value != default:
            found.append((place, place + count - 1, value))
        place += count
    return found
