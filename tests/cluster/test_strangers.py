"""Garbage at the port of internal connections, and a process that does not read: one error to it, and nobody waits."""

import socket
from collections.abc import Iterator

import pytest

import alphorn
from alphorn.io.streams import LENGTH_BYTES
from alphorn.model import internal
from tests.cluster.serving import PATIENCE_S, Serving


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
    return internal.encode(internal.Join(internal.VERSION, internal.Row(name, bytes(16), internal.PROGRAM)))


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "bytes"),
        (b"\0\0\0\x03\xc1\xc1\xc1", "cannot be read"),
        (b"\xff\xff\xff\xff", "bytes"),
        (internal.encode(internal.Ping()), "begins with a join"),
        (joining("mm1"), "is the name of a node"),
        (joining("a") + joining("a"), "a process joins once"),
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
