"""Patterns: many destinations named at once, `glob:topic:prices.*` or `regex:queue:orders-[0-9]+`.

A glob has `*` (any characters, also none) and `?` (one character); everything else in it stands for itself. A regular
expression is one of RE2, whose time grows with the text and never with the cleverness of the expression. Both speak of
the whole name. Without a kind they speak of queues and topics alike.

What belongs to the system (names that begin with `_`) matches only a pattern that itself begins with `_`. Temporary
destinations match nothing: only their connection receives from them.
"""

import hashlib
from typing import Any, Literal

import msgspec
import re2

from alphorn.model.destinations import Destination, DestinationKind
from alphorn.model.errors import InvalidDestination
from alphorn.model.globs import Glob

PATTERN_CHARACTERS_MAX = 1000
PATTERN_MEMORY_BYTES = 1 << 20  # of one compiled pattern; what needs more is refused
SUBSCRIPTION_CHARACTERS_MAX = 200  # of the name of a subscription to a pattern

Syntax = Literal["glob", "regex"]
_KINDS = {"queue": DestinationKind.QUEUE, "topic": DestinationKind.TOPIC}
_ANY, _ONE = "(?s:.*)", "(?s:.)"
_OF_PATTERN = "\x1f"  # between the name of a pattern's subscription and the topic's mark


class Pattern(msgspec.Struct, frozen=True):
    """What `alphorn.glob` and `alphorn.regex` give; `str()` gives the form `glob:topic:prices.*`."""

    syntax: Syntax
    kind: DestinationKind | None  # None for both
    text: str

    def __str__(self) -> str:
        kind = f"{self.kind.name.lower()}:" if self.kind is not None else ""
        return f"{self.syntax}:{kind}{self.text}"

    def check(self) -> None:
        """Raises `InvalidDestination` for what is no pattern, or one that is too large."""
        if not self.text:
            raise InvalidDestination(f"a {self.syntax} needs a text to match names with, as in {self.syntax}:prices.*")
        if len(self.text) > PATTERN_CHARACTERS_MAX:
            raise InvalidDestination(
                f"the {self.syntax} that begins with {self.text[:20]!r} has {len(self.text)} characters; "
                f"at most {PATTERN_CHARACTERS_MAX} are allowed"
            )
        if not self.text.isprintable():
            raise InvalidDestination(f"the {self.syntax} {self.text!r} holds a character that cannot be printed")
        if self.syntax == "regex":
            compile_expression(self.text)

    def admits(self, destination: Destination) -> bool:
        """Whether a destination is of its kind, and neither temporary nor hidden from it; the name is not compared."""
        if self.kind is not None and self.kind is not destination.kind:
            return False
        if destination.is_temporary:
            return False
        return self.text.startswith("_") or not destination.is_reserved

    @property
    def expression(self) -> str:
        """The regular expression that matches the same whole names."""
        if self.syntax == "regex":
            return self.text
        return "".join({"*": _ANY, "?": _ONE}.get(character) or re2.escape(character) for character in self.text)

    @property
    def bounds(self) -> tuple[str, str] | None:
        """Names that match lie between these two, both included; None where they may be anywhere."""
        if self.syntax == "glob":
            prefix = Glob(self.text).prefix
            return (prefix, prefix + chr(0x10FFFF)) if prefix else None
        try:
            first, last = compile_expression(rf"\A(?:{self.text})\z").possiblematchrange(20)
        except (re2.error, InvalidDestination):
            return None
        return _readable_part(first), _readable_part(last) + chr(0x10FFFF)


def glob(pattern: str) -> Pattern:
    """All destinations whose name matches: `*` stands for any characters, `?` for one.

    `glob("prices.*")` means queues and topics, `glob("topic:prices.*")` topics only. Raises `InvalidDestination`.
    """
    return _made("glob", pattern)


def regex(pattern: str) -> Pattern:
    r"""All destinations whose whole name matches a regular expression (RE2), as in `regex(r"prices\.(eu|us)\..+")`.

    `regex("topic:...")` means topics only, `regex("queue:...")` queues only. Raises `InvalidDestination`.
    """
    return _made("regex", pattern)


def is_pattern(text: str) -> bool:
    """Whether a text is meant as a pattern rather than a destination."""
    return text.startswith(("glob:", "regex:"))


def parse_pattern(text: str) -> Pattern:
    """Reads `glob:topic:prices.*`, `regex:orders-[0-9]+` and the like; raises `InvalidDestination`."""
    syntax, colon, rest = text.partition(":")
    if not colon or syntax not in ("glob", "regex"):
        raise InvalidDestination(f"{text[:100]!r} is no pattern; write glob:topic:prices.* or regex:topic:prices[.].+")
    return _made("glob" if syntax == "glob" else "regex", rest)


def compile_expression(expression: str) -> Any:
    """A compiled regular expression; raises `InvalidDestination`."""
    try:
        return re2.compile(expression, pattern_options())
    except re2.error as error:
        detail = error.args[0] if error.args else error
        reason = detail.decode(errors="replace") if isinstance(detail, bytes) else str(detail)
        raise InvalidDestination(
            f"the regular expression {expression[:100]!r} is not taken: {reason}; write it as RE2 has it"
        ) from None


def pattern_options(memory_bytes: int = PATTERN_MEMORY_BYTES) -> Any:
    """How expressions are compiled: with bounded memory, and silently."""
    options = re2.Options()
    options.max_mem = memory_bytes
    options.log_errors = False
    options.never_capture = True
    return options


def subscription_for(name: str, destination: Destination) -> str:
    """The name of the subscription to one topic that a subscription to a pattern has.

    A subscription is to one topic, and names of topics are too long to be part of its name.
    """
    return f"{name}{_OF_PATTERN}{hashlib.blake2b(destination.name.encode(), digest_size=16).hexdigest()}"


def belongs_to(subscription: str, name: str) -> bool:
    """Whether a subscription to a topic was made by the subscription of this name to a pattern."""
    return subscription.startswith(name + _OF_PATTERN)


def _readable_part(data: bytes) -> str:
    """All before the first byte that is no text: no larger than what it is a part of."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        return data[: error.start].decode()


def _made(syntax: Syntax, text: str) -> Pattern:
    if type(text) is not str:
        raise InvalidDestination(f"a {syntax} is a str like 'prices.*', not {type(text).__name__}")
    kind, colon, name = text.partition(":")
    found = _KINDS.get(kind) if colon else None
    pattern = Pattern(syntax, found, name if found is not None else text)
    pattern.check()
    return pattern
