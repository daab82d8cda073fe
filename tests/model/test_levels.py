"""Level wildcards: what MQTT says of `+`, `#` and `$`, and a trie that agrees with it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alphorn.model.errors import InvalidDestination
from alphorn.model.levels import LevelTrie, check_filter


def matches(text: str, name: str) -> bool:
    trie: LevelTrie[str] = LevelTrie()
    trie.add(text, "key")
    return trie.match(name) == ["key"]


@pytest.mark.parametrize(
    ("text", "name", "is_matched"),
    [
        ("sport/tennis/player1/#", "sport/tennis/player1", True),
        ("sport/tennis/player1/#", "sport/tennis/player1/ranking", True),
        ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon", True),
        ("sport/#", "sport", True),
        ("#", "sport/tennis", True),
        ("sport/tennis/+", "sport/tennis/player1", True),
        ("sport/tennis/+", "sport/tennis/player1/ranking", False),
        ("sport/+", "sport", False),
        ("sport/+", "sport/", True),
        ("+/+", "/finance", True),
        ("/+", "/finance", True),
        ("+", "/finance", False),
        ("#", "$SYS/monitor", False),
        ("+/monitor", "$SYS/monitor", False),
        ("$SYS/#", "$SYS/monitor", True),
        ("$SYS/monitor/+", "$SYS/monitor/clients", True),
        ("sport", "sport", True),
        ("sport", "Sport", False),
        ("a//b", "a//b", True),
        ("a/+/b", "a//b", True),
    ],
)
def test_a_filter_matches_as_mqtt_says(text: str, name: str, is_matched: bool) -> None:
    assert matches(text, name) is is_matched


@pytest.mark.parametrize("text", ["", "sport/tennis#", "sport/#/ranking", "sport+", "a/b+/c", "##", "a\0b", "/" * 200])
def test_what_is_no_filter_is_refused(text: str) -> None:
    with pytest.raises(InvalidDestination):
        check_filter(text)


def naive(filter_levels: list[str], levels: list[str]) -> bool:
    if not filter_levels:
        return not levels
    first, *rest = filter_levels
    if first == "#":
        return True
    if not levels:
        return False
    return first in ("+", levels[0]) and (naive(rest, levels[1:]) or (rest == ["#"] and len(levels) == 1))


levels = st.lists(st.sampled_from(["a", "b", ""]), min_size=1, max_size=4)
filters = st.builds(
    lambda above, last: "/".join([*above, *last]) or "+",
    st.lists(st.sampled_from(["a", "b", "+", ""]), max_size=4),
    st.sampled_from([["#"], []]),
)


@given(st.lists(st.tuples(filters, st.integers(0, 3))), st.data(), levels)
def test_a_trie_finds_exactly_the_filters_that_match_one_by_one(
    wanted: list[tuple[str, int]], data: st.DataObject, name: list[str]
) -> None:
    trie: LevelTrie[int] = LevelTrie()
    for text, key in wanted:
        trie.add(text, key)
    removed = data.draw(st.lists(st.sampled_from(wanted))) if wanted else []
    for text, key in removed:
        trie.remove(text, key)
    left = [(text, key) for text, key in wanted if (text, key) not in removed]
    expected = {key for text, key in left if naive(text.split("/"), name)}
    assert sorted(trie.match("/".join(name))) == sorted(expected)


def test_what_was_removed_leaves_nothing_behind() -> None:
    trie: LevelTrie[int] = LevelTrie()
    for text in ("a/b/c", "a/b/#", "a/+/c", "#"):
        trie.add(text, 1)
    for text in ("a/b/c", "a/b/#", "a/+/c", "#", "never/there"):
        trie.remove(text, 1)
    assert trie._root.is_empty
