"""Applies `Stage`, `PublishStaged` and `DropStaged`: messages that become visible together, once.

A staged batch lies in the log like any other and is retained there, but in no destination. `PublishStaged` gives its
messages their positions; their bodies stay where they are, so publishing costs by batches. Whatever is checked is
checked before the first one is stored: all of it becomes visible, or nothing.

What is staged takes up the disks that everybody's messages go to, and nobody but its writer can make room there. So
each writer may have so many bytes staged, and all of them together `WRITERS_FACTOR` times as much.
"""

from collections import Counter
from itertools import takewhile

import msgspec
from xxhash import xxh3_64_intdigest

from alphorn.message_manager.effects import Answer, Effect
from alphorn.message_manager.publishing import check_batch, needs_headers, refusal_of, store
from alphorn.message_manager.segments import Run
from alphorn.message_manager.state import State
from alphorn.message_manager.writers import StagedPart, Writer
from alphorn.model import errors
from alphorn.model.commands import STAGED_PARTS_MAX, WRITER_NAME_MAX, DropStaged, Publish, PublishStaged, Stage
from alphorn.model.errors import Blocked, PeerViolation, Unavailable
from alphorn.model.messages import Flag, PackedHeader, headers_of

WRITERS_FACTOR = 2

_encode = msgspec.msgpack.Encoder().encode


def stage(state: State, command: Stage, place: int, effects: list[Effect]) -> None:
    """Keeps a batch for later. One of a batch that is published already changes nothing.

    Where a later batch is published too, the answer names that: whoever counts its batches has gone back.
    """
    check_batch(command)
    _check_name(command.writer)
    if min(command.batch, command.partition, command.part) < 0 or command.flags & Flag.STREAM:
        raise PeerViolation("a staged batch names an impossible number; it was not taken")
    if command.destination in state.moves.leaving or state.moves.home_of(command.destination) is not None:
        raise Unavailable(
            f"destination {command.destination} is on its way to another channel, or there; look it up again later"
        )
    _check_destination(state, command.destination, 0)
    writer = state.writers.use(command.writer)
    if not _is_wanted(state, writer, command.batch):
        if command.batch < writer.published:
            effects.append(Answer(place, number=writer.published))
        return
    attempt = (command.batch, command.partition, command.attempt)
    if writer.has_staged(attempt, command.part):
        return
    writer.make_way(attempt)
    _check_room(state, writer, command)
    part = StagedPart(
        command.part,
        state.sequence,
        place,
        command.destination,
        command.producer,
        command.counter,
        command.count,
        command.flags,
        command.timestamp,
        len(command.blob),
    )
    writer.add(attempt, part)


def publish_staged(state: State, command: PublishStaged, place: int, effects: list[Effect]) -> None:
    """Makes a batch visible, in each destination unless it is already."""
    _check_name(command.writer)
    known = state.writers.find(command.writer) or Writer()
    digest = xxh3_64_intdigest(_encode(command.attempts))
    is_repeated = (command.batch, digest) == (known.published, known.published_as)
    if not is_repeated:
        _check_left(state, known, command)
    if is_repeated or not _is_wanted(state, known, command.batch):
        state.writers.use(command.writer)
        return
    came_at = state.moves.came_at
    staged = _parts_of(known, command)
    parts = [
        part for part in staged if not known.has_published(command.batch, part.destination, came_at(part.destination))
    ]
    counts: Counter[int] = Counter()
    for part in parts:
        counts[part.destination] += part.count
    for number, count in sorted(counts.items()):
        _check_destination(state, number, count)
    for part in parts:
        _store(state, part, effects)
    # Those for which only the note counts are noted last, so that it is kept the longest.
    destinations = sorted(counts, key=lambda number: (came_at(number), number))
    state.writers.use(command.writer).publish(command.batch, destinations, state.sequence, digest)


def drop_staged(state: State, command: DropStaged, place: int, effects: list[Effect]) -> None:
    """Lets go of what was staged for a batch; what is published stays."""
    writer = state.writers.find(command.writer)
    if writer is not None:
        writer.drop(range(command.batch, command.batch + 1))


def _check_room(state: State, writer: Writer, command: Stage) -> None:
    """Raises `Blocked` where a writer, or all of them, have staged as much as they may."""
    if writer.parts >= STAGED_PARTS_MAX:
        raise Blocked(f"the writer {command.writer} has {STAGED_PARTS_MAX} batches staged; publish or drop them first")
    size, most = len(command.blob), command.staged_bytes_max
    if most and writer.size + size > most:
        raise Blocked(
            f"the writer {command.writer} has {writer.size} bytes staged and may have {most}; publish or drop some, or "
            "raise staged_bytes_max in the cluster file"
        )
    if most and state.writers.staged.size + size > WRITERS_FACTOR * most:
        raise Blocked(
            f"all writers of the channel have {state.writers.staged.size} bytes staged and may have "
            f"{WRITERS_FACTOR * most}; try again later, or raise staged_bytes_max in the cluster file"
        )


def _check_name(name: str) -> None:
    if not 0 < len(name) <= WRITER_NAME_MAX:
        raise PeerViolation(f"a writer has a name of 1 to {WRITER_NAME_MAX} characters; nothing was changed")


def _is_wanted(state: State, writer: Writer, batch: int) -> bool:
    """Whether any destination may still get something of a batch.

    Of the newest one those may that came from another channel since the batch before was published here: their
    messages of it were to be published there. Batches before that one were complete when it began.
    """
    if batch != writer.published:
        return batch > writer.published
    came_at = state.moves.came_at
    later = takewhile(lambda number: came_at(number) >= writer.earlier_at, reversed(state.moves.came))
    return any(
        number in state.directory and not writer.has_published(batch, number, came_at(number)) for number in later
    )


def _check_left(state: State, writer: Writer, command: PublishStaged) -> None:
    """Raises `Unavailable` where a destination has left without the batch.

    What was staged for it has been let go, if it ever was: the channel would take that for a batch that it has whole.
    """
    for number in command.destinations:
        if state.moves.home_of(number) is not None and writer.into.get(number, -1) < command.batch:
            raise Unavailable(
                f"destination {number} went to another channel before batch {command.batch} of {command.writer} was in "
                "it; run the batch again"
            )


def _check_destination(state: State, number: int, count: int) -> None:
    refusal = refusal_of(state, number, count, producer=b"")  # whatever a writer calls itself, it is no node
    if refusal is not None:
        error, reason = refusal
        raise getattr(errors, error)(reason)


def _parts_of(writer: Writer, command: PublishStaged) -> list[StagedPart]:
    """What these attempts staged, in order; raises `Unavailable` where any of it is missing.

    How many parts an attempt has is the client's word: it costs by what is staged, never by that number.
    """
    found: list[StagedPart] = []
    if len({partition for partition, *_ in command.attempts}) != len(command.attempts):
        raise PeerViolation("a batch names a partition twice; nothing was changed")
    for partition, attempt, count, messages in command.attempts:
        parts = writer.staged.get((command.batch, partition, attempt), {})
        staged = [parts[number] for number in range(count) if number in parts] if count <= len(parts) else []
        if len(staged) != count or sum(part.count for part in staged) != messages:
            raise Unavailable(
                f"partition {partition} of batch {command.batch} of {command.writer} is not staged here as it was "
                "sent; run the batch again"
            )
        found += staged
    return found


def _store(state: State, part: StagedPart, effects: list[Effect]) -> None:
    destination = state.destinations[part.destination]
    headers: list[PackedHeader] = []
    blob = memoryview(b"")
    if needs_headers(destination, part.flags):
        blob = _blob(state, part)
        headers = _headers(blob, part.count)
    publish = Publish(part.destination, part.producer, part.counter, part.count, part.flags, part.timestamp, blob)
    run = Run(part.sequence, part.command, 0, part.count, destination.next_position, part.size, arrival=state.sequence)
    store(state, destination, publish, run, headers, effects)


def _blob(state: State, part: StagedPart) -> memoryview:
    entry = state.read(part.sequence)
    # Every replica retains it; one that cannot read it must not go on with another state than the others.
    assert entry is not None, f"log entry {part.sequence}, which holds staged messages, cannot be read here"
    staged = entry.commands[part.command]
    assert isinstance(staged, Stage)
    return staged.blob


def _headers(blob: memoryview, count: int) -> list[PackedHeader]:
    """A batch that its sender packed wrongly still has messages, with nothing in their headers."""
    try:
        return headers_of(blob)
    except PeerViolation:
        return [PackedHeader()] * count
