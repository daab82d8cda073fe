"""A client id is asked for before its client is welcome."""

from alphorn.client_manager.machine import Opened
from alphorn.doors.native import VERSION
from alphorn.model import link
from alphorn.model.conversation import Goodbye, Hello, Ping, Welcome
from tests.client_manager.managing import Client, Managing, claimed_client
from tests.client_manager.proving import secret_of


def knocking(managing: Managing, connection: bytes = b"") -> Client:
    """A client that has said hello with the id "me", and waits."""
    managing.streams += 1
    managing.receive(Opened(managing.streams))
    client = Client(managing, managing.streams)
    client.say(Hello(VERSION, client_id="me", connection=connection, secret=secret_of(connection)))
    return client


def test_a_client_with_an_id_is_welcome_when_the_primary_grants_it() -> None:
    managing = Managing()
    client = knocking(managing)
    assert client.heard() == []
    claim = claimed_client(managing)
    assert claim.client == "me"
    managing.tell(link.Answered(claim.request))
    [welcome] = client.heard()
    assert isinstance(welcome, Welcome)
    assert welcome.connection == claim.connection
    assert managing.asked[-1] == ("mm1", link.ConnectionOpened(claim.connection))


def test_a_client_whose_id_is_in_use_is_told_and_hung_up() -> None:
    managing = Managing()
    client = knocking(managing)
    managing.tell(link.Answered(claimed_client(managing).request, 0, "Misuse", "it is in use"))
    assert client.heard() == [Goodbye("Misuse", "it is in use")]
    assert client.stream in managing.hung


def test_a_client_that_talks_before_it_is_welcome_is_hung_up() -> None:
    managing = Managing()
    client = knocking(managing)
    client.say(Ping())
    [goodbye] = client.heard()
    assert isinstance(goodbye, Goodbye)
    assert goodbye.error == "PeerViolation"


def test_the_next_primary_is_asked_where_the_first_did_not_answer() -> None:
    managing = Managing()
    client = knocking(managing)
    first = claimed_client(managing)
    managing.link_up("mm2", is_primary=True, epoch=2)
    again = claimed_client(managing)
    assert (again.connection, again.client) == (first.connection, first.client)
    managing.tell(link.Answered(again.request), "mm2")
    assert client.take(Welcome)


def test_an_id_that_is_granted_to_a_client_that_has_gone_is_given_back() -> None:
    managing = Managing()
    client = knocking(managing)
    claim = claimed_client(managing)
    client.close()
    managing.tell(link.Answered(claim.request))
    assert managing.asked[-1] == ("mm1", link.ConnectionLost(claim.connection))


def test_a_new_primary_hears_which_ids_are_in_use() -> None:
    managing = Managing()
    named, nameless = managing.connect(client_id="me"), managing.connect()
    managing.asked.clear()
    managing.link_up("mm2", is_primary=True, epoch=2)
    introduced = [frame for name, frame in managing.asked if isinstance(frame, link.Introduce)][-1]
    assert introduced.connections == [named.id, nameless.id]
    assert introduced.clients == [(named.id, "me")]
