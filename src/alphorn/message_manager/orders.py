"""What a Message Manager itself puts into the log: commands of one turn become one entry.

Whoever wants to go on when a command is applied says so; that is forgotten with the role of the primary.
"""

from collections.abc import Callable, Iterable

from alphorn.model.commands import AnyCommand, Entry, encode_entry

OWN_REQUESTS = 1 << 48  # requests from here on are a Message Manager's own, and nobody else's


class Orders:
    """Commands that wait for the end of the turn, and who waits for those that are ordered."""

    __slots__ = ("_commands", "_request", "_then", "_waiting")

    def __init__(self) -> None:
        self._commands: list[AnyCommand] = []
        self._then: list[Callable[[], None] | None] = []
        self._waiting: dict[int, Callable[[], None]] = {}  # request of an own entry → what follows it
        self._request = OWN_REQUESTS

    def want(self, command: AnyCommand, then: Callable[[], None] | None = None) -> None:
        """Orders a command with this turn's entry; `then` is called when it has been applied."""
        self._commands.append(command)
        self._then.append(then)

    def take_entry(self) -> bytes | None:
        """This turn's entry, if anything was wanted."""
        if not self._commands:
            return None
        requests = []
        for then in self._then:
            self._request += 1
            requests.append(self._request if then is not None else 0)
            if then is not None:
                self._waiting[self._request] = then
        payload = encode_entry(Entry(self._commands, requests if any(requests) else []))
        self._commands, self._then = [], []
        return payload

    def on_applied(self, requests: Iterable[int]) -> None:
        """An own entry was applied."""
        for request in requests:
            self._waiting.pop(request, lambda: None)()

    def forget_waiting(self) -> None:
        """Nobody waits for what was ordered before."""
        self._waiting.clear()

    def forget_all(self) -> None:
        """What was wanted is not ordered, and nobody waits."""
        self._commands, self._then = [], []
        self._waiting.clear()
