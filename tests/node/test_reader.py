"""A Client Manager's seat in a channel's group, on a member of its own or as the guest of a Message Manager."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

from alphorn.bus.entries import Assignment
from alphorn.client_manager.machine import Committed, Input, Joined, Lost, Window
from alphorn.io.cluster_file import ClusterFile, NodeTable
from alphorn.node.reader import Guest

ME = b"o" * 10
EPOCH = 5
ASSIGNMENT = Assignment(EPOCH, bytes(16))


class Seated:
    """A guest, its host's member, and what its owner hears."""

    def __init__(self) -> None:
        self.heard: list[Input] = []
        self.halted: list[str] = []
        self.bus = SimpleNamespace(origin=ME, order=self._order, handle=0)
        self.host: Any = SimpleNamespace(bus=self.bus, lodge=Mock())
        owner = SimpleNamespace(receive=self.heard.append, halt=self.halted.append)
        self.guest = Guest(owner, Mock(spec=ClusterFile), Mock(spec=NodeTable), 3, self.host)
        self.guest.origin = ME

    def _order(self, payload: bytes) -> int:
        self.bus.handle += 1
        return self.bus.handle

    def deliver(self, *sequences: int) -> None:
        for sequence in sequences:
            self.guest.on_deliver(sequence, ASSIGNMENT, b"entry")

    def begin(self) -> None:
        self.guest.on_synchronised(is_synchronised=True)


def test_a_guest_hears_what_its_host_does_once_it_listens() -> None:
    seated = Seated()
    seated.guest.listen()
    seated.host.lodge.assert_called_once_with(seated.guest)


def test_a_guest_does_not_hear_the_past_that_its_host_replays() -> None:
    seated = Seated()
    seated.deliver(1, 2)
    seated.begin()
    seated.deliver(3)
    assert seated.heard == [Committed(3, 3, 0, b"entry", EPOCH)]


def test_a_host_that_falls_behind_for_a_while_does_not_make_its_guest_miss_anything() -> None:
    seated = Seated()
    seated.begin()
    seated.guest.on_synchronised(is_synchronised=False)
    seated.deliver(1)
    assert seated.heard == [Committed(3, 1, 0, b"entry", EPOCH)]


def test_an_own_entry_is_told_with_its_handle_when_it_is_delivered_whichever_is_known_first() -> None:
    seated = Seated()
    seated.begin()
    seated.guest.order(71, b"a")
    seated.guest.order(72, b"b")
    assert [seated.guest.is_mine(handle) for handle in (1, 2, 3)] == [True, True, False]
    seated.guest.on_ordered(1, 5)
    seated.deliver(5, 6)
    seated.guest.on_ordered(2, 6)
    assert seated.heard == [
        Committed(3, 5, 71, b"entry", EPOCH),
        Committed(3, 6, 0, b"entry", EPOCH),
        Committed(3, 6, 72, b""),
    ]
    assert not seated.guest.is_mine(1)


def test_what_a_guest_ordered_before_it_began_is_answered_as_something_whose_past_nobody_heard() -> None:
    seated = Seated()
    for handle in (71, 72, 73, 74):
        seated.guest.order(handle, b"")
    seated.guest.on_ordered(1, 5)
    seated.deliver(5)
    seated.guest.on_ordered(2, 4)
    seated.guest.on_ordered(3, 8)
    seated.guest.install_checkpoint(9, iter(()))
    assert seated.heard == [Committed(3, 0, 71, b""), Committed(3, 0, 72, b""), Committed(3, 0, 73, b"")]
    seated.begin()
    seated.guest.on_ordered(4, 12)
    seated.deliver(10, 11, 12)
    assert seated.heard[-1] == Committed(3, 12, 74, b"entry", EPOCH)
    assert seated.halted == []


def test_a_guest_that_misses_a_part_of_the_log_cannot_go_on() -> None:
    seated = Seated()
    seated.begin()
    seated.deliver(1)
    seated.guest.install_checkpoint(9, iter(()))
    assert seated.halted == ["it missed more of the log than is kept; start it again"]


def test_refusals_the_window_a_new_origin_and_the_end_are_told() -> None:
    seated = Seated()
    seated.guest.order(71, b"")
    seated.guest.on_refused(1, "no", is_unknown=True)
    seated.guest.on_window(is_open=False)
    seated.bus.origin = b"p" * 10
    seated.guest.on_window(is_open=True)
    assert seated.heard == [Lost(3, 71, "no", True), Window(3, False), Joined(3, b"p" * 10), Window(3, True)]
    seated.guest.on_stop("the disk failed")
    assert seated.halted == ["the disk failed"]
