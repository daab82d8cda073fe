"""Frames and writes in words, for timelines and transcripts."""

from collections.abc import Callable, Iterable, Sequence

import msgspec

from alphorn.bus import frames
from alphorn.bus.entries import (
    Assignment,
    EpochBegun,
    InSyncChanged,
    MemberJoined,
    MemberLeft,
    VoterRemoved,
    decode_system,
    describe_epoch,
)
from alphorn.bus.frames import Frame, decode_all
from alphorn.bus.machine import (
    DropAfter,
    DropThrough,
    PutAssignments,
    PutChunk,
    PutEntry,
    PutGroupState,
    PutMeta,
    Retain,
    SealCheckpoint,
    Write,
)
from alphorn.bus.storage import Meta
from alphorn.model.errors import PeerViolation
from alphorn.model.ids import counter_of

Namer = Callable[[bytes], str]

_decode_meta = msgspec.msgpack.Decoder(Meta).decode


def short_id(batch: bytes) -> str:
    """An id by its node and counter: enough within one simulation."""
    return f"{batch[3]}#{counter_of(batch)}"


def describe_frames(data: bytes) -> str:
    """A datagram in words."""
    try:
        return ", ".join(describe_frame(frame) for frame in decode_all(data))
    except PeerViolation as violation:
        return f"({violation})"


def describe_frame(frame: Frame) -> str:
    """A frame in words: epoch, name, and what matters of its body."""
    return f"[{describe_epoch(frame.epoch)}] {frame.name} {describe_body(frame.body)}".rstrip()


def describe_body(body: object, name: Namer = short_id) -> str:
    """What matters of a frame's body; `name` says what a batch is called."""
    match body:
        case frames.Data():
            number = f" as {body.sequence}" if body.sequence else ""
            return f"{name(body.id)}{number} {body.fragment + 1}/{body.fragments} of {body.size}"
        case frames.DataReport():
            return " ".join(name(held.id) for held in body.held)
        case frames.CommitSubmit():
            text = describe_assignments(body.previous + 1, body.assignments, name)
            return f"{text} after {body.previous}@{describe_epoch(body.previous_epoch)} committed={body.committed}"
        case frames.CommitAcknowledge():
            return f"accepted={body.accepted} stored={body.stored}"
        case frames.Commit():
            return f"through {body.committed}: {describe_assignments(body.first, body.assignments, name)}"
        case frames.AssignmentAnswer():
            return describe_assignments(body.previous + 1, body.assignments, name)
        case frames.Fetch():
            wanted = [describe_range(first, last) for first, last in body.sequences]
            wanted += [f"{name(id_)}[{first}:{end}]" for id_, first, end in body.ids]
            return f"{' '.join(wanted)} of {body.target}"
        case frames.Absent():
            return " ".join(name(id_) for id_ in body.ids)
        case frames.Range():
            return f"{describe_range(body.first, body.first + len(body.entries) - 1)} of {body.committed}"
        case frames.Promise():
            text = describe_assignments(body.previous + 1, body.assignments, name)
            word = "granted" if body.is_granted else f"refused, promised {describe_epoch(body.promised)}"
            return (
                f"{describe_epoch(body.epoch)} {word}: {text} after {body.previous} last={body.last}@"
                f"{describe_epoch(body.last_epoch)} committed={body.committed}"
            )
        case frames.Join():
            member = body.member
            return f"{member.name} incarnation={member.incarnation} blank={body.is_blank} accepted={body.accepted}"
        case frames.Welcome():
            return body.refusal or f"number {body.number} at {body.sequence}"
        case frames.CheckpointOffer():
            return f"{body.sequence}: {body.size} bytes in {body.chunks} chunks"
        case frames.CheckpointFetch():
            return f"{body.sequence} chunk {body.chunk}"
        case frames.CheckpointChunk():
            return f"{body.sequence} chunk {body.chunk + 1}/{body.chunks}"
        case frames.CheckpointReport():
            return f"{body.sequence}: {body.size} bytes"
        case frames.NewEpoch():
            return f"last={body.last}@{describe_epoch(body.last_epoch)}"
        case frames.Leave():
            return ""
        case frames.Body():
            return " ".join(_describe_field(body, field) for field in body.__struct_fields__)
    return ""


def describe_assignments(first: int, assignments: Sequence[Assignment], name: Namer = short_id) -> str:
    """Numbers and what they mean; batches shortened to ranges where they have no names."""
    if not assignments:
        return "nothing"
    if name is not short_id:
        numbered = enumerate(assignments, first)
        return " ".join(f"{n}={describe_system(a) if a.system else name(a.id)}" for n, a in numbered)
    systems = [
        f"{sequence}={describe_system(assignment)}"
        for sequence, assignment in enumerate(assignments, first)
        if assignment.system
    ]
    return " ".join([describe_range(first, first + len(assignments) - 1), *systems])


def describe_system(assignment: Assignment) -> str:
    """A system entry in words."""
    entry = decode_system(assignment.system)
    match entry:
        case EpochBegun():
            fields = describe_epoch(entry.epoch)
        case MemberJoined():
            fields = entry.member.name
        case MemberLeft():
            fields = f"{entry.number} {'failed' if entry.failed else 'left'}"
        case VoterRemoved():
            fields = f"{entry.number} {'retired' if entry.is_retired else 'disk lost'}"
        case InSyncChanged():
            fields = f"{','.join(map(str, entry.numbers))} copies={entry.copies}"
        case _:
            fields = ",".join(_short(getattr(entry, field)) for field in entry.__struct_fields__)
    return f"{type(entry).__name__}({fields})"


def describe_range(first: int, last: int) -> str:
    """A range of numbers."""
    return f"{first}" if first == last else f"{first}..{last}" if first < last else "nothing"


def describe_writes(writes: Iterable[Write], name: Namer = short_id) -> str:
    """Writes in words; `name` says what a batch is called."""
    return ", ".join(_describe_write(write, name) for write in writes) or "nothing"


def _describe_write(write: Write, name: Namer) -> str:
    match write:
        case PutMeta():
            meta = _decode_meta(write.data)
            barred = " barred" if meta.is_voter_barred else ""
            return f"meta promised={describe_epoch(meta.promised)} incarnation={meta.incarnation}{barred}"
        case PutAssignments():
            return f"numbers {describe_assignments(write.first, write.assignments, name)}"
        case PutEntry():
            return f"entry {write.sequence}"
        case DropAfter():
            return f"drop after {write.sequence}"
        case DropThrough():
            return f"drop through {write.sequence}"
        case PutGroupState():
            return f"group state at {write.sequence}"
        case PutChunk():
            return f"chunk {write.sequence}/{write.chunk}"
        case SealCheckpoint():
            return f"seal checkpoint {write.sequence}"
        case Retain():
            return f"retain {len(write.needed)} through {write.sequence}"
    return type(write).__name__


def _describe_field(body: object, field: str) -> str:
    return f"{field}={_short(getattr(body, field))}"


def _short(value: object) -> str:
    if isinstance(value, bytes):
        return f"{len(value)}b"
    name = getattr(value, "name", None)
    return str(name) if name is not None else str(value)
