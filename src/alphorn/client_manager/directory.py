"""The destination directory: which place a name has. Learned from the log and from the primary's answers.

A place is a channel and a number within it, as one whole number that clients keep.
"""

import xxhash

from alphorn.model.commands import CONNECTION_BYTES
from alphorn.model.conversation import parts_of
from alphorn.model.destinations import DEAD_MESSAGES, Destination, Policy, split_channel, temporary_prefix

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

        Temporary destinations vanish with their owner, which no command names; dead messages come from nobody's client.
        """
        if self.destination.is_temporary or split_channel(self.destination)[0].name == DEAD_MESSAGES:
            return True
        return self.policy.max_length > 0


class Directory:
    """Known destinations by name and by place."""

    __slots__ = ("_by_name", "_by_place", "_channels", "_temporaries", "audited", "closed")

    def __init__(self, channels: int) -> None:
        self._channels = channels
        self.closed: set[int] = set()  # channels that take no new destinations
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

    def channel_for(self, destination: Destination) -> int:
        """Where a new destination goes: the same on every Client Manager, spread evenly over the channels.

        Each channel draws a lot for each name, and the highest has it: so when one is closed only its own go elsewhere.
        What belongs to the system is on the first channel.
        """
        if destination.is_reserved or self._channels == 1:
            return 0
        name = str(destination).encode()
        open_ones = [number for number in range(self._channels) if number not in self.closed]
        return max(open_ones, key=lambda number: xxhash.xxh3_64_intdigest(name, seed=number), default=0)

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
