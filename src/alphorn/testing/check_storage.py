"""What every storage must do, as checks that run against the real store and the simulated disk alike.

`check_storage(make)` runs them all, each on a fresh storage; `CHECKS` has them one by one. They assert, and assume
nothing about how a storage works inside: so a simulation that passes them stands for the disk. What is kept when the
log is collected has checks of its own (check_retention.py).
"""

from collections.abc import Callable
from typing import Protocol

import msgspec

from alphorn.bus.entries import Assignment, digest_of
from alphorn.bus.machine import (
    DropAfter,
    DropThrough,
    Persist,
    PutAssignments,
    PutChunk,
    PutEntry,
    PutGroupState,
    PutMeta,
    SealCheckpoint,
    Write,
)
from alphorn.bus.storage import DAMAGED, CheckpointInfo, Meta, Storage
from alphorn.model.ids import Kind, make_id, make_origin

_ORIGIN = make_origin(bytes([127, 0, 0, 1]), 21_000, 7)


class StorageUnderTest(Protocol):
    """One storage, and what a test may do to it."""

    @property
    def storage(self) -> Storage:
        """The read side, as it is now; another object after `reopen` or `crash`."""

    def submit(self, persist: Persist) -> None:
        """Hands over writes."""

    def flush(self) -> int:
        """Waits until everything handed over is durable; gives the highest token reported so."""

    def reopen(self) -> None:
        """Stops in good order and starts again."""

    def crash(self) -> None:
        """Loses whatever is not durable, or part of it, and starts again."""

    def damage(self, kind: str, sequence: int, chunk: int) -> None:
        """Spoils one durable record: meta, assignment, entry, group_state, checkpoint or chunk."""


class Hand:
    """Submits writes under growing tokens."""

    __slots__ = ("subject", "token")

    def __init__(self, subject: StorageUnderTest) -> None:
        self.subject = subject
        self.token = 0

    def write(self, *writes: Write) -> Storage:
        """Hands them over together; gives the storage to look at."""
        self.token += 1
        self.subject.submit(Persist(self.token, list(writes)))
        return self.subject.storage

    def write_durably(self, *writes: Write) -> Storage:
        """As `write`, and waits."""
        self.write(*writes)
        assert self.subject.flush() == self.token
        return self.subject.storage


def make_assignment(sequence: int, *, epoch: int = 1 << 16 | 1, payload: bytes = b"") -> Assignment:
    """An assignment as a test would have it."""
    batch = make_id(_ORIGIN, Kind.BATCH, sequence)
    return Assignment(epoch, batch, sequence - 1, digest_of(payload), len(payload))


def make_payload(sequence: int, size: int = 3000) -> bytes:
    """Bytes that differ for each number."""
    return (b"entry %08d " % sequence * (size // 15 + 1))[:size]


def make_meta(incarnation: int) -> Meta:
    """A meta record."""
    return Meta(config=b"c" * 16, number=3, incarnation=incarnation, start=7, promised=incarnation << 16 | 3)


def put_entry(sequence: int, payload: bytes) -> PutEntry:
    """The write of one batch."""
    return PutEntry(sequence, payload, digest_of(payload))


def put_assignments(first: int, last: int) -> PutAssignments:
    """The write of assignments from first to last."""
    return PutAssignments(first, [make_assignment(sequence) for sequence in range(first, last + 1)])


def put_log(first: int, last: int) -> list[Write]:
    """The writes of assignments and entries from first to last."""
    entries: list[Write] = [put_entry(sequence, make_payload(sequence)) for sequence in range(first, last + 1)]
    return [put_assignments(first, last), *entries]


def checkpoint_writes(sequence: int, chunks: list[bytes]) -> list[Write]:
    """The writes of a whole checkpoint."""
    puts: list[Write] = [PutChunk(sequence, index, chunk) for index, chunk in enumerate(chunks)]
    whole = b"".join(chunks)
    return [
        *puts,
        SealCheckpoint(sequence, 65537, len(whole), len(chunks), digest_of(whole), b"group at %d" % sequence),
    ]


def at_once_and_after_commit(subject: StorageUnderTest, *writes: Write, expect: Callable[[Storage], None]) -> None:
    """The same reads must hold before the commit, after it, and after a restart."""
    hand = Hand(subject)
    expect(hand.write(*writes))
    assert subject.flush() == 1
    expect(subject.storage)
    subject.reopen()
    expect(subject.storage)


def check_a_blank_storage_has_nothing(subject: StorageUnderTest) -> None:
    """Everything reads as absent."""
    storage = subject.storage
    assert storage.meta() is None
    assert storage.assignment_bounds() == (1, 0)
    assert storage.assignment(1) is None
    assert storage.entry(1) is None
    assert storage.group_state() is None
    assert storage.checkpoint() is None
    assert storage.checkpoint_chunk(1, 0) is None


def check_meta_is_replaced(subject: StorageUnderTest) -> None:
    """The last meta record counts."""

    def expect(storage: Storage) -> None:
        assert storage.meta() == make_meta(2)

    writes = [PutMeta(msgspec.msgpack.encode(make_meta(incarnation))) for incarnation in (1, 2)]
    at_once_and_after_commit(subject, *writes, expect=expect)


def check_entries_and_assignments_read_back(subject: StorageUnderTest) -> None:
    """What was put is there, of any size, and nothing else is."""
    payloads = {5: b"x", 6: make_payload(6, 5000), 7: make_payload(7, 65_536), 8: make_payload(8, 1 << 20)}

    def expect(storage: Storage) -> None:
        assert storage.assignment_bounds() == (5, 8)
        for sequence, payload in payloads.items():
            assert storage.entry(sequence) == payload
            assert storage.assignment(sequence) == make_assignment(sequence)
        for outside in (4, 9):
            assert storage.entry(outside) is None
            assert storage.assignment(outside) is None

    puts = [put_entry(sequence, payload) for sequence, payload in payloads.items()]
    at_once_and_after_commit(subject, put_assignments(5, 8), *puts, expect=expect)


def check_records_are_replaced(subject: StorageUnderTest) -> None:
    """A later write at the same number counts, whether the earlier one was durable or not."""

    def expect(storage: Storage) -> None:
        assert storage.entry(2) == b"new"
        assert storage.assignment(2) == make_assignment(2, epoch=9 << 16)
        assert storage.assignment_bounds() == (1, 3)

    hand = Hand(subject)
    hand.write_durably(*put_log(1, 3))
    expect(hand.write(put_entry(2, b"new"), PutAssignments(2, [make_assignment(2, epoch=9 << 16)])))
    subject.flush()
    expect(subject.storage)


def check_drop_after_forgets_the_tail(subject: StorageUnderTest) -> None:
    """Numbers above are gone, durable or not; a number may be written again."""

    def expect(storage: Storage) -> None:
        assert storage.assignment_bounds() == (1, 5)
        assert storage.entry(4) == make_payload(4)
        assert storage.entry(5) == b"again"
        assert storage.entry(6) is None
        assert storage.assignment(6) is None
        assert storage.entry(9) is None

    hand = Hand(subject)
    hand.write_durably(*put_log(1, 6))
    hand.write(*put_log(7, 9))
    expect(hand.write(DropAfter(4), put_assignments(5, 5), put_entry(5, b"again")))
    subject.flush()
    expect(subject.storage)
    subject.reopen()
    expect(subject.storage)


def check_drop_through_forgets_the_head(subject: StorageUnderTest) -> None:
    """Numbers up to and including it are gone, durable or not."""

    def expect(storage: Storage) -> None:
        assert storage.assignment_bounds() == (8, 9)
        assert storage.entry(1) is None
        assert storage.entry(7) is None
        assert storage.assignment(7) is None
        assert storage.entry(8) == make_payload(8)

    hand = Hand(subject)
    hand.write_durably(*put_log(1, 6))
    hand.write(*put_log(7, 9))
    expect(hand.write(DropThrough(7)))
    subject.flush()
    expect(subject.storage)
    subject.reopen()
    expect(subject.storage)


def check_dropping_everything_leaves_empty_bounds(subject: StorageUnderTest) -> None:
    """Bounds are (1, 0) again, and the next numbers start where they like."""
    hand = Hand(subject)
    assert hand.write_durably(*put_log(1, 3), DropThrough(10)).assignment_bounds() == (1, 0)
    assert hand.write_durably(put_assignments(11, 12)).assignment_bounds() == (11, 12)
    assert hand.write_durably(DropAfter(10)).assignment_bounds() == (1, 0)
    subject.reopen()
    assert subject.storage.assignment_bounds() == (1, 0)


def check_group_state_is_replaced(subject: StorageUnderTest) -> None:
    """The last group state counts; dropping numbers leaves it."""

    def expect(storage: Storage) -> None:
        assert storage.group_state() == (20, b"later")

    writes = [PutGroupState(10, b"earlier"), PutGroupState(20, b"later"), DropThrough(20), DropAfter(5)]
    at_once_and_after_commit(subject, *writes, expect=expect)


def check_chunks_can_be_read_before_their_checkpoint_is_complete(subject: StorageUnderTest) -> None:
    """A transfer resumes from what arrived; it is no checkpoint yet."""

    def expect(storage: Storage) -> None:
        assert storage.checkpoint() is None
        assert storage.checkpoint_chunk(10, 0) == b"zero"
        assert storage.checkpoint_chunk(10, 1) is None
        assert storage.checkpoint_chunk(10, 2) == b"two"

    at_once_and_after_commit(subject, PutChunk(10, 0, b"zero"), PutChunk(10, 2, b"two"), expect=expect)


def check_a_sealed_checkpoint_replaces_older_ones(subject: StorageUnderTest) -> None:
    """Older checkpoints and their chunks go, complete or not; a newer transfer stays."""
    big = make_payload(20, 1 << 20)

    def expect(storage: Storage) -> None:
        whole = big + b"tail"
        assert storage.checkpoint() == CheckpointInfo(
            sequence=20, epoch=65537, size=len(whole), chunks=2, digest=digest_of(whole), state=b"group at 20"
        )
        assert storage.checkpoint_chunk(20, 0) == big
        assert storage.checkpoint_chunk(20, 1) == b"tail"
        for older in (10, 15):
            assert storage.checkpoint_chunk(older, 0) is None
        assert storage.checkpoint_chunk(30, 0) == b"newer"

    hand = Hand(subject)
    hand.write_durably(*checkpoint_writes(10, [b"old"]), PutChunk(15, 0, b"given up"), PutChunk(30, 0, b"newer"))
    expect(hand.write(*checkpoint_writes(20, [big, b"tail"])))
    subject.flush()
    expect(subject.storage)
    subject.reopen()
    expect(subject.storage)


def check_drop_through_keeps_the_newest_checkpoint(subject: StorageUnderTest) -> None:
    """Collection never takes the checkpoint that stands for what it collects."""

    def expect(storage: Storage) -> None:
        info = storage.checkpoint()
        assert isinstance(info, CheckpointInfo)
        assert info.sequence == 10
        assert storage.checkpoint_chunk(10, 0) == b"state"
        assert storage.checkpoint_chunk(12, 0) == b"arriving"

    writes = [*put_log(1, 12), *checkpoint_writes(10, [b"state"]), PutChunk(12, 0, b"arriving"), DropThrough(12)]
    at_once_and_after_commit(subject, *writes, expect=expect)


def check_writes_of_one_hand_over_apply_in_order(subject: StorageUnderTest) -> None:
    """Put, drop and put again inside one `Persist`."""

    def expect(storage: Storage) -> None:
        assert storage.assignment_bounds() == (3, 3)
        assert storage.entry(3) == b"second"
        assert storage.entry(4) is None
        assert storage.entry(2) is None

    writes = [*put_log(1, 4), DropAfter(2), put_assignments(3, 3), put_entry(3, b"second"), DropThrough(2)]
    at_once_and_after_commit(subject, *writes, expect=expect)


def check_durable_writes_survive_a_crash(subject: StorageUnderTest) -> None:
    """What was reported durable is there; what was not is there whole or not at all, and never without its elders."""
    hand = Hand(subject)
    hand.write_durably(PutMeta(msgspec.msgpack.encode(make_meta(1))), *put_log(1, 3))
    for sequence in range(4, 9):
        hand.write(*put_log(sequence, sequence))
    subject.crash()
    storage = subject.storage
    first, last = storage.assignment_bounds()
    assert first == 1
    assert 3 <= last <= 8
    assert storage.meta() == make_meta(1)
    for sequence in range(1, 9):
        assert storage.entry(sequence) == (make_payload(sequence) if sequence <= last else None)


def check_tokens_become_durable_in_order(subject: StorageUnderTest) -> None:
    """A flush reports the last token, and everything before it is readable."""
    hand = Hand(subject)
    for sequence in range(1, 51):
        hand.write(*put_log(sequence, sequence))
    assert subject.flush() == 50
    assert subject.storage.assignment_bounds() == (1, 50)


def check_damage_is_told_until_the_record_is_written_again(subject: StorageUnderTest) -> None:
    """A spoiled record reads as DAMAGED, its neighbours do not, and a new write heals it."""
    heal: dict[str, list[Write]] = {
        "meta": [PutMeta(msgspec.msgpack.encode(make_meta(4)))],
        "assignment": [put_assignments(2, 2)],
        "entry": [put_entry(2, make_payload(2))],
        "group_state": [PutGroupState(2, b"group state")],
        "chunk": [PutChunk(2, 0, b"a chunk of state")],
        "checkpoint": checkpoint_writes(2, [b"a chunk of state"]),
    }
    hand = Hand(subject)
    hand.write_durably(*put_log(1, 3), *(write for writes in heal.values() for write in writes))
    for kind in heal:
        subject.damage(kind, 2, 0)
    damaged = {kind: read(subject.storage) for kind, read in _READS.items()}
    assert damaged == dict.fromkeys(_READS, DAMAGED)
    assert subject.storage.assignment_bounds() == (1, 3)
    for neighbour in (1, 3):
        assert subject.storage.entry(neighbour) == make_payload(neighbour)
        assert subject.storage.assignment(neighbour) == make_assignment(neighbour)
    hand.write_durably(*(write for writes in heal.values() for write in writes))
    for kind, read in _READS.items():
        assert read(subject.storage) is not DAMAGED, kind


_READS: dict[str, Callable[[Storage], object]] = {
    "meta": lambda storage: storage.meta(),
    "assignment": lambda storage: storage.assignment(2),
    "entry": lambda storage: storage.entry(2),
    "group_state": lambda storage: storage.group_state(),
    "checkpoint": lambda storage: storage.checkpoint(),
    "chunk": lambda storage: storage.checkpoint_chunk(2, 0),
}

CHECKS: tuple[Callable[[StorageUnderTest], None], ...] = (
    check_a_blank_storage_has_nothing,
    check_meta_is_replaced,
    check_entries_and_assignments_read_back,
    check_records_are_replaced,
    check_drop_after_forgets_the_tail,
    check_drop_through_forgets_the_head,
    check_dropping_everything_leaves_empty_bounds,
    check_group_state_is_replaced,
    check_chunks_can_be_read_before_their_checkpoint_is_complete,
    check_a_sealed_checkpoint_replaces_older_ones,
    check_drop_through_keeps_the_newest_checkpoint,
    check_writes_of_one_hand_over_apply_in_order,
    check_durable_writes_survive_a_crash,
    check_tokens_become_durable_in_order,
    check_damage_is_told_until_the_record_is_written_again,
)


def check_storage(make: Callable[[], StorageUnderTest]) -> None:
    """Runs every check on a storage of its own."""
    for check in CHECKS:
        check(make())
