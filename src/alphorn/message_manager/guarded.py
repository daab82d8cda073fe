"""A table of the state while a snapshot is open: whoever gets a row may change it, so the snapshot keeps it first.

Nothing but this stands between a change and what a snapshot has not written yet. While none is open, the plain table is
in its place and costs nothing.
"""

from collections.abc import Callable, Iterator, MutableMapping
from typing import TypeVar

Key = TypeVar("Key")
Row = TypeVar("Row")


class Guarded(MutableMapping[Key, Row]):
    """The table, with somebody (`keep`) who hears the key of each row before it is handed out, replaced or dropped."""

    __slots__ = ("_keep", "plain")

    def __init__(self, plain: MutableMapping[Key, Row], keep: Callable[[Key], None]) -> None:
        self.plain = plain
        self._keep = keep

    def __getitem__(self, key: Key) -> Row:
        self._keep(key)
        return self.plain[key]

    def __setitem__(self, key: Key, row: Row) -> None:
        self._keep(key)
        self.plain[key] = row

    def __delitem__(self, key: Key) -> None:
        self._keep(key)
        del self.plain[key]

    def __contains__(self, key: object) -> bool:
        return key in self.plain

    def __iter__(self) -> Iterator[Key]:
        return iter(self.plain)

    def __len__(self) -> int:
        return len(self.plain)
