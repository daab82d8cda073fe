"""LIKE gives what its definition says, in a number of steps that grows with the text and not with the pattern."""

from typing import SupportsIndex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alphorn.message_manager.selector import parse
from alphorn.message_manager.selector_like import compile_like

TEXTS = st.text(alphabet="ab%_!", max_size=12)


class CountedText(str):
    """A string that counts the characters that are looked at."""

    looked_at = 0

    def __getitem__(self, place: SupportsIndex | slice) -> str:
        assert not isinstance(place, slice)
        self.looked_at += 1
        return super().__getitem__(place)

    def find(self, part: str, start: SupportsIndex | None = None, end: SupportsIndex | None = None) -> int:
        found = super().find(part, start, end)
        first, last = int(start or 0), len(self) if end is None else int(end)
        self.looked_at += (last if found < 0 else found + len(part)) - first
        return found

    def startswith(  # type: ignore[override]
        self, part: str, start: SupportsIndex | None = None, end: SupportsIndex | None = None
    ) -> bool:
        self.looked_at += len(part)
        return super().startswith(part, start, end)


def is_like(text: str, pattern: str, escape: str | None) -> bool:
    """The definition, read slowly: which prefixes of the text does each prefix of the pattern match?"""
    reached = {0}
    place = 0
    while place < len(pattern):
        letter, is_plain = pattern[place], False
        if letter == escape:
            place += 1
            letter, is_plain = pattern[place], True
        if letter == "%" and not is_plain:
            reached = {end for begin in reached for end in range(begin, len(text) + 1)}
        else:
            is_any = letter == "_" and not is_plain
            reached = {begin + 1 for begin in reached if begin < len(text) and (is_any or text[begin] == letter)}
        place += 1
    return len(text) in reached


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("12%3", ["123", "12993"], ["1234", "12"]),
        ("l_se", ["lose", "l%se"], ["loose", "lse"]),
        ("%", ["", "x", "%"], []),
        ("%%", ["", "x"], []),
        ("", [""], ["x"]),
        ("_", ["x", "_"], ["", "xy"]),
        ("%_", ["x", "xy"], [""]),
        ("a%a", ["aa", "aba"], ["a", "ab"]),
        ("%ab%ab%", ["abab", "xabyabz"], ["aba", "bab"]),
        ("%a_b%", ["aaxb", "zaab"], ["ab", "aaa"]),
        ("A", ["A"], ["a"]),
        ("a.c", ["a.c"], ["abc"]),
        ("a\nb", ["a\nb"], ["a b"]),
        ("it''s", ["it's"], ["it''s"]),
        ("字_%", ["字x", "字字字"], ["字", "x字"]),
    ],
)
def test_patterns_match_whole_strings(pattern: str, matching: list[str], others: list[str]) -> None:
    selector = parse(f"word LIKE '{pattern}'")
    assert [text for text in matching + others if selector.matches({"word": text})] == matching
    selector = parse(f"word NOT LIKE '{pattern}'")
    assert [text for text in matching + others if selector.matches({"word": text})] == others


@pytest.mark.parametrize(
    ("pattern", "escape", "matching", "others"),
    [
        (r"\_%", "\\", ["_foo", "_"], ["bar", r"\_"]),
        ("50!%", "!", ["50%"], ["50", "500", "50!%"]),
        ("!!%", "!", ["!", "!x"], ["x!"]),
        ("a%%b%_", "%", ["a%b_"], ["axb_", "a%bx"]),
        ("''%", "''", ["%"], ["'x"]),
    ],
)
def test_an_escaped_sign_stands_for_itself(pattern: str, escape: str, matching: list[str], others: list[str]) -> None:
    selector = parse(f"word LIKE '{pattern}' ESCAPE '{escape}'")
    assert [text for text in matching + others if selector.matches({"word": text})] == matching


@settings(max_examples=1000)
@given(TEXTS, TEXTS, st.sampled_from([None, "!"]))
def test_every_pattern_matches_as_its_definition_says(text: str, pattern: str, escape: str | None) -> None:
    try:
        matches = compile_like(pattern, escape)
    except ValueError:
        assert escape == "!"
        assert pattern.replace("!!", "").replace("!%", "").replace("!_", "").count("!")
    else:
        assert matches(text) == is_like(text, pattern, escape)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("%a" * 4000 + "%b", False),
        ("%a" * 4000 + "%", True),
        ("%" + "a" * 5000 + "b%", False),
        ("%" + "a_" * 2000 + "b%", False),
        ("%a_a" * 2000 + "%b%", False),
        ("%a_a" * 2000 + "%", True),
        ("%_" * 5000 + "b%", False),
        ("a_" * 2000 + "%" + "_a" * 2000, True),
    ],
)
def test_a_long_pattern_looks_at_each_character_once_or_twice(pattern: str, expected: bool) -> None:
    text = CountedText("a" * 10_000)
    assert compile_like(pattern, None)(text) is expected
    assert text.looked_at <= 2 * len(text)
