"""Patterns: what globs and regular expressions mean, which are refused, and many of them at once."""

import fnmatch
import re

import pytest
import re2
from hypothesis import given, settings
from hypothesis import strategies as st

from alphorn.model import pattern_index
from alphorn.model.destinations import Destination, DestinationKind
from alphorn.model.errors import InvalidDestination
from alphorn.model.pattern_index import PatternIndex, is_match, matcher_of
from alphorn.model.patterns import (
    PATTERN_CHARACTERS_MAX,
    Pattern,
    belongs_to,
    glob,
    parse_pattern,
    regex,
    subscription_for,
)

QUEUE, TOPIC = DestinationKind.QUEUE, DestinationKind.TOPIC


def matches(pattern: Pattern, name: str, kind: DestinationKind = TOPIC) -> bool:
    index: PatternIndex[int] = PatternIndex()
    index.add(1, pattern)
    return index.match(Destination(kind, name)) == [1]


@pytest.mark.requirement("WLD-1")
@pytest.mark.parametrize(
    ("text", "name", "is_matched"),
    [
        ("prices.*", "prices.eu", True),
        ("prices.*", "prices.eu.dax", True),
        ("prices.*", "prices.", True),
        ("prices.*", "prices", False),
        ("prices.*", "xprices.eu", False),
        ("prices.?", "prices.e", True),
        ("prices.?", "prices.eu", False),
        ("*.eu", "prices.eu", True),
        ("*.eu", "prices.us", False),
        ("p*s.?u", "prices.eu", True),
        ("prices", "prices", True),
        ("prices", "prices.eu", False),
        ("*", "anything at all", True),
        ("a[b]c", "a[b]c", True),
        ("a[b]c", "abc", False),
        ("a.c", "abc", False),
        ("preis.?", "preis.ä", True),
        ("**x", "x", True),
    ],
)
def test_a_glob_has_a_star_for_any_characters_and_a_question_mark_for_one(
    text: str, name: str, is_matched: bool
) -> None:
    assert matches(glob(text), name) is is_matched


@pytest.mark.requirement("WLD-2")
@pytest.mark.parametrize(
    ("text", "name", "is_matched"),
    [
        (r"prices\.(eu|us)\..+", "prices.eu.dax", True),
        (r"prices\.(eu|us)\..+", "prices.ch.smi", False),
        ("eu", "prices.eu", False),
        (".*eu", "prices.eu", True),
        ("a|b", "b", True),
        ("a|b", "ab", False),
        ("(?i)PRICES", "prices", True),
    ],
)
def test_a_regular_expression_speaks_of_the_whole_name(text: str, name: str, is_matched: bool) -> None:
    assert matches(regex(text), name) is is_matched


@pytest.mark.requirement("WLD-2")
def test_the_text_of_a_pattern_says_which_kind_it_is() -> None:
    assert parse_pattern("glob:topic:prices.*") == glob("topic:prices.*") == Pattern("glob", TOPIC, "prices.*")
    assert parse_pattern("regex:queue:a|b") == regex("queue:a|b") == Pattern("regex", QUEUE, "a|b")
    assert parse_pattern("glob:a:b*") == Pattern("glob", None, "a:b*")
    for text in ("glob:topic:prices.*", "regex:a|b", "glob:queue:?"):
        assert str(parse_pattern(text)) == text


def test_a_pattern_with_a_kind_speaks_of_no_other() -> None:
    assert matches(glob("queue:a*"), "ab", QUEUE)
    assert not matches(glob("queue:a*"), "ab", TOPIC)
    assert matches(glob("a*"), "ab", QUEUE)
    assert matches(glob("a*"), "ab", TOPIC)


@pytest.mark.parametrize("pattern", [glob("*"), glob("?DMQ"), regex(".*"), regex("[_]DMQ")])
def test_what_belongs_to_the_system_is_hidden_from_patterns_that_do_not_ask_for_it(pattern: Pattern) -> None:
    assert not matches(pattern, "_DMQ", QUEUE)


@pytest.mark.parametrize("pattern", [glob("_*"), glob("_DMQ"), regex("_D.Q")])
def test_a_pattern_that_begins_with_an_underscore_asks_for_what_belongs_to_the_system(pattern: Pattern) -> None:
    assert matches(pattern, "_DMQ", QUEUE)


def test_temporary_destinations_match_nothing() -> None:
    assert not matches(glob("temporary.*"), "temporary.00.1", QUEUE)


@pytest.mark.parametrize(
    "text",
    [
        "(",
        "a{1001}",
        "((a{100}){100}){100}",
        r"(a)\1",
        "(?=a)",
        "(?P<a",
        "a**",
        "[z-a]",
        "\\",
        "a" * (PATTERN_CHARACTERS_MAX + 1),
        "",
        "topic:",
        "a\nb",
        "(?:" * 400,
        r"\pN" * 300 + r"\pL{900}",
    ],
)
def test_a_regular_expression_that_cannot_be_taken_is_refused_with_one_sentence(text: str) -> None:
    with pytest.raises(InvalidDestination) as refused:
        regex(text)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 300


def test_a_glob_that_is_too_long_or_no_text_is_refused() -> None:
    with pytest.raises(InvalidDestination, match="at most 1000"):
        glob("*" * 1001)
    with pytest.raises(InvalidDestination, match="is a str"):
        glob(b"prices")  # type: ignore[arg-type]
    with pytest.raises(InvalidDestination, match="is no pattern"):
        parse_pattern("topic:prices")


def test_an_expression_that_other_engines_never_finish_takes_no_time() -> None:
    assert not matches(regex("(a*)*(a|aa)+b"), "a" * 250)


def test_a_subscription_to_a_pattern_has_one_of_its_own_for_each_topic() -> None:
    one, other = (subscription_for("books", Destination(TOPIC, name)) for name in ("prices.eu", "prices.us"))
    assert one != other
    assert belongs_to(one, "books")
    assert not belongs_to(one, "book")
    assert not belongs_to("books", "books")


names = st.text("ab.é😀", max_size=6)
globs = st.text("ab.é*?", min_size=1, max_size=7).map(glob)
expressions = st.sampled_from(["a.*", "(a|b)+", ".*b", "a?b?", "[^a]*", "é+|a", "b.*a.*", "😀*", ".{2}"]).map(regex)


@given(globs, names)
def test_a_glob_matches_what_the_same_glob_of_a_shell_matches(pattern: Pattern, name: str) -> None:
    expected = bool(re.match(fnmatch.translate(pattern.text), name, re.DOTALL))
    assert is_match(pattern, name) is matcher_of(pattern)(name) is expected
    assert (re2.fullmatch(pattern.expression, name) is not None) is expected


@given(st.one_of(globs, expressions), names)
def test_names_that_match_lie_within_the_bounds_of_the_pattern(pattern: Pattern, name: str) -> None:
    if pattern.bounds is not None and is_match(pattern, name):
        assert pattern.bounds[0] <= name <= pattern.bounds[1]


@settings(max_examples=200)
@given(
    st.lists(st.one_of(st.tuples(st.integers(0, 20), st.one_of(globs, expressions)), st.integers(0, 20), names)),
    st.integers(1, 4),
)
def test_an_index_finds_exactly_the_patterns_that_match_one_by_one(steps: list[object], largest: int) -> None:
    index: PatternIndex[int] = PatternIndex()
    known: dict[int, Pattern] = {}
    before, pattern_index.SET_PATTERNS_MAX = pattern_index.SET_PATTERNS_MAX, 2 * largest
    try:
        for step in steps:
            match step:
                case (int() as key, Pattern() as pattern):
                    if key not in known:
                        index.add(key, pattern)
                        known[key] = pattern
                case int():
                    index.remove(step)
                    known.pop(step, None)
                case str():
                    found = index.match(Destination(TOPIC, step))
                    assert sorted(found) == sorted(key for key, pattern in known.items() if is_match(pattern, step))
        assert len(index) == len(known)
    finally:
        pattern_index.SET_PATTERNS_MAX = before


def test_globs_that_share_most_of_their_text_are_told_apart_by_the_rest() -> None:
    index: PatternIndex[int] = PatternIndex()
    for number in range(1000):
        index.add(number, glob(f"prices.*.{number}.*"))
    fullest = max(len(shelf) for shelf in index._shelf._shelves.values())
    assert fullest <= 2, "each is shelved where few others are"
    assert index.match(Destination(TOPIC, "prices.eu.77.close")) == [77]


def test_where_an_automaton_outgrows_its_memory_patterns_are_tried_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    class Exhausted:
        def Add(self, expression: str) -> None: ...  # noqa: N802 - as RE2 has it

        def Compile(self) -> None: ...  # noqa: N802

        def Match(self, name: str) -> list[int]:  # noqa: N802
            return []

    monkeypatch.setattr(re2.Set, "FullMatchSet", lambda options: Exhausted())
    assert matches(regex(".*[.]eu"), "prices.eu")
    assert not matches(regex(".*[.]eu"), "prices.us")


def test_patterns_that_are_too_large_together_are_tried_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pattern_index, "_SET_MEMORY_BYTES", 1000)
    assert matches(regex(r"\pL+\.eu"), "prices.eu")
    assert not matches(regex(r"\pL+\.eu"), "prices.us")
