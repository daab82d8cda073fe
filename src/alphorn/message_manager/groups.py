"""Message groups: messages with one key go to one consumer, in order, for as long as it stays.

A group belongs to the consumer that got its first message. It is free again when that consumer has left and all it held
of the group is consumed or came back: so what came back is never behind what followed it. Groups of which nobody
holds anything are forgotten, oldest first, where there are more than `GROUPS_MAX`.

One that came back and is given out again later holds its group up until then: what is to follow it waits with it.
"""

from collections.abc import Iterable, Iterator

from alphorn.message_manager.backlog import within
from alphorn.message_manager.consumers import Consumer
from alphorn.message_manager.ready import Ready, Stretch

GROUPS_MAX = 65_536


class _Group:
    __slots__ = ("messages", "owner")

    def __init__(self, owner: Consumer) -> None:
        self.owner = owner
        self.messages = 0  # with the owner or parked for it


class Groups:
    """The groups of one queue."""

    __slots__ = ("_groups", "_keys")

    def __init__(self) -> None:
        self._groups: dict[str, _Group] = {}  # oldest first
        self._keys: dict[int, str] = {}  # position → key, of messages that are with an owner or parked for it

    def __len__(self) -> int:
        return len(self._groups)

    def owner_of(self, key: str) -> Consumer | None:
        """Whose group this is."""
        group = self._groups.get(key)
        return None if group is None else group.owner

    def bind(self, position: int, key: str, consumer: Consumer) -> None:
        """A message of a group is this consumer's. A group that was nobody's is its from now on."""
        if position in self._keys:
            return
        group = self._groups.get(key)
        if group is None:
            if len(self._groups) >= GROUPS_MAX:
                self._forget_oldest()
            group = self._groups[key] = _Group(consumer)
        if group.owner is consumer:
            group.messages += 1
            self._keys[position] = key

    def loose(self, first: int, last: int) -> None:
        """These messages are with nobody any more."""
        if last - first < len(self._keys):
            found = [position for position in range(first, last + 1) if position in self._keys]
        else:
            found = [position for position in self._keys if first <= position <= last]
        for position in found:
            self._groups[self._keys.pop(position)].messages -= 1

    def leave(self, consumer: Consumer) -> None:
        """The groups of a consumer that has left and holds nothing are nobody's."""
        for key in [key for key, group in self._groups.items() if group.owner is consumer]:
            assert self._groups[key].messages == 0, "a group is let go while some of it is held"
            del self._groups[key]

    def _forget_oldest(self) -> None:
        for key, group in self._groups.items():
            if group.messages == 0:
                del self._groups[key]
                return


class Delayed:
    """Messages of groups that came back and wait for their time, and what waits behind them."""

    __slots__ = ("_behind", "_heads", "_keys", "count")

    def __init__(self) -> None:
        self._keys: dict[int, str] = {}  # position → key, of those that came back
        self._heads: dict[str, set[tuple[int, int]]] = {}  # key → rank and position of those that came back
        self._behind: dict[str, Ready] = {}  # key → what waits behind them
        self.count = 0  # of messages behind them

    def __bool__(self) -> bool:
        return bool(self._keys)

    def add(self, position: int, key: str, rank: int) -> None:
        """A message of this group has come back, and waits."""
        self._keys[position] = key
        self._heads.setdefault(key, set()).add((rank, position))

    def holds_up(self, stretch: Stretch, key: str | None) -> bool:
        """Whether these messages of a group are to follow one that waits."""
        heads = self._heads.get(key) if key is not None else None
        return heads is not None and min(heads) < (stretch.rank, stretch.first)

    def set_aside(self, stretch: Stretch, key: str) -> None:
        """These wait with their group."""
        behind = self._behind.setdefault(key, Ready())
        self.count -= behind.remove(stretch.first, stretch.last)  # where somebody gave back what he did not have
        behind.add(stretch)
        self.count += stretch.last - stretch.first + 1

    def end(self, first: int, last: int) -> list[Stretch]:
        """These wait no more; gives what waited behind them, and perhaps still behind others."""
        over = within(self._keys, first, last)
        return [stretch for key in dict.fromkeys(map(self._strike, over)) for stretch in self._let_go(key)]

    def end_all(self) -> list[Stretch]:
        """Groups do not matter any more; gives all that waited behind others."""
        self._keys, self._heads = {}, {}
        return [stretch for key in list(self._behind) for stretch in self._let_go(key)]

    def withdraw(self, first: int, last: int) -> None:
        """These are not to be given out any more."""
        for key, behind in list(self._behind.items()) if self.count else ():
            self.count -= behind.remove(first, last)
            if not behind:
                del self._behind[key]

    @property
    def behind(self) -> Iterable[Stretch]:
        """All that waits behind others."""
        return (stretch for behind in self._behind.values() for stretch in behind)

    def _strike(self, position: int) -> str:
        key = self._keys.pop(position)
        heads = {head for head in self._heads[key] if head[1] != position}
        if heads:
            self._heads[key] = heads
        else:
            del self._heads[key]
        return key

    def _let_go(self, key: str) -> Iterator[Stretch]:
        behind = self._behind.pop(key, Ready())
        self.count -= len(behind)
        return iter(behind)
