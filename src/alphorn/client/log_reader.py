"""Reads a channel's log in bulk, from whichever Message Manager may be asked. Blocking; every call has a deadline.

    reader = LogReader("main", [("mm1", "127.0.0.1:7720"), ("mm2", "127.0.0.1:7721")], read_from="backup")
    for batches in reader.scan([3], entry(1), entry(1000)):
        ...

Ranges go from a place to before another (`log_link.Place`); `entry(17)` is where log entry 17 begins. A Message Manager
that is gone, slow, damaged or behind is left for another; only when none helps before the deadline there is an
`Unavailable`.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Literal, TypeVar

import msgspec
from xxhash import xxh3_64_intdigest

from alphorn.client.log_link import LINKS, LogLink
from alphorn.model import frame_kinds, log_link
from alphorn.model.errors import Corruption, PeerViolation, Unavailable

TIMEOUT_S = 60.0
SCAN_BYTES = 4 << 20  # of messages in one answer
_PAUSE_S_FIRST = 0.005
_PAUSE_S_MAX = 0.5
_SHARE = 0.25  # of the time there is, for one that does not answer

ReadFrom = Literal["backup", "any", "primary"]
Told = TypeVar("Told", bound=frame_kinds.Told)


class Amount(msgspec.Struct, frozen=True):
    """How much there is up to before `end`, since the piece before."""

    end: log_link.Place
    messages: int
    size: int


class LogReader:
    """One channel. It may be used by one thread at a time."""

    def __init__(
        self,
        channel: str,
        servers: Sequence[tuple[str, str]],
        *,
        read_from: ReadFrom = "any",
        timeout_s: float = TIMEOUT_S,
        requires_all: bool = True,
    ) -> None:
        self.channel = channel
        self._servers = list(servers)
        self._read_from = read_from
        self._timeout_s = timeout_s
        self._requires_all = requires_all  # False: what is kept no more is left out
        self._link: LogLink | None = None

    def close(self) -> None:
        """Gives its link back, for the next reader of this process."""
        if self._link is not None:
            LINKS.give_back(self._link)
            self._link = None

    def survey(self, names: Sequence[str], prefixes: Sequence[str] = (), *, applied: int = 0) -> log_link.Surveyed:
        """What is known of these destinations by one that has applied at least this entry."""
        return self._ask(
            log_link.Surveyed,
            lambda request: log_link.Survey(request, list(names), list(prefixes)),
            lambda answer: answer.applied >= applied,
        )

    def measure(
        self,
        destinations: Sequence[int],
        first: log_link.Place,
        end: log_link.Place,
        *,
        messages_step: int = 0,
        bytes_step: int = 0,
        missed_before: int = 0,
    ) -> Iterator[Amount]:
        """How much there is, in pieces that reach one of the steps.

        Raises `LostMessages` where some that arrived from `first` on are kept no more, unless before `missed_before`.
        """
        while first < end:
            make = self._measuring(destinations, first, end, messages_step, bytes_step)
            answer = self._ask(log_link.Measured, make, partial(_advances, first))
            self._check_kept(answer.kept_from, first, end, missed_before)
            for mark, messages, size in answer.marks:
                yield Amount(mark, messages, size)
            first = answer.next

    def search(self, destinations: Sequence[int], time_ms: int) -> int:
        """The first arrival of a message that was sent at this time or later; one after the last for none."""
        first, is_final = 0, False
        while not is_final:
            answer = self._ask(log_link.Searched, self._searching(destinations, time_ms, first))
            first, is_final = answer.sequence, answer.is_final
        return first

    def scan(
        self,
        destinations: Sequence[int],
        first: log_link.Place,
        end: log_link.Place,
        *,
        bytes_max: int = SCAN_BYTES,
        missed_before: int = 0,
    ) -> Iterator[list[log_link.ScannedBatch]]:
        """The messages, in their order, each exactly once. Raises `LostMessages` as `measure` does.

        The next answer is on its way while the caller works on the last one.
        """
        deadline = self._deadline()
        asked: tuple[LogLink, int] | None = None
        while first < end:
            make = self._scanning(destinations, first, end, bytes_max)
            answer = None if asked is None else self._receive_scanned(*asked, first, deadline)
            if answer is None:
                answer = self._ask(log_link.Scanned, make, partial(_is_sound, first))
            self._check_kept(answer.kept_from, first, end, missed_before)
            self._check_order(answer, first)
            first = answer.next
            deadline = self._deadline()
            asked = self._send_ahead(self._scanning(destinations, first, end, bytes_max)) if first < end else None
            if answer.batches:
                yield answer.batches

    # --- asking ---

    def _deadline(self) -> float:
        return time.monotonic() + self._timeout_s

    def _ask(
        self,
        kind: type[Told],
        make: Callable[[int], frame_kinds.Asked],
        is_good: Callable[[Told], bool] = lambda told: True,
    ) -> Told:
        """Asks one after the other until an answer is good."""
        deadline = self._deadline()
        reasons: dict[str, str] = {}
        pause = _PAUSE_S_FIRST
        while time.monotonic() < deadline:
            for name, link_ in self._links(deadline, reasons):
                patience = min(deadline, time.monotonic() + self._timeout_s * _SHARE)
                try:
                    request = link_.number()
                    link_.send(make(request), patience)
                    answer = link_.receive(request, patience)
                except (OSError, PeerViolation) as error:
                    reasons[name] = _reason_of(error)
                    link_.close()
                    continue
                if isinstance(answer, kind) and is_good(answer):
                    self._link = link_
                    return answer
                reasons[name] = "has not come so far, or cannot read it"
                LINKS.give_back(link_)
            time.sleep(max(0.0, min(pause, deadline - time.monotonic())))
            pause = min(_PAUSE_S_MAX, 2 * pause)
        raise self._unavailable(reasons)

    def _links(self, deadline: float, reasons: dict[str, str]) -> Iterator[tuple[str, LogLink]]:
        """Whoever may be asked: the one that answered last first, and a primary after all backups."""
        if self._link is not None:
            link_, self._link = self._link, None
            try:
                link_.refresh()
            except (OSError, PeerViolation):
                link_.close()
            else:
                if self._may_ask(link_) and not (self._read_from == "any" and link_.is_primary):
                    yield self._name_of(link_), link_
                else:
                    LINKS.give_back(link_)
        primaries: list[tuple[str, LogLink]] = []
        try:
            yield from self._others(deadline, reasons, primaries)
            while primaries:
                yield primaries.pop(0)
        finally:
            for _, link_ in primaries:
                LINKS.give_back(link_)

    def _others(
        self, deadline: float, reasons: dict[str, str], primaries: list[tuple[str, LogLink]]
    ) -> Iterator[tuple[str, LogLink]]:
        for name, address in self._servers:
            try:
                link_ = LINKS.take(address, deadline)
            except (OSError, PeerViolation) as error:
                reasons[name] = _reason_of(error)
                continue
            if not self._may_ask(link_):
                reasons[name] = "is the primary" if link_.is_primary else "is a backup"
                LINKS.give_back(link_)
            elif link_.is_primary:
                primaries.append((name, link_))
            else:
                yield name, link_

    def _may_ask(self, link_: LogLink) -> bool:
        return self._read_from == "any" or link_.is_primary == (self._read_from == "primary")

    def _name_of(self, link_: LogLink) -> str:
        return next((name for name, address in self._servers if address == link_.address), link_.address)

    def _unavailable(self, reasons: dict[str, str]) -> Unavailable:
        whom = "Message Manager" if self._read_from == "any" else self._read_from
        told = ", ".join(f"{name} ({reason})" for name, reason in sorted(reasons.items())) or "there is none"
        way = "check that the cluster runs" if self._read_from == "any" else "start one, or read with readFrom=any"
        return Unavailable(
            f"no {whom} of channel {self.channel} answered readers within {self._timeout_s:g} s: {told}; {way}"
        )

    # --- scanning ---

    def _send_ahead(self, make: Callable[[int], frame_kinds.Asked]) -> tuple[LogLink, int] | None:
        link_ = self._link
        if link_ is None:
            return None
        request = link_.number()
        try:
            link_.send(make(request), self._deadline())
        except OSError:
            self._link = None
            link_.close()
            return None
        return link_, request

    def _receive_scanned(
        self, link_: LogLink, request: int, first: log_link.Place, deadline: float
    ) -> log_link.Scanned | None:
        """The answer that was asked for ahead; None where another must be asked."""
        try:
            answer = link_.receive(request, deadline)
        except (OSError, PeerViolation):
            self._link = None
            link_.close()
            return None
        return answer if isinstance(answer, log_link.Scanned) and _is_sound(first, answer) else None

    def _check_order(self, answer: log_link.Scanned, first: log_link.Place) -> None:
        """Nothing from elsewhere, nothing out of order, nothing twice."""
        reached = first
        for batch in answer.batches:
            if not reached <= (batch.arrival, batch.destination, batch.position) < answer.next:
                raise Corruption(
                    f"channel {self.channel} gave messages of log entry {batch.arrival} out of order, where it was "
                    f"asked from entry {first[0]} on; read from another Message Manager"
                )
            reached = (batch.arrival, batch.destination, batch.position + batch.count)

    def _check_kept(self, kept_from: int, first: log_link.Place, end: log_link.Place, missed_before: int) -> None:
        if self._requires_all and kept_from > max(first[0], missed_before):
            raise LostMessages(self.channel, first[0], min(kept_from, end[0]))

    @staticmethod
    def _measuring(
        destinations: Sequence[int], first: log_link.Place, end: log_link.Place, messages_step: int, bytes_step: int
    ) -> Callable[[int], frame_kinds.Asked]:
        return lambda request: log_link.Measure(request, list(destinations), first, end, messages_step, bytes_step)

    @staticmethod
    def _searching(destinations: Sequence[int], time_ms: int, first: int) -> Callable[[int], frame_kinds.Asked]:
        return lambda request: log_link.Search(request, list(destinations), time_ms, first)

    @staticmethod
    def _scanning(
        destinations: Sequence[int], first: log_link.Place, end: log_link.Place, bytes_max: int
    ) -> Callable[[int], frame_kinds.Asked]:
        return lambda request: log_link.Scan(request, list(destinations), first, end, bytes_max)


class LostMessages(Unavailable):
    """Messages that arrived with these log entries are kept no more, or their destination is gone."""

    def __init__(self, channel: str, first: int, end: int) -> None:
        super().__init__(
            f"channel {channel} keeps no more what arrived with log entries {first} to {end - 1}, or its destination "
            "was moved or deleted; let it retain more, or go on without (failOnDataLoss=false)"
        )
        self.channel = channel
        self.first = first
        self.end = end


def entry(number: int) -> log_link.Place:
    """Where a log entry begins."""
    return number, 0, 0


def _advances(first: log_link.Place, answer: log_link.Measured | log_link.Scanned) -> bool:
    """Whether it reaches anywhere: one that has not applied the first entry yet cannot know what is in it."""
    return answer.next > first


def _is_sound(first: log_link.Place, answer: log_link.Scanned) -> bool:
    return _advances(first, answer) and all(xxh3_64_intdigest(batch.blob) == batch.digest for batch in answer.batches)


def _reason_of(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
