"""The state of a cluster, put together from its pages: the first has everything but most of the destinations.

What is on a channel without a primary nobody can tell, so such channels are named beside the rest (`lost`).
"""

from typing import Any

import msgspec

from alphorn.model.conversation import StatusAnswer
from alphorn.model.errors import Misuse, PeerViolation, Unavailable

_decode = msgspec.json.Decoder(dict[str, Any]).decode


def client_manager_row(name: str, pid: int, address: str, connections: int) -> dict[str, Any]:
    """A Client Manager among the nodes, whoever speaks of it; it has so many clients' connections."""
    return {
        "name": name,
        "kind": "client_manager",
        "pid": pid,
        "address": address,
        "channel": "",
        "role": "",
        "epoch": 0,
        "lag": 0,
        "connections": connections,
    }


class StatusPages:
    """What has come so far; `is_complete` once nothing more is to be asked for."""

    __slots__ = ("_destinations_max", "cursor", "is_complete", "status")

    def __init__(self, destinations_max: int | None = None) -> None:
        """With `destinations_max` only so many destinations are wanted; raises `Misuse` for what is no such number."""
        if destinations_max is not None and (type(destinations_max) is not int or destinations_max < 0):
            raise Misuse(f"destinations_max is {destinations_max!r}; it is an int of 0 or more, or None for all")
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
            self.status = page | {"lost": lost_channels(page)}
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


def lost_channels(found: dict[str, Any]) -> list[str]:
    """The channels in a cluster's state that have no primary now, so that nobody knows what is on them."""
    served = {row["name"] for row in found.get("channels", [])}
    return sorted({node["channel"] for node in found.get("nodes", []) if node.get("channel")} - served)


def check_complete(lost: list[str]) -> None:
    """Raises `Unavailable` where channels are lost: what was told or done is not all."""
    if lost:
        have = "have" if len(lost) > 1 else "has"
        raise Unavailable(f"this is not all: {', '.join(lost)} {have} no primary now; try again soon")
