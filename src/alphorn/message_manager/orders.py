"""What a Message Manager itself puts into the log: commands of one turn become one entry.

What it wants as primary is for the log only as long as it is: the entry names its epoch. Whoever wants to go on when
such a command is applied says so; that is forgotten with the role. What any replica may say has an entry of its own.
"""

from collections.abc import Callable, Iterable

from alphorn.model.commands import AnyCommand, Entry, encode_entry

OWN_REQUESTS = 1 << 48  # requests from here on are a Message Manager's own, and nobody else's


class Orders:
    """Commands that wait for the end of the turn, and who waits for those that are ordered."""

    __slots__ = ("_commands", "_request", "_said", "_then", "_waiting")

    def __init__(self) -> None:
        self._said: list[AnyCommand] = []
        self._commands: list[AnyCommand] = []
        self._then: list[Callable[[], None] | None] = []
        self._waiting: dict[int, Callable[[], None]] = {}  # request of an own entry → what follows it
        self._request = OWN_REQUESTS

    def say(self, command: AnyCommand) -> None:
        """Orders a command with this turn's entries, whoever is primary when it comes."""
        self._said.append(command)

    def want(self, command: AnyCommand, then: Callable[[], None] | None = None) -> None:
        """The primary orders a command with this turn's entries; `then` is called when it has been applied."""
        self._commands.append(command)
        self._then.append(then)

    def take_entries(self, epoch: int) -> list[bytes]:
        """This turn's entries; `epoch` is the one in which this replica is primary, where it is."""
        said, self._said = self._said, []
        entries = [encode_entry(Entry(said))] if said else []
        if self._commands:
            entries.append(self._take_wanted(epoch))
        return entries

    def _take_wanted(self, epoch: int) -> bytes:
        requests = []
        for then in self._then:
            self._request += 1
            requests.append(self._request if then is not None else 0)
            if then is not None:
                self._waiting[self._request] = then
        payload = encode_entry(Entry(self._commands, requests if any(requests) else [], epoch))
        self._commands, self._then = [], []
        return payload

    def on_applied(self, requests: Iterable[int]) -> None:
        """An own entry was applied."""
        for request in requests:
            self._waiting.pop(request, lambda: None)()

    def forget_all(self) -> None:
        """What was wanted as primary is not ordered, and nobody waits."""
        self._commands, self._then = [], []
        self._waiting.clear()
