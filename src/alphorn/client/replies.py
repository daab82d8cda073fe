"""Answers to requests, told apart by their correlation ids."""

from collections.abc import Callable

from alphorn.client.inbox import Inbox
from alphorn.client.message import Message
from alphorn.model.errors import Error


class Replies:
    """The reply queue of a session. Every answer is acknowledged; those that nobody waits for any more are dropped."""

    __slots__ = ("_answers", "_inbox", "_number", "on_answer", "queue")

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._number = 0
        self._answers: dict[str, Message | None] = {}
        self.queue = inbox.destination
        self.on_answer: Callable[[], None] = lambda: None
        inbox.on_arrival = self._on_arrival

    @property
    def failure(self) -> Error | None:
        """Why no answer can come any more, if the server said so."""
        return self._inbox.failure

    def expect(self) -> str:
        """The correlation id of a new request."""
        self._number += 1
        number = str(self._number)
        self._answers[number] = None
        return number

    def has(self, number: str) -> bool:
        """Whether the answer came, or none can come any more."""
        return self._answers.get(number) is not None or not self._inbox.is_open

    def take(self, number: str) -> Message | None:
        """The answer, if it came."""
        return self._answers.get(number)

    def forget(self, number: str) -> None:
        """Nobody waits for this one any more."""
        self._answers.pop(number, None)

    def _on_arrival(self) -> None:
        for message in self._inbox.take(1 << 31):
            if message.correlation_id in self._answers:
                self._answers[message.correlation_id] = message
        self._inbox.acknowledge_handed()
        self.on_answer()
