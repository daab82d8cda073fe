"""What is no selector is refused in one sentence with the place of its first fault; nothing else ever goes wrong."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alphorn.message_manager.selector import parse
from alphorn.model.errors import Error, InvalidSelector

RESERVED = "NULL TRUE FALSE NOT AND OR BETWEEN LIKE IN IS ESCAPE".split()
PIECES = [*RESERVED, *"( ) = <> < <= > >= + - * / , . ' $ % _ # a b JMSType JMSXId 'x' '%' '' 1 0x 08 2.5E 7F".split()]
VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=3)


@pytest.mark.parametrize(
    ("text", "position", "expected"),
    [
        ("a =", 4, "a value or a name, found the end"),
        ("a AND", 6, "a value or a name, found the end"),
        ("a = = 1", 5, "a value or a name, found ="),
        ("= 1", 1, "a value or a name"),
        ("a = NOT b", 5, "a value or a name, found NOT"),
        ("a = NULL", 5, "IS NULL"),
        ("a b", 3, "an operator or the end, found b"),
        ("a 'b'", 3, "an operator or the end"),
        ("a = 1, b", 6, "an operator or the end"),
        ("a = b = c", 7, "AND, OR or the end"),
        ("a < b < c", 7, "AND, OR or the end"),
        ("a = b LIKE 'c'", 7, "AND, OR or the end, found LIKE"),
        ("a LIKE 'x' + 1", 12, "AND, OR or the end"),
        ("a IS NULL = TRUE", 11, "AND, OR or the end"),
        ("a IS NULL IS NULL", 11, "AND, OR or the end"),
        ("a IS 1", 6, "NULL, found 1"),
        ("a IS NOT 1", 10, "NULL, found 1"),
        ("a NOT = 1", 7, "BETWEEN, LIKE or IN, found ="),
        ("a NOT IS NULL", 7, "BETWEEN, LIKE or IN"),
        ("a BETWEEN 1", 12, "AND and the upper bound of BETWEEN"),
        ("a BETWEEN 1 OR 2", 13, "AND and the upper bound of BETWEEN"),
        ("(a BETWEEN 1) AND 2", 13, "AND and the upper bound of BETWEEN"),
        ("a BETWEEN 1 = 2 AND 3", 13, "AND, found ="),
        ("a BETWEEN 'x' AND 'y'", 11, "a number, found a string"),
        ("a IN 'x'", 6, "(, found 'x'"),
        ("a IN ()", 7, "a string, found )"),
        ("a IN (1)", 7, "a string, found 1"),
        ("a IN ('x',)", 11, "a string, found )"),
        ("a IN ('x' 'y')", 11, "a comma or the closing parenthesis of IN"),
        ("a LIKE b", 8, "a pattern in quotes"),
        ("a LIKE 'x' ESCAPE 'ab'", 19, "one character in quotes"),
        ("a LIKE 'x' ESCAPE ''", 19, "one character in quotes"),
        ("a LIKE 'x' ESCAPE 5", 19, "one character in quotes"),
        ("a LIKE 'x!' ESCAPE '!'", 8, "each escape character precedes"),
        ("a LIKE 'x!y' ESCAPE '!'", 8, "each escape character precedes"),
        ("1 IS NULL", 3, "a property or header field only"),
        ("'abc' LIKE 'a'", 7, "a property or header field only"),
        ("a + b IN ('x')", 7, "a property or header field only"),
        ("(a", 3, "closes the one at character 1"),
        ("((a) AND b", 11, "closes the one at character 1"),
        ("a)", 2, "no parenthesis is open"),
        ("()", 2, "a value or a name"),
        ("5", 1, "a condition, found a number"),
        ("'x'", 1, "a condition, found a string"),
        ("a AND b + 1", 7, "a condition, found a number"),
        ("NOT 'x'", 5, "a condition, found a string"),
        ("a > 'x'", 5, "a number, found a string"),
        ("TRUE <= a", 1, "a number, found a condition"),
        ("a + 'x' = 1", 5, "a number, found a string"),
        ("a = -'x'", 6, "a number, found a string"),
        ("1 + (a = 1) = 2", 6, "a number, found a condition"),
        ("JMSDestination = 'x'", 1, "one of the header fields JMSCorrelationID"),
        ("a = 'x", 7, "the closing quote of the string that opens at character 5"),
        ("a = 'x''", 9, "the closing quote of the string that opens at character 5"),
        ("a = 9223372036854775808", 5, "within a long"),
        ("a = -(9223372036854775808)", 7, "within a long"),
        ("a = - -9223372036854775808", 8, "within a long"),
        ("a = -9223372036854775809", 6, "within a long"),
        ("a = " + "9" * 10_000, 5, "within a long"),
        ("a = 0x10000000000000000", 5, "within a long"),
        ("a = 1e999", 5, "or a double"),
        ("a = 1e39f", 5, "or a double"),
        ("a = 08", 5, "as Java writes it"),
        ("a = 0x", 6, "the end of the number 0, found x"),
        ("a = 5x", 6, "the end of the number 5, found x"),
        ("a = 1.5.2", 8, "the end of the number 1.5"),
        ("a = 1_000", 6, "the end of the number 1"),
        ("a.b = 1", 2, "a sign of the selector language, found ."),
        ("a != 1", 3, "a sign of the selector language, found !"),
        ('"a" = 1', 1, "a sign of the selector language"),
        ("a\u00a0= 1", 2, "a sign of the selector language"),
        ("a = \ud800", 5, "a sign of the selector language"),
    ],
)
def test_a_refusal_names_the_selector_the_place_and_what_was_expected(text: str, position: int, expected: str) -> None:
    with pytest.raises(InvalidSelector) as refused:
        parse(text)
    sentence = str(refused.value)
    assert sentence.startswith('selector "' + text.replace("\u00a0", " ").replace("\ud800", " ")[:57])
    assert f" is not valid at character {position}: expected " in sentence
    assert expected in sentence.partition(": expected ")[2]
    assert "\n" not in sentence


@pytest.mark.parametrize("word", [form for word in RESERVED for form in (word, word.lower(), word.title())])
def test_a_reserved_word_is_no_identifier(word: str) -> None:
    with pytest.raises(InvalidSelector):
        parse(f"{word} = a AND a > {word} + 1")


def test_a_refusal_is_an_error_of_alphorn_on_one_short_line() -> None:
    with pytest.raises(Error, match=r'^selector "a =  +\.\.\." is not valid at character 1005: .* found the end$'):
        parse("a =" + "\n" * 1000 + " ")


@pytest.mark.parametrize(("letter", "count"), [("a", 16 * 1024), ("ä", 8 * 1024), ("字", 5461)])
def test_a_text_has_at_most_sixteen_kibibytes(letter: str, count: int) -> None:
    parse(letter * count)
    with pytest.raises(InvalidSelector, match=f"at character {count + 1}: expected the end, as a selector has at most"):
        parse(letter * (count + 1))


def test_parentheses_stand_at_most_a_hundred_deep() -> None:
    parse("(" * 100 + "a" + ")" * 100)
    parse("(a)" + " AND (a)" * 200)
    with pytest.raises(InvalidSelector, match="at character 101: expected at most 100 parentheses"):
        parse("(" * 101 + "a" + ")" * 101)


def test_in_takes_at_most_a_thousand_strings() -> None:
    values = [f"'{number}'" for number in range(1000)]
    assert parse(f"a IN ({','.join(values)})").matches({"a": "999"})
    with pytest.raises(InvalidSelector, match="expected at most 1000 strings after IN"):
        parse(f"a IN ({','.join(values)},'x')")


@settings(max_examples=500)
@given(st.lists(st.sampled_from(PIECES), max_size=14), st.sampled_from(["", " "]), st.fixed_dictionaries({"a": VALUES}))
def test_any_words_are_refused_as_a_selector_or_answer(
    pieces: list[str], gap: str, properties: dict[str, object]
) -> None:
    with contextlib.suppress(InvalidSelector):
        assert parse(gap.join(pieces)).matches(properties) in (True, False)


@given(st.text(max_size=30))
def test_any_text_is_refused_as_a_selector_or_answers(text: str) -> None:
    with contextlib.suppress(InvalidSelector):
        assert parse(text).matches({}) in (True, False)


SHAPES = ["a = b", "a < b", "a + b * a - b / a > a", "-a = +b", "a BETWEEN b AND a", "a", "a LIKE '_%'", "a IN ('')"]


@given(st.sampled_from(SHAPES), VALUES | st.just([]) | st.just(10**400), VALUES | st.just({}))
def test_no_values_of_properties_make_a_selector_fail(text: str, one: object, other: object) -> None:
    assert parse(text).matches({"a": one, "b": other}) in (True, False)
