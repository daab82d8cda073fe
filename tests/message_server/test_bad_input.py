"""What no correct process says: one clear error to that one, and nobody else notices."""

import pytest

import alphorn.message_server.machine as ms
from alphorn.message_server.core import MessageServer
from alphorn.message_server.settings import Settings
from alphorn.model import internal
from alphorn.model.errors import PeerViolation
from alphorn.model.events import Event

SECRET, ANOTHER = b"one", b"another"
RUN, OTHER = internal.run_of(SECRET), internal.run_of(ANOTHER)


class Port:
    """A server without a peer, and connections to it that say what they want."""

    def __init__(self) -> None:
        settings = Settings(name="ms1", run=b"s" * 16, nodes={"mm1": "message_manager"})
        self.server = MessageServer(settings, now=0.0, wall=lambda now: now)
        self.heard: dict[int, list[internal.ServerFrame]] = {}
        self.hung: dict[int, str] = {}
        self.now = 0.0

    def open(self, number: int, *, ticket: str = "") -> None:
        self.server.receive(ms.Opened(number, ticket), self.now)

    def say(self, number: int, *frames: internal.AnyProcessFrame) -> None:
        for frame in frames:
            self.server.receive(ms.Said(number, frame), self.now)
        self.collect()

    def collect(self) -> None:
        for output in self.server.take_outputs():
            match output:
                case ms.Tell(number, frame):
                    assert number not in self.hung, "nothing is said to a connection that is closed"
                    self.heard.setdefault(number, []).append(frame)
                case ms.Hang(number, reason):
                    self.hung[number] = reason

    def pass_time(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += 0.25
            self.server.on_time(self.now)
        self.collect()

    def join(self, number: int, name: str, secret: bytes) -> None:
        self.open(number)
        row = internal.Row(name, internal.run_of(secret), internal.PROGRAM)
        self.say(number, internal.Join(internal.VERSION, row, secret))

    def refusal(self, number: int) -> internal.Refused:
        found = [frame for frame in self.heard[number] if isinstance(frame, internal.Refused)]
        assert len(found) == 1
        assert number in self.hung
        return found[0]


def row(name: str, run: bytes = RUN, kind: str = internal.PROGRAM) -> internal.Row:
    return internal.Row(name, run, kind)


@pytest.mark.parametrize(
    ("ticket", "frame", "reason"),
    [
        ("", internal.Ping(), "begins with a join"),
        ("", internal.Join(99, row("a")), "version 99 of internal connections is not spoken here; version 1 is"),
        ("", internal.Join(1, row("")), "needs a name of printable characters"),
        ("", internal.Join(1, row("a\n")), "needs a name of printable characters"),
        ("", internal.Join(1, row("mm1")), "mm1 is the name of a node"),
        ("", internal.Join(1, row("mm9", kind="message_manager")), "the cluster has no message_manager named mm9"),
        ("a", internal.Join(1, row("b")), "the ticket is for a, and not for b"),
        ("mm1", internal.Join(1, row("mm1", kind="message_manager")), "a ticket lets a program in"),
    ],
)
def test_who_may_not_come_in_hears_why(ticket: str, frame: internal.AnyProcessFrame, reason: str) -> None:
    port = Port()
    port.open(1, ticket=ticket)
    port.say(1, frame)
    assert reason in port.refusal(1).reason


def test_who_says_nothing_is_refused_after_some_seconds() -> None:
    port = Port()
    port.open(1)
    port.pass_time(6.0)
    assert "begins with a join, within seconds" in port.refusal(1).reason


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([internal.Join(1, row("a"))], "a process joins once on a connection"),
        ([internal.SayAll(1, b"")], "a speaks to all and has not made this server its home"),
        ([internal.Home(True), internal.SayAll(2, b"")], "a left out what comes before number 2 of its lane"),
        (
            [internal.Home(True, 5), internal.Report(7, Event(kind="disk_low", node="n"))],
            "a left out what comes before number 7 of its lane",
        ),
        (
            [internal.Home(True), internal.Report(1, Event(kind="node_down", node="mm1"))],
            "message servers see themselves who comes and goes; report no node_down",
        ),
    ],
)
def test_a_process_that_breaks_the_rules_is_hung_up_and_nobody_else(
    frames: list[internal.AnyProcessFrame], reason: str
) -> None:
    port = Port()
    port.join(1, "a", SECRET)
    port.join(2, "b", ANOTHER)
    port.say(1, *frames, internal.Ping())
    assert reason in port.refusal(1).reason
    assert 2 not in port.hung


def test_frames_of_an_earlier_connection_count_for_nothing() -> None:
    port = Port()
    port.join(1, "a", SECRET)
    port.join(2, "a", SECRET)
    assert port.hung == {1: "its process has come on another connection"}
    port.say(2, internal.Home(True))
    port.say(1, internal.SayAll(1, b"late"), internal.Leave())
    port.server.receive(ms.Closed(1), port.now)
    port.say(2, internal.SayAll(1, b"now"))
    assert 2 not in port.hung
    assert port.server.describe()["connections"] == 1


def test_a_process_that_does_not_read_hears_one_error_and_is_away() -> None:
    port = Port()
    port.join(1, "a", SECRET)
    port.join(2, "b", ANOTHER)
    for _ in range(3):  # frames of one turn that it does not get
        port.server.receive(ms.Clogged(1), port.now)
    port.collect()
    assert port.refusal(1).error == "Blocked"
    assert internal.Departed([RUN], False) in port.heard[2]
    port.server.receive(ms.Closed(1), port.now)
    port.join(3, "a", SECRET)
    assert 3 not in port.hung


@pytest.mark.parametrize("name", ["a", "b"])
@pytest.mark.parametrize("run", [RUN, b"s" * 16], ids=["a node's", "the server's"])
def test_nobody_gets_in_under_the_run_of_another_process(name: str, run: bytes) -> None:
    """Not under its name either: everybody hears the runs of the others, and their secrets from nobody."""
    port = Port()
    port.join(1, "a", SECRET)
    for number, secret in enumerate((b"", ANOTHER, run), 2):
        port.open(number, ticket=name)
        port.say(number, internal.Join(1, row(name, run), secret), internal.Home(True, 1000))
    port.join(5, "c", ANOTHER)
    for number in (2, 3, 4):
        assert f"{name} names the run of another process as its own" in port.refusal(number).reason
    assert list(port.hung) == [2, 3, 4]


def test_nobody_is_there_twice_under_two_names() -> None:
    port = Port()
    port.join(1, "a", SECRET)
    port.join(2, "b", SECRET)
    assert "b names the run of another process as its own" in port.refusal(2).reason
    assert list(port.hung) == [2]


def test_numbers_that_cannot_be_are_counted_for_others_as_far_as_can_be_told() -> None:
    port = Port()
    port.join(1, "a", SECRET)
    port.say(1, internal.Home(True))
    for number in range(2, 8):
        port.join(number, f"liar {number}", bytes([number]) * 16)
    for number in range(2, 8):
        for first in (5, internal.NUMBER_MAX):
            port.server.receive(ms.Said(number, internal.Home(True, first)), port.now)
    port.pass_time(1.0)
    (told,) = [frame for frame in port.heard[1] if isinstance(frame, internal.Passed) and frame.missed]
    assert internal.decode_server(internal.encode(told)[internal.LENGTH_BYTES :]) == told


@pytest.mark.parametrize("time", [1e300, -1.0, float("nan"), float("inf")])
def test_a_time_that_no_calendar_knows_is_a_violation(time: float) -> None:
    data = internal.encode(internal.Report(1, Event(kind="disk_low", node="n", time=time)))
    with pytest.raises(PeerViolation, match="cannot be read"):
        internal.decode_heard(data[internal.LENGTH_BYTES :])


def test_what_is_said_to_nobody_is_dropped() -> None:
    port = Port()
    port.join(1, "a", SECRET)
    port.say(
        1,
        internal.Say(OTHER, 1, 1, b"?"),
        internal.Confirm([(OTHER, 5)]),
        internal.Took(99),
        internal.Finish(b"key"),
        internal.Withdraw(b"other"),
    )
    assert 1 not in port.hung


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x91\x63", b"\x92\x06\x01", b"\x93\x04\xc4\x01a\x01", b"\x91" * 5000])
def test_what_is_no_frame_is_a_violation(data: bytes) -> None:
    with pytest.raises(PeerViolation, match="cannot be read"):
        internal.decode_heard(data)
    with pytest.raises(PeerViolation, match="cannot be read"):
        internal.decode_server(data)


def test_a_frame_of_a_list_without_end_is_a_violation() -> None:
    data = internal.encode(internal.Confirm([(RUN, number) for number in range(internal.LANES_MAX + 1)]))
    with pytest.raises(PeerViolation):
        internal.decode_heard(data[internal.LENGTH_BYTES :])
