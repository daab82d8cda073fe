"""Finds out which destination has a place that a client names and this Client Manager has not heard of.

Clients learn places from one Client Manager and name them at another, after a reconnection. The primary knows; it is
asked once for all who wait, and whoever is primary next is asked again.
"""

from collections.abc import Callable
from functools import partial

from alphorn.client_manager.desk import Desk
from alphorn.client_manager.directory import Listed
from alphorn.client_manager.moving import Moving
from alphorn.model.conversation import parts_of
from alphorn.model.destinations import Policy
from alphorn.model.link import Answered, Name

Found = Callable[[Listed | None], None]


class Finding:
    """The questions under way."""

    __slots__ = ("_desk", "_moving", "_waiting")

    def __init__(self, desk: Desk, moving: Moving) -> None:
        self._desk = desk
        self._moving = moving
        self._waiting: dict[int, list[Found]] = {}  # by place

    def find(self, place: int, then: Found) -> None:
        """Goes on with the destination at a place of a channel that exists; None when there is none (any more).

        At once where it is known. One that has left is found where it went.
        """
        place = self._moving.current(place)
        listed = self._desk.directory.at(place)
        if listed is not None:
            then(listed)
        elif place in self._waiting:
            self._waiting[place].append(then)
        else:
            self._waiting[place] = [then]
            self._ask(place)

    def _ask(self, place: int) -> None:
        channel, number = parts_of(place)
        request = self._desk.channels[channel].ask(
            lambda answer: self._on_answer(place, answer), lost=lambda: self._ask(place)
        )
        self._desk.ask_primary(channel, Name(request, number))

    def _on_answer(self, place: int, answer: Answered) -> None:
        if answer.home is not None:
            self._moving.learn(place, answer.home, is_silent=True)
            for then in self._waiting.pop(place, []):
                self._moving.when(place, partial(self.find, place, then))
            return
        listed = self._desk.directory.at(place)
        if listed is None and not answer.error and answer.destination is not None:
            directory = self._desk.directory
            name = directory.called(parts_of(place)[0], answer.destination)
            listed = directory.learn(place, name, answer.policy or Policy())
        if listed is None:
            self._desk.loose.forget(*parts_of(place))  # nobody had anything of what is not there, whatever was said
        for then in self._waiting.pop(place, []):
            then(listed)
