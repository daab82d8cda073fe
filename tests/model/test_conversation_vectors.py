"""Golden bytes of everything that clients, Client Managers and Message Managers say, of every command of the log, and
of what is said on internal connections.

Samples are made from the types, so a frame that is added has its bytes as soon as they are written: ALPHORN_REWRITE=1
writes them anew. Read the diff: bytes that change are a change of format.
"""

import os
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from alphorn.doors import native
from alphorn.model import commands, conversation, internal, link

VECTORS = Path(__file__).parent.parent / "vectors" / "conversations"


class Speech(typing.NamedTuple):
    """One side of a conversation."""

    kinds: Any  # a union of frames
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]


def of_stream(decode: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """On a stream a frame comes behind its length."""
    return lambda data: decode(data[native.LENGTH_BYTES :])


SPEECHES = {
    "client": Speech(conversation.AnyClientFrame, native.encode, of_stream(native.decode_client)),
    "server": Speech(conversation.AnyServerFrame, native.encode, of_stream(native.decode_server)),
    "asked": Speech(link.AnyAsked, link.encode, of_stream(link.decode_asked)),
    "told": Speech(link.AnyTold, link.encode, of_stream(link.decode_told)),
    "process": Speech(internal.AnyProcessFrame, internal.encode, of_stream(internal.decode_heard)),
    "message_server": Speech(internal.AnyServerFrame, internal.encode, of_stream(internal.decode_server)),
    "peer": Speech(internal.AnyPeerFrame, internal.encode, of_stream(internal.decode_heard)),
    "command": Speech(
        commands.AnyCommand,
        lambda command: commands.encode_entry(commands.Entry([command], [1])),
        lambda data: commands.decode_entry(data).commands[0],
    ),
}
each_speech = pytest.mark.parametrize("name", SPEECHES)


def sample(kind: inspect.Type, number: int = 1) -> Any:
    """A value of a type; neighbours differ, so that none can take another's place unseen."""
    match kind:
        case inspect.IntType():
            return max(kind.ge or 0, 0) + number
        case inspect.FloatType():
            return number + 0.5
        case inspect.BoolType():
            return True
        case inspect.StrType():
            return f"text {number}"
        case inspect.BytesType() | inspect.ByteArrayType() | inspect.MemoryViewType():
            return bytes([0xB0, number]).ljust(getattr(kind, "min_length", None) or 0, b"\0")
        case inspect.ListType():
            return [sample(kind.item_type, number), sample(kind.item_type, number + 1)]
        case inspect.TupleType():
            return tuple(sample(item, number + place) for place, item in enumerate(kind.item_types))
        case inspect.DictType():
            return {sample(kind.key_type, number): sample(kind.value_type, number)}
        case inspect.EnumType():
            return next(iter(kind.cls))
        case inspect.LiteralType():
            return kind.values[0]
        case inspect.StructType():
            fields = {field.name: sample(field.type, number + place) for place, field in enumerate(kind.fields, 1)}
            return kind.cls(**fields)
        case inspect.UnionType():
            return sample(next(it for it in kind.types if not isinstance(it, inspect.NoneType)), number)
        case _:
            return f"any {number}"


def samples(name: str) -> dict[str, Any]:
    return {kind.__name__: sample(inspect.type_info(kind)) for kind in typing.get_args(SPEECHES[name].kinds)}


def golden(name: str) -> dict[str, bytes]:
    lines = (VECTORS / f"{name}.txt").read_text().splitlines()
    return {kind: bytes.fromhex(text) for kind, _, text in (line.partition(" ") for line in lines)}


def plain(value: Any) -> Any:
    """What a frame says, however its bytes are held."""
    return msgspec.to_builtins(value)


@each_speech
def test_everything_is_written_as_its_golden_bytes(name: str) -> None:
    written = {kind: SPEECHES[name].encode(frame) for kind, frame in samples(name).items()}
    if os.environ.get("ALPHORN_REWRITE"):
        (VECTORS / f"{name}.txt").write_text("".join(f"{kind} {data.hex()}\n" for kind, data in written.items()))
    assert written == golden(name)


@each_speech
def test_golden_bytes_are_read_as_what_they_say(name: str) -> None:
    expected = samples(name)
    for kind, data in golden(name).items():
        found = SPEECHES[name].decode(data)
        assert type(found).__name__ == kind
        assert plain(found) == plain(expected[kind])


def test_all_conversations_have_golden_bytes_and_none_is_left_over() -> None:
    assert {path.stem for path in VECTORS.iterdir()} == set(SPEECHES)
