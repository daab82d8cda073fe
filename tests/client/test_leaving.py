"""Leaving a Client Manager that is silent: what it has not received it never will, for it is said again elsewhere."""

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

import alphorn
import alphorn.client.silence
from alphorn.doors.native import VERSION, encode
from alphorn.model.conversation import Welcome
from tests.client.shells import Connect

READ_BYTES = 1 << 16
WAIT_S = 60.0  # only what hangs meets it


@contextlib.contextmanager
def left_in_silence(connect: Connect, size: int) -> Iterator[socket.socket]:
    """The stream of a client that asks for something of this size and has left; nothing of it was read."""
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # so that most of what is asked waits for room
        server.bind(("127.0.0.1", 0))
        server.listen()
        url = f"alphorn://127.0.0.1:{server.getsockname()[1]}"
        left = threading.Event()

        def on_event(name: str, detail: str) -> None:
            if name == "disconnected":
                left.set()

        def ask() -> None:
            with contextlib.suppress(alphorn.Error), connect(url, on_event=on_event, reconnect_timeout=0.1) as made:
                made.session().unsubscribe("x" * size)

        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        stream, _ = server.accept()
        with stream:
            stream.recv(READ_BYTES)
            stream.sendall(encode(Welcome(VERSION, b"c" * 16, "cm1", [])))
            assert left.wait(WAIT_S)
            yield stream
        server.close()
        asking.join(WAIT_S)


def read_all(stream: socket.socket) -> None:
    while stream.recv(READ_BYTES):
        pass


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alphorn.client.silence, "DEAD_AFTER_S", 0.5)


@pytest.mark.requirement("API-10", "API-11")
def test_what_lies_unsent_when_a_client_leaves_is_not_delivered_later(connect: Connect) -> None:
    with left_in_silence(connect, 2 << 20) as stream, pytest.raises(ConnectionResetError):
        read_all(stream)


@pytest.mark.requirement("API-10")
def test_one_that_takes_nothing_more_of_what_it_is_sent_is_left_too(connect: Connect) -> None:
    with left_in_silence(connect, 12 << 20) as stream:  # more than the kernel holds for a stream
        assert stream.recv(READ_BYTES)
