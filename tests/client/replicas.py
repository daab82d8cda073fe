"""Message Managers for readers of the log: real engines behind real sockets, in threads of the test."""

import contextlib
import socket
import struct
import threading
from collections.abc import Callable

import msgspec

from alphorn.message_manager.engine import Engine
from alphorn.message_manager.reading import Reading
from alphorn.model import frame_kinds, link
from alphorn.model.commands import CreateDestination, Entry, Publish, key_of
from alphorn.model.destinations import Policy, parse_destination

_LENGTH = struct.Struct(">I")


class Log:
    """Entries that several replicas have."""

    def __init__(self) -> None:
        self.entries = [Entry([CreateDestination(parse_destination("topic:t"), Policy(retain_s=100.0))])]
        self._counter = 1

    def publish(self, *bodies: object) -> None:
        blob = memoryview(msgspec.msgpack.encode([[body] for body in bodies]))
        self.entries.append(Entry([Publish(1, key_of(bytes(16), 1), self._counter, len(bodies), 0, 1_000, blob)]))
        self._counter += len(bodies)


class Replica:
    """One Message Manager. It applies all entries, or through `applies`; it says what `change` makes of its answers."""

    def __init__(self, log: Log, name: str, *, is_primary: bool = False, applies: int | None = None) -> None:
        self.name = name
        self.is_primary = is_primary
        self.asked: list[link.AnyAsked] = []
        self.is_silent = False
        self.change: Callable[[frame_kinds.Told], frame_kinds.Told | None] = lambda told: told
        self._log = log
        self._engine = Engine()
        self._reading = Reading(lambda sequence: log.entries[sequence - 1])
        self._server = socket.create_server(("127.0.0.1", 0))
        self._streams: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()
        self.apply(applies)

    @property
    def address(self) -> str:
        host, port = self._server.getsockname()[:2]
        return f"{host}:{port}"

    def apply(self, through: int | None = None) -> None:
        for sequence in range(self._engine.sequence + 1, (through or len(self._log.entries)) + 1):
            self._engine.apply(sequence, self._log.entries[sequence - 1])

    def cut(self) -> None:
        """All connections are gone."""
        streams, self._streams = self._streams, []
        for stream in streams:
            with contextlib.suppress(OSError):  # it is closed already
                stream.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self.cut()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                stream, _ = self._server.accept()
            except OSError:
                return
            self._streams.append(stream)
            thread = threading.Thread(target=self._serve, args=(stream,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, stream: socket.socket) -> None:
        with stream:
            try:
                stream.sendall(link.encode(link.Role(self.name, 1, self.is_primary)))
                while True:
                    (length,) = _LENGTH.unpack(_read(stream, _LENGTH.size))
                    frame = link.decode_asked(_read(stream, length))
                    self.asked.append(frame)
                    answer = self._reading.answer(self._engine, frame)
                    assert answer is not None
                    if self.is_silent:
                        continue
                    changed = self.change(answer)
                    if changed is None:
                        return
                    stream.sendall(link.encode(changed))
            except OSError:
                return


def _read(stream: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = stream.recv(size - len(data))
        if not part:
            raise ConnectionResetError
        data += part
    return data
