"""A large frame on a slow line: as long as something of it moves, nobody is silent."""

import contextlib
import queue
import socket
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

import alphorn
import alphorn.client.silence
from alphorn.client.aio import line as aio_line
from alphorn.client.blocking import line as blocking_line
from alphorn.doors.native import VERSION, decode_client, encode
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

DEAD_AFTER_S = 10_000.0  # on a clock that is put on: however slow the machine is, it does not count
PIECES = 12
PIECE_S = DEAD_AFTER_S * 0.75  # so that a frame takes several times as long as a silence may
LITTLE = 1000
WAIT_S = 60.0  # only what hangs meets it
LOOK_S = 0.001
LARGE = 6 << 20
KERNEL_BYTES = 16 << 10  # so little that every piece needs the client to write


class Clock:
    """The time of a client, which passes as its line says."""

    def __init__(self) -> None:
        self._ahead_s = 0.0
        self.module = SimpleNamespace(monotonic=self.now, time_ns=time.time_ns)  # what a client uses of `time`

    def now(self) -> float:
        return time.monotonic() + self._ahead_s

    def put_on(self, seconds: float) -> float:
        """Lets time pass, after which it is so late."""
        self._ahead_s += seconds
        return self.now()


def core_line(connection: Any) -> Any:
    return getattr(connection, "inner", connection)._line


def shrink(connection: Any) -> None:
    """Lets the kernel hold little of what this client writes."""
    stream = core_line(connection)._stream
    found = stream if isinstance(stream, socket.socket) else stream._transport.get_extra_info("socket")
    found.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL_BYTES)


class SlowLine:
    """A Client Manager behind a line that carries a piece of a large frame at a time, and takes long for each."""

    def __init__(self, stream: socket.socket, clock: Clock, left: threading.Event) -> None:
        self._stream, self._clock, self._left = stream, clock, left
        self._hear()
        stream.sendall(encode(Welcome(VERSION, b"c" * 16, "cm1", [])))

    def attend(self, connection: Any) -> None:
        """From now on this is the client's end."""
        self._silence = core_line(connection).core.silence

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
        """Moves a piece late, and lets the client see that it moved before it is later still."""
        late, give_up_at = self._clock.put_on(PIECE_S), time.monotonic() + WAIT_S
        moved = move(what)
        while not self._has_seen(late):
            assert not self._left.wait(LOOK_S) or self._has_seen(late), "the client has left"
            assert time.monotonic() < give_up_at, "the client has seen nothing move"
        return moved

    def _has_seen(self, late: float) -> bool:
        return max(self._silence.heard_at, self._silence._moved_at) >= late

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
    clock = Clock()
    for module in (blocking_line, aio_line):
        monkeypatch.setattr(module, "time", clock.module)
    monkeypatch.setattr(aio_line, "TICK_S", LOOK_S)
    monkeypatch.setattr(alphorn.client.silence, "DEAD_AFTER_S", DEAD_AFTER_S)
    left, done = threading.Event(), threading.Event()
    connections: queue.Queue[Any] = queue.Queue()

    def on_event(name: str, detail: str) -> None:
        if name == "disconnected":
            left.set()

    def work(url: str) -> None:
        with contextlib.suppress(alphorn.Error), connect(url, on_event=on_event, reconnect_timeout=0.1) as made:
            shrink(made)
            connections.put(made)
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
            line = SlowLine(stream, clock, left)
            line.attend(connections.get(timeout=WAIT_S))
            line.answer()
            assert done.wait(WAIT_S)
        asking.join()
