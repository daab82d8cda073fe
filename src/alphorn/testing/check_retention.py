"""What every storage must keep of a collected log, as checks in the manner of check_storage.py."""

from collections.abc import Callable

from alphorn.bus.machine import DropAfter, DropThrough, Retain, Write
from alphorn.bus.storage import DAMAGED, Storage
from alphorn.model.ranges import RangeSet
from alphorn.testing.check_storage import (
    Hand,
    StorageUnderTest,
    at_once_and_after_commit,
    checkpoint_writes,
    make_payload,
    put_entry,
    put_log,
)


def check_collection_keeps_what_the_newest_checkpoint_needs(subject: StorageUnderTest) -> None:
    """Outside the log, with its bytes; what follows that checkpoint waits for the next one."""

    def expect(storage: Storage) -> None:
        assert storage.assignment_bounds() == (9, 9)
        assert [number for number in range(1, 12) if storage.entry(number) is not None] == [2, 4, 5, 7, 8, 9]
        assert storage.entry(4) == make_payload(4)
        assert storage.assignment(4) is None

    writes: list[Write] = [*put_log(1, 9), *checkpoint_writes(6, [b"state"]), Retain(6, RangeSet([(2, 2), (4, 5)]))]
    at_once_and_after_commit(subject, *writes, DropThrough(8, is_retaining=True), expect=expect)


def check_nothing_is_dropped_before_the_upper_layer_has_spoken(subject: StorageUnderTest) -> None:
    """After a restart the rule is unknown until the state is installed again."""
    hand = Hand(subject)
    hand.write_durably(*put_log(1, 6), *checkpoint_writes(4, [b"state"]), Retain(4, RangeSet([(2, 2)])))
    subject.reopen()
    storage = hand.write_durably(DropThrough(4, is_retaining=True))
    assert storage.assignment_bounds() == (5, 6)
    assert [number for number in range(1, 7) if storage.entry(number) is not None] == [1, 2, 3, 4, 5, 6]
    storage = hand.write_durably(Retain(4, RangeSet([(2, 2)])))
    assert [number for number in range(1, 7) if storage.entry(number) is not None] == [2, 5, 6]


def check_a_later_checkpoint_lets_go_of_what_it_does_not_need(subject: StorageUnderTest) -> None:
    """Of what is outside the log, entries that the newest checkpoint does not name go; the log itself stays."""

    def expect(storage: Storage) -> None:
        assert storage.assignment_bounds() == (7, 9)
        assert [number for number in range(1, 12) if storage.entry(number) is not None] == [5, 6, 7, 8, 9]

    hand = Hand(subject)
    hand.write_durably(*put_log(1, 9), *checkpoint_writes(4, [b"old"]), Retain(4, RangeSet([(2, 3)])))
    hand.write_durably(DropThrough(6, is_retaining=True))
    expect(hand.write(*checkpoint_writes(8, [b"new"]), Retain(8, RangeSet([(5, 6)]))))
    subject.flush()
    expect(subject.storage)
    subject.reopen()
    expect(subject.storage)


def check_cutting_the_log_leaves_what_is_retained(subject: StorageUnderTest) -> None:
    """`DropAfter(0)` empties the log, once and again; entries outside it stay."""

    def expect(storage: Storage) -> None:
        assert storage.assignment_bounds() == (1, 0)
        assert [number for number in range(1, 12) if storage.entry(number) is not None] == [2, 5, 6]

    writes: list[Write] = [*put_log(1, 9), *checkpoint_writes(4, [b"state"]), Retain(4, RangeSet([(2, 2)]))]
    writes += [DropThrough(6, is_retaining=True), DropAfter(0), DropAfter(0)]
    at_once_and_after_commit(subject, *writes, expect=expect)


def check_a_retained_entry_can_be_put_back(subject: StorageUnderTest) -> None:
    """One that is missing, before the log."""

    def expect(storage: Storage) -> None:
        assert storage.assignment_bounds() == (7, 9)
        assert storage.entry(2) == b"fetched"
        assert storage.entry(3) is None

    writes: list[Write] = [*checkpoint_writes(6, [b"state"]), Retain(6, RangeSet([(2, 2)])), *put_log(7, 9)]
    writes += [put_entry(2, b"fetched"), put_entry(3, b"surplus"), Retain(6, RangeSet([(2, 2)]))]
    at_once_and_after_commit(subject, *writes, expect=expect)


def check_a_damaged_retained_entry_is_told_until_it_is_put_back(subject: StorageUnderTest) -> None:
    """It reads as any other damaged record."""
    hand = Hand(subject)
    hand.write_durably(*put_log(1, 4), *checkpoint_writes(3, [b"state"]), Retain(3, RangeSet([(1, 2)])))
    hand.write_durably(DropThrough(3, is_retaining=True))
    subject.damage("entry", 2, 0)
    assert (subject.storage.entry(1), subject.storage.entry(2)) == (make_payload(1), DAMAGED)
    assert hand.write_durably(put_entry(2, make_payload(2))).entry(2) == make_payload(2)


RETENTION_CHECKS: tuple[Callable[[StorageUnderTest], None], ...] = (
    check_collection_keeps_what_the_newest_checkpoint_needs,
    check_nothing_is_dropped_before_the_upper_layer_has_spoken,
    check_a_later_checkpoint_lets_go_of_what_it_does_not_need,
    check_cutting_the_log_leaves_what_is_retained,
    check_a_retained_entry_can_be_put_back,
    check_a_damaged_retained_entry_is_told_until_it_is_put_back,
)
