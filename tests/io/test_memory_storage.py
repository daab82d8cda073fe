import pytest

from alphorn.bus.machine import Persist, PutAssignments, PutEntry
from alphorn.io.memory_storage import MemoryStorage
from alphorn.model.ranges import RangeSet
from alphorn.testing.check_retention import (
    RETENTION_CHECKS,
    check_a_damaged_retained_entry_is_told_until_it_is_put_back,
    check_nothing_is_dropped_before_the_upper_layer_has_spoken,
)
from alphorn.testing.check_storage import (
    CHECKS,
    check_damage_is_told_until_the_record_is_written_again,
    make_assignment,
)


class InMemory:
    """A storage that lives and dies with its process: never reopened, never recovered, with no bytes to damage."""

    def __init__(self) -> None:
        self.durable = 0
        self.storage = MemoryStorage(on_durable=self._on_durable)

    def submit(self, persist: Persist) -> None:
        self.storage.submit(persist)

    def flush(self) -> int:
        return self.durable

    def reopen(self) -> None:
        """The process goes on."""

    crash = reopen

    def _on_durable(self, token: int) -> None:
        assert token == self.durable + 1
        self.durable = token


NOT_FOR_MEMORY = (
    check_damage_is_told_until_the_record_is_written_again,
    check_a_damaged_retained_entry_is_told_until_it_is_put_back,
    check_nothing_is_dropped_before_the_upper_layer_has_spoken,
)
ALL = [check for check in (*CHECKS, *RETENTION_CHECKS) if check not in NOT_FOR_MEMORY]


@pytest.mark.parametrize("check", ALL, ids=lambda c: c.__name__)
def test_it_reads_as_every_storage_does(check):
    check(InMemory())


def test_a_checkpoint_written_here_is_the_newest():
    subject, written = InMemory(), []
    writing = subject.storage.begin_checkpoint(7, 1, b"state")
    writing.add(b"abc")
    writing.add(b"de")
    assert subject.storage.checkpoint() is None
    info = writing.seal(RangeSet(), written.append)

    assert written == [info]
    assert subject.storage.checkpoint() == info
    assert (info.size, info.chunks) == (5, 2)
    assert [subject.storage.checkpoint_chunk(7, chunk) for chunk in (0, 1, 2)] == [b"abc", b"de", None]


def test_numbers_assigned_out_of_order_have_the_right_bounds():
    subject = InMemory()
    subject.submit(Persist(1, [PutAssignments(5, [make_assignment(5)]), PutEntry(5, b"five", 0)]))
    subject.submit(Persist(2, [PutAssignments(3, [make_assignment(3), make_assignment(4)])]))

    assert subject.storage.assignment_bounds() == (3, 5)
