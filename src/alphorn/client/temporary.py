"""Temporary destinations: who makes one is the only one who knows its name, so one that is given up is deleted."""

from functools import partial
from typing import TYPE_CHECKING

from alphorn.model.conversation import Administer, Resolve
from alphorn.model.destinations import temporary_prefix
from alphorn.model.errors import Error

if TYPE_CHECKING:
    from alphorn.client.core import Core
    from alphorn.client.requests import Answer, OnAnswer


class Making:
    """A temporary destination that is being made. The owner calls everything under the connection's lock."""

    __slots__ = ("_core", "_is_given_up", "_is_there", "name")

    def __init__(self, core: "Core", kind: str) -> None:
        self._core = core
        self._is_there = False
        self._is_given_up = False
        self.name = f"{kind}:{temporary_prefix(core.connection)}{core.next_number()}"

    def ask(self, on_answer: "OnAnswer") -> None:
        """Creates it, to live as long as the connection."""
        self._core.request(self._question, partial(self._on_answer, on_answer))

    def give_up(self) -> None:
        """Nobody waits for it any more. It is deleted when it is there: what is not cannot be deleted."""
        self._is_given_up = True
        self._delete_unwanted()

    def _question(self, request: int) -> Resolve:
        return Resolve(request, self.name, is_temporary=True)

    def _on_answer(self, on_answer: "OnAnswer", answer: "Answer | Error") -> None:
        self._is_there = not isinstance(answer, Error)
        on_answer(answer)
        self._delete_unwanted()

    def _delete_unwanted(self) -> None:
        if self._is_there and self._is_given_up:
            delete(self._core, self.name)


def delete(core: "Core", name: str) -> None:
    """A temporary destination that nobody uses any more is deleted; nobody waits for that."""
    core.places.pop(name, None)
    core.request(lambda request: Administer(request, "delete", name, b""), lambda answer: None, forgives=True)
