"""Cuts the text of a selector into words, each with its place, and says what is wrong with a selector in one sentence.

Words come one by one, in the order of the text, so that the first fault of a selector is the one its author hears of.
Numbers follow the literals of Java, as JMS asks: decimal, octal and hexadecimal integers that fit a long, and decimal
floating point. An `F` suffix means single precision, so that it equals a property that was sent as a float.
"""

import re
import struct
from collections.abc import Iterator
from enum import Enum
from unicodedata import category

import msgspec

from alphorn.model.errors import InvalidSelector

TEXT_BYTES_MAX = 16 * 1024
LONG_MAX = 2**63 - 1
RESERVED = frozenset("NULL TRUE FALSE NOT AND OR BETWEEN LIKE IN IS ESCAPE".split())
WHITESPACE = " \t\n\r\f"

# Fixed patterns that scan a number at most once per alternative, so reading words takes linear time.
_NUMBER = re.compile(
    r"(?P<hexadecimal>0[xX][0-9a-fA-F]+)[lL]?"
    r"|(?P<floating>(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+|[0-9]+(?=[fFdD]))"
    r"(?P<precision>[fFdD])?"
    r"|(?P<octal>0[0-9]+)[lL]?"
    r"|(?P<decimal>[0-9]+)[lL]?"
)
_SIGN = re.compile(r"<>|<=|>=|[=<>+\-*/(),]")
# Of Unicode, what Java takes as letters (currency signs and `_` among them) and as parts of an identifier.
_FIRST_CATEGORIES = frozenset("Lu Ll Lt Lm Lo Nl Sc Pc".split())
_LATER_CATEGORIES = _FIRST_CATEGORIES | frozenset("Nd Mn Mc".split())
_DECIMAL_DIGITS_MAX = 19
_SHOWN_CHARACTERS_MAX = 60


class Sort(Enum):
    """What a word is."""

    IDENTIFIER = "identifier"
    NUMBER = "number"
    STRING = "string"
    RESERVED = "reserved word"
    SIGN = "sign"
    END = "end"


class Word(msgspec.Struct, frozen=True):
    """One word. Its value is the name, number or string meant; reserved words are in capitals, the end is empty.

    `position` counts characters from 1; `shown` is how the author wrote it.
    """

    sort: Sort
    value: str | int | float
    position: int
    shown: str


def invalid(text: str, position: int, expectation: str) -> InvalidSelector:
    """The error for a selector, to be raised by the caller."""
    return InvalidSelector(f'selector "{_clip(text)}" is not valid at character {position}: expected {expectation}')


def check_length(text: str) -> None:
    """Raises `InvalidSelector` for a text that is too long to be looked at."""
    if len(text) * 4 <= TEXT_BYTES_MAX:
        return
    encoded = text[: TEXT_BYTES_MAX + 1].encode("utf-8", "surrogatepass")
    if len(encoded) > TEXT_BYTES_MAX:
        kept = len(encoded[:TEXT_BYTES_MAX].decode("utf-8", "ignore"))
        raise invalid(text, kept + 1, f"the end, as a selector has at most {TEXT_BYTES_MAX} bytes")


def words_of(text: str) -> Iterator[Word]:
    """The words of a selector, and its end as the last one. Raises `InvalidSelector` when it comes to what is none."""
    place = 0
    while True:
        while place < len(text) and text[place] in WHITESPACE:
            place += 1
        if place == len(text):
            yield Word(Sort.END, "", place + 1, "the end")
            return
        word, place = _read_word(text, place)
        yield word


def _read_word(text: str, place: int) -> tuple[Word, int]:
    """The word that begins at a place, and where it ends."""
    first = text[place]
    if first == "'":
        return _read_string(text, place)
    if number := _NUMBER.match(text, place):
        return _read_number(text, number)
    if _begins_identifier(first):
        return _read_name(text, place)
    if sign := _SIGN.match(text, place):
        return Word(Sort.SIGN, sign[0], place + 1, sign[0]), sign.end()
    raise invalid(text, place + 1, f"a value, a name or a sign of the selector language, found {_clip(first)}")


def _read_string(text: str, place: int) -> tuple[Word, int]:
    parts: list[str] = []
    begin = place + 1
    while True:
        end = text.find("'", begin)
        if end < 0:
            raise invalid(text, len(text) + 1, f"the closing quote of the string that opens at character {place + 1}")
        parts.append(text[begin:end])
        begin = end + 2
        if not text.startswith("'", end + 1):
            return Word(Sort.STRING, "'".join(parts), place + 1, _clip(text[place : end + 1])), end + 1


def _read_name(text: str, place: int) -> tuple[Word, int]:
    end = place + 1
    while end < len(text) and _continues_identifier(text[end]):
        end += 1
    name = text[place:end]
    # Only ASCII letters spell a reserved word: others may turn into them when capitalised.
    capitals = name.upper() if name.isascii() else name
    if capitals in RESERVED:
        return Word(Sort.RESERVED, capitals, place + 1, name), end
    return Word(Sort.IDENTIFIER, name, place + 1, _clip(name)), end


def _read_number(text: str, found: re.Match[str]) -> tuple[Word, int]:
    place, end = found.span()
    if end < len(text) and (_continues_identifier(text[end]) or text[end] == "."):
        raise invalid(text, end + 1, f"the end of the number {_clip(found[0])}, found {_clip(text[end])}")
    value = _number_of(found)
    if value is None:
        raise invalid(
            text, place + 1, f"a number as Java writes it, within a long or a double, found {_clip(found[0])}"
        )
    return Word(Sort.NUMBER, value, place + 1, _clip(found[0])), end


def _number_of(found: re.Match[str]) -> int | float | None:
    """What a literal means, or None if its type cannot hold it.

    `LONG_MAX + 1` passes in decimal, as the smallest long is written with it; the parser sees whether a minus precedes.
    """
    if digits := found["decimal"]:
        value = int(digits) if len(digits) <= _DECIMAL_DIGITS_MAX else LONG_MAX + 2
        return value if value <= LONG_MAX + 1 else None
    if digits := found["floating"]:
        return _floating_of(digits, is_single=(found["precision"] or "") in ("f", "F"))
    if digits := found["octal"]:
        return _long_of_bits(int(digits, 8)) if digits.strip("01234567") == "" else None
    return _long_of_bits(int(found["hexadecimal"], 16))


def _long_of_bits(bits: int) -> int | None:
    """Octal and hexadecimal literals give the 64 bits of a long, its sign included."""
    if bits > 2 * LONG_MAX + 1:
        return None
    return bits if bits <= LONG_MAX else bits - 2 * (LONG_MAX + 1)


def _floating_of(digits: str, *, is_single: bool) -> float | None:
    value = float(digits)
    if value == float("inf"):
        return None
    if not is_single:
        return value
    try:
        single: float = struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return None
    return single


def _begins_identifier(character: str) -> bool:
    return category(character) in _FIRST_CATEGORIES


def _continues_identifier(character: str) -> bool:
    return category(character) in _LATER_CATEGORIES


def _clip(text: str) -> str:
    """A text as errors show it: on one line, printable, and not too long."""
    clipped = text if len(text) <= _SHOWN_CHARACTERS_MAX else text[: _SHOWN_CHARACTERS_MAX - 3] + "..."
    return "".join(character if character.isprintable() else " " for character in clipped)
