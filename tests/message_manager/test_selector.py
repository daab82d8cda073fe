"""Which messages a selector takes, by the rules of JMS: three-valued logic, types, arithmetic, precedence, literals."""

import sys
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alphorn.message_manager.selector import parse

UNKNOWN = None
Truth = bool | None
TRUTHS: dict[str, Truth] = {"yes": True, "no": False, "missing": UNKNOWN}
PROPERTIES: Mapping[str, object] = {
    "yes": True,
    "no": False,
    "one": 1,
    "seven": 7,
    "half": 0.5,
    "name": "alphorn",
    "empty": "",
    "quoted": "it's",
    "raw": b"alphorn",
    "nothing": None,
    "odd": [1, 2],
    "long_max": 2**63 - 1,
    "beyond": 10**400,
    "$cost_€": 3,
    "größe": 4,
    "JMSXGroupID": "g",
}
HEADERS: Mapping[str, object] = {"JMSPriority": 9, "JMSType": "order", "JMSDeliveryMode": "PERSISTENT"}


def truth_of(text: str, properties: Mapping[str, object] | None = PROPERTIES) -> Truth:
    """TRUE selects, FALSE is selected by its negation, and UNKNOWN by neither."""
    selects = parse(text).matches(properties, HEADERS.get)
    refuses = parse(f"NOT ({text})").matches(properties, HEADERS.get)
    assert not (selects and refuses)
    return True if selects else False if refuses else UNKNOWN


@pytest.mark.parametrize("text", ["", " ", "\t\r\n\f "])
def test_a_blank_selector_selects_everything(text: str) -> None:
    selector = parse(text)
    assert selector.matches(None)
    assert selector.matches({"a": 1})
    assert (selector.text, selector.identifiers) == (text, frozenset())


def test_a_selector_tells_its_text_and_what_it_reads() -> None:
    text = "a = 1 AND (b LIKE 'c%' OR JMSPriority BETWEEN low AND 9) AND a IS NOT NULL"
    selector = parse(text)
    assert selector.text == text
    assert selector.identifiers == {"a", "b", "JMSPriority", "low"}
    assert repr(selector) == f"Selector({text!r})"


def test_header_fields_are_asked_for_only_when_read() -> None:
    asked: list[str] = []
    selector = parse("JMSPriority > 4 AND JMSXGroupID = 'g' AND jmsPriority IS NULL AND JMS_alphorn IS NULL")
    assert selector.matches(PROPERTIES, lambda name: asked.append(name) or HEADERS.get(name))
    assert asked == ["JMSPriority"]


def test_a_message_without_properties_or_header_fields_gives_nulls() -> None:
    assert not parse("a = 1 OR JMSType = 'order'").matches(None)
    assert parse("a IS NULL AND JMSType IS NULL").matches(None)


def conjunction(left: Truth, right: Truth) -> Truth:
    if left is False or right is False:
        return False
    return True if left and right else UNKNOWN


def negation(value: Truth) -> Truth:
    return UNKNOWN if value is UNKNOWN else not value


def disjunction(left: Truth, right: Truth) -> Truth:
    return negation(conjunction(negation(left), negation(right)))


@pytest.mark.parametrize("left", TRUTHS)
@pytest.mark.parametrize("right", TRUTHS)
def test_and_or_and_not_follow_their_tables(left: str, right: str) -> None:
    assert truth_of(f"{left} AND {right}") is conjunction(TRUTHS[left], TRUTHS[right])
    assert truth_of(f"{left} OR {right}") is disjunction(TRUTHS[left], TRUTHS[right])
    assert truth_of(f"NOT {left}") is negation(TRUTHS[left])
    assert truth_of(f"NOT NOT {left}") is TRUTHS[left]


@pytest.mark.parametrize(
    "text",
    [
        "missing = 1",
        "missing <> 1",
        "nothing = nothing",
        "missing < 1",
        "1 >= missing",
        "missing + 1 = 2",
        "-missing = 1",
        "+missing = missing",
        "missing BETWEEN 1 AND 2",
        "missing NOT BETWEEN 1 AND 2",
        "1 BETWEEN missing AND 2",
        "1 NOT BETWEEN missing AND 2",
        "missing IN ('a')",
        "missing NOT IN ('a')",
        "missing LIKE '%'",
        "missing NOT LIKE '%'",
        "missing = TRUE",
        "missing",
        "seven / 0 = 0",
        "seven / 0 * 2 = 0",
        "seven / 0.0 > 0",
        "name + 1 = 1",
        "yes * 1 = 1",
        "-name = 1",
        "odd = 1",
        "1 <> odd",
        "odd = odd",
        "odd < seven",
        "odd LIKE '%'",
        "odd IN ('a')",
        "odd",
        "beyond * 0.5 > 1",
        "beyond / 0.5 > 1",
        "beyond > 0.5",
        "half < beyond",
        "beyond NOT BETWEEN half AND 1.0",
        "(missing = 1) = TRUE",
    ],
)
def test_what_depends_on_null_is_unknown(text: str) -> None:
    assert truth_of(text) is UNKNOWN


def test_one_false_bound_decides_a_between_with_null() -> None:
    assert truth_of("7 BETWEEN missing AND 2") is False
    assert truth_of("7 NOT BETWEEN missing AND 2") is True


@pytest.mark.parametrize(
    "text",
    [
        "name = 1",
        "name <> 1",
        "one = 'alphorn'",
        "one <> TRUE",
        "one = TRUE",
        "yes = 1",
        "yes <> 1",
        "yes < 2",
        "yes < no",
        "name > 1",
        "no < yes",
        "name <= name",
        "empty < name",
        "name = raw",
        "raw <> name",
        "raw <> raw",
        "yes = 'TRUE'",
        "name BETWEEN 1 AND 2",
        "name NOT BETWEEN 1 AND 2",
        "one LIKE '%'",
        "one IN ('1')",
        "name",
        "one",
        "5 = 'a'",
    ],
)
def test_unlike_types_compare_as_false(text: str) -> None:
    assert truth_of(text) is False


@pytest.mark.parametrize(
    "text",
    [
        "one = 1.0",
        "half < one",
        "1 > half AND 1 < seven AND 7 <= seven AND 1 >= one AND NOT 7 < seven AND NOT 1 > one",
        "seven >= 7 AND seven <= 7 AND NOT seven <> 7",
        "name = 'alphorn' AND 'alphorn' = name AND name <> 'Alphorn'",
        "yes = TRUE AND no = FALSE AND yes <> no AND TRUE = yes",
        "raw = raw",
        "yes = (one = 1) AND (missing IS NULL) = yes",
        "quoted = 'it''s' AND empty = '' AND quoted <> ''''",
        "one NOT LIKE '%' AND one NOT IN ('1')",
        "seven BETWEEN 7 AND 7 AND seven BETWEEN one AND 3 + 4 AND seven NOT BETWEEN 8 AND 9",
        "seven BETWEEN 1 AND 9 AND yes",
        "NOT seven BETWEEN 8 AND 9 OR no",
        "name IN ('x', 'alphorn') AND name NOT IN ('x')",
        "name LIKE 'alp%' AND name NOT LIKE '_'",
        "missing IS NULL AND nothing IS NULL AND name IS NOT NULL AND odd IS NOT NULL",
        "not no And (one In ('a') oR seven bEtWeEn 1 aNd 9) and TRUE and not faLSE and missing is Null",
        "JMSPriority > 4 AND JMSType LIKE 'ord__' AND JMSDeliveryMode = 'PERSISTENT' AND JMSMessageID IS NULL",
        "$cost_€ = 3 AND größe = 4",
        "Name IS NULL",
        "(name) LIKE 'a%'",
    ],
)
def test_conditions_that_hold_are_true(text: str) -> None:
    assert truth_of(text) is True


@pytest.mark.parametrize(
    "text",
    [
        "no AND no OR yes",
        "yes OR no AND no",
        "NOT no AND yes",
        "NOT (no OR no) AND NOT no = yes",
        "2 + 3 * 4 = 14 AND (2 + 3) * 4 = 20",
        "10 - 4 - 3 = 3 AND 24 / 4 / 2 = 3 AND 24 / 4 * 2 = 12",
        "-2 * -3 = 6 AND - -2 = 2 AND 5 - -2 = 7 AND -+-+2 = 2 AND -seven + 1 = -6 AND +seven = 7",
        "one + one < seven - half * 2",
        "yes=TRUE AND(one<2)AND NOT(one>2)AND one<>2",
    ],
)
def test_operators_bind_as_in_sql(text: str) -> None:
    assert truth_of(text) is True


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7 / 2", 3),
        ("-7 / 2", -3),
        ("7 / -2", -3),
        ("-7 / -2", 3),
        ("7 / 2.0", 3.5),
        ("1 + 0.5", 1.5),
        ("9223372036854775807 + 1", -(2**63)),
        ("9223372036854775807 * 2", -2),
        ("-9223372036854775808 / -1", -(2**63)),
        ("-(-9223372036854775807 - 1)", -(2**63)),
        ("-9223372036854775808 - 1", 2**63 - 1),
    ],
)
def test_arithmetic_is_that_of_java(text: str, value: float) -> None:
    assert truth_of(f"{text} = expected", {"expected": value}) is True


# The first whole number that no double holds: as a double it is the one before.
LARGE: Mapping[str, object] = {"long": 2**53 + 1, "double": 2.0**53, "less": -(2**53) - 1, "minus": -(2.0**53)}


@pytest.mark.parametrize(
    ("long", "double"),
    [
        ("long", "double"),
        ("long", "9007199254740992.0"),
        ("9007199254740993", "double"),
        ("9007199254740993", "9007199254740992.0"),
        ("long", "double * 1"),
        ("less", "minus"),
        ("-9007199254740993", "minus"),
    ],
)
def test_a_long_is_compared_with_a_double_as_a_double(long: str, double: str) -> None:
    for one, other in ((long, double), (double, long)):
        for sign in ("=", "<=", ">="):
            assert truth_of(f"{one} {sign} {other}", LARGE) is True, sign
        for sign in ("<>", "<", ">"):
            assert truth_of(f"{one} {sign} {other}", LARGE) is False, sign
        assert truth_of(f"{one} BETWEEN {other} AND {other}", LARGE) is True
        assert truth_of(f"{one} NOT BETWEEN {other} AND {other}", LARGE) is False


@pytest.mark.parametrize(
    "text",
    [
        "long <> 9007199254740992 AND long > 9007199254740992 AND NOT long <= 9007199254740992",
        "long BETWEEN 9007199254740993 AND double",
        "long + 0.0 = 9007199254740992 AND long - 0.0 = double AND long * 1.0 = double AND long / 1.0 = double",
        "long + 0 <> 9007199254740992 AND long / 1 = 9007199254740993",
    ],
)
def test_only_a_long_that_meets_a_double_is_made_one(text: str) -> None:
    assert truth_of(text, LARGE) is True


@pytest.mark.parametrize(
    ("literal", "value"),
    [
        ("0", 0),
        ("42", 42),
        ("42L", 42),
        ("42l", 42),
        ("017", 15),
        ("00", 0),
        ("0x1F", 31),
        ("0X1fL", 31),
        ("0xFFFFFFFFFFFFFFFF", -1),
        ("01777777777777777777777", -1),
        ("0x" + "0" * 5000 + "1", 1),
        ("9223372036854775807", 2**63 - 1),
        ("-9223372036854775808", -(2**63)),
        ("1.5", 1.5),
        ("1.", 1.0),
        (".5", 0.5),
        ("7E3", 7000.0),
        ("7e-1", 0.7),
        ("1.5E+2", 150.0),
        ("1.e2", 100.0),
        ("09.5", 9.5),
        ("2D", 2.0),
        ("0.1d", 0.1),
        ("0.5F", 0.5),
        ("0.1f", 0.10000000149011612),
        ("1" * 300 + ".0", float("1" * 300)),
    ],
)
def test_numbers_are_written_as_in_java(literal: str, value: float) -> None:
    assert truth_of(f"{literal} = expected", {"expected": value}) is True
    assert truth_of(f"{literal} < expected OR {literal} > expected", {"expected": value}) is False


def test_a_reserved_word_is_spelled_with_plain_letters_only() -> None:
    name = "l\u0131ke"  # capitalised, this letter is a plain I
    assert name.upper() == "LIKE"
    assert parse(f"{name} = 1").matches({name: 1})


@pytest.mark.parametrize("innermost", TRUTHS)
def test_the_deepest_selector_is_evaluated_within_half_the_stack(innermost: str) -> None:
    # Each parenthesis may add an OR, an AND, a NOT and a comparison; these ones leave the value as it is.
    text = "no OR yes AND NOT no = (" * 100 + innermost + ")" * 100
    depth = 0
    frame = sys._getframe()
    while frame.f_back:
        frame, depth = frame.f_back, depth + 1
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(depth + 500)
    try:
        selects = parse(text).matches(PROPERTIES)
    finally:
        sys.setrecursionlimit(limit)
    assert selects is (TRUTHS[innermost] is True)


@pytest.mark.parametrize("text", ["NOT " * 4000 + "yes", "one = " + "-" * 16000 + "1", "yes" + " AND yes" * 2000])
def test_long_chains_do_not_nest(text: str) -> None:
    assert parse(text).matches(PROPERTIES)


def test_a_long_sum_does_not_nest() -> None:
    assert parse("7999 = one" + "+one-0" * 2600 + "+5398").matches(PROPERTIES)


# Random conditions, as text and as their value by a second, slow reading of the rules.

Example = tuple[str, Truth]
NUMBERS: dict[str, float | None] = {"one": 1, "seven": 7, "half": 0.5, "missing": None, "-3": -3, "2": 2}
SIGNS = ["=", "<>", "<", "<=", ">", ">="]


def compared(sign: str, left: float | None, right: float | None) -> Truth:
    if left is None or right is None:
        return UNKNOWN
    results = {"=": left == right, "<": left < right, ">": left > right}
    results |= {"<>": not results["="], "<=": not results[">"], ">=": not results["<"]}
    return results[sign]


@st.composite
def comparisons(draw: st.DrawFn) -> Example:
    numbers = st.sampled_from(sorted(NUMBERS))
    value, low, high, sign = draw(numbers), draw(numbers), draw(numbers), draw(st.sampled_from(SIGNS))
    inside = conjunction(compared(">=", NUMBERS[value], NUMBERS[low]), compared("<=", NUMBERS[value], NUMBERS[high]))
    return draw(
        st.sampled_from(
            [
                (f"{value} {sign} {low}", compared(sign, NUMBERS[value], NUMBERS[low])),
                (f"{value} BETWEEN {low} AND {high}", inside),
                (f"{value} NOT BETWEEN {low} AND {high}", negation(inside)),
            ]
        )
    )


def joined(examples: st.SearchStrategy[Example]) -> st.SearchStrategy[Example]:
    pairs = st.tuples(examples, examples)
    return st.one_of(
        pairs.map(lambda pair: (f"({pair[0][0]}) AND ({pair[1][0]})", conjunction(pair[0][1], pair[1][1]))),
        pairs.map(lambda pair: (f"(({pair[0][0]}) OR {pair[1][0]})", disjunction(pair[0][1], pair[1][1]))),
        examples.map(lambda example: (f"NOT ({example[0]})", negation(example[1]))),
    )


@given(st.recursive(comparisons() | st.sampled_from(list(TRUTHS.items())), joined, max_leaves=12))
def test_random_conditions_have_the_value_of_the_tables(example: Example) -> None:
    text, expected = example
    assert truth_of(text) is expected
