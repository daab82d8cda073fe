"""Programs that ask for the way to the message servers."""

import pytest

from alphorn.client_manager.core import ClientManager
from alphorn.client_manager.desk import KnownNode, Settings
from alphorn.client_manager.machine import Opened, Reply, Said
from alphorn.doors.native import VERSION
from alphorn.model.conversation import Failed, Hello
from alphorn.model.errors import Misuse, PeerViolation
from alphorn.model.ids import IdSource
from alphorn.model.process_conversation import AskTicket, TicketAnswer, check_process_name, read_body
from tests.client_manager.proving import DRAFT, tell_signet

SERVERS = (("ms1", "10.0.0.3:7820"), ("ms2", "10.0.0.4:7820"))


def answer_to(name: str, **settings: object) -> object:
    """What a Client Manager says to who asks for a ticket."""
    fixed = {"name": "cm1", "message_servers": SERVERS, "nodes": (KnownNode("mm1", "message_manager", ""),)}
    manager = ClientManager(
        Settings(**(fixed | settings)),  # type: ignore[arg-type]
        IdSource(b"\x7f\x00\x00\x01", 7700, unix_s=1_800_000_000.0),
        origins=[b"o" * 10],
        signet=DRAFT,
        make_pass=lambda name: (f"ticket of {name}".encode(), b"secret"),
    )
    tell_signet(manager)
    for item in (Opened(1), Said(1, Hello(VERSION)), Said(1, AskTicket(7, name))):
        manager.receive(item, 0.0)
    replies = [output.frame for output in manager.take_outputs() if isinstance(output, Reply)]
    return replies[-1]


def test_a_program_is_told_where_the_message_servers_are_and_gets_a_ticket_of_its_name() -> None:
    assert answer_to("worker 1") == TicketAnswer(7, list(SERVERS), b"ticket of worker 1", b"secret")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("mm1", "mm1 is a message manager of this cluster; join under another name"),
        ("", "no name of a work process"),
        (" a", "no name of a work process"),
        ("a\nb", "no name of a work process"),
        ("a" * 201, "at most 200 characters; this has 201"),
    ],
)
def test_a_name_that_no_program_can_have_is_refused(name: str, reason: str) -> None:
    answer = answer_to(name)
    assert isinstance(answer, Failed)
    assert (answer.request, answer.error) == (7, Misuse.__name__)
    assert reason in answer.reason


def test_a_cluster_without_message_servers_says_so() -> None:
    answer = answer_to("worker", message_servers=())
    assert isinstance(answer, Failed)
    assert answer.error == Misuse.__name__
    assert "this cluster has no message servers" in answer.reason


def test_names_in_any_script_are_names() -> None:
    check_process_name("Arbeiter 7 · 作業")
    check_process_name("ü" * 200)


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x01", b"\x90", b"\x92\x01\x02", b"\x91\xa1\xff", b"\x91" * 5000])
def test_what_is_packed_otherwise_is_no_body(data: bytes) -> None:
    with pytest.raises(PeerViolation):
        read_body(data)
