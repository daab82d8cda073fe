"""Offsets: for each channel the number of the log entry to be read next.

Spark compares offsets by their text, so there is one form only: keys in order, whole numbers. A channel that was read
once stays in an offset for ever: where it is gone from the cluster it marks the place that was reached, and one that is
new begins at its first entry.

    {"main": 17}                   the next entry of channel main is 17
    {"main": 17, "main#3": 40}     and destination 3 of main is read from entry 40 on only
    {"main": 17, "main#3?": 40}    and some of destination 3 that arrived before entry 40 were gone at the start

Floors, as the second kind are called, come from a start that is not the same for all destinations (`earliest` where
they keep unequally much, a time), or from one at the entry that brought a destination from another channel. Gaps, the
third kind, come from a queue's start with what nobody has consumed yet, although some that came later is kept no more.
Both are gone as soon as the channel has passed them.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from alphorn.model.errors import Corruption

Offset = dict[str, int]
FIRST = 1  # the first entry of every log
_MARK = "#"
_GAP = "?"


def canonical(offset: Mapping[str, int]) -> Offset:
    """The one form of an offset; raises `Corruption` for what is none, such as a damaged checkpoint's."""
    for key, number in offset.items():
        if type(key) is not str or type(number) is not int or number < 0:
            raise Corruption(
                f"the offset {dict(offset)!r} of this stream is none of alphorn's; restore its checkpoint, or begin "
                "with a new one"
            )
    return {key: offset[key] for key in sorted(offset)}


def channels_of(offset: Mapping[str, int]) -> Offset:
    """The channels alone."""
    return {key: number for key, number in offset.items() if _MARK not in key}


def with_floors(
    channel: str, number: int, floors: Mapping[int, int], gaps: Mapping[int, int] = MappingProxyType({})
) -> Offset:
    """A channel's part of an offset; floors at or below its number say nothing, nor gaps where reading begins later."""
    made = {channel: number}
    made.update({f"{channel}{_MARK}{place}": floor for place, floor in floors.items() if floor > number})
    wide = {place: gap for place, gap in gaps.items() if gap > max(number, floors.get(place, 0))}
    made.update({f"{channel}{_MARK}{place}{_GAP}": gap for place, gap in wide.items()})
    return made


def floors_of(offset: Mapping[str, int], channel: str) -> dict[int, int]:
    """From which number on the destinations of a channel are read, where that is later than the channel's own."""
    return {int(place): number for place, number in _of(offset, channel) if not place.endswith(_GAP)}


def gaps_of(offset: Mapping[str, int], channel: str) -> dict[int, int]:
    """Before which number something of a destination was gone when reading began, where the channel is not past it."""
    return {int(place.removesuffix(_GAP)): number for place, number in _of(offset, channel) if place.endswith(_GAP)}


def _of(offset: Mapping[str, int], channel: str) -> list[tuple[str, int]]:
    start = f"{channel}{_MARK}"
    return [(key.removeprefix(start), number) for key, number in offset.items() if key.startswith(start)]


def advanced(start: Mapping[str, int], reached: Mapping[str, int]) -> Offset:
    """Where a stream comes to from `start`: never back, and nowhere on channels that are gone."""
    made: Offset = {}
    old, new = channels_of(start), channels_of(reached)
    for channel in {*old, *new}:
        number = max(old.get(channel, FIRST), new.get(channel, FIRST))
        made.update(with_floors(channel, number, floors_of(start, channel), gaps_of(start, channel)))
    return canonical(made)


def turns_after(turns: Sequence[str], start: Mapping[str, int], end: Mapping[str, int]) -> list[str]:
    """Channels in the order in which they were last read from, after a batch from `start` to `end`."""
    read = [channel for channel, _, _ in between(start, end)]
    return [*(channel for channel in turns if channel not in read), *read]


def between(start: Mapping[str, int], end: Mapping[str, int]) -> list[tuple[str, int, int]]:
    """Channel, first and end of what lies between two offsets, in order."""
    old = channels_of(start)
    found = [(channel, old.get(channel, FIRST), number) for channel, number in sorted(channels_of(end).items())]
    return [(channel, first, number) for channel, first, number in found if first < number]
