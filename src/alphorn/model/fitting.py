"""What people write, as a struct: `fit` makes it, or says what does not fit in words that name the field.

Where a value is not what its field takes, the sentence has the field, what was given and what is allowed; every fault
is named, not the first alone. The tables of a list are called by their `name`, as people do.
"""

import reprlib
import types
import typing
from collections.abc import Iterator
from typing import Any, Literal, TypeVar

import msgspec

Fitted = TypeVar("Fitted", bound=msgspec.Struct)

_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


class Unfit(ValueError):
    """What does not fit, as clauses of one sentence."""


def fit(value: object, wanted: type[Fitted]) -> Fitted:
    """The struct that this value of plain parts says; raises `Unfit`."""
    try:
        return msgspec.convert(value, wanted)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        raise Unfit("; ".join(_faults(value, wanted, "")) or str(error)) from None


def _faults(value: object, wanted: Any, called: str) -> Iterator[str]:
    """What is wrong with what is called so; the whole has no name."""
    if _is_struct(wanted) and isinstance(value, dict):
        yield from _faults_of_fields(value, wanted, f" of {called}" if called else "")
    elif typing.get_origin(wanted) is tuple and isinstance(value, list | tuple):
        for number, part in enumerate(value, 1):
            name = _name_of(part) or f"number {number} of {called}"
            yield from _faults(part, typing.get_args(wanted)[0], name)
    elif not _fits(value, wanted):
        yield f"{called or 'it'} is {reprlib.repr(value)}, not {_describe(wanted)}"


def _faults_of_fields(table: dict[Any, Any], wanted: type[msgspec.Struct], whose: str) -> Iterator[str]:
    fields = {field.encode_name: field for field in msgspec.structs.fields(wanted)}
    if unknown := [str(name) for name in table if name not in fields]:
        yield f"nothing{whose} is called {', '.join(unknown)}; there are {', '.join(fields)}"
    for name, field in fields.items():
        if name in table:
            yield from _faults(table[name], field.type, f"{name}{whose}")
        elif field.required:
            yield f"{name}{whose} is missing, which is {_describe(field.type)}"


def _name_of(table: object) -> str:
    name = table.get("name") if isinstance(table, dict) else None
    return name if isinstance(name, str) else ""


def _fits(value: object, wanted: Any) -> bool:
    try:
        msgspec.convert(value, wanted)
    except (msgspec.ValidationError, UnicodeEncodeError):  # a text with half a character is none
        return False
    return True


def _describe(wanted: Any) -> str:
    """What a field takes, in words."""
    origin, parts = typing.get_origin(wanted), typing.get_args(wanted)
    if origin is Literal:
        return " or ".join(repr(part) for part in parts if part)
    if origin is tuple:
        return "a list of tables ([[…]] in TOML)" if _is_struct(parts[0]) else f"a list, each {_describe(parts[0])}"
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_describe(part) for part in parts if part is not type(None))
    return "a table" if _is_struct(wanted) else _WORDS[wanted]


def _is_struct(wanted: Any) -> bool:
    return isinstance(wanted, type) and issubclass(wanted, msgspec.Struct)
