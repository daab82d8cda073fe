"""The weight of kept messages: a number by which two who hold the same messages know it without comparing them.

Each message weighs what its log entry's number, well mixed, weighs; a set of messages weighs their sum modulo 2**64.
Entries never change and say themselves what is in them, so whoever has as many messages of each entry has the same.
A sum can be put together from parts, in any order, and costs by batches rather than by messages.
"""

from collections.abc import Iterable

_MASK = (1 << 64) - 1


def mixed(number: int) -> int:
    """A number whose every bit depends on all of this one's (the finaliser of SplitMix64)."""
    mix = (number + 0x9E3779B97F4A7C15) & _MASK
    mix = ((mix ^ mix >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    mix = ((mix ^ mix >> 27) * 0x94D049BB133111EB) & _MASK
    return mix ^ mix >> 31


def weight_of(counts: Iterable[tuple[int, int]]) -> int:
    """The weight of so many messages (second) of these log entries (first)."""
    return sum(mixed(sequence) * count for sequence, count in counts) & _MASK


def sum_of(weights: Iterable[int]) -> int:
    """The weight of all parts together."""
    return sum(weights) & _MASK
