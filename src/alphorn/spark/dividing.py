"""How much of what is there is read at once, and by how many tasks. Pure: amounts in, numbers and places out.

Offsets name log entries, so a limit is kept to the entry, and passed only where one entry alone is larger. Tasks share
entries too.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from alphorn.client.log_reader import Amount
from alphorn.model.log_link import Place


def limit(amounts: Mapping[str, Sequence[Amount]], *, max_messages: int = 0, max_bytes: int = 0) -> dict[str, int]:
    """Up to where each channel is read so that all together keep both limits; 0 is no limit.

    Channels share by what they have. As long as anything is there, at least one entry is read.
    """
    amounts = {channel: _by_entry(found) for channel, found in amounts.items()}
    messages = {channel: sum(amount.messages for amount in found) for channel, found in amounts.items()}
    size = {channel: sum(amount.size for amount in found) for channel, found in amounts.items()}
    all_messages, all_size = sum(messages.values()), sum(size.values())
    ends: dict[str, int] = {}
    for channel, found in amounts.items():
        if found:
            messages_max = _share(max_messages, messages[channel], all_messages)
            size_max = _share(max_bytes, size[channel], all_size)
            ends[channel] = _reach(found, messages_max, size_max)
    if not any(ends.values()):
        for channel, found in amounts.items():
            if found:
                return {channel: found[0].end[0]}
    return {channel: end for channel, end in ends.items() if end}


def divide(amounts: Mapping[str, Sequence[Amount]], *, min_partitions: int, max_bytes: int) -> dict[str, list[Place]]:
    """The ends of the pieces that tasks read: not larger than `max_bytes`, and as many as wanted where possible.

    Pieces of a channel are about equal, so that no task is left with a large rest when all others are done.
    """
    total = sum(amount.size for found in amounts.values() for amount in found)
    target = max(1, min(max_bytes, -(-total // min_partitions)))
    return {channel: _equal_ends(found, target, max_bytes) for channel, found in amounts.items()}


def _equal_ends(found: Sequence[Amount], target: int, max_bytes: int) -> list[Place]:
    total = sum(amount.size for amount in found)
    count = -(-total // target)
    ends: list[Place] = []
    done = size = 0
    for amount, next_ in pairwise(found):
        done += amount.size
        size += amount.size
        # The next amount goes to the piece in which most of it would lie.
        is_share = done * 2 + next_.size > 2 * (len(ends) + 1) * total // count
        if is_share or size + next_.size > max_bytes:
            ends.append(amount.end)
            size = 0
    return [*ends, found[-1].end] if found else ends


def is_entry(place: Place) -> bool:
    """Whether a log entry begins there."""
    return place[1:] == (0, 0)


def _share(limit_: int, part: int, whole: int) -> int:
    """A channel's part of a limit; 0 stays no limit."""
    if not limit_ or whole <= limit_:
        return 0
    return max(1, limit_ * part // whole)


def _reach(found: Sequence[Amount], messages_max: int, size_max: int) -> int:
    messages = size = end = 0
    for amount in found:
        messages += amount.messages
        size += amount.size
        if (messages_max and messages > messages_max) or (size_max and size > size_max):
            break
        end = amount.end[0]
    return end


def _by_entry(found: Sequence[Amount]) -> list[Amount]:
    """The same amounts, cut only where entries begin."""
    made: list[Amount] = []
    messages = size = 0
    for amount in found:
        messages += amount.messages
        size += amount.size
        if is_entry(amount.end):
            made.append(Amount(amount.end, messages, size))
            messages = size = 0
    return made
