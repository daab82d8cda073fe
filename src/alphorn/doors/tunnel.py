"""The tunnel: the bytes of the native door inside a WebSocket (RFC 6455), for clients whose way leads through HTTP.

The binary messages of one direction, put end to end, are the native stream; where one ends means nothing. Both ends are
here, without hands: bytes of the network in, bytes of the stream out, and the other way round.

Only programs come this way. A browser says which page it acts for (`Origin`), and no page may speak to a cluster in the
name of whoever looks at it, so what says so is refused.
"""

import enum

import h11
from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Event,
    Ping,
    RejectConnection,
    RejectData,
    Request,
    TextMessage,
)
from wsproto.utilities import LocalProtocolError, RemoteProtocolError

from alphorn.model.errors import PeerViolation

PATH = "/alphorn"
SUBPROTOCOL = "alphorn.1"
_REASON_BYTES_MAX = 120  # of a close frame, which has room for 123
_REJECTION_BYTES_MAX = 500  # of what a server says that is none of ours
_NOT_TAKEN = 1003

_Malformed = (RemoteProtocolError, LocalProtocolError, h11.ProtocolError, UnicodeError)


class TunnelState(enum.Enum):
    """Where a tunnel stands."""

    SHAKING = "shaking hands"
    OPEN = "open"
    CLOSED = "closed"


class Tunnel:
    """One end. What `take_output` gives is to be sent, also after it is closed."""

    __slots__ = ("_connection", "_output", "_rejection", "_status", "reason", "state")

    def __init__(self, kind: ConnectionType) -> None:
        self.state = TunnelState.SHAKING
        self.reason = ""  # why it is closed
        self._connection = WSConnection(kind)
        self._output: list[bytes] = []
        self._rejection = b""
        self._status = 0

    @classmethod
    def to_server(cls, host: str, path: str = PATH) -> "Tunnel":
        """A client's end, which speaks first. `host` is as in a URL."""
        made = cls(ConnectionType.CLIENT)
        made._say(Request(host=host, target=path, subprotocols=[SUBPROTOCOL]))
        return made

    @classmethod
    def to_client(cls) -> "Tunnel":
        """A Client Manager's end."""
        return cls(ConnectionType.SERVER)

    def receive(self, data: bytes) -> list[bytes | bytearray]:
        """What the peer sent; gives the pieces of the stream in it.

        Raises `PeerViolation` when the peer does not speak WebSocket, or refused to; it may have to be told still.
        """
        if self.state is TunnelState.CLOSED:
            return []
        pieces: list[bytes | bytearray] = []
        try:
            self._connection.receive_data(data)
            for event in self._connection.events():
                self._on_event(event, pieces)
        except _Malformed as error:
            hint = error.event_hint if isinstance(error, RemoteProtocolError) else None
            status = hint.status_code if isinstance(hint, RejectConnection) else 400
            if self._connection.client:
                self._fail(status, f"what answers there does not speak WebSocket: {error}")
            self._fail(status, f"only WebSockets of alphorn's clients are served here, and this is none: {error}")
        return pieces

    def wrap(self, data: bytes) -> bytes:
        """Bytes of the stream as the network has them; only while it is open."""
        return self._connection.send(BytesMessage(data=data))

    def close(self, reason: str) -> None:
        """Says goodbye, where hands were shaken."""
        if self.state is TunnelState.OPEN:
            self._say(CloseConnection(1000, reason.encode()[:_REASON_BYTES_MAX].decode(errors="ignore")))
        self._end(reason)

    def take_output(self) -> bytes:
        """What to send now."""
        output, self._output = b"".join(self._output), []
        return output

    def _on_event(self, event: Event, pieces: list[bytes | bytearray]) -> None:
        match event:
            case BytesMessage():
                pieces.append(event.data)
            case Ping():
                self._say(event.response())
            case CloseConnection():
                if self.state is TunnelState.OPEN:
                    self._say(event.response())
                self._end(event.reason or "the peer closed the tunnel")
            case TextMessage():
                self._say(CloseConnection(_NOT_TAKEN, "only binary messages are taken"))
                self._end("the peer sent text through the tunnel")
                raise PeerViolation(self.reason)
            case Request():
                self._on_request(event)
            case AcceptConnection():
                if event.subprotocol != SUBPROTOCOL:
                    self._end("what answers there is a WebSocket, but no Client Manager's")
                    raise PeerViolation(self.reason)
                self.state = TunnelState.OPEN
            case RejectConnection():
                self._status = event.status_code
                if not event.has_body:
                    self._on_rejected()
            case RejectData():
                self._rejection = (self._rejection + bytes(event.data))[:_REJECTION_BYTES_MAX]
                if event.body_finished:
                    self._on_rejected()

    def _on_request(self, request: Request) -> None:
        if request.target.partition("?")[0] != PATH:
            self._fail(404, f"there is nothing here but the tunnel of a Client Manager, at {PATH}")
        if any(name == b"origin" for name, _ in request.extra_headers):
            self._fail(403, "browsers are not served here; use the library, with alphorn+ws://host:port")
        if SUBPROTOCOL not in request.subprotocols:
            self._fail(400, f"the tunnel speaks {SUBPROTOCOL}; ask for that Sec-WebSocket-Protocol")
        self._say(AcceptConnection(subprotocol=SUBPROTOCOL))
        self.state = TunnelState.OPEN

    def _fail(self, status: int, reason: str) -> None:
        """A server says why in plain text, where it was not yet a WebSocket; a client hears it as an error."""
        if self.state is TunnelState.SHAKING and not self._connection.client:
            body = f"{reason}\n".encode(errors="replace")
            headers = [
                (b"content-type", b"text/plain; charset=utf-8"),
                (b"content-length", str(len(body)).encode()),
                (b"connection", b"close"),
                *([(b"sec-websocket-version", b"13")] if status == 426 else []),
            ]
            # Written out, because a connection whose request made no sense lets nothing be said through it.
            lines = [b"HTTP/1.1 %d %s" % (status, _PHRASES.get(status, b"Refused"))]
            lines += [name + b": " + value for name, value in headers]
            self._output.append(b"\r\n".join(lines) + b"\r\n\r\n" + body)
        self._end(reason)
        raise PeerViolation(reason)

    def _on_rejected(self) -> None:
        said = " ".join(self._rejection.decode(errors="replace").split())
        self._end(f"HTTP {self._status}: {said}" if said else f"HTTP {self._status}")
        raise PeerViolation(f"the tunnel was refused: {self.reason}")

    def _say(self, event: Event) -> None:
        self._output.append(self._connection.send(event))

    def _end(self, reason: str) -> None:
        if self.state is not TunnelState.CLOSED:
            self.state, self.reason = TunnelState.CLOSED, reason


_PHRASES = {400: b"Bad Request", 403: b"Forbidden", 404: b"Not Found", 426: b"Upgrade Required"}
