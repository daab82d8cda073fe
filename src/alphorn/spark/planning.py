"""What drivers decide: from where to where is read, and who reads what."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from alphorn.client.log_reader import Amount, entry
from alphorn.model.errors import Unavailable
from alphorn.model.log_conversation import ChannelKnown
from alphorn.model.log_link import Place, SurveyedDestination
from alphorn.spark.cluster import ClusterView, pieces
from alphorn.spark.dividing import divide, is_entry, limit
from alphorn.spark.offsets import FIRST, Offset, advanced, between, canonical, channels_of, floors_of, gaps_of
from alphorn.spark.options import EARLIEST, LATEST, Bound, SourceOptions
from alphorn.spark.reading import Slice

_FINE_STEPS = 16  # pieces that a task's share is made of


def start_of(view: ClusterView, bound: Bound) -> Offset:
    """Where reading begins; channels that numbers do not name begin at the earliest entry."""
    found = view.resolve(bound)
    if bound.kind == "numbers":
        earliest = view.resolve(EARLIEST)
        found = {**{key: it for key, it in earliest.items() if key.partition("#")[0] not in found}, **found}
    return found if bound.kind == "latest" else view.with_arrivals(found)


def end_of(view: ClusterView, bound: Bound) -> Offset:
    """Where reading ends; channels that numbers do not name end with their newest entry, and none goes beyond it."""
    latest = view.resolve(LATEST)
    found = channels_of(latest if bound.kind == "latest" else view.resolve(bound, latest))
    return canonical({channel: min(number, found.get(channel, number)) for channel, number in latest.items()})


def reach(
    view: ClusterView,
    options: SourceOptions,
    start: Offset,
    latest: Offset,
    *,
    is_limited: bool,
    turns: Sequence[str] = (),
) -> Offset:
    """How far one trigger goes from `start`: not at all where nothing has arrived that is read.

    A log grows by much that no reader wants, this one's own progress included; a batch for that would follow another
    for ever. Limits hold for messages and bytes together. `turns` are channels that were read, the latest at the end:
    where a limit has no room for all, it is the others' turn, so that none waits for ever.
    """
    channels = view.channels()
    found = view.destinations(channels, latest)
    amounts: dict[str, list[Amount]] = {}
    step = 1 if is_limited else 0
    for channel, first, end in between(start, latest):
        if channel in found:
            view.check_kept(start, channel, found[channel], first, end)
            floors, gaps = _floored(start, channel, found[channel]), gaps_of(start, channel)
            measured = view.amounts(
                channel, floors, gaps, entry(first), entry(end), messages_step=step, bytes_step=step
            )
            amounts[channel] = list(_until(measured, options)) if is_limited else list(islice(measured, 1))
    if not any(amounts.values()):
        return advanced(start, start)
    if not is_limited or not _is_over(amounts, options):
        return advanced(start, latest)
    ordered = {channel: amounts[channel] for channel in sorted(amounts, key=lambda it: _turn(it, turns))}
    return advanced(start, limit(ordered, max_messages=options.max_messages, max_bytes=options.max_bytes))


def slices(view: ClusterView, options: SourceOptions, start: Offset, end: Offset) -> list[Slice]:
    """What tasks read, of all between two offsets.

    Raises `Unavailable` with every range that should be there and is not, unless these may be missing.
    """
    ranges = between(start, end)
    if not ranges:
        return []
    channels = view.channels()
    found = view.destinations(channels, channels_of(end))
    for channel, first, last in ranges:
        if channel not in channels:
            _vanished(options, channel, first, last)
        else:
            view.check_kept(start, channel, found[channel], first, last)
    step = options.max_bytes_per_partition // _FINE_STEPS
    amounts = _measured(view, start, ranges, found, step)
    if options.min_partitions > 1:
        total = sum(amount.size for measured in amounts.values() for amount in measured)
        step = min(step, total // (_FINE_STEPS * options.min_partitions))
        amounts = _measured(view, start, ranges, found, step)
    ends = divide(amounts, min_partitions=options.min_partitions, max_bytes=options.max_bytes_per_partition)
    made: list[Slice] = []
    for channel, first, _ in ranges:
        floors, gaps = _floored(start, channel, found.get(channel, {})), gaps_of(start, channel)
        place = entry(first)
        for cut in ends.get(channel, ()):
            made += _cut(channels[channel], found[channel], floors, gaps, place, cut)
            place = cut
    return made


def _measured(
    view: ClusterView,
    start: Offset,
    ranges: list[tuple[str, int, int]],
    found: Mapping[str, Mapping[int, SurveyedDestination]],
    step: int,
) -> dict[str, list[Amount]]:
    made: dict[str, list[Amount]] = {}
    for channel, first, last in ranges:
        if channel in found:
            floors, gaps = _floored(start, channel, found[channel]), gaps_of(start, channel)
            measured = view.amounts(
                channel, floors, gaps, entry(first), entry(last), messages_step=0, bytes_step=max(1, step)
            )
            made[channel] = list(measured)
    return made


def _cut(
    known: ChannelKnown,
    found: Mapping[int, SurveyedDestination],
    floors: Mapping[int, int],
    gaps: Mapping[int, int],
    first: Place,
    end: Place,
) -> Iterator[Slice]:
    """What has a gap is read by itself, so that nothing is overlooked that is missing elsewhere."""
    for piece_first, piece_end, numbers in pieces(floors, first, end):
        for gap in sorted({gaps.get(number, 0) for number in numbers}):
            names = {number: found[number].name for number in numbers if gaps.get(number, 0) == gap}
            yield Slice(known.name, known.servers, names, piece_first, piece_end, gap)


def _floored(start: Offset, channel: str, found: Mapping[int, SurveyedDestination]) -> dict[int, int]:
    """The destinations of a channel, each with the number from which on it is read."""
    floors = floors_of(start, channel)
    return {number: floors.get(number, FIRST) for number in found}


def _vanished(options: SourceOptions, channel: str, first: int, end: int) -> None:
    if options.fail_on_data_loss:
        raise Unavailable(
            f"the cluster has no channel {channel} any more, and log entries {first} to {end - 1} of it were not read; "
            "bring it back, or go on without (failOnDataLoss=false)"
        )


def _until(amounts: Iterator[Amount], options: SourceOptions) -> Iterator[Amount]:
    """As many as one channel alone could have, in whole entries."""
    messages = size = 0
    for amount in amounts:
        yield amount
        messages += amount.messages
        size += amount.size
        is_over = _exceeds(messages, options.max_messages) or _exceeds(size, options.max_bytes)
        if is_over and is_entry(amount.end):
            return


def _is_over(amounts: Mapping[str, list[Amount]], options: SourceOptions) -> bool:
    messages = sum(amount.messages for found in amounts.values() for amount in found)
    size = sum(amount.size for found in amounts.values() for amount in found)
    return _exceeds(messages, options.max_messages) or _exceeds(size, options.max_bytes)


def _turn(channel: str, turns: Sequence[str]) -> int:
    return turns.index(channel) if channel in turns else -1


def _exceeds(amount: int, maximum: int) -> bool:
    return 0 < maximum < amount
