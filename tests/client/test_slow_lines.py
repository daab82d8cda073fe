"""A large frame on a slow line: as long as something of it moves, nobody is silent."""

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest

import alphorn
import alphorn.client.silence
from alphorn.doors.native import decode_client, encode
from alphorn.model.conversation import (
    AnyClientFrame,
    Done,
    OpenSession,
    Status,
    StatusAnswer,
    Unsubscribe,
    Welcome,
)
from tests.client.shells import Connect

DEAD_AFTER_S = 0.5
PIECES = 12
PIECE_S = DEAD_AFTER_S / 4  # so that a frame takes several times as long as a silence may
LITTLE = 1000
WAIT_S = 60.0  # only what hangs meets it
LARGE = 12 << 20  # more than the kernel holds for a stream


class SlowLine:
    """A Client Manager behind a line that carries a piece of a large frame at a time."""

    def __init__(self, stream: socket.socket, left: threading.Event) -> None:
        self._stream, self._left = stream, left
        self._hear()
        stream.sendall(encode(Welcome(1, b"c" * 16, "cm1", [])))

    def answer(self) -> None:
        """Hears one request, of any size, and answers it, each as slowly as the line is."""
        match self._hear():
            case OpenSession():
                self.answer()
            case Unsubscribe(request):
                self._say(encode(Done(request)))
            case Status(request):
                self._say(encode(StatusAnswer(request, b'{"nodes": [], "filling": "%s"}' % bytes(b"x" * 5000))))

    def _hear(self) -> AnyClientFrame:
        size = int.from_bytes(self._read(4), "big")
        if size < LITTLE:
            return decode_client(self._read(size))
        piece = -(-size // PIECES)
        return decode_client(b"".join(self._slowly(self._read, min(piece, size - n)) for n in range(0, size, piece)))

    def _say(self, frame: bytes) -> None:
        if len(frame) < LITTLE:
            self._stream.sendall(frame)
            return
        piece = -(-len(frame) // PIECES)
        for place in range(0, len(frame), piece):
            self._slowly(self._stream.sendall, frame[place : place + piece])

    def _slowly(self, move: Callable[..., Any], what: Any) -> Any:
        assert not self._left.wait(PIECE_S), "the client has left"
        return move(what)

    def _read(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            part = self._stream.recv(size - len(found))
            assert part, "the client has left"
            found += part
        return found


@pytest.mark.requirement("API-10")
@pytest.mark.parametrize(
    "ask",
    [
        pytest.param(lambda connection: connection.status(), id="received"),
        pytest.param(lambda connection: connection.session().unsubscribe("x" * LARGE), id="sent"),
    ],
)
def test_a_frame_that_takes_longer_than_a_silence_may_arrives(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, ask: Callable[[Any], object]
) -> None:
    monkeypatch.setattr(alphorn.client.silence, "DEAD_AFTER_S", DEAD_AFTER_S)
    left, done = threading.Event(), threading.Event()

    def on_event(name: str, detail: str) -> None:
        if name == "disconnected":
            left.set()

    def work(url: str) -> None:
        with contextlib.suppress(alphorn.Error), connect(url, on_event=on_event, reconnect_timeout=0.1) as made:
            ask(made)
            done.set()

    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        server.bind(("127.0.0.1", 0))
        server.listen()
        asking = threading.Thread(target=work, args=(f"alphorn://127.0.0.1:{server.getsockname()[1]}",))
        asking.start()
        stream, _ = server.accept()
        with stream:
            SlowLine(stream, left).answer()
            assert done.wait(WAIT_S)
        asking.join()
