"""What clients were promised of their messages, and whether it was kept.

The account hears of both ends: what producers sent and were confirmed, and what every consumer was given. A flow is
what gets each message once: a queue, or a subscription of a topic. The rules:

- what was confirmed arrives in every flow of its destination;
- what arrives a second time says that it may have been delivered before (`delivery_count` above 1);
- messages of one producer arrive in the order in which they were sent. Where several consumers share a flow, what came
  back from one of them may come late to another, and says so;
- nothing arrives that nobody sent.

Faults found are kept as sentences; an account without faults has seen none. Its calls may come from any thread.
"""

import threading
from collections.abc import Iterable

import msgspec

from alphorn.model.ranges import RangeSet

FAULTS_MAX = 50  # enough to understand; the first is what matters


class TrafficResult(msgspec.Struct, frozen=True, kw_only=True):
    """Messages counted at both ends."""

    sent: int
    confirmed: int
    refused: int
    received: int  # for the first time, in all flows together
    redelivered: int  # again, and marked
    marked: int  # of those received for the first time: may have been given out before, by their mark
    lost: int  # confirmed and not received, counted per flow
    duplicates: int  # again, without a mark
    disordered: int
    faults: list[str]  # promises that were broken; must be empty


class Flow:
    """A queue or a subscription, as its consumers see it together."""

    def __init__(self, name: str, producers: Iterable[str], *, is_shared: bool) -> None:
        self.name = name
        self.producers = tuple(producers)
        self.is_shared = is_shared
        self.received: dict[str, RangeSet] = {producer: RangeSet() for producer in self.producers}
        self.times: list[float] = []  # of everything that came
        self.newest: dict[tuple[str, str], int] = {}  # by consumer and producer


class TrafficAccount:
    """All producers and flows of one run."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.flows: dict[str, Flow] = {}
        self._sent: dict[str, int] = {}
        self._confirmed: dict[str, RangeSet] = {}
        self._refused = 0
        self._redelivered = 0
        self._marked = 0
        self._duplicates = 0
        self._disordered = 0
        self._lock = threading.Lock()

    def open_flow(self, name: str, producers: Iterable[str], *, is_shared: bool = False) -> None:
        """All these producers send is to arrive in this flow."""
        self.flows[name] = Flow(name, producers, is_shared=is_shared)

    def sent(self, producer: str, number: int) -> None:
        """A producer is about to send; its numbers go up from 1 without gaps."""
        with self._lock:
            assert number == self._sent.get(producer, 0) + 1, "numbers have no gaps"
            self._sent[producer] = number

    def confirmed(self, producer: str, first: int, last: int) -> None:
        """A producer was told that these are safe."""
        with self._lock:
            self._confirmed.setdefault(producer, RangeSet()).add(first, last)

    def refused(self, producer: str, number: int, reason: str) -> None:
        """A producer was told that this one was not taken, or that nobody knows."""
        with self._lock:
            self._refused += 1
            self._blame(f"message {number} of {producer} was not taken: {reason}")

    def received(self, flow: str, consumer: str, producer: str, number: int, count: int, at: float) -> None:
        """A consumer was given a message, which says that this is its `count`th delivery."""
        with self._lock:
            found = self.flows[flow]
            found.times.append(at)
            known = found.received.get(producer)
            if known is None or not 1 <= number <= self._sent.get(producer, 0):
                self._blame(f"{consumer} was given message {number} of {producer} from {flow}, which nobody sent there")
                return
            if number in known:
                self._again(found, consumer, producer, number, count)
                return
            known.add(number, number)
            self._marked += count > 1
            self._check_order(found, consumer, producer, number, count)

    def blame(self, fault: str) -> None:
        """Keeps a fault that was seen elsewhere."""
        with self._lock:
            self._blame(fault)

    def missing(self) -> dict[str, dict[str, list[tuple[int, int]]]]:
        """What was confirmed and has not arrived, by flow and producer."""
        with self._lock:
            found: dict[str, dict[str, list[tuple[int, int]]]] = {}
            for flow in self.flows.values():
                for producer in flow.producers:
                    wanted = self._confirmed.get(producer, RangeSet())
                    if left := list(wanted.difference(flow.received[producer])):
                        found.setdefault(flow.name, {})[producer] = left
            return found

    def newest_sent(self, producer: str) -> int:
        """The number of the newest message of a producer."""
        return self._sent.get(producer, 0)

    def has_passed(self, marks: dict[str, int]) -> bool:
        """Whether every flow has received something newer than these numbers of producers."""
        with self._lock:
            return all(
                max(flow.received[producer].last if flow.received[producer] else 0 for producer in flow.producers)
                > min(marks.get(producer, 0) for producer in flow.producers)
                for flow in self.flows.values()
            )

    def longest_gap(self, since: float, until: float) -> float:
        """The longest time without any delivery, in the flow where it was longest, that touches this span."""
        with self._lock:
            return max((_longest_gap(flow.times, since, until) for flow in self.flows.values()), default=0.0)

    def close(self) -> TrafficResult:
        """All has come to rest: what is missing is lost."""
        missing = self.missing()
        with self._lock:
            lost = 0
            for flow, producers in missing.items():
                for producer, ranges in producers.items():
                    lost += sum(last - first + 1 for first, last in ranges)
                    self._blame(f"{flow} never gave out {ranges[:5]} of {producer}, which were confirmed")
            return TrafficResult(
                sent=sum(self._sent.values()),
                confirmed=sum(len(ranges) for ranges in self._confirmed.values()),
                refused=self._refused,
                received=sum(len(ranges) for flow in self.flows.values() for ranges in flow.received.values()),
                redelivered=self._redelivered,
                marked=self._marked,
                lost=lost,
                duplicates=self._duplicates,
                disordered=self._disordered,
                faults=list(self.faults),
            )

    def _again(self, flow: Flow, consumer: str, producer: str, number: int, count: int) -> None:
        if count > 1:
            self._redelivered += 1
        else:
            self._duplicates += 1
            self._blame(f"{consumer} was given message {number} of {producer} from {flow.name} again, without a mark")

    def _check_order(self, flow: Flow, consumer: str, producer: str, number: int, count: int) -> None:
        newest = flow.newest.get((consumer, producer), 0)
        if number > newest:
            flow.newest[(consumer, producer)] = number
        elif count == 1 or not flow.is_shared:
            self._disordered += 1
            self._blame(f"{consumer} was given message {number} of {producer} from {flow.name} after {newest}")

    def _blame(self, fault: str) -> None:
        if len(self.faults) < FAULTS_MAX and fault not in self.faults:
            self.faults.append(fault)


def _longest_gap(times: list[float], since: float, until: float) -> float:
    """Between one delivery and the next, of those pauses that are not over before `since` or begin after `until`."""
    longest = 0.0
    later = None
    for at in reversed(times):
        if later is not None and at <= until:
            longest = max(longest, later - at)
        if at < since:
            break
        later = at
    return longest
