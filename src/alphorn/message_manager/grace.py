"""The time after a change of primary in which it is not yet known which messages are with consumers.

The primary before knew who held what, and took it along. Its Client Managers know too, and say so when they attach
their consumers again. Until each of them has done so or has left, whatever was there at the change may be with a
consumer and is held back. If all have answered, what nobody claimed was never given out. If one left without a word,
what nobody claimed may have been given out before, and is said to be a redelivery.
"""

from collections.abc import Iterable, Mapping

Place = tuple[int, int]  # destination and subscription


class Grace:
    """Whose answers are missing, and up to which position each backlog is in question."""

    __slots__ = ("_missing", "_newest", "is_doubtful")

    def __init__(
        self, client_managers: Iterable[int], newest: Mapping[Place, int], *, is_doubtful: bool = False
    ) -> None:
        self._missing = set(client_managers)
        self._newest = dict(newest) if self._missing or is_doubtful else {}
        self.is_doubtful = is_doubtful  # somebody left without an answer, maybe before the change

    @property
    def is_over(self) -> bool:
        """Whether nobody's answer is missing any more."""
        return not self._missing

    @property
    def missing(self) -> list[int]:
        """The Client Managers that have not answered, in order."""
        return sorted(self._missing)

    def answer(self, client_manager: int) -> bool:
        """One has attached all its consumers; True if that ends the grace."""
        return self._strike({client_manager})

    def leave(self, client_managers: Iterable[int]) -> bool:
        """These will not answer any more; True if that ends the grace."""
        gone = self._missing.intersection(client_managers)
        self.is_doubtful = self.is_doubtful or bool(gone)
        return self._strike(gone)

    def newest_of(self, place: Place) -> int:
        """The newest position in question; -1 for none."""
        return self._newest.get(place, -1)

    def forget(self, place: Place) -> None:
        """A backlog is in question no more."""
        self._newest.pop(place, None)

    def forget_all(self) -> None:
        """No backlog is in question any more."""
        self._newest.clear()

    def _strike(self, client_managers: set[int]) -> bool:
        was_over = self.is_over
        self._missing -= client_managers
        return self.is_over and not was_over
