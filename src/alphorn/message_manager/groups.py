"""Message groups: messages with one key go to one consumer, in order, for as long as it stays.

A group belongs to the consumer that got its first message. It is free again when that consumer has left and all it held
of the group is consumed or came back: so what came back is never behind what followed it. Groups of which nobody
holds anything are forgotten, oldest first, where there are more than `GROUPS_MAX`.
"""

from alphorn.message_manager.consumers import Consumer

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
