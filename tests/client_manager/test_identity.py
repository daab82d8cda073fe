"""Who goes on with a connection proves that it is its own, at any Client Manager."""

import pytest

from alphorn.client_manager.core import ClientManager
from alphorn.client_manager.desk import Settings
from alphorn.client_manager.machine import Hang, Linked, Log, Lost, Opened, Order, Reply, Said, Told
from alphorn.doors.native import VERSION
from alphorn.model import link
from alphorn.model.commands import KeepSignet, decode_entry
from alphorn.model.conversation import Goodbye, Hello, Ping, Pong, Welcome
from alphorn.model.ids import IdSource
from tests.client_manager.managing import Client, Managing
from tests.client_manager.meeting import Meeting
from tests.client_manager.proving import DRAFT, SIGNET, secret_of

STRANGERS = {
    "no secret": lambda connection: b"",
    "a random one": lambda connection: b"r" * 32,
    "that of another connection": lambda connection: secret_of(b"o" * 16),
    "a part of the right one": lambda connection: secret_of(connection)[:-1],
    "more than the right one": lambda connection: secret_of(connection) + b"\0",
}
STREAM = 9  # of a client that comes early


def knocking(managing: Managing, hello: Hello) -> Client:
    """Somebody has said hello."""
    managing.streams += 1
    managing.receive(Opened(managing.streams))
    client = Client(managing, managing.streams)
    client.say(hello)
    return client


@pytest.mark.parametrize("says", STRANGERS.values(), ids=STRANGERS)
@pytest.mark.parametrize("client_id", ["", "me"])
@pytest.mark.requirement("API-18")
def test_a_stranger_who_knows_an_id_is_refused_and_the_client_hears_nothing_of_it(says, client_id: str) -> None:  # type: ignore[no-untyped-def]
    managing = Managing()
    client = managing.connect(client_id=client_id)
    client.heard()
    managing.asked.clear()
    hello = Hello(VERSION, client_id, connection=client.id, resumption=5, secret=says(client.id))
    stranger = knocking(managing, hello)
    [goodbye] = stranger.heard()
    assert isinstance(goodbye, Goodbye)
    assert (goodbye.error, list(managing.hung)) == ("AccessDenied", [stranger.stream])
    assert (managing.asked, managing.entries) == ([], []), "nobody else hears of it either"
    client.say(Ping())
    assert client.heard() == [Pong()]


@pytest.mark.requirement("API-18")
def test_what_a_welcome_says_proves_the_connection_at_a_client_manager_that_has_never_seen_it() -> None:
    meeting = Meeting()
    [welcome] = meeting.heard(meeting.connect())
    assert isinstance(welcome, Welcome)
    meeting.renew()
    stranger, client = meeting.open(), meeting.open()
    meeting.say(stranger, Hello(VERSION, connection=welcome.connection, secret=b"r" * 32))
    meeting.say(client, Hello(VERSION, connection=welcome.connection, resumption=1, secret=welcome.secret))
    assert [type(frame) for frame in meeting.heard(stranger)] == [Goodbye]
    [again] = meeting.heard(client)
    assert isinstance(again, Welcome)
    assert (again.connection, again.secret) == (welcome.connection, welcome.secret)


def test_connections_have_different_secrets_and_nobody_is_shown_them() -> None:
    managing = Managing()
    one, two = (knocking(managing, Hello(VERSION)).take(Welcome)[0] for _ in range(2))
    assert one.secret != two.secret
    hello = Hello(VERSION, password="word", connection=one.connection, secret=one.secret)
    shown = f"{one!r} {hello!r} {managing.manager.describe()}"
    assert "secret=…" in shown
    assert not any(part in shown for part in ("word'", repr(one.secret)[2:-1], one.secret.hex(), SIGNET.decode()))


class Beginning:
    """A Client Manager that has just begun, and what it says and wants."""

    def __init__(self) -> None:
        ids = IdSource(b"\x7f\x00\x00\x01", 7700, unix_s=1_800_000_000.0)
        self.manager = ClientManager(Settings(name="cm1"), ids, origins=[b"o" * 10], signet=DRAFT)
        self.offers: list[tuple[int, int]] = []  # handle and request of each
        self.said: list[object] = []
        self.logged: list[str] = []

    def receive(self, *items: object) -> None:
        for item in items:
            self.manager.receive(item, 0.0)  # type: ignore[arg-type]
        for output in self.manager.take_outputs():
            match output:
                case Order(_, handle, payload):
                    entry = decode_entry(payload)
                    assert all(command == KeepSignet(DRAFT) for command in entry.commands)
                    self.offers.append((handle, entry.requests[-1]))
                case Reply(_, frame):
                    self.said.append(frame)
                case Hang(stream, _):
                    self.said.append(stream)
                case Log():
                    self.logged.append(output.details)

    def meet(self, name: str = "mm1", epoch: int = 1) -> None:
        self.receive(Linked(0, name, True), Told(0, name, link.Role(name, epoch, True)))

    def answer(self, name: str = "mm1") -> None:
        self.receive(Told(0, name, link.Answered(self.offers[-1][1], signet=SIGNET)))


def test_who_comes_before_the_signet_is_known_waits_and_is_welcome_then() -> None:
    beginning = Beginning()
    beginning.receive(Opened(STREAM), Said(STREAM, Hello(VERSION)))
    beginning.meet()
    assert beginning.said == []
    beginning.answer()
    [welcome] = beginning.said
    assert isinstance(welcome, Welcome)
    assert welcome.secret == secret_of(welcome.connection), "by the signet that holds, not by its own draft"


def test_a_stranger_who_comes_before_the_signet_is_known_is_refused_when_it_is() -> None:
    beginning = Beginning()
    stranger = Hello(VERSION, connection=b"c" * 16, secret=b"r" * 32)
    beginning.receive(Opened(STREAM), Said(STREAM, stranger))
    beginning.meet()
    beginning.answer()
    [goodbye, hung] = beginning.said
    assert isinstance(goodbye, Goodbye)
    assert (goodbye.error, hung) == ("AccessDenied", STREAM)
    assert not any(secret.hex() in line for line in beginning.logged for secret in (SIGNET, DRAFT, b"r" * 32))


def test_who_talks_on_before_it_is_welcome_is_hung_up() -> None:
    beginning = Beginning()
    beginning.receive(Opened(STREAM), Said(STREAM, Hello(VERSION)), Said(STREAM, Ping()))
    [goodbye, hung] = beginning.said
    assert isinstance(goodbye, Goodbye)
    assert (goodbye.error, hung) == ("PeerViolation", STREAM)
    beginning.meet()
    beginning.answer()
    assert len(beginning.said) == 2


def test_the_next_primary_is_asked_for_the_signet_where_the_first_did_not_answer() -> None:
    beginning = Beginning()
    beginning.meet()
    beginning.meet("mm2", epoch=2)
    assert len(beginning.offers) == 1, "the entry is under way, and the next one waits for it"
    [(handle, _)] = beginning.offers
    beginning.receive(Lost(0, handle, "nobody knows"))
    assert len(beginning.offers) == 2
    beginning.receive(Opened(STREAM), Said(STREAM, Hello(VERSION)))
    beginning.answer("mm2")
    assert [type(frame) for frame in beginning.said] == [Welcome]


def test_a_signet_that_is_known_is_not_asked_for_again() -> None:
    beginning = Beginning()
    beginning.meet()
    beginning.answer()
    beginning.meet("mm2", epoch=2)
    beginning.receive(Lost(0, 7, "nobody knows"))
    assert len(beginning.offers) == 1
