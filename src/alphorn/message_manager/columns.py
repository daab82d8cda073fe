"""Columns of whole numbers as bytes: little-endian, 64 bits, signed; the same on every machine."""

from array import array
from collections.abc import Iterable

import msgspec

IS_BIG = array("H", [1]).tobytes()[0] == 0  # this machine's byte order


def to_column(numbers: Iterable[int]) -> bytes:
    """The bytes of these numbers."""
    return to_bytes(array("q", numbers))


def to_columns(rows: Iterable[tuple[int, ...]]) -> list[bytes]:
    """The bytes of each column of these rows, which are equally long."""
    return [to_column(column) for column in zip(*rows, strict=True)]


def from_column(data: bytes) -> list[int]:
    """The numbers of these bytes; raises `msgspec.ValidationError`."""
    column = array("q")
    extend_column(column, data)
    return column.tolist()


def to_bytes(column: "array[int]") -> bytes:
    """The bytes of a column of any type, which is the caller's to give away."""
    if IS_BIG:
        column.byteswap()
    return column.tobytes()


def extend_column(column: "array[int]", data: bytes) -> None:
    """Adds the numbers of these bytes to a column of their type; raises `msgspec.ValidationError`."""
    if len(data) % column.itemsize:
        raise msgspec.ValidationError("a column is cut off")
    added = array(column.typecode)
    added.frombytes(data)
    if IS_BIG:
        added.byteswap()
    column.extend(added)
