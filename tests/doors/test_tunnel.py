"""The tunnel: two ends that understand each other, and refusals that say why."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alphorn.doors.tunnel import PATH, SUBPROTOCOL, Tunnel, TunnelState
from alphorn.model.errors import PeerViolation

KEY = "dGhlIHNhbXBsZSBub25jZQ=="


def shaken() -> tuple[Tunnel, Tunnel]:
    client, server = Tunnel.to_server("cm1:80"), Tunnel.to_client()
    assert server.receive(client.take_output()) == []
    assert client.receive(server.take_output()) == []
    assert client.state is server.state is TunnelState.OPEN
    return client, server


def request(path: str = PATH, method: str = "GET", **headers: str | None) -> bytes:
    given = {
        "Host": "cm1",
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": KEY,
        "Sec-WebSocket-Protocol": SUBPROTOCOL,
    } | {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"{name}: {value}" for name, value in given.items() if value is not None]
    return "\r\n".join([f"{method} {path} HTTP/1.1", *lines, "", ""]).encode()


def refused(data: bytes) -> tuple[str, str]:
    """The first line and the text of what a server says to this."""
    server = Tunnel.to_client()
    with pytest.raises(PeerViolation):
        server.receive(data)
    assert server.state is TunnelState.CLOSED
    head, _, body = server.take_output().decode().partition("\r\n\r\n")
    assert f"content-length: {len(body)}" in head
    return head.split("\r\n")[0], body


@pytest.mark.requirement("API-19")
@given(st.lists(st.tuples(st.booleans(), st.binary(min_size=1, max_size=300))), st.integers(1, 50))
def test_bytes_come_out_as_they_went_in_however_the_network_cuts_them(
    said: list[tuple[bool, bytes]], size: int
) -> None:
    ends = shaken()
    heard = [b"", b""]
    for is_server, data in said:
        wire = ends[is_server].wrap(data)
        for start in range(0, len(wire), size):
            heard[is_server] += b"".join(ends[not is_server].receive(wire[start : start + size]))
    for is_server in (False, True):
        assert heard[is_server] == b"".join(data for side, data in said if side is is_server)


def test_hands_are_shaken_byte_by_byte() -> None:
    client, server = Tunnel.to_server("cm1:80", PATH), Tunnel.to_client()
    for byte in client.take_output():
        server.receive(bytes([byte]))
    for byte in server.take_output():
        client.receive(bytes([byte]))
    assert client.state is server.state is TunnelState.OPEN


def test_what_a_client_sends_is_masked_so_that_no_intermediary_takes_it_for_http() -> None:
    client, server = shaken()
    assert b"GET / HTTP/1.1" not in client.wrap(b"GET / HTTP/1.1")
    assert b"GET / HTTP/1.1" in server.wrap(b"GET / HTTP/1.1")


def test_a_goodbye_ends_both_ends() -> None:
    client, server = shaken()
    client.close("done")
    server.receive(client.take_output())
    assert (server.state, server.reason) == (TunnelState.CLOSED, "done")
    assert server.take_output(), "it says goodbye as well"
    assert server.receive(b"whatever") == []


@pytest.mark.parametrize(
    ("data", "status", "words"),
    [
        (request(path="/other"), "404", "at /alphorn"),
        (request(Origin="http://evil.example"), "403", "browsers are not served"),
        (request(Sec_WebSocket_Protocol=None), "400", "alphorn.1"),
        (request(Sec_WebSocket_Protocol="mqtt"), "400", "alphorn.1"),
        (request(Connection="keep-alive"), "400", "Upgrade"),
        (request(Upgrade="h2c"), "400", "websocket"),
        (request(Sec_WebSocket_Version="8"), "426", "Version"),
        (request(Sec_WebSocket_Key=None), "400", "Key"),
        (request(method="POST"), "400", "GET"),
        (request(Host=None), "400", "none"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "400", "only WebSockets"),
        (b"\x00\x00\x00\x05\x91\x01", "400", "only WebSockets"),
        (b"GET /" + b"a" * 100_000, "400", "only WebSockets"),
        (request(Host="\udcff".encode("utf-8", "surrogatepass").decode("latin-1")), "400", "only WebSockets"),
    ],
)
@pytest.mark.requirement("API-19")
def test_a_bad_handshake_is_refused_with_a_sentence_that_says_why(data: bytes, status: str, words: str) -> None:
    line, body = refused(data)
    assert line.startswith(f"HTTP/1.1 {status} ")
    assert words in body


def test_a_client_hears_why_it_was_refused() -> None:
    client = Tunnel.to_server("cm1:80", "/other")
    server = Tunnel.to_client()
    with pytest.raises(PeerViolation):
        server.receive(client.take_output())
    with pytest.raises(PeerViolation, match="HTTP 404: there is nothing here"):
        client.receive(server.take_output())


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 4\r\n\r\nbusy", "HTTP 502: busy"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", "HTTP 204"),
        (b"\x00\x00\x00\x05\x91\x01", "does not speak WebSocket"),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n", "does not speak WebSocket"),
    ],
)
def test_what_is_no_client_manager_is_left_with_its_own_words(answer: bytes, words: str) -> None:
    client = Tunnel.to_server("cm1:80")
    with pytest.raises(PeerViolation, match=words):
        client.receive(answer)
    assert client.state is TunnelState.CLOSED


def test_text_is_not_taken() -> None:
    client, server = shaken()
    client.take_output()
    with pytest.raises(PeerViolation, match="text"):
        server.receive(b"\x81\x82\x00\x00\x00\x00hi")
    assert server.take_output()


@given(st.binary(min_size=1, max_size=200))
def test_noise_is_refused_or_waited_out_and_nothing_else(noise: bytes) -> None:
    for end in (Tunnel.to_client(), Tunnel.to_server("cm1"), shaken()[1]):
        try:
            end.receive(noise)
        except PeerViolation:
            assert end.state is TunnelState.CLOSED
