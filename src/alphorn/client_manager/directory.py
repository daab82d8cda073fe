"""The destination directory: which place a name has. Learned from the log and from the primary's answers.

A place is a channel and a number within it, as one whole number that clients keep.
"""

from alphorn.model.destinations import Destination, Policy

_CHANNEL_SHIFT = 40
_NUMBER_MASK = (1 << _CHANNEL_SHIFT) - 1


def place_of(channel: int, number: int) -> int:
    """The place of a channel's destination."""
    return channel << _CHANNEL_SHIFT | number


def parts_of(place: int) -> tuple[int, int]:
    """Channel and number of a place."""
    return place >> _CHANNEL_SHIFT, place & _NUMBER_MASK


class Listed:
    """One known destination."""

    __slots__ = ("destination", "place", "policy")

    def __init__(self, place: int, destination: Destination, policy: Policy) -> None:
        self.place = place
        self.destination = destination
        self.policy = policy

    @property
    def may_refuse(self) -> bool:
        """Whether a publish may be refused after it is in the log, so that only the primary can confirm it.

        Temporary destinations vanish with their owner, which no command names.
        """
        return self.destination.is_temporary or (self.policy.max_length > 0 and self.policy.overflow == "reject")


class Directory:
    """Known destinations by name and by place."""

    __slots__ = ("_by_name", "_by_place", "_channels")

    def __init__(self, channels: int) -> None:
        self._channels = channels
        self._by_name: dict[Destination, Listed] = {}
        self._by_place: dict[int, Listed] = {}

    def find(self, destination: Destination) -> Listed | None:
        """A destination by its name."""
        return self._by_name.get(destination)

    def at(self, place: int) -> Listed | None:
        """A destination by its place."""
        return self._by_place.get(place)

    def channel_for(self, destination: Destination) -> int:
        """Where a new destination goes: the same on every Client Manager, spread evenly over the channels.

        What belongs to the system is on the first channel.
        """
        if destination.is_reserved:
            return 0
        return sum(str(destination).encode()) % self._channels if self._channels > 1 else 0

    def learn(self, place: int, destination: Destination, policy: Policy) -> Listed:
        """A destination exists."""
        listed = Listed(place, destination, policy)
        self._by_name[destination] = self._by_place[place] = listed
        return listed

    def set_policy(self, place: int, policy: Policy) -> None:
        """A destination's policy changed."""
        listed = self._by_place.get(place)
        if listed is not None:
            listed.policy = policy

    def forget(self, place: int) -> Listed | None:
        """A destination is gone."""
        listed = self._by_place.pop(place, None)
        if listed is not None:
            self._by_name.pop(listed.destination, None)
        return listed

    def describe(self) -> dict[str, object]:
        """For people."""
        return {"known": len(self._by_place)}
