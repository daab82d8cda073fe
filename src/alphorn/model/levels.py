"""Level wildcards as MQTT has them: `sport/+/score` and `sport/#`, matched by a trie.

`+` stands for one level, also an empty one; `#` stands for the level before it and all below, and comes last. Names
that begin with `$` do not match a filter that begins with a wildcard. Matching follows the name's levels, so its cost
does not grow with the number of filters that lead elsewhere.
"""

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

from alphorn.model.errors import InvalidDestination

SEPARATOR = "/"
_ONE, _ALL = "+", "#"
FILTER_BYTES_MAX = 65_535
LEVELS_MAX = 128  # a name of a destination has no more separators than bytes, and nobody needs as many

Key = TypeVar("Key", bound=Hashable)


def check_filter(text: str) -> list[str]:
    """The levels of a filter; raises `InvalidDestination` for what is none."""
    if not text or len(text.encode()) > FILTER_BYTES_MAX:
        raise InvalidDestination(f"a topic filter has 1 to {FILTER_BYTES_MAX} bytes; this one has {len(text.encode())}")
    if "\0" in text:
        raise InvalidDestination("a topic filter holds no null character; leave it out")
    levels = text.split(SEPARATOR)
    if len(levels) > LEVELS_MAX:
        raise InvalidDestination(f"a topic filter has at most {LEVELS_MAX} levels; this one has {len(levels)}")
    for place, level in enumerate(levels):
        if _ALL in level and (level != _ALL or place != len(levels) - 1):
            raise InvalidDestination(f"the topic filter {text[:100]!r} has # elsewhere than alone in its last level")
        if _ONE in level and level != _ONE:
            raise InvalidDestination(f"the topic filter {text[:100]!r} has + beside others; it stands alone in a level")
    return levels


class _Node(Generic[Key]):
    __slots__ = ("below", "keys", "keys_of_all")

    def __init__(self) -> None:
        self.below: dict[str, _Node[Key]] = {}
        self.keys: dict[Key, None] = {}  # of filters that end here
        self.keys_of_all: dict[Key, None] = {}  # of filters that go on with #

    @property
    def is_empty(self) -> bool:
        return not (self.below or self.keys or self.keys_of_all)


class LevelTrie(Generic[Key]):
    """Filters by key; a key may have several."""

    __slots__ = ("_root",)

    def __init__(self) -> None:
        self._root: _Node[Key] = _Node()

    def add(self, text: str, key: Key) -> None:
        """From now on `match` gives this key for names that match; raises `InvalidDestination`."""
        *above, last = check_filter(text)
        node = self._root
        for level in above if last == _ALL else [*above, last]:
            node = node.below.setdefault(level, _Node())
        (node.keys_of_all if last == _ALL else node.keys)[key] = None

    def remove(self, text: str, key: Key) -> None:
        """Takes a filter away; one that is not there is nothing to remove."""
        *above, last = check_filter(text)
        path = [self._root]
        levels = above if last == _ALL else [*above, last]
        for level in levels:
            node = path[-1].below.get(level)
            if node is None:
                return
            path.append(node)
        (path[-1].keys_of_all if last == _ALL else path[-1].keys).pop(key, None)
        for place in range(len(levels), 0, -1):
            if path[place].is_empty:
                del path[place - 1].below[levels[place - 1]]

    def match(self, name: str) -> list[Key]:
        """The keys of all filters that match a name, each once."""
        return list(dict.fromkeys(self._found(name)))

    def _found(self, name: str) -> Iterator[Key]:
        levels = name.split(SEPARATOR)
        nodes = [self._root]
        for place, level in enumerate(levels):
            is_hidden = place == 0 and level.startswith("$")
            following = []
            for node in nodes:
                if not is_hidden:
                    yield from node.keys_of_all
                    if (one := node.below.get(_ONE)) is not None:
                        following.append(one)
                if level not in (_ONE, _ALL) and (same := node.below.get(level)) is not None:
                    following.append(same)
            nodes = following
        for node in nodes:
            yield from node.keys
            yield from node.keys_of_all
