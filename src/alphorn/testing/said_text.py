"""What is said on links and clients' connections, in words for a timeline."""

from typing import Any

import msgspec

from alphorn.doors import native
from alphorn.model import link
from alphorn.model.commands import CONNECTION_BYTES
from alphorn.model.discretion import CONFIDENTIAL
from alphorn.model.errors import PeerViolation

BYTES_SHOWN = 6


def describe_said(data: bytes | None, *, is_link: bool) -> str:
    """One frame of a stream; None is its end."""
    if data is None:
        return "(closes)"
    body = data[native.LENGTH_BYTES :]
    decoders: list[Any] = [native.decode_client, native.decode_server]
    if is_link:
        decoders = [link.decode_asked, link.decode_told]
    for decode in decoders:
        try:
            return _describe(decode(body))
        except PeerViolation:
            continue
    return f"{len(data)} bytes that nobody can read"


def _describe(frame: msgspec.Struct) -> str:
    said = ((name, getattr(frame, name)) for name in frame.__struct_fields__)
    fields = (f"{name}={'…' if name in CONFIDENTIAL else _show(value)}" for name, value in said if value)
    return f"{type(frame).__name__} {' '.join(fields)}".strip()


def _show(value: Any) -> str:
    if isinstance(value, bytes) and len(value) >= CONNECTION_BYTES:  # an id: its end tells it from others
        return f"…{value[-BYTES_SHOWN:].hex()}"
    if isinstance(value, bytes | memoryview):
        return f"({len(value)} bytes)"
    return str(value)
