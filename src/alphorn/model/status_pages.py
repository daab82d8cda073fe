"""The state of a cluster, put together from its pages: the first has everything but most of the destinations."""

from typing import Any

import msgspec

from alphorn.model.conversation import StatusAnswer
from alphorn.model.errors import PeerViolation

_decode = msgspec.json.Decoder(dict[str, Any]).decode


class StatusPages:
    """What has come so far; `is_complete` once nothing more is to be asked for."""

    __slots__ = ("_destinations_max", "cursor", "is_complete", "status")

    def __init__(self, destinations_max: int | None = None) -> None:
        """With `destinations_max` only so many destinations are wanted."""
        self._destinations_max = destinations_max
        self.status: dict[str, Any] = {}
        self.cursor = 0  # to ask with
        self.is_complete = False

    def add(self, answer: object) -> None:
        """Takes in the answer to the question with `cursor`; raises `PeerViolation`."""
        if not isinstance(answer, StatusAnswer):
            raise PeerViolation("the Client Manager answered the question for its status with something else")
        page = _decode(answer.data)
        if not self.status:
            self.status = page
            self.status.setdefault("destinations", [])
        else:
            self.status["destinations"] += page.get("destinations", [])
        if answer.cursor and answer.cursor <= self.cursor:
            raise PeerViolation("the Client Manager gave the same page of its status again; ask another one")
        self.cursor = answer.cursor
        most = self._destinations_max
        rows = self.status["destinations"]
        self.is_complete = not answer.cursor or (most is not None and len(rows) >= most)
        if most is not None:
            del rows[most:]
