"""Leaving a Client Manager that is silent: what it has not received it never will, for it is said again elsewhere."""

import contextlib
import socket
import threading

import pytest

import alphorn
import alphorn.client.core
from alphorn.doors.native import encode
from alphorn.model.conversation import Welcome
from tests.client.shells import Connect

READ_BYTES = 1 << 16


def read_all(stream: socket.socket) -> None:
    while stream.recv(READ_BYTES):
        pass


@pytest.mark.requirement("API-10", "API-11")
def test_what_lies_unsent_when_a_client_leaves_is_not_delivered_later(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alphorn.client.core, "DEAD_AFTER_S", 0.5)
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # so that most of what is asked waits for room
        server.bind(("127.0.0.1", 0))
        server.listen()
        left = threading.Event()

        def on_event(name: str, detail: str) -> None:
            if name == "disconnected":
                left.set()

        url = f"alphorn://127.0.0.1:{server.getsockname()[1]}"

        def ask() -> None:
            with contextlib.suppress(alphorn.Error), connect(url, on_event=on_event, reconnect_timeout=0.1) as made:
                made.session().unsubscribe("x" * (2 << 20))

        asking = threading.Thread(target=ask)
        asking.start()
        stream, _ = server.accept()
        with stream:
            stream.recv(READ_BYTES)
            stream.sendall(encode(Welcome(1, b"c" * 16, "cm1", [])))
            assert left.wait(60)
            with pytest.raises(ConnectionResetError):
                read_all(stream)
        server.close()
        asking.join(60)
