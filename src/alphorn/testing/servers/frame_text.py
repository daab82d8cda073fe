"""Frames of internal connections in words, for a timeline."""

from typing import Any

import msgspec

from alphorn.model import internal
from alphorn.model.errors import PeerViolation
from alphorn.model.events import Event

BYTES_SHOWN = 3


def describe_frame(data: bytes | None, *, is_server: bool) -> str:
    """One frame that a server or a work process says; None is the end of all."""
    if data is None:
        return "(closes)"
    body = data[internal.LENGTH_BYTES :]
    decoders: list[Any] = [internal.decode_heard]
    if is_server:
        decoders.append(internal.decode_server)
    for decode in reversed(decoders):
        try:
            return _show(decode(body))
        except PeerViolation:
            continue
    return f"{len(data)} bytes that nobody can read"


def _show(value: Any) -> str:
    if isinstance(value, Event):
        return f"{value.kind}:{value.number}"
    if isinstance(value, internal.Row):
        return f"{value.name}:{_show(value.run)}"
    if isinstance(value, msgspec.Struct):
        fields = (f"{name}={_show(getattr(value, name))}" for name in value.__struct_fields__ if getattr(value, name))
        return f"{type(value).__name__} {' '.join(fields)}".strip()
    if isinstance(value, bytes) and value.startswith(b"said"):
        return f"#{int.from_bytes(value[4:12], 'big')}"
    if isinstance(value, bytes):
        return value[:BYTES_SHOWN].hex()
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_show, value))}]"
    return str(value)
