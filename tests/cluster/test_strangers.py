"""Garbage at the port of internal connections, and a process that does not read: one error to it, and nobody waits."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

import alphorn
from alphorn.io.internal_stream import Knocking, make_ticket, pass_of_program
from alphorn.io.streams import LENGTH_BYTES
from alphorn.model import internal
from alphorn.model.events import Event
from alphorn.node import message_server
from tests.cluster.serving import KEY, PATIENCE_S, Serving


def call(serving: Serving) -> socket.socket:
    host, _, port = serving.servers[0][1].rpartition(":")
    return socket.create_connection((host, int(port)), PATIENCE_S)


def hear(stream: socket.socket) -> Iterator[internal.AnyServerFrame]:
    """Everything that is said until the server closes."""
    data = b""
    while True:
        try:
            more = stream.recv(1 << 20)
        except ConnectionResetError:
            more = b""
        if not more:
            return
        data += more
        while len(data) >= LENGTH_BYTES:
            end = LENGTH_BYTES + int.from_bytes(data[:LENGTH_BYTES], "big")
            if len(data) < end:
                break
            yield internal.decode_server(data[LENGTH_BYTES:end])
            data = data[end:]


def joining(name: str) -> bytes:
    row = internal.Row(name, internal.run_of(b""), internal.PROGRAM)
    return internal.encode(internal.Join(internal.VERSION, row))


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "bytes"),
        (b"\0\0\0\x03\xc1\xc1\xc1", "cannot be read"),
        (b"\xff\xff\xff\xff", "bytes"),
        (internal.encode(internal.Ping()), "begins with a join"),
        (joining("mm1"), "is the name of a node"),
        (joining("a") + joining("a"), "a process joins once"),
        (internal.encode(internal.Meet(internal.VERSION, "ms9", bytes(16), [])), "is not the other message server"),
    ],
)
def test_a_stranger_hears_one_clear_error_and_others_go_on(pair: Serving, said: bytes, reason: str) -> None:
    with alphorn.cluster.join(pair.url, name="one") as one, alphorn.cluster.join(pair.url, name="two"):
        with call(pair) as stream:
            stream.sendall(said)
            refused = [frame for frame in hear(stream) if isinstance(frame, internal.Refused)]
        assert len(refused) == 1
        assert reason in refused[0].reason
        one.tell("two", b"still here")


def test_a_process_that_does_not_read_holds_up_nobody_and_hears_why_it_is_hung_up(pair: Serving) -> None:
    with alphorn.cluster.join(pair.url, name="one") as one, alphorn.cluster.join(pair.url, name="two"):
        with call(pair) as stream:
            stream.sendall(joining("deaf"))
            for _ in range(20):
                one.tell_others(bytes(100_000))
                one.tell("two", bytes(100_000))
            *_, last = hear(stream)
        assert isinstance(last, internal.Refused)
        assert "nothing was heard of deaf" in last.reason


def test_who_asks_for_very_much_at_once_is_hung_up_before_all_of_it_is_kept(serving: Serving) -> None:
    details: dict[str, int | float | str] = {str(number): "x" * 1000 for number in range(16)}
    events = [Event(kind="disk_low", node="n", number=number, details=details) for number in range(40)]
    with call(serving) as stream:
        reports = [internal.encode(internal.Report(event.number + 1, event)) for event in events]
        stream.sendall(b"".join([joining("greedy"), internal.encode(internal.Home(True)), *reports]))
        stream.sendall(400 * internal.encode(internal.Recent(1, 1000)))
        *heard, last = hear(stream)
    assert len(heard) < 200
    assert isinstance(last, internal.Refused)
    assert "it does not read what it is sent" in last.reason


def test_a_program_that_has_a_ticket_is_no_message_server(tmp_path: Path) -> None:
    with Serving(tmp_path, count=2, is_sealed=True) as serving, alphorn.cluster.join(serving.url, name="one") as one:
        ticket = make_ticket("b")
        seal = Knocking(pass_of_program(KEY, ticket), is_server=False)
        with call(serving) as stream:
            stream.sendall(seal.knock())
            size = int.from_bytes(stream.recv(LENGTH_BYTES), "big")
            seal.hear(stream.recv(size))
            name = serving.servers[1][0]
            stream.sendall(seal.seal(internal.encode(internal.Meet(internal.VERSION, name, bytes(16), []))))
            data = b"".join(iter(lambda: stream.recv(1 << 20), b""))
        refused = internal.decode_server(seal.open(data[LENGTH_BYTES:]))
        assert isinstance(refused, internal.Refused)
        assert "meets no message server by it" in refused.reason
        one.tell_others("still here")


def test_who_does_not_knock_at_a_sealed_port_is_hung_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_server, "KNOCK_S", 0.1)
    with Serving(tmp_path, is_sealed=True) as serving, call(serving) as stream:
        assert list(hear(stream)) == []
