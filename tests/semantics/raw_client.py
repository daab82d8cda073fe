"""A client that says whatever it is told to, right or wrong: frames of the native door over a bare socket."""

import contextlib
import socket
from typing import Any

from alphorn.doors import native
from alphorn.model.conversation import (
    Consume,
    Done,
    Goodbye,
    Hello,
    OpenSession,
    Publish,
    Resolve,
    Resolved,
    Welcome,
)
from tests.semantics.waiting import WAIT_S

SESSION = 1


class RawClient:
    """One connection. Everything that waits is bounded."""

    def __init__(self, url: str) -> None:
        host, _, port = url.partition("://")[2].partition(",")[0].rpartition(":")
        self._socket = socket.create_connection((host, int(port)), WAIT_S)
        self._received = b""
        self._request = 0

    def __enter__(self) -> "RawClient":
        return self

    def __exit__(self, *exception: object) -> None:
        self._socket.close()

    def write(self, data: bytes) -> None:
        """Bytes as they are; a server that has hung up already is told nothing."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(data)

    def say(self, frame: Any) -> None:
        self.write(native.encode(frame))

    def next_frame(self) -> Any:
        """What the server says next; None when it has hung up."""
        while True:
            wanted = 4 + int.from_bytes(self._received[:4], "big")
            if len(self._received) >= 4 and len(self._received) >= wanted:
                body, self._received = self._received[4:wanted], self._received[wanted:]
                return native.decode_server(body)
            try:
                more = self._socket.recv(1 << 16)
            except ConnectionResetError:
                return None
            if not more:
                return None
            self._received += more

    def until(self, kind: Any) -> Any:
        """The next frame of this kind; others before it are passed over."""
        while (frame := self.next_frame()) is not None:
            if isinstance(frame, kind):
                return frame
        raise AssertionError(f"the server hung up before it said {kind}")

    def hello(self, **fields: Any) -> Welcome:
        self.say(Hello(native.VERSION, **fields))
        welcome = self.until(Welcome)
        self.say(OpenSession(SESSION))
        return welcome

    def ask(self, make: Any) -> Any:
        """The answer to a request; `make` gets its number."""
        self._request += 1
        number = self._request
        self.say(make(number))
        while (frame := self.next_frame()) is not None:
            if getattr(frame, "request", None) == number:
                return frame
        raise AssertionError("the server hung up before it answered")

    def place_of(self, destination: str) -> int:
        found = self.ask(lambda request: Resolve(request, destination))
        assert isinstance(found, Resolved)
        return found.place

    def consume(self, destination: str, consumer: int = 1, prefetch: int = 100) -> None:
        place = self.place_of(destination)
        assert isinstance(self.ask(lambda request: Consume(request, SESSION, consumer, place, prefetch)), Done)

    def publish(self, place: int, blob: bytes, **fields: Any) -> None:
        given = {"session": SESSION, "producer": 1, "counter": 1, "count": 1, "flags": 0, "timestamp": 1, **fields}
        self.say(Publish(place=place, blob=memoryview(blob), **given))

    def sent_away(self) -> Goodbye:
        """The reason the server gave before it hung up, which it has done now."""
        goodbye = self.until(Goodbye)
        assert self.next_frame() is None
        return goodbye
