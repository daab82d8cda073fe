"""The Message Manager as primary: what Client Managers ask and are told over their links."""

import pytest

from alphorn.message_manager.core import MessageManager
from alphorn.message_manager.machine import Asked, ClientManagerLeft, Committed, Demoted, LinkOpened, Promoted, Tell
from alphorn.message_manager.status import About
from alphorn.model import link
from alphorn.model.commands import AnyCommand, CreateDestination, Entry, Publish, encode_entry
from alphorn.model.destinations import Destination, DestinationKind, Policy

QUEUE = Destination(DestinationKind.QUEUE, "q")


class Primary:
    """A Message Manager that is primary, with the links 1 and 2."""

    def __init__(self) -> None:
        about = About(name="mm1", pid=1, address="", channel="main")
        self.machine = MessageManager(about, wall_ms=lambda now: int(now * 1000), read=lambda sequence: None)
        self.sequence = 0
        self.machine.receive(Promoted(1 << 16, b"m" * 10, ()), 0.0)
        for number in (1, 2):
            self.machine.receive(LinkOpened(number), 0.0)
        self.commit(b"x" * 10, CreateDestination(QUEUE, Policy()))
        self.told()

    def commit(self, origin: bytes, *commands: AnyCommand, requests: tuple[int, ...] = ()) -> None:
        self.sequence += 1
        self.machine.receive(Committed(self.sequence, origin, encode_entry(Entry(list(commands), list(requests)))), 0.0)

    def ask(self, number: int, *frames: link.AnyAsked) -> None:
        for frame in frames:
            self.machine.receive(Asked(number, frame), 0.0)

    def told(self) -> list[tuple[int, link.Told]]:
        return [(output.link, output.frame) for output in self.machine.take_outputs() if isinstance(output, Tell)]


def _introduce(origin: bytes) -> link.Introduce:
    return link.Introduce("cm", origin, 1, "", [])


def test_a_destination_is_named_to_who_knows_its_number_only() -> None:
    primary = Primary()
    primary.ask(1, _introduce(b"a" * 10), link.Identify(7, 1), link.Identify(8, 9))
    found, missing = [frame for _, frame in primary.told()]
    assert found == link.Answered(7, 1, policy=Policy(), destination=QUEUE)
    assert isinstance(missing, link.Answered)
    assert (missing.request, missing.error) == (8, "InvalidDestination")


def test_a_delivery_passes_by_a_client_manager_that_has_only_introduced_itself() -> None:
    primary = Primary()
    primary.ask(1, _introduce(b"a" * 10))
    primary.ask(2, _introduce(b"b" * 10), link.Attach(5, b"k" * 20, 1, 0, "", 10, []), link.Settled())
    primary.commit(b"b" * 10, Publish(1, b"p" * 20, 1, 1, 0, 0, memoryview(b"\x91\x91\x01")))
    assert [(number, type(frame)) for number, frame in primary.told()] == [(2, link.Answered), (2, link.Deliver)]


def test_requests_are_answered_to_the_newest_origin_of_a_link() -> None:
    primary = Primary()
    primary.ask(1, _introduce(b"a" * 10), _introduce(b"n" * 10))
    primary.commit(b"n" * 10, CreateDestination(QUEUE, Policy()), requests=(9,))
    primary.commit(b"a" * 10, CreateDestination(QUEUE, Policy()), requests=(10,))
    assert [(number, frame.request) for number, frame in primary.told() if isinstance(frame, link.Answered)] == [(1, 9)]


def test_what_is_loose_is_given_out_as_a_redelivery() -> None:
    primary = Primary()
    primary.commit(b"b" * 10, Publish(1, b"p" * 20, 1, 2, 0, 0, memoryview(b"\x92\x91\x01\x91\x02")))
    primary.ask(1, _introduce(b"a" * 10), link.Attach(5, b"k" * 20, 1, 0, "", 10, []))
    primary.ask(1, link.Settled([(1, 0, [2, 2])]))
    [deliver] = [frame for _, frame in primary.told() if isinstance(frame, link.Deliver)]
    assert [(run.position, run.delivery_count) for run in deliver.runs] == [(1, 1), (2, 2)]


@pytest.mark.parametrize(("passed_s", "deliveries"), [(1.0, 2), (60.0, 1)])
@pytest.mark.requirement("HA-20", "MM-11")
def test_soon_after_a_client_manager_left_a_new_primary_takes_all_for_redelivered(
    passed_s: float, deliveries: int
) -> None:
    primary = Primary()
    primary.commit(b"b" * 10, Publish(1, b"p" * 20, 1, 1, 0, 0, memoryview(b"\x91\x91\x01")))
    primary.machine.receive(Demoted(2 << 16), 0.0)
    primary.machine.receive(ClientManagerLeft(b"b" * 10), 0.0)
    primary.machine.receive(Promoted(3 << 16, b"m" * 10, ()), passed_s)
    primary.ask(1, _introduce(b"a" * 10), link.Attach(5, b"k" * 20, 1, 0, "", 10, []), link.Settled())
    [deliver] = [frame for _, frame in primary.told() if isinstance(frame, link.Deliver)]
    assert [run.delivery_count for run in deliver.runs] == [deliveries]
