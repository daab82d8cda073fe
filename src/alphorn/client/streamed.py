"""What programs may stream, checked for both shells."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from alphorn.client.reading import Reading
from alphorn.model.errors import Misuse

if TYPE_CHECKING:
    from alphorn.client.core import Core
    from alphorn.client.message import Message


def check_readable(readable: Any) -> Callable[[int], Any]:
    """How to read from this at most so many bytes, as they come; raises `Misuse`."""
    read = getattr(readable, "read1", None) or getattr(readable, "read", None)
    if not callable(read):
        raise Misuse(
            f"a stream is something with read(size), as an open file in binary mode, not {type(readable).__name__}"
        )
    return read  # type: ignore[no-any-return]


def into_of(readable: Any) -> Callable[[memoryview], Any] | None:
    """How to read from this into a buffer, as it comes; None where it cannot."""
    into = getattr(readable, "readinto1", None) or getattr(readable, "readinto", None)
    return into if callable(into) else None


def check_count(count: Any, room: int) -> int:
    """How many bytes were read; raises `Misuse`."""
    if isinstance(count, int) and 0 <= count <= room:
        return count
    raise Misuse(
        f"the stream's readinto gives {count!r}; it must give a number of bytes, and wait until there are some"
    )


def check_piece(data: Any) -> bytes | bytearray | memoryview:
    """What was read; raises `Misuse`."""
    if isinstance(data, bytes | bytearray | memoryview):
        return data
    if isinstance(data, str):
        raise Misuse("the stream gives str; open the file in binary mode")
    raise Misuse(f"the stream gives {type(data).__name__}; it must give bytes, and wait until there are some")


def bytes_of(message: "Message") -> bytes:
    """A body that did not come in fragments, as bytes; raises `Misuse`."""
    body = message.body
    if isinstance(body, str):
        return body.encode()
    if isinstance(body, bytes):
        return body
    raise Misuse(f"the message's body is {type(body).__name__}; only bytes, str and streams can be opened")


def reading_of(core: "Core", message: "Message") -> Reading | None:
    """A new reading of a message's body; None where it did not come in fragments."""
    if message._stream is None:
        return None
    arrival = message._arrival
    place = core.places.get(message.destination, arrival.keeper.consume.place)
    return Reading(
        core,
        message._stream,
        place=place,
        producer=arrival.producer,
        counter=arrival.counter + message._index,
        sequence=message.sequence,
    )
