"""The destination directory: which place a name has. Learned from the log and from the primary's answers.

A place is a channel and a number within it, as one whole number that clients keep.
"""

from collections.abc import Collection, Sequence

import xxhash

from alphorn.model.commands import CONNECTION_BYTES
from alphorn.model.conversation import parts_of
from alphorn.model.destinations import Destination, Policy, temporary_prefix

_PREFIX_CHARACTERS = len(temporary_prefix(bytes(CONNECTION_BYTES)))


class Listed:
    """One known destination."""

    __slots__ = ("destination", "place", "policy")

    def __init__(self, place: int, destination: Destination, policy: Policy) -> None:
        self.place = place
        self.destination = destination
        self.policy = policy

    @property
    def may_refuse(self) -> bool:
        """Whether a publish may be refused or postponed when it is in the log, so that only the primary can confirm it.

        Temporary destinations vanish with their owner, which no command names; to some of the system's nobody may send.
        """
        return self.destination.is_temporary or self.destination.is_reserved or self.policy.max_length > 0


class Directory:
    """Known destinations by name and by place."""

    __slots__ = ("_by_name", "_by_place", "_channels", "_names", "_temporaries", "audited", "closed")

    def __init__(self, channels: int, names: Sequence[str] = (), removed: Collection[int] = ()) -> None:
        self._channels = [number for number in range(channels) if number not in removed]
        self._names = names or [f"channel-{number + 1}" for number in range(channels)]
        self.closed: set[int] = set(removed)  # channels that take no new destinations
        self._by_name: dict[Destination, Listed] = {}
        self._by_place: dict[int, Listed] = {}
        self._temporaries: dict[str, set[int]] = {}  # by how the names of one connection's begin
        self.audited: set[int] = set()  # places whose policy says so; to look at, not to change

    def find(self, destination: Destination) -> Listed | None:
        """A destination by its name."""
        return self._by_name.get(destination)

    def at(self, place: int) -> Listed | None:
        """A destination by its place."""
        return self._by_place.get(place)

    def lots(self, destination: Destination) -> list[int]:
        """The channels in the order in which they may have a destination; the log of the first one knows where it is.

        The same on every Client Manager, and spread evenly: each channel draws a lot for each name, so when one is gone
        only its own go elsewhere. A name that ends with a channel's, `orders@channel-2`, draws that one. What belongs
        to the system is on the first channel.
        """
        if destination.is_reserved or len(self._channels) == 1:
            return [0]
        name, pinned = str(destination).encode(), self._pinned(destination)
        return sorted(
            self._channels,
            key=lambda number: (number == pinned, xxhash.xxh3_64_intdigest(name, seed=number)),
            reverse=True,
        )

    def channel_for(self, destination: Destination) -> int:
        """Where a new destination goes now, as far as is known."""
        return next((number for number in self.lots(destination) if number not in self.closed), 0)

    def part_of(self, destination: Destination, channel: int) -> Destination:
        """What a destination is called on a channel that is not its own."""
        return Destination(destination.kind, f"{self.unpinned(destination.name)}@{self._names[channel]}")

    def is_part(self, destination: Destination, channel: int) -> bool:
        """Whether a name ends with that of a channel."""
        return self._pinned(destination) == channel

    def names_from(self, channel: int) -> list[str]:
        """The names of all channels, removed ones included: this one's first."""
        return [self._names[channel], *(name for number, name in enumerate(self._names) if number != channel)]

    def unpinned(self, name: str) -> str:
        """A name without the channel that it ends with."""
        before, _, channel = name.rpartition("@")
        return before if before and channel in self._names else name

    def called(self, channel: int, destination: Destination) -> Destination:
        """What clients call something that has this name on a channel: of the system's there is one on each."""
        if not destination.is_reserved or destination.is_temporary or not channel:
            return destination
        return Destination(destination.kind, f"{destination.name}@{self._names[channel]}")

    def _pinned(self, destination: Destination) -> int | None:
        channel = destination.name.rpartition("@")[2]
        return self._names.index(channel) if self.unpinned(destination.name) != destination.name else None

    def learn(self, place: int, destination: Destination, policy: Policy) -> Listed:
        """A destination exists."""
        listed = Listed(place, destination, policy)
        self._by_name[destination] = self._by_place[place] = listed
        if destination.is_temporary:
            self._temporaries.setdefault(destination.name[:_PREFIX_CHARACTERS], set()).add(place)
        (self.audited.add if policy.audit else self.audited.discard)(place)
        return listed

    def set_policy(self, place: int, policy: Policy) -> None:
        """A destination's policy changed."""
        listed = self._by_place.get(place)
        if listed is not None:
            listed.policy = policy
            (self.audited.add if policy.audit else self.audited.discard)(place)

    def forget(self, place: int) -> Listed | None:
        """A destination is gone."""
        listed = self._by_place.pop(place, None)
        self.audited.discard(place)
        if listed is not None:
            self._doubt(listed)
            if listed.destination.is_temporary:
                prefix = listed.destination.name[:_PREFIX_CHARACTERS]
                self._temporaries.get(prefix, set()).discard(place)
        return listed

    def doubt(self, place: int) -> None:
        """The primary knows nothing at this place, and the log will say so: its name is to be looked up anew."""
        if (listed := self._by_place.get(place)) is not None:
            self._doubt(listed)

    def _doubt(self, listed: Listed) -> None:
        if self._by_name.get(listed.destination) is listed:  # it may be at another place by now
            del self._by_name[listed.destination]

    def forget_connection(self, channel: int, connection: bytes) -> None:
        """A connection has ended, and its temporary destinations of this channel with it."""
        prefix = temporary_prefix(connection)
        for place in list(self._temporaries.get(prefix, ())):
            if parts_of(place)[0] == channel:
                self.forget(place)
        if not self._temporaries.get(prefix, True):
            del self._temporaries[prefix]

    def describe(self) -> dict[str, object]:
        """For people."""
        return {"known": len(self._by_place)}
