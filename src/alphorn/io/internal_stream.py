"""Internal connections on the wire: frames in the clear, or sealed where the cluster has a key.

With a key both sides first say a `Knock` in the clear, with a salt; everything after is sealed with AES-256-GCM under
keys that follow from both salts and from the cluster's key, or from the secret of a program's ticket. That secret
follows from the cluster's key and the ticket, so a server needs to remember no tickets, and whoever seals with it was
given it by a node. Frames are numbered for each direction: none can be left out, doubled or moved without closing the
connection.
"""

import os
import time
from collections.abc import Callable

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from alphorn.model.errors import AccessDenied, PeerViolation
from alphorn.model.internal import LENGTH_BYTES

KEY_BYTES = 32
SALT_BYTES = 16
TAG_BYTES = 16
TICKET_BYTES_MAX = 1024
TICKET_S = 24 * 3600.0  # so long a ticket lets its program in, and in again

_KNOCK = b"alphorn internal 1"


class Knock(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """The first frame of each side, in the clear."""

    salt: bytes
    ticket: bytes = b""  # of a program; empty for nodes, which have the cluster's key


class Ticket(msgspec.Struct, frozen=True, array_like=True):
    """Who may come in as what, and until when."""

    name: str
    expires_at: float  # Unix time


class Pass(msgspec.Struct, frozen=True):
    """What lets a process in: the key it seals with, and a program's ticket."""

    key: bytes
    ticket: bytes = b""


_encode = msgspec.msgpack.Encoder().encode
_decode_knock: Callable[[bytes | memoryview], Knock] = msgspec.msgpack.Decoder(Knock).decode
_decode_ticket: Callable[[bytes], Ticket] = msgspec.msgpack.Decoder(Ticket).decode


def _derive(key: bytes, *, salt: bytes | None, info: bytes) -> bytes:
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=salt, info=info).derive(key)


def pass_of_node(cluster_key: bytes) -> Pass:
    """What lets a node in."""
    return Pass(_derive(cluster_key, salt=None, info=b"alphorn node"))


def pass_of_program(cluster_key: bytes, ticket: bytes) -> Pass:
    """What lets the program in for which a ticket was made."""
    return Pass(_derive(cluster_key, salt=None, info=b"alphorn program" + ticket), ticket)


def make_ticket(name: str) -> bytes:
    """A ticket for a program of this name."""
    return _encode(Ticket(name, time.time() + TICKET_S))


def read_ticket(ticket: bytes) -> str:
    """The name in a ticket that is valid now; raises `AccessDenied`."""
    try:
        read = _decode_ticket(ticket)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise AccessDenied("the ticket cannot be read; join again for a new one") from None
    if not read.expires_at > time.time():
        raise AccessDenied(f"the ticket of {read.name} has expired; join again for a new one")
    return read.name


class Knocking:
    """One side of a connection that is sealed: says a knock, hears one, then seals and opens frames."""

    __slots__ = ("_admission", "_is_server", "_opened", "_opener", "_salt", "_sealed", "_sealer")

    def __init__(self, admission: Pass, *, is_server: bool) -> None:
        self._admission = admission
        self._is_server = is_server
        self._salt = os.urandom(SALT_BYTES)
        self._sealed = self._opened = 0
        self._sealer: AESGCM | None = None
        self._opener: AESGCM | None = None

    @property
    def is_done(self) -> bool:
        """Whether frames can be sealed."""
        return self._sealer is not None

    @property
    def is_by_ticket(self) -> bool:
        """Whether the other side is a program, which has a ticket and not the cluster's key."""
        return bool(self._admission.ticket)

    def knock(self) -> bytes:
        """The first frame, with its length."""
        ticket = b"" if self._is_server else self._admission.ticket
        body = _encode(Knock(self._salt, ticket))
        return len(body).to_bytes(LENGTH_BYTES, "big") + body

    def hear(self, frame: bytes | memoryview, find: Callable[[bytes], Pass] | None = None) -> str:
        """The other side's knock; gives the name in its ticket, where it has one. Raises an `Error`.

        A server has `find`, which gives the pass for a ticket.
        """
        try:
            knock = _decode_knock(frame)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise PeerViolation("this cluster has a key, and an internal connection begins with a knock") from None
        if len(knock.salt) != SALT_BYTES or len(knock.ticket) > TICKET_BYTES_MAX:
            raise PeerViolation("a knock on an internal connection is not of its form")
        name = ""
        if knock.ticket and find is not None:
            name = read_ticket(knock.ticket)
            self._admission = find(knock.ticket)
        salts = (knock.salt + self._salt) if self._is_server else (self._salt + knock.salt)
        to_server = AESGCM(_derive(self._admission.key, salt=salts, info=_KNOCK + b" to server"))
        to_process = AESGCM(_derive(self._admission.key, salt=salts, info=_KNOCK + b" to process"))
        self._sealer, self._opener = (to_process, to_server) if self._is_server else (to_server, to_process)
        return name

    def seal(self, framed: bytes) -> bytes:
        """A frame with its length, sealed, with its length again."""
        assert self._sealer is not None
        self._sealed += 1
        sealed = self._sealer.encrypt(self._sealed.to_bytes(12, "big"), framed[LENGTH_BYTES:], None)
        return len(sealed).to_bytes(LENGTH_BYTES, "big") + sealed

    def open(self, sealed: bytes | memoryview) -> bytes:
        """A frame without its length; raises `PeerViolation`."""
        assert self._opener is not None
        self._opened += 1
        try:
            return self._opener.decrypt(self._opened.to_bytes(12, "big"), bytes(sealed), None)
        except InvalidTag:
            raise PeerViolation("what came is not sealed with this cluster's key, or was changed on the way") from None
