"""How much of what is there is read at once, and by how many tasks. Pure: amounts in, numbers and places out.

Offsets name log entries, so a limit is kept to the entry, and passed only where one entry alone is larger. Tasks share
entries too.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from alphorn.client.log_reader import Amount
from alphorn.model.log_link import Place

_NO_LIMIT = 1 << 62


def limit(amounts: Mapping[str, Sequence[Amount]], *, max_messages: int = 0, max_bytes: int = 0) -> dict[str, int]:
    """Up to where each channel is read so that all together keep both limits; 0 is no limit.

    The first channel that has anything is read by an entry at least, however large that is, and each of the others
    where there is room for one. What room is left then they share by what they have.
    """
    room = [max_messages or _NO_LIMIT, max_bytes or _NO_LIMIT]
    ends: dict[str, int] = {}
    more: dict[str, list[Amount]] = {}
    for channel, found in amounts.items():
        entries = _by_entry(found)
        if entries and (not ends or _fits(entries[0], room)):
            _take(entries[0], room)
            ends[channel], more[channel] = entries[0].end[0], entries[1:]
    have = {channel: _sum(found) for channel, found in more.items()}
    whole = [sum(part) for part in zip(*have.values(), strict=True)] or [0, 0]
    # Those that have least come first: what they are too small for goes to the others.
    for channel in sorted(more, key=have.__getitem__):
        part = have[channel]
        share = [max(0, room[it]) * part[it] // whole[it] if whole[it] else 0 for it in (0, 1)]
        for amount in more[channel]:
            if not _fits(amount, share):
                break
            _take(amount, share)
            _take(amount, room)
            ends[channel] = amount.end[0]
        whole = [whole[it] - part[it] for it in (0, 1)]
    return ends


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


def _fits(amount: Amount, room: Sequence[int]) -> bool:
    return amount.messages <= room[0] and amount.size <= room[1]


def _take(amount: Amount, room: list[int]) -> None:
    room[0] -= amount.messages
    room[1] -= amount.size


def _sum(found: Sequence[Amount]) -> tuple[int, int]:
    return sum(amount.messages for amount in found), sum(amount.size for amount in found)


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
