"""How a client enters: it says hello, claims its client id where it has one, and is welcome.

A client that was cut off names its connection, proves by its secret that it is its own (identity.py), and goes on; an
older stream of it that is still here is hung up, and so is one that is heard of later. Who proves nothing is sent away,
and whoever has that connection hears nothing of it.
"""

from collections.abc import Callable

from alphorn.client_manager.connection import Connection
from alphorn.client_manager.dating import offset_of
from alphorn.client_manager.desk import Desk
from alphorn.client_manager.identity import Identity
from alphorn.model import commands, link
from alphorn.model.conversation import AnyClientFrame, Goodbye, Hello, Welcome
from alphorn.model.errors import AccessDenied, Misuse, PeerViolation, Unavailable
from alphorn.model.ids import Kind

VERSION = 2
CLIENT_CHARACTERS_MAX = 255


class Entering:
    """Streams whose clients are not welcome yet."""

    __slots__ = ("_calendars", "_claiming", "_desk", "_early", "_hang_up", "_waiting", "identity")

    def __init__(self, desk: Desk, hang_up: Callable[[int, str], None], draft: bytes) -> None:
        self._desk = desk
        self._hang_up = hang_up
        self.identity = Identity(desk, draft, self._welcome_early)
        self._waiting: set[int] = set()  # streams that have not said hello
        self._early: dict[int, Hello] = {}  # streams that have, before anybody could be welcome
        self._calendars: dict[int, int] = {}  # of those that have: how far their clocks are from the time of turns
        self._claiming: set[int] = set()  # streams that have, and wait for their client id

    def on_opened(self, stream: int) -> None:
        """Somebody is there."""
        self._waiting.add(stream)

    def on_closed(self, stream: int) -> None:
        """A stream is gone, whether its client had entered or not."""
        self._waiting.discard(stream)
        self._early.pop(stream, None)
        self._calendars.pop(stream, None)
        self._claiming.discard(stream)

    def on_said(self, stream: int, frame: AnyClientFrame) -> None:
        """One who is not welcome yet says something; raises `PeerViolation` for anything but hello."""
        if stream in self._claiming or stream in self._early:
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
        if frame.now_ms:
            self._calendars[stream] = offset_of(frame.now_ms, self._desk.now)
        if self.identity.is_known:
            self._let_in(stream, frame)
        else:
            self._early[stream] = frame

    def _welcome_early(self) -> None:
        """Who came before the signet was known is let in, in order."""
        for stream in list(self._early):
            if (hello := self._early.pop(stream, None)) is not None:
                self._let_in(stream, hello)

    def _let_in(self, stream: int, hello: Hello) -> None:
        if hello.connection and not self.identity.is_proven(hello.connection, hello.secret):
            self._refuse(stream, hello.connection)
            return
        identity = hello.connection or bytes(self._desk.ids.next(Kind.CONNECTION))
        if hello.client_id:
            self._claiming.add(stream)
            self._claim(stream, identity, hello)
        else:
            self._enter(stream, identity, hello)

    def _refuse(self, stream: int, connection: bytes) -> None:
        reason = (
            f"connection {connection.hex()} goes on only with the secret that its welcome said; "
            "connect anew without naming a connection"
        )
        self._desk.reply(stream, Goodbye(AccessDenied.__name__, reason))
        self._hang_up(stream, "it named a connection and could not prove that it is its own")
        self._desk.log("warning", "resumption_refused", f"connection={connection.hex()}")

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
            calendar_ms=self._calendars.pop(stream, None),
        )
        desk.connections[stream] = desk.by_connection[identity] = connection
        for number in range(len(desk.channels)):
            desk.ask_primary(number, link.ConnectionOpened(identity))
        settings = desk.settings
        secret = self.identity.secret_of(identity)
        desk.reply(stream, Welcome(VERSION, identity, settings.name, list(settings.addresses), secret=secret))
        desk.log("info", "connected", f"connection={identity.hex()} resumed={bool(hello.connection)}")
