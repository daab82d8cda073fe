"""What a program says to a Client Manager to become a work process of the cluster, and what work processes tell.

Frames and tags are those of the native door (model/conversation.py). The ticket opens the internal connections
(model/internal.py), which do not pass the Client Manager.
"""

from collections.abc import Callable
from typing import Annotated, Any

import msgspec

from alphorn.model.errors import Misuse, PeerViolation
from alphorn.model.frame_kinds import ClientFrame, ServerFrame
from alphorn.model.internal import NAME_CHARACTERS_MAX

SERVERS_MAX = 100
COMMAND = "alphorn:"  # how the names of commands begin, which come and go without news of it

_decode_body: Callable[[bytes], list[Any]] = msgspec.msgpack.Decoder(list[Any]).decode


class AskTicket(ClientFrame, frozen=True, array_like=True, gc=False, tag=70):
    """A program wants to be a work process of this name. Answered by `TicketAnswer` or `Failed`."""

    request: int
    name: str


class TicketAnswer(ServerFrame, frozen=True, array_like=True, gc=False, tag=170):
    """Where the message servers are, and what lets the program in."""

    request: int
    servers: Annotated[list[tuple[str, str]], msgspec.Meta(max_length=SERVERS_MAX)]  # names and addresses
    ticket: bytes = b""  # empty where the cluster has no key, as is the secret
    secret: bytes = b""  # that the program seals its internal connections with


def check_process_name(name: str) -> None:
    """Raises `Misuse` for what no program can be called."""
    if not name or name != name.strip() or not name.isprintable():
        raise Misuse(f"{name!r} is no name of a work process; take printable characters, without spaces around them")
    if len(name) > NAME_CHARACTERS_MAX:
        raise Misuse(f"a work process has a name of at most {NAME_CHARACTERS_MAX} characters; this has {len(name)}")


def read_body(data: bytes) -> Any:
    """What a work process told another one, of the types that bodies of messages have; raises `PeerViolation`."""
    try:
        [body] = _decode_body(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError):
        raise PeerViolation("what a work process told is packed as no body of a message is") from None
    return body
