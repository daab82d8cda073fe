"""What one consumer has received: prefetched, handed out, and not acknowledged.

Rules. `held` has every position that came and is neither acknowledged nor returned; it is what the consumer names when
it comes back after a reconnection. Positions that come twice (held, or acknowledged without an answer so far) are
dropped: the program has them. What was handed out is what is held and no longer prefetched.

Acknowledging costs by ranges: handing out only advances the iterator `ready`, and when the I/O side writes, the
messages that the program is done with (handed out, and no longer `in_hand`) become one range. Advancing is one step, so
threads that share a consumer never get the same message; everything else happens under the owner's lock.
"""

import enum
import logging
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from operator import length_hint
from typing import Any

from alphorn.client.message import Arrival, Message
from alphorn.model.conversation import Consume, Delivered, Regulate
from alphorn.model.errors import Error, PeerViolation
from alphorn.model.messages import count_of
from alphorn.model.ranges import Range, RangeSet

PREFETCHED_BYTES_MAX = 16 << 20  # here and not handed out, before the server is asked for no more
PREFETCHED_BYTES_LOW = 4 << 20  # before it is asked for more again
LAZY_S = 1.0  # how long acknowledgements in no hurry may wait

Guard = Callable[[Callable[[], None]], None]
_log = logging.getLogger("alphorn.client")


class AckMode(enum.Enum):
    """When a session's messages count as consumed."""

    AUTO = "auto"
    CLIENT = "client"
    INDIVIDUAL = "individual"
    DUPS_OK = "dups_ok"  # as AUTO, told to the server in large lots
    TRANSACTED = "transacted"  # by committing the session's transaction, and in no other way

    @property
    def is_automatic(self) -> bool:
        """Whether going on is an acknowledgement."""
        return self in (AckMode.AUTO, AckMode.DUPS_OK)


class Inbox:
    """The messages of one consumer."""

    __slots__ = (
        "_arrivals",
        "_collected",
        "_current",
        "_in_hand_before",
        "_lazy_until",
        "_prefetched_bytes",
        "_recovery",
        "_unpacked",
        "acknowledge_session",
        "acknowledged",
        "acknowledging",
        "consume",
        "destination",
        "failure",
        "generation",
        "guard",
        "held",
        "in_hand",
        "is_blocked",
        "is_blocked_told",
        "is_leaving",
        "is_open",
        "is_recovering",
        "mode",
        "number",
        "on_arrival",
        "on_stir",
        "on_wish",
        "opener",
        "ready",
        "rejected",
        "session",
    )

    def __init__(self, *, consume: Consume, destination: str, mode: AckMode) -> None:
        self.consume = consume
        self.number = consume.consumer
        self.session = consume.session
        self.destination = destination
        self.mode = mode
        self.is_open = True
        self.is_leaving = False  # closed by the program, and there until its transaction is over
        self.failure: Error | None = None
        self.on_arrival: Callable[[], None] = lambda: None
        self.on_wish: Callable[[], None] = lambda: None  # there is something to tell the server
        self.on_stir: Callable[[], None] = lambda: None  # it is not quiet any more
        self.guard: Guard = lambda act: act()  # makes a change under the owner's lock, where threads need one
        self.acknowledge_session: Callable[[], None] = lambda: None
        self.opener: Callable[[Message], Any] = lambda message: None  # gives a readable for a message's body
        self.held = RangeSet()
        self.acknowledged = RangeSet()  # to be sent
        self.acknowledging = RangeSet()  # sent and not answered
        self._lazy_until: float | None = None  # when acknowledgements in no hurry are told; None while there are none
        self.rejected: list[tuple[Range, int, bool]] = []  # to be sent: positions, delay_ms, is_dead
        self.is_recovering = False  # until the server gives everything out again
        self._recovery: tuple[list[int], list[int]] | None = None  # to be sent: handed out, and not
        self.generation = 0  # one more whenever everything went back
        self.ready: Iterator[Message] = iter(())  # what is left of `_current` to hand out
        self.in_hand = 0  # so many of the last ones handed out are still being used
        self._current: Arrival | None = None
        # So many messages `_current` had. Those that were handed out are not held: the garbage collector does not
        # know messages, which refer to their inbox, so it would never be freed.
        self._unpacked = 0
        self._collected = 0  # so many of those are acknowledged
        self._in_hand_before: list[Range] = []  # in hand as well, from arrivals before
        self._arrivals: deque[Arrival] = deque()
        self._prefetched_bytes = 0  # of `_arrivals`
        self.is_blocked = False  # the program has more than it uses, and is to get no more
        self.is_blocked_told = False

    @property
    def has_prefetched(self) -> bool:
        """Whether a message can be handed out."""
        return length_hint(self.ready) > 0 or bool(self._arrivals)

    @property
    def has_arrivals(self) -> bool:
        """Whether `turn` has something to unpack."""
        return bool(self._arrivals)

    @property
    def has_wishes(self) -> bool:
        """Whether there is something to tell the server; acknowledgements of a lazy consumer wait until it is due."""
        if self.mode is AckMode.DUPS_OK:
            return (
                bool(self.rejected or self._recovery or self._has_regulation)
                or self._lazy_until == 0.0
                or self.is_urgent
            )
        return self._has_pending

    @property
    def _has_pending(self) -> bool:
        return bool(self.rejected or self.acknowledged or self._recovery or self._has_regulation) or (
            self.mode.is_automatic and self._handed_count - self.in_hand > self._collected
        )

    @property
    def _has_regulation(self) -> bool:
        return self.is_blocked is not self.is_blocked_told

    @property
    def is_quiet(self) -> bool:
        """Whether it has nothing to tell, and will not have before `on_stir` is called."""
        return not (self._arrivals or length_hint(self.ready) or self._has_pending)

    @property
    def is_urgent(self) -> bool:
        """Whether the server should hear at once: much of the prefetch is used up.

        That the program waits is no reason. An acknowledgement that does not wait a little for others is a log entry of
        its own, with an fsync on every replica.
        """
        if self.rejected or self._recovery or self._has_regulation or not self.is_open:
            return self._has_pending
        done = self._handed_count - self.in_hand - self._collected if self.mode.is_automatic else 0
        if self.mode is AckMode.CLIENT:
            return bool(self.acknowledged) or done > 0
        if self.mode is AckMode.DUPS_OK:
            return len(self.acknowledged) + done >= max(1, self.consume.prefetch // 2)
        return len(self.acknowledged) + done > self.consume.prefetch // 4

    def on_time(self, now: float) -> None:
        """Acknowledgements of a lazy consumer are due when they have waited long enough."""
        if self.mode is not AckMode.DUPS_OK:
            return
        if not self._has_pending:
            self._lazy_until = None
        elif self._lazy_until is None:
            self._lazy_until = now + LAZY_S
        elif self._lazy_until <= now:
            self._lazy_until = 0.0

    def on_delivered(self, frame: Delivered) -> list[int]:
        """Messages came; those that the program has already are dropped. Gives those that nobody here wants any more.

        What comes while everything goes back has gone back as well: the server knows that it was on its way.
        """
        last = frame.position + count_of(frame.blob) - 1
        if not self.is_open or self.is_recovering:
            return [frame.position, last] if self.is_leaving and not self.is_recovering else []
        blob = bytes(frame.blob)
        known = self.held.intersection(frame.position, last) + self.acknowledging.intersection(frame.position, last)
        known += self.acknowledged.intersection(frame.position, last)
        fresh = RangeSet([(frame.position, last)])
        for first, final in known:
            fresh.remove(first, final)
        for first, final in fresh:
            self.held.add(first, final)
            self._arrivals.append(self._arrival_of(frame, blob, first - frame.position, final - frame.position + 1))
            self._weigh(len(blob))
        if fresh:
            self.on_stir()
            self.on_arrival()
        return []

    def on_closed(self, error: Error) -> None:
        """The server gives no more; what is prefetched is gone as well."""
        self.failure = error
        self.close()
        self.on_arrival()

    def close(self) -> None:
        """Takes nothing more and hands out nothing more."""
        self.is_open = self.is_leaving = False
        self._arrivals.clear()
        self._weigh(-self._prefetched_bytes)
        self._unpacked = self._handed_count
        self.ready = iter(())

    def turn(self) -> bool:
        """Unpacks the next arrival once the current one is handed out; False when there is none.

        What is in hand stays in hand.
        """
        self._collect()
        while self._arrivals:
            if self._collected < self._unpacked:
                self._in_hand_before.append(self._range(self._collected, self._unpacked))
            self.in_hand = self._collected = 0
            self._current = self._arrivals.popleft()
            self._weigh(-len(self._current.blob))
            self._unpacked, self.ready = 0, iter(())
            messages = self._unpack(self._current)
            self._unpacked = len(messages)
            self.ready = iter(messages)
            if messages:
                return True
        return False

    def finish(self) -> None:
        """The program is done with all that is in hand, where going on says so."""
        self.on_stir()
        self.in_hand = 0
        self._collect()
        if self.mode.is_automatic:
            for wanted in self._in_hand_before:
                self._acknowledge_range(wanted)
        self._in_hand_before.clear()

    def take(self, maximum: int) -> list[Message]:
        """Hands out what is there, up to so many; the program is done with what it had before."""
        self.finish()
        taken: list[Message] = []
        while len(taken) < maximum:
            part = list(islice(self.ready, maximum - len(taken)))
            self.in_hand += len(part)
            taken += part
            if not part and not self.turn():
                break
        return taken

    def unhand(self, *, is_closing: bool = False) -> None:
        """What is in hand was not used: it is returned, not acknowledged; by closing where that follows."""
        if self.mode.is_automatic:
            self._collect()
            handed = self._handed_count
            wanted = [*self._in_hand_before, *([self._range(self._collected, handed)] if self.in_hand else [])]
            for part in wanted if not is_closing else ():
                self._return_range(part, delay_ms=-1, is_dead=False)
            self._in_hand_before.clear()
            self._collected, self.in_hand = handed, 0

    def acknowledge(self, arrival: Arrival, index: int) -> None:
        """Of one message, or in client mode of all the session was handed. Takes the owner's lock."""
        if self.mode is AckMode.CLIENT:
            self.guard(self.acknowledge_session)
        elif self.mode is not AckMode.TRANSACTED:
            self.guard(partial(self._acknowledge, arrival, index))
        self.on_wish()

    def _acknowledge(self, arrival: Arrival, index: int) -> None:
        if arrival.generation == self.generation:
            position = arrival.position + index
            self._acknowledge_range((position, position))

    def acknowledge_handed(self) -> None:
        """Everything that was handed out is consumed."""
        for handed in self._handed():
            self._acknowledge_range(handed)

    def reject(self, arrival: Arrival, index: int, *, delay_ms: int, is_dead: bool) -> None:
        """One message comes back. Takes the owner's lock."""
        self.guard(partial(self.give_back, arrival, index, delay_ms=delay_ms, is_dead=is_dead))
        self.on_wish()

    def give_back(self, arrival: Arrival, index: int, *, delay_ms: int = -1, is_dead: bool = False) -> None:
        """One message comes back."""
        position = arrival.position + index
        if arrival.generation == self.generation:
            self._return_range((position, position), delay_ms=delay_ms, is_dead=is_dead)

    def recover(self) -> None:
        """Everything comes back, what was handed out and what was prefetched behind it, and is given out in order."""
        self._collect()
        if not self.held:
            return
        unseen = self.unseen()
        self._recovery = self.held.difference(unseen).flat(), unseen.flat()
        self.is_recovering = True
        self.held = RangeSet()
        self.start_over()
        self.on_stir()

    def start_over(self) -> None:
        """Forgets what came; what the program has of it counts no more."""
        self._arrivals.clear()
        self._weigh(-self._prefetched_bytes)
        self._unpacked, self._current, self._collected, self.in_hand = 0, None, 0, 0
        self._in_hand_before.clear()
        self.ready = iter(())
        self.generation += 1

    @property
    def has_consumed(self) -> bool:
        """Whether the program was handed anything that is not settled."""
        return bool(self._handed())

    def consume_handed(self) -> list[int]:
        """Everything that was handed out goes into a transaction; gives the positions as flat pairs."""
        consumed = RangeSet(self._handed())
        for first, last in consumed:
            self.held.remove(first, last)
            self.acknowledging.add(first, last)
        return consumed.flat()

    def lapse(self, positions: RangeSet) -> list[int]:
        """The time of these is over; gives those that were never handed to the program, which it holds no longer."""
        if not self.is_open or self.is_recovering or not positions.common(self.unseen()):
            return []
        rest = list(self.ready)  # in one step: what a thread of the program takes meanwhile is not among them
        if rest and self._current is not None:
            self._unpacked -= len(rest)
            self._arrivals.appendleft(self._current.rest(rest))
        lapsed = positions.common(self.unseen())
        arrivals, self._arrivals = self._arrivals, deque()
        for arrival in arrivals:
            parts = arrival.without(lapsed)
            self._arrivals += parts
            self._weigh((len(parts) - 1) * len(arrival.blob))
        for first, last in lapsed:
            self.held.remove(first, last)
        if self._arrivals:
            self.on_arrival()
        return lapsed.flat()

    def let_go_unseen(self) -> list[int]:
        """Takes nothing more, and is to get nothing; gives what was never handed out, which it holds no longer."""
        unseen = self.unseen()
        for first, last in unseen:
            self.held.remove(first, last)
        self.close()
        self.is_leaving = self.is_blocked = True
        self.on_stir()
        return unseen.flat()

    def take_recovery(self) -> tuple[list[int], list[int]] | None:
        """What comes back to be given out again, if the server is to be told so: handed out, and not."""
        recovery, self._recovery = self._recovery, None
        return recovery

    def on_recovered(self) -> None:
        """What comes from now on is given out anew."""
        self.is_recovering = False

    def unseen(self) -> RangeSet:
        """What is here and was never handed to the program."""
        unseen = self.held.copy()
        for first, last in self._handed():
            unseen.remove(first, last)
        return unseen

    def take_wishes(self) -> tuple[list[int], list[tuple[Range, int, bool]]]:
        """What to tell the server: positions acknowledged (flat pairs), and what comes back."""
        self._collect()
        self._lazy_until = None
        acknowledged, self.acknowledged = self.acknowledged.flat(), RangeSet()
        for first, last in zip(acknowledged[::2], acknowledged[1::2], strict=True):
            self.acknowledging.add(first, last)
        rejected, self.rejected = self.rejected, []
        return acknowledged, rejected

    def unsettled(self) -> RangeSet:
        """What the server has not been told about: what is held, and what waits to be told."""
        positions = self.held.copy()
        for first, last in [*self.acknowledged, *(rejected[0] for rejected in self.rejected)]:
            positions.add(first, last)
        for part in self._recovery or ():
            positions.update(RangeSet.from_flat(part))
        return positions

    def on_acknowledged(self, positions: list[int]) -> None:
        """The server has consumed these."""
        for first, last in zip(positions[::2], positions[1::2], strict=True):
            self.acknowledging.remove(first, last)

    def describe(self) -> dict[str, object]:
        """The printable state."""
        return {
            "number": self.number,
            "destination": self.destination,
            "held": len(self.held),
            "handed": sum(last - first + 1 for first, last in self._handed()),
            "acknowledging": len(self.acknowledging),
        }

    def take_regulation(self) -> Regulate | None:
        """What the server is to hear of whether more may come; None when it knows."""
        if not self._has_regulation:
            return None
        self.is_blocked_told = self.is_blocked
        return Regulate(self.number, self.is_blocked)

    def _weigh(self, change: int) -> None:
        """More or less is prefetched: an open one asks the server for no more between two marks."""
        self._prefetched_bytes += change
        is_blocked = self._prefetched_bytes > (PREFETCHED_BYTES_LOW if self.is_blocked else PREFETCHED_BYTES_MAX)
        if self.is_open and is_blocked is not self.is_blocked:
            self.is_blocked = is_blocked
            self.on_stir()
            self.on_wish()

    @property
    def _handed_count(self) -> int:
        return self._unpacked - length_hint(self.ready)

    def _handed(self) -> list[Range]:
        handed = self.held.copy()
        if length_hint(self.ready):
            handed.remove(*self._range(self._handed_count, self._unpacked))
        for arrival in self._arrivals:
            handed.remove(arrival.position + arrival.start, arrival.position + arrival.end - 1)
        return list(handed)

    def _collect(self) -> None:
        done = self._handed_count - self.in_hand
        if done > self._collected:
            if self.mode.is_automatic:
                self._acknowledge_range(self._range(self._collected, done))
            self._collected = done

    def _unpack(self, arrival: Arrival) -> list[Message]:
        """What nobody can read is dead: it would come back for ever, and its sender's fault is not this program's."""
        try:
            return arrival.unpack()
        except PeerViolation as error:
            spoilt = (arrival.position + arrival.start, arrival.position + arrival.end - 1)
            self._return_range(spoilt, delay_ms=-1, is_dead=True)
            _log.error("event=message_unreadable destination=%s error=%r", self.destination, str(error))
            return []

    def _range(self, start: int, end: int) -> Range:
        """The positions of messages in hand."""
        assert self._current is not None
        first = self._current.position + self._current.start
        return first + start, first + end - 1

    def _acknowledge_range(self, wanted: Range) -> None:
        self.on_stir()
        for first, last in self.held.intersection(*wanted):
            self.held.remove(first, last)
            self.acknowledged.add(first, last)

    def _return_range(self, wanted: Range, *, delay_ms: int, is_dead: bool) -> None:
        self.on_stir()
        for first, last in self.held.intersection(*wanted):
            self.held.remove(first, last)
            self.rejected.append(((first, last), delay_ms, is_dead))

    def _arrival_of(self, frame: Delivered, blob: bytes, start: int, end: int) -> Arrival:
        return Arrival(
            self,
            position=frame.position,
            delivery_count=frame.delivery_count,
            sequence=frame.sequence,
            first_index=frame.index,
            producer=frame.producer,
            counter=frame.counter,
            timestamp=frame.timestamp,
            blob=blob,
            history=frame.history,
            start=start,
            end=end,
            generation=self.generation,
        )
