"""An account that finds no fault must be one that would have found it."""

from types import SimpleNamespace

import pytest

from alphorn.io.control import (
    BatchesOrdered,
    BatchRefused,
    Described,
    LoadStarted,
    Primary,
    Seen,
    Stopped,
    Tallied,
    Usage,
)
from alphorn.testing.account import Account, subtract

ONE, OTHER = SimpleNamespace(name="one"), SimpleNamespace(name="other")


def ordered(first: int, last: int, at: float = 1.0) -> BatchesOrdered:
    return BatchesOrdered(first=first, last=last, at=at)


def described(ranges: list[tuple[int, int]], *, chain: str = "c", repeats: int = 0) -> Described:
    return Described(
        tally=Tallied(batches=9, chain=chain),
        delivered_bytes=0,
        repeats=repeats,
        seen=[Seen(sender="s", ranges=ranges)],
        usage=Usage(at=0.0, user_s=0.0, system_s=0.0, sync_cpu_s=0.0, sync_wall_s=0.0, syncs=0),
        node={},
    )


@pytest.fixture
def account() -> Account:
    made = Account()
    made.hear(ONE, LoadStarted("s"))
    made.hear(ONE, ordered(1, 4))
    made.hear(ONE, ordered(5, 6))
    return made


def test_what_was_ordered_and_delivered_everywhere_is_well(account):
    account.check_all({"one": described([(1, 9)]), "other": described([(1, 9)])})
    assert account.faults == []
    assert account.ordered == 6


def test_an_ordered_batch_that_a_member_lacks_is_a_fault(account):
    account.check_all({"one": described([(1, 9)]), "other": described([(1, 3), (5, 9)])})
    assert account.faults == ["other never delivered the batches [(4, 4)] of sender s, which were ordered"]


def test_members_that_end_differently_are_a_fault(account):
    account.check_all({"one": described([(1, 9)]), "other": described([(1, 9)], chain="d")})
    assert account.faults[0].startswith("members did not deliver the same")


def test_members_that_differ_on_the_way_are_a_fault(account):
    account.hear(ONE, Tallied(batches=4, chain="x"))
    account.hear(OTHER, Tallied(batches=4, chain="y"))
    assert account.faults == ["the first 4 batches of other are not those of one"]


def test_a_batch_delivered_twice_is_a_fault(account):
    account.hear(OTHER, described([(1, 9)], repeats=2))
    assert account.faults == ["other delivered 2 batches twice or out of their sender's order"]


def test_a_batch_confirmed_twice_is_a_fault(account):
    account.hear(ONE, ordered(6, 7))
    assert account.faults == ["one was told twice, or out of order, that its batch 6 is ordered"]


def test_a_member_that_gives_up_is_a_fault_and_one_told_to_stop_is_not(account):
    account.hear(ONE, Stopped("it was told to stop"))
    assert account.faults == []
    account.hear(ONE, Stopped("the disk is full"))
    assert account.faults == ["one stopped by itself: the disk is full"]


def test_refusals_are_counted(account):
    account.hear(ONE, BatchRefused(counter=7, reason="", is_unknown=True))
    account.hear(ONE, BatchRefused(counter=8, reason="", is_unknown=False))
    assert (account.refused, account.unknown, account.faults) == (2, 1, [])


def test_the_first_commit_of_a_new_epoch_ends_an_outage(account):
    account.hear(ONE, Primary(sequence=1, epoch=5, number=1, at=0.0))
    assert account.commit_after(4, "one") is None
    account.hear(ONE, ordered(7, 7, at=3.0))
    account.hear(ONE, ordered(8, 8, at=4.0))
    assert account.commit_after(4, "one") == 3.0
    assert account.commit_after(5, "one") is None


@pytest.mark.parametrize(
    ("wanted", "have", "missing"),
    [
        ([(1, 5)], [(1, 5)], []),
        ([(1, 5)], [], [(1, 5)]),
        ([(2, 8)], [(1, 3), (5, 6)], [(4, 4), (7, 8)]),
        ([(1, 2), (9, 9)], [(2, 8)], [(1, 1), (9, 9)]),
    ],
)
def test_ranges_are_subtracted(wanted, have, missing):
    assert subtract(wanted, have) == missing
