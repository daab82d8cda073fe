"""Asks every Message Manager of a channel for the hash of what it keeps of a destination (model/log_hash.py)."""

import time
from collections.abc import Sequence

import msgspec

from alphorn.client.log_link import LINKS, LogLink
from alphorn.model import log_link
from alphorn.model.errors import PeerViolation
from alphorn.model.log_hash import MASK


class LogHash(msgspec.Struct, frozen=True):
    """What one replica has found on its own disk."""

    messages: int
    hash: int


def hash_replicas(
    servers: Sequence[tuple[str, str]],
    destination: int,
    first: log_link.Place,
    end: log_link.Place,
    *,
    timeout_s: float,
) -> tuple[dict[str, LogHash], dict[str, str]]:
    """The hashes that replicas find by themselves, by name, and why the others found none.

    A replica that has not applied all entries before `end` yet counts as one of the others, and so does one that cannot
    read an entry it keeps. `timeout_s` is for each answer: how many there are depends on how much is kept.
    """
    found: dict[str, LogHash] = {}
    reasons: dict[str, str] = {}
    for name, address in servers:
        try:
            link_ = LINKS.take(address, time.monotonic() + timeout_s)
            try:
                found[name] = _hash(link_, destination, first, end, timeout_s)
            except BaseException:
                link_.close()
                raise
            LINKS.give_back(link_)
        except (OSError, PeerViolation) as error:
            reasons[name] = str(error)
    return found, reasons


def _hash(link_: LogLink, destination: int, first: log_link.Place, end: log_link.Place, timeout_s: float) -> LogHash:
    messages = total = 0
    while first < end:
        deadline = time.monotonic() + timeout_s
        request = link_.number()
        link_.send(log_link.Hash(request, destination, first, end), deadline)
        answer = link_.receive(request, deadline)
        if not isinstance(answer, log_link.Hashed):
            raise PeerViolation("it answered with something else")
        if answer.next <= first:
            raise PeerViolation(f"it has not come to log entry {first[0]}, or cannot read what it keeps there")
        messages += answer.messages
        total += answer.hash
        first = answer.next
    return LogHash(messages, total & MASK)
