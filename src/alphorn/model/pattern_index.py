"""Which of many patterns match a name, at a cost that hardly grows with their number.

Globs without a wildcard are looked up, and so are those that only end in `*`, by each length that such a prefix has.
Other globs are found by a piece of their text (globs.py). Regular expressions are compiled together into sets of RE2,
each one automaton that reads the name once. A set cannot be added to, so new patterns make a small set, and sets grow
by merging with their equals: each pattern is compiled a few times, and there are few sets.

RE2 gives up on a name where an automaton outgrows its memory, and says so by finding nothing. Every set therefore has a
pattern that matches everything; where that one is missing from the answer, the set's patterns are tried one by one.
"""

import enum
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Generic, TypeVar

import re2

from alphorn.model.destinations import Destination
from alphorn.model.globs import Glob, GlobShelf
from alphorn.model.patterns import Pattern, compile_expression, pattern_options

SET_PATTERNS_MAX = 1024  # compiled in about 15 ms
_SET_MEMORY_BYTES = 64 << 20  # at most; an automaton takes what its names need
_EVERYTHING = "(?s:.*)"

Key = TypeVar("Key", bound=Hashable)


class PatternIndex(Generic[Key]):
    """Patterns by key; equal patterns of many keys are compared once."""

    __slots__ = ("_exact", "_globs", "_keys", "_lengths", "_patterns", "_prefixes", "_rest", "_shelf")

    def __init__(self) -> None:
        self._patterns: dict[Key, Pattern] = {}
        self._keys: dict[Pattern, dict[Key, None]] = {}
        self._exact: dict[str, dict[Pattern, None]] = {}
        self._prefixes: dict[str, dict[Pattern, None]] = {}
        self._lengths: Counter[int] = Counter()  # of those prefixes
        self._globs: dict[str, dict[Pattern, None]] = {}  # with a wildcard elsewhere, by their text
        self._shelf = GlobShelf()  # of those texts
        self._rest = _Expressions()

    def __len__(self) -> int:
        return len(self._patterns)

    def add(self, key: Key, pattern: Pattern) -> None:
        """From now on `match` gives this key for names that match; raises `InvalidDestination` for what is no pattern.

        A key has one pattern.
        """
        assert key not in self._patterns
        pattern.check()
        self._patterns[key] = pattern
        keys = self._keys.setdefault(pattern, {})
        keys[key] = None
        if len(keys) > 1:
            return
        match _form_of(pattern):
            case _Form.EXACT:
                self._exact.setdefault(pattern.text, {})[pattern] = None
            case _Form.PREFIX:
                prefix = pattern.text.rstrip("*")
                if prefix not in self._prefixes:
                    self._lengths[len(prefix)] += 1
                self._prefixes.setdefault(prefix, {})[pattern] = None
            case _Form.GLOB:
                if pattern.text not in self._globs:
                    self._shelf.add(Glob(pattern.text))
                self._globs.setdefault(pattern.text, {})[pattern] = None
            case _Form.EXPRESSION:
                self._rest.add(pattern)

    def remove(self, key: Key) -> None:
        """This key is given no more; one that has no pattern is nothing to remove."""
        pattern = self._patterns.pop(key, None)
        if pattern is None:
            return
        del self._keys[pattern][key]
        if self._keys[pattern]:
            return
        del self._keys[pattern]
        match _form_of(pattern):
            case _Form.EXACT:
                _discard(self._exact, pattern.text, pattern)
            case _Form.PREFIX:
                prefix = pattern.text.rstrip("*")
                if _discard(self._prefixes, prefix, pattern):
                    self._lengths -= Counter([len(prefix)])  # drops a length that nobody has any more
            case _Form.GLOB:
                if _discard(self._globs, pattern.text, pattern):
                    self._shelf.remove(pattern.text)
            case _Form.EXPRESSION:
                self._rest.remove(pattern)

    def match(self, destination: Destination) -> list[Key]:
        """The keys of all patterns that match, in the order in which equal ones were added."""
        name = destination.name
        found: list[Pattern] = list(self._exact.get(name, ()))
        for length in self._lengths:
            found += self._prefixes.get(name[:length], ()) if length <= len(name) else ()
        for text in self._shelf.match(name):
            found += self._globs[text]
        found += self._rest.match(name)
        return [key for pattern in found if pattern.admits(destination) for key in self._keys[pattern]]


class _Expressions:
    """Patterns that need an automaton."""

    __slots__ = ("_dead", "_fresh", "_living", "_sets")

    def __init__(self) -> None:
        self._living: dict[Pattern, None] = {}
        self._fresh: list[Pattern] = []  # in no set yet
        self._sets: list[_CompiledSet] = []
        self._dead = 0  # in sets, and removed since

    def add(self, pattern: Pattern) -> None:
        self._living[pattern] = None
        self._fresh.append(pattern)

    def remove(self, pattern: Pattern) -> None:
        del self._living[pattern]
        if pattern in self._fresh[-1:]:
            self._fresh.pop()
            return
        self._dead += 1
        if self._dead > len(self._living):
            self._fresh, self._sets, self._dead = list(self._living), [], 0

    def match(self, name: str) -> list[Pattern]:
        if self._fresh:
            self._compile()
        # A pattern that was removed and added again may be in two sets.
        found = dict.fromkeys(pattern for compiled in self._sets for pattern in compiled.match(name))
        return [pattern for pattern in found if pattern in self._living]

    def _compile(self) -> None:
        fresh, self._fresh = self._fresh, []
        while self._sets and len(self._sets[-1].patterns) <= len(fresh) <= SET_PATTERNS_MAX // 2:
            fresh = self._sets.pop().patterns + fresh
        for start in range(0, len(fresh), SET_PATTERNS_MAX):
            part = fresh[start : start + SET_PATTERNS_MAX]
            self._sets.append(_CompiledSet(dict.fromkeys(pattern for pattern in part if pattern in self._living)))


class _CompiledSet:
    """One automaton for many patterns."""

    __slots__ = ("_set", "patterns")

    def __init__(self, patterns: Iterable[Pattern]) -> None:
        self.patterns = list(patterns)
        try:
            self._set: Any = re2.Set.FullMatchSet(pattern_options(_SET_MEMORY_BYTES))
            for pattern in self.patterns:
                self._set.Add(pattern.expression)
            self._set.Add(_EVERYTHING)
            self._set.Compile()
        except re2.error:  # together they are too large
            self._set = None

    def match(self, name: str) -> list[Pattern]:
        found = self._set.Match(name) if self._set is not None else []
        if len(self.patterns) in found:
            return [self.patterns[index] for index in sorted(found) if index < len(self.patterns)]
        return [pattern for pattern in self.patterns if is_match(pattern, name)]


def is_match(pattern: Pattern, name: str) -> bool:
    """Whether one pattern matches one name, whatever it admits."""
    if pattern.syntax == "glob":
        return Glob(pattern.text).matches(name)
    return compile_expression(pattern.text).fullmatch(name) is not None


def matcher_of(pattern: Pattern) -> Callable[[str], bool]:
    """Compares one pattern with many names, whatever it admits."""
    if pattern.syntax == "glob":
        return Glob(pattern.text).matches
    compiled = _CompiledSet([pattern])
    return lambda name: bool(compiled.match(name))


class _Form(enum.Enum):
    """How a pattern is found."""

    EXACT = 1
    PREFIX = 2
    GLOB = 3
    EXPRESSION = 4  # also of globs without any plain text


def _form_of(pattern: Pattern) -> _Form:
    if pattern.syntax != "glob":
        return _Form.EXPRESSION
    literal = pattern.text.rstrip("*")
    if "*" not in literal and "?" not in literal:
        return _Form.EXACT if literal == pattern.text else _Form.PREFIX
    return _Form.GLOB if pattern.text.strip("*?") else _Form.EXPRESSION


def _discard(shelf: dict[str, dict[Pattern, None]], text: str, pattern: Pattern) -> bool:
    """Takes a pattern off; whether nothing is left at its text."""
    del shelf[text][pattern]
    if shelf[text]:
        return False
    del shelf[text]
    return True
