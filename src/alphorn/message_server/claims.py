"""Who does what only one process of the cluster is to do.

The first that claims it is to do it, and says when it is done. Where it is gone before, those that claimed it too are
told that it is free. A process claims at every server that it reaches, in one order, so that a server that dies gives
nothing away twice. Servers tell each other what was claimed and done.
"""

from collections import OrderedDict


class _Claim:
    __slots__ = ("is_done", "run", "waiting")

    def __init__(self, run: bytes) -> None:
        self.run = run
        self.is_done = False
        self.waiting: dict[bytes, None] = {}


class Claims:
    """What was claimed; of very many the oldest are forgotten."""

    __slots__ = ("_claims", "_maximum")

    def __init__(self, maximum: int) -> None:
        self._claims: OrderedDict[bytes, _Claim] = OrderedDict()
        self._maximum = maximum

    def claim(self, run: bytes, key: bytes) -> bool:
        """Whether this process is to do it."""
        claim = self._claims.get(key)
        if claim is None:
            self._add(key, run)
            return True
        if claim.run == run:
            return not claim.is_done
        if not claim.is_done:
            claim.waiting[run] = None
        return False

    def finish(self, run: bytes, key: bytes) -> bytes:
        """It is done, and stays so; said of what is not known here too. Gives who else was to do it."""
        claim = self._claims.get(key) or self._add(key, run)
        other = b"" if claim.is_done or claim.run == run else claim.run
        claim.is_done = True
        claim.waiting.clear()
        return other

    def withdraw(self, run: bytes, key: bytes) -> list[bytes]:
        """This process does not do it after all: who else wants to."""
        claim = self._claims.get(key)
        if claim is None or claim.run != run or claim.is_done:
            return []
        del self._claims[key]
        return list(claim.waiting)

    def free(self, run: bytes) -> list[tuple[bytes, bytes]]:
        """This process is gone: who else wants to do what, each with the key, that it has not done."""
        found: list[tuple[bytes, bytes]] = []
        for key, claim in list(self._claims.items()):
            if claim.run == run and not claim.is_done:
                del self._claims[key]
                found += [(waiting, key) for waiting in claim.waiting]
            else:
                claim.waiting.pop(run, None)
        return found

    def every(self) -> list[tuple[bytes, bytes, bool]]:
        """Each with the process that does it, and whether it is done."""
        return [(key, claim.run, claim.is_done) for key, claim in self._claims.items()]

    def __len__(self) -> int:
        return len(self._claims)

    def _add(self, key: bytes, run: bytes) -> _Claim:
        claim = self._claims[key] = _Claim(run)
        if len(self._claims) > self._maximum:
            self._claims.popitem(last=False)
        return claim
