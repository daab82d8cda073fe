"""What readers of the log ask a Message Manager over the link: what there is, how much, and the messages themselves.

Spark reads this way, from backups. Frames and tags are those of the link (model/link.py).
"""

import msgspec

from alphorn.model.frame_kinds import Asked, Told

# Where a reader of the log is: arrival (the number of the log entry that put messages into their destination), number
# of the destination, position in it. Messages are read in this order; (17, 0, 0) is where entry 17 begins.
Place = tuple[int, int, int]


class Survey(Asked, frozen=True, array_like=True, gc=False, tag=60):
    """Asks any Message Manager which destinations have these names, or names that begin so. Answered by `Surveyed`."""

    request: int
    names: list[str]  # "topic:orders"
    prefixes: list[str]


class Measure(Asked, frozen=True, array_like=True, gc=False, tag=61):
    """Asks how much there is in destinations from a place to before another. Answered by `Measured`."""

    request: int
    destinations: list[int]
    first: Place
    end: Place
    messages_step: int  # a mark follows when there are at least so many since the last one; 0 for no marks
    bytes_step: int


class Scan(Asked, frozen=True, array_like=True, gc=False, tag=62):
    """Asks for the messages in destinations from a place to before another. Answered by `Scanned`."""

    request: int
    destinations: list[int]
    first: Place
    end: Place
    bytes_max: int  # the answer ends with the batch that reaches this


class Search(Asked, frozen=True, array_like=True, gc=False, tag=63):
    """Asks for the first arrival, from `first` on, of a message sent at a time or later. Answered by `Searched`."""

    request: int
    destinations: list[int]
    time_ms: int
    first: int


class Hash(Asked, frozen=True, array_like=True, gc=False, tag=65):
    """Asks for the hash of what a destination keeps from a place to before another. Answered by `Hashed`."""

    request: int
    destination: int
    first: Place
    end: Place


class SurveyedDestination(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One destination, for readers of the log."""

    number: int
    name: str
    is_kept: bool  # False for a topic whose policy retains nothing: there is nothing to read
    kept_from: int  # what arrived before this number may be gone
    first: int  # arrival of the first message that is there; one more than the last applied entry for none
    came_at: int = 0  # the entry with which it came from another channel, with all that it had; 0 for one made here
    is_retaining: bool = False  # whether its policy keeps what was consumed


class Surveyed(Told, frozen=True, array_like=True, gc=False, tag=160):
    """Destinations in the order of their numbers."""

    request: int
    applied: int  # the last entry of the log that this Message Manager has applied
    destinations: list[SurveyedDestination]


class Measured(Told, frozen=True, array_like=True, gc=False, tag=161):
    """How much there is up to before `next`: the end of what was asked for, or as far as one answer looks."""

    request: int
    next: Place
    marks: list[tuple[Place, int, int]]  # up to before this place: messages and bytes since the last mark
    kept_from: int  # the largest of the destinations'


class Hashed(Told, frozen=True, array_like=True, gc=False, tag=165):
    """What there is up to before `next`: the end of what was asked for, or as far as one answer looks.

    Found from the entries as they are stored, and not from what was known of them before.
    """

    request: int
    next: Place
    messages: int
    hash: int  # model.log_hash


class ScannedBatch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Consecutive messages of a destination: `count` from `index` on of those in the blob."""

    destination: int
    arrival: int
    position: int  # of the first message in its destination; the next ones follow
    ordinal: int  # of the first message among those with this arrival; the next ones follow
    index: int
    count: int
    producer: bytes
    counter: int  # of the first message of the blob
    flags: int
    timestamp: int
    digest: int  # xxh3 (64 bits) of the blob
    blob: memoryview


class Scanned(Told, frozen=True, array_like=True, gc=False, tag=162):
    """All messages from where it was asked to before `next`, in their order."""

    request: int
    next: Place
    kept_from: int
    batches: list[ScannedBatch]


class Searched(Told, frozen=True, array_like=True, gc=False, tag=163):
    """The number looked for; where it is not final, go on from there."""

    request: int
    sequence: int
    is_final: bool
