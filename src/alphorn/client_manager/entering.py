"""How a client enters: it says hello, claims its client id where it has one, and is welcome.

A client that was cut off names its connection and goes on; an older stream of it that is still here is hung up, and so
is one that is heard of later.
"""

from collections.abc import Callable

from alphorn.client_manager.connection import Connection
from alphorn.client_manager.desk import Desk
from alphorn.model import commands, link
from alphorn.model.conversation import AnyClientFrame, Goodbye, Hello, Welcome
from alphorn.model.errors import Misuse, PeerViolation, Unavailable
from alphorn.model.ids import Kind

VERSION = 1
CLIENT_CHARACTERS_MAX = 255


class Entering:
    """Streams whose clients are not welcome yet."""

    __slots__ = ("_claiming", "_desk", "_hang_up", "_waiting")

    def __init__(self, desk: Desk, hang_up: Callable[[int, str], None]) -> None:
        self._desk = desk
        self._hang_up = hang_up
        self._waiting: set[int] = set()  # streams that have not said hello
        self._claiming: set[int] = set()  # streams that have, and wait for their client id

    def on_opened(self, stream: int) -> None:
        """Somebody is there."""
        self._waiting.add(stream)

    def on_closed(self, stream: int) -> None:
        """A stream is gone, whether its client had entered or not."""
        self._waiting.discard(stream)
        self._claiming.discard(stream)

    def on_said(self, stream: int, frame: AnyClientFrame) -> None:
        """One who is not welcome yet says something; raises `PeerViolation` for anything but hello."""
        if stream in self._claiming:
            raise PeerViolation("a client says nothing between hello and welcome")
        if stream not in self._waiting:
            return  # it was hung up, and had more to say
        if not isinstance(frame, Hello):
            raise PeerViolation("a connection begins with hello")
        if frame.version != VERSION:
            raise PeerViolation(f"version {frame.version} of the protocol is not spoken here; version {VERSION} is")
        if frame.connection and len(frame.connection) != commands.CONNECTION_BYTES:
            raise PeerViolation("a connection's id has 16 bytes")
        if frame.connection == commands.NOBODY:  # its end would be that of the nodes' own producers
            raise PeerViolation("no connection has this id; name the one that welcome said")
        if len(frame.client_id) > CLIENT_CHARACTERS_MAX:
            raise PeerViolation(f"a client id has at most {CLIENT_CHARACTERS_MAX} characters")
        self._waiting.discard(stream)
        identity = frame.connection or bytes(self._desk.ids.next(Kind.CONNECTION))
        if frame.client_id:
            self._claiming.add(stream)
            self._claim(stream, identity, frame)
        else:
            self._enter(stream, identity, frame)

    def _claim(self, stream: int, identity: bytes, hello: Hello) -> None:
        """Asks for a client id, which one connection at a time has in the whole cluster: the first channel decides."""
        desk = self._desk
        if stream not in self._claiming:
            return

        def on_answer(answer: link.Answered) -> None:
            if stream not in self._claiming:
                if identity not in desk.by_connection:
                    desk.ask_primary(0, link.ConnectionLost(identity))
                return
            self._claiming.discard(stream)
            if answer.error:
                desk.reply(stream, Goodbye(answer.error, answer.reason))
                self._hang_up(stream, answer.reason)
            else:
                self._enter(stream, identity, hello)

        request = desk.channels[0].ask(on_answer, lost=lambda: self._claim(stream, identity, hello))
        desk.ask_primary(0, link.ClaimClient(request, identity, hello.client_id))

    def _enter(self, stream: int, identity: bytes, hello: Hello) -> None:
        desk = self._desk
        older = desk.by_connection.get(identity)
        if older is not None and older.resumption > hello.resumption:  # its client has given this stream up since
            desk.reply(stream, Goodbye(Unavailable.__name__, "this connection goes on with a newer stream"))
            self._hang_up(stream, "its client has come back on a newer stream before")
            return
        if older is not None:
            desk.reply(older.stream, Goodbye(Misuse.__name__, "this connection goes on elsewhere"))
            self._hang_up(older.stream, "its client has come back on another stream")
        connection = Connection(
            stream=stream,
            identity=identity,
            client_id=hello.client_id,
            resumption=hello.resumption,
            is_resumed=bool(hello.connection),
        )
        desk.connections[stream] = desk.by_connection[identity] = connection
        for number in range(len(desk.channels)):
            desk.ask_primary(number, link.ConnectionOpened(identity))
        settings = desk.settings
        desk.reply(stream, Welcome(VERSION, identity, settings.name, list(settings.addresses)))
        desk.log("info", "connected", f"connection={identity.hex()} resumed={bool(hello.connection)}")
