"""Which Client Manager to try next, after which pause, and when to give up."""

from random import Random

from alphorn.client.url import Address, format_address, parse_address
from alphorn.model.errors import Misuse, Unavailable

PAUSE_S_FIRST = 0.02
PAUSE_S_MAX = 2.0
STEADY_S = 1.0
WAIT_S_MIN = 0.5
WAIT_S_MAX = 5.0


class Route:
    """The addresses of one connection: those of its URL first, and those that Client Managers named.

    Pauses double up to `PAUSE_S_MAX`, each shortened by chance, so that clients of a lost node do not return as one.
    """

    __slots__ = ("_addresses", "_attempts", "_given", "_named", "_opened_at", "_place", "_random", "_reasons")

    def __init__(self, addresses: tuple[Address, ...], random: Random) -> None:
        self._given = addresses
        self._addresses = list(addresses)
        self._random = random
        self._place = random.randrange(len(addresses))
        self._attempts = 0
        self._named: list[str] = []
        self._opened_at: float | None = None
        self._reasons: dict[Address, str] = {}

    def on_open(self, now: float, addresses: list[str]) -> None:
        """A Client Manager lets us work, and named all of them; what it named wrongly is left out.

        Pauses begin anew only after `STEADY_S`: one that lets us in and out at once is no place to hurry back to.
        """
        self._opened_at = now if self._opened_at is None else self._opened_at
        if now - self._opened_at >= STEADY_S:
            self._attempts = 0
            self._reasons.clear()
        if addresses == self._named:
            return
        self._named = addresses
        named = []
        for text in addresses:
            try:
                named.append(parse_address(text))
            except Misuse:
                continue
        self._addresses = list(dict.fromkeys([*self._given, *named]))

    def next_address(self) -> Address:
        """The one after the last."""
        self._place = (self._place + 1) % len(self._addresses)
        self._attempts += 1
        self._opened_at = None
        return self._addresses[self._place]

    def wait_s(self, total_s: float) -> float:
        """How long one address may keep us waiting, from the first byte to the welcome, of so much time in all.

        A Client Manager that hangs, or a network that swallows everything, must leave time for all the others.
        """
        return min(WAIT_S_MAX, max(WAIT_S_MIN, total_s / len(self._addresses)))

    def on_failure(self, address: Address, reason: str) -> None:
        """This one did not answer."""
        self._reasons[address] = reason

    def on_silence(self, address: Address) -> None:
        """This one said nothing in time, which tells less than anything that was heard of it before."""
        self._reasons.setdefault(address, "no answer")

    def pause_s(self) -> float:
        """How long to wait before the next attempt: not at all until each address was tried once."""
        rounds = self._attempts // len(self._addresses)
        if rounds == 0:
            return 0.0
        longest = min(PAUSE_S_MAX, PAUSE_S_FIRST * (1 << min(rounds, 10)))
        return longest * self._random.uniform(0.5, 1.0)

    def exhausted(self, seconds: float) -> Unavailable:
        """The error for giving up."""
        tried = ", ".join(
            f"{format_address(address)} ({self._reasons.get(address, 'not tried')})" for address in self._addresses
        )
        return Unavailable(f"no Client Manager answered within {seconds:g} s: {tried}; check that the cluster runs")
