"""What the parts of a selector mean, as closures that are made once and called for every message.

A closure gives a value (NULL is None) or a truth value (UNKNOWN is None). The rules are those of JMS, on SQL-92:
a comparison with NULL is UNKNOWN, one of unlike types is FALSE, booleans are not numbers, and only numbers have an
order. Whole numbers are Java's longs: division truncates, what overflows wraps around, and one that meets a double is
made a double, in comparisons as in arithmetic. A division by zero is NULL, and so is arithmetic on what is no number.
A value of a type that no property has compares as UNKNOWN.
"""

import operator
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

import msgspec

Header = Callable[[str], object]
Evaluate = Callable[[Mapping[str, object], Header], object]


class Kind(Enum):
    """What a term gives, as far as its text tells; of a property it tells nothing."""

    ANY = "a property"
    CONDITION = "a condition"
    NUMBER = "a number"
    STRING = "a string"


class Term(msgspec.Struct, frozen=True):
    """A part of a selector: what it gives, where it begins, how to get it, and its value if that never changes."""

    kind: Kind
    position: int
    evaluate: Evaluate
    constant: str | int | float | None = None
    is_identifier: bool = False


_NUMBERS = frozenset({int, float})
# Values are alike when their types are of one family.
_FAMILIES: dict[type, str] = {int: "number", float: "number", bool: "boolean", str: "string", bytes: "bytes"}
_LIKE_TYPES: dict[type, frozenset[type]] = {
    kind: frozenset(other for other, name in _FAMILIES.items() if name == family) for kind, family in _FAMILIES.items()
}
_EQUALITIES: dict[str, Callable[[Any, Any], bool]] = {"=": operator.eq, "<>": operator.ne}
_ORDERINGS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_COMPARISONS = _EQUALITIES | _ORDERINGS
_MIRRORED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_LONG_MIN, _LONG_MAX, _LONG_BITS = -(2**63), 2**63 - 1, 2**64 - 1


def constant(value: str | int | float) -> Evaluate:
    """A value that stands in the selector itself."""
    return lambda properties, header: value


def read_property(name: str) -> Evaluate:
    """A property of the message, or NULL."""
    return lambda properties, header: properties.get(name)


def read_header(name: str) -> Evaluate:
    """A header field of the message, or NULL."""
    return lambda properties, header: header(name)


def truth(part: Evaluate) -> Evaluate:
    """A property as a condition: what `part = TRUE` gives."""

    def evaluate(properties: Mapping[str, object], header: Header) -> bool | None:
        value = part(properties, header)
        if value is True or value is False:
            return value
        return False if type(value) in _FAMILIES else None

    return evaluate


def all_of(parts: list[Evaluate]) -> Evaluate:
    """AND: FALSE if any part is FALSE, else UNKNOWN if any is UNKNOWN, else TRUE."""

    def evaluate(properties: Mapping[str, object], header: Header) -> bool | None:
        result: bool | None = True
        for part in parts:
            value = part(properties, header)
            if value is False:
                return False
            if value is None:
                result = None
        return result

    return evaluate


def any_of(parts: list[Evaluate]) -> Evaluate:
    """OR: TRUE if any part is TRUE, else UNKNOWN if any is UNKNOWN, else FALSE."""

    def evaluate(properties: Mapping[str, object], header: Header) -> bool | None:
        result: bool | None = False
        for part in parts:
            value = part(properties, header)
            if value is True:
                return True
            if value is None:
                result = None
        return result

    return evaluate


def negate(part: Evaluate) -> Evaluate:
    """NOT: UNKNOWN stays UNKNOWN."""

    def evaluate(properties: Mapping[str, object], header: Header) -> bool | None:
        value = part(properties, header)
        return None if value is None else value is False

    return evaluate


def compare(sign: str, left: Term, right: Term) -> Evaluate:
    """`left sign right`; when one of them is constant, its type is looked at only here."""
    if right.constant is not None:
        return _compare_constant(sign, left.evaluate, right.constant)
    if left.constant is not None:
        return _compare_constant(_MIRRORED[sign], right.evaluate, left.constant)
    first, second, operate = left.evaluate, right.evaluate, _COMPARISONS[sign]
    families = frozenset({"number"}) if sign in _ORDERINGS else frozenset(_FAMILIES.values())

    def evaluate(properties: Mapping[str, object], header: Header) -> bool | None:
        one, other = first(properties, header), second(properties, header)
        family, family_other = _FAMILIES.get(type(one)), _FAMILIES.get(type(other))
        if family is None or family_other is None:
            return None
        if family != family_other or family not in families:
            return False
        return operate(one, other) if type(one) is type(other) else _compare_as_doubles(operate, one, other)

    return evaluate


def _compare_constant(sign: str, part: Evaluate, value: str | int | float) -> Evaluate:
    operate, kind, like_types = _COMPARISONS[sign], type(value), _LIKE_TYPES[type(value)]

    def evaluate(properties: Mapping[str, object], header: Header) -> bool | None:
        found = part(properties, header)
        if type(found) is kind:
            return operate(found, value)
        if type(found) in like_types:
            return _compare_as_doubles(operate, found, value)
        return False if type(found) in _FAMILIES else None

    return evaluate


def _compare_as_doubles(operate: Callable[[Any, Any], bool], left: Any, right: Any) -> bool | None:
    """A long and a double, whichever is first."""
    try:
        return operate(float(left), float(right))
    except OverflowError:  # no long, and no double can hold it
        return None


def between(value: Term, low: Term, high: Term, *, is_negated: bool) -> Evaluate:
    """JMS defines BETWEEN and its negation by the comparisons they stand for, unlike types included."""
    if is_negated:
        return any_of([compare("<", value, low), compare(">", value, high)])
    return all_of([compare(">=", value, low), compare("<=", value, high)])


def accept_string(part: Evaluate, accepts: Callable[[str], bool], *, is_negated: bool) -> Evaluate:
    """LIKE and IN: FALSE for what is no string; the negation is TRUE then, as NOT around the whole would be."""
    is_wanted = not is_negated

    def evaluate(properties: Mapping[str, object], header: Header) -> bool | None:
        value = part(properties, header)
        if type(value) is str:
            return accepts(value) is is_wanted
        return is_negated if type(value) in _FAMILIES else None

    return evaluate


def is_null(part: Evaluate, *, is_negated: bool) -> Evaluate:
    """IS NULL, the one test that is never UNKNOWN."""
    if is_negated:
        return lambda properties, header: part(properties, header) is not None
    return lambda properties, header: part(properties, header) is None


def calculate(first: Evaluate, rest: list[tuple[str, Evaluate]]) -> Evaluate:
    """A chain of operations of one precedence, from left to right."""
    steps = [(_OPERATIONS[sign], part) for sign, part in rest]

    def evaluate(properties: Mapping[str, object], header: Header) -> object:
        total: Any = first(properties, header)
        if type(total) not in _NUMBERS:
            return None
        try:
            for operate, part in steps:
                value = part(properties, header)
                if total is None or type(value) not in _NUMBERS:
                    return None
                total = _as_long(operate(total, value))
        except OverflowError:  # a whole number that no double can hold met a double
            return None
        return total

    return evaluate


def signed(part: Evaluate, *, is_negative: bool) -> Evaluate:
    """Unary minus and plus."""

    def evaluate(properties: Mapping[str, object], header: Header) -> object:
        value: Any = part(properties, header)
        if type(value) not in _NUMBERS:
            return None
        return negative(value) if is_negative else value

    return evaluate


def negative(value: int | float) -> int | float:
    """Unary minus of a number."""
    result: int | float = _as_long(-value)
    return result


def _as_long(value: Any) -> Any:
    """A whole number as Java's long holds it; anything else as it is."""
    if type(value) is not int or _LONG_MIN <= value <= _LONG_MAX:
        return value
    return ((value - _LONG_MIN) & _LONG_BITS) + _LONG_MIN


def _divide(left: Any, right: Any) -> object:
    if right == 0:
        return None
    if type(left) is float or type(right) is float:
        return left / right
    quotient: int = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


_OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _divide,
}
