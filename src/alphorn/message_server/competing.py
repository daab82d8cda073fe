"""What one process of the cluster is to do: this process's part.

It asks one server after the other, all in the same order, and does it when all that it reaches have said yes. Where
one has said no, it withdraws from the others and waits there to hear that it is free; when that server is lost it asks
again.
"""

from collections import OrderedDict
from collections.abc import Callable

from alphorn.model.internal import Claim, Finish, ProcessFrame, Withdraw

DENIED_MAX = 10_000
BEGUN_MAX = 1_000
DONE_MAX = 1_000  # that a server which comes back is told of


class Competing:
    """All that this process has claimed."""

    def __init__(
        self,
        joined: Callable[[], list[str]],
        say: Callable[[str, ProcessFrame], None],
        on_won: Callable[[bytes], None],
    ) -> None:
        self._joined = joined
        self._say = say
        self._on_won = on_won
        self._asking: dict[bytes, list[str]] = {}  # keys under way → servers that have said yes
        self._denied: OrderedDict[bytes, str] = OrderedDict()  # → the server that said no
        self._begun: OrderedDict[bytes, None] = OrderedDict()  # what it does
        self._done: OrderedDict[bytes, None] = OrderedDict()

    def compete(self, key: bytes) -> None:
        """Asks for this."""
        if key not in self._asking and key not in self._begun and key not in self._done:
            self._denied.pop(key, None)
            self._asking[key] = []
            self._go_on(key)

    def complete(self, key: bytes) -> None:
        """It is done."""
        self._begun.pop(key, None)
        self._done[key] = None
        if len(self._done) > DONE_MAX:
            self._done.popitem(last=False)
        for server in self._joined():
            self._say(server, Finish(key))

    def on_joined(self, server: str) -> None:
        """One more server is there."""
        for key in self._done:
            self._say(server, Finish(key))
        for key in self._begun:
            self._say(server, Claim(key, True))
        for key in list(self._asking):
            self._go_on(key)

    def on_lost(self, server: str) -> None:
        """One server is gone, and with it what it has granted or denied."""
        for key in [key for key, denier in self._denied.items() if denier == server]:
            self.compete(key)
        for key, granted in list(self._asking.items()):
            if server in granted:
                granted.remove(server)
            self._go_on(key)

    def on_claimed(self, server: str, key: bytes, *, is_yours: bool) -> None:
        """A server has answered."""
        granted = self._asking.get(key)
        if granted is None:
            if is_yours and key not in self._begun and key not in self._done:
                self._say(server, Withdraw(key))  # another one has said no meanwhile
            return
        if is_yours:
            if server not in granted:
                granted.append(server)
            self._go_on(key)
            return
        del self._asking[key]
        for other in granted:
            self._say(other, Withdraw(key))
        self._denied[key] = server
        if len(self._denied) > DENIED_MAX:
            self._denied.popitem(last=False)

    def on_free(self, key: bytes) -> None:
        """Whoever was to do it is gone."""
        if key in self._denied:
            self.compete(key)

    def _go_on(self, key: bytes) -> None:
        joined, granted = self._joined(), self._asking[key]
        waiting = [server for server in joined if server not in granted]
        if waiting:
            self._say(waiting[0], Claim(key))
        elif joined:
            del self._asking[key]
            self._begun[key] = None
            if len(self._begun) > BEGUN_MAX:
                self._begun.popitem(last=False)
            self._on_won(key)
