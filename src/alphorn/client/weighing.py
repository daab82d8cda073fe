"""Asks every Message Manager of a channel what it keeps of a destination weighs (model/weights.py)."""

import time
from collections.abc import Sequence

import msgspec

from alphorn.client.log_link import LINKS, LogLink
from alphorn.model import log_link
from alphorn.model.errors import PeerViolation
from alphorn.model.weights import sum_of


class Weight(msgspec.Struct, frozen=True):
    """What one replica says."""

    messages: int
    weight: int
    kept_from: int


def weigh_replicas(
    servers: Sequence[tuple[str, str]], destination: int, *, first: int, end: int, timeout_s: float
) -> tuple[dict[str, Weight], dict[str, str]]:
    """The weights that replicas give by themselves, by name, and why the others gave none.

    A replica that has not applied all entries before `end` yet counts as one of the others.
    """
    found: dict[str, Weight] = {}
    reasons: dict[str, str] = {}
    for name, address in servers:
        deadline = time.monotonic() + timeout_s
        try:
            link_ = LINKS.take(address, deadline)
            try:
                found[name] = _weigh(link_, destination, first, end, deadline)
            except BaseException:
                link_.close()
                raise
            LINKS.give_back(link_)
        except (OSError, PeerViolation) as error:
            reasons[name] = str(error)
    return found, reasons


def _weigh(link_: LogLink, destination: int, first: int, end: int, deadline: float) -> Weight:
    messages, weights, kept_from = 0, [0], 0
    while first < end:
        request = link_.number()
        link_.send(log_link.Weigh(request, destination, first, end), deadline)
        answer = link_.receive(request, deadline)
        if not isinstance(answer, log_link.Weighed):
            raise PeerViolation("it answered with something else")
        if answer.next <= first:
            raise PeerViolation("it has not come so far")
        messages += answer.messages
        weights.append(answer.weight)
        first, kept_from = answer.next, max(kept_from, answer.kept_from)
    return Weight(messages, sum_of(weights), kept_from)
