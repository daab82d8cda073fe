"""Connections that do nothing but be there: plain sockets that greet, so that no client library is measured."""

import contextlib
import socket
from collections.abc import Iterator

from alphorn.client.url import parse_url
from alphorn.doors import native
from alphorn.io.process import raise_file_limit
from alphorn.model.conversation import Hello, Welcome
from alphorn.model.errors import Misuse, Unavailable

SPARE_FILES = 100
AT_ONCE = 100


@contextlib.contextmanager
def hold_connections(url: str, count: int) -> Iterator[None]:
    """Opens so many to the first address of the URL, all welcomed; closes them in the end. Raises an `Error`."""
    allowed = raise_file_limit()
    if count + SPARE_FILES > allowed:
        raise Misuse(f"{count} connections need more files than the {allowed} that a process may open; raise ulimit -n")
    host, port = parse_url(url).addresses[0]
    with contextlib.ExitStack() as stack:
        for first in range(0, count, AT_ONCE):
            made = [
                stack.enter_context(socket.create_connection((host, port))) for _ in range(min(AT_ONCE, count - first))
            ]
            for connection in made:
                connection.sendall(native.encode(Hello(native.VERSION)))
            for connection in made:
                _await_welcome(connection)
        yield


def _await_welcome(connection: socket.socket) -> None:
    length = int.from_bytes(_read(connection, native.LENGTH_BYTES), "big")
    answer = native.decode_server(_read(connection, length))
    if not isinstance(answer, Welcome):
        raise Unavailable(f"a connection was not welcomed: {answer}")


def _read(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        if not (more := connection.recv(count - len(data))):
            raise Unavailable("a connection was closed instead of welcomed; see the Client Manager's log")
        data += more
    return data
