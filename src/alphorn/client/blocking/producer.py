"""Sending: `Producer` and `Receipt`."""

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, overload

import msgspec

from alphorn.client.blocking.line import Line
from alphorn.client.blocking.places import Places
from alphorn.client.blocking.streaming import BodySending, StreamReceipt
from alphorn.client.choices import DestinationLike, Sending, check_destination, check_timeout
from alphorn.client.counters import Counters
from alphorn.client.flushing import GIVE_UP_S, Flushing, log_given_up
from alphorn.client.forks import FORKS, forked
from alphorn.client.outbox import Outbox, Parcel
from alphorn.client.packing import pack_bodies, pack_body
from alphorn.client.refusals import again
from alphorn.model.conversation import parts_of
from alphorn.model.destinations import parse_destination
from alphorn.model.errors import Blocked, Error, InvalidDestination, Misuse

BODIES_AT_ONCE = 5_000
OTHERS_MAX = 64  # destinations of one producer that do not wait for each other
FIELDS = ("properties", "priority", "ttl", "delay", "key", "type", "correlation_id", "reply_to")


class Receipt(msgspec.Struct, gc=False, eq=False):
    """What `send` gives back: the message's outcome, once it is known."""

    _producer: "Producer"
    _counter: int

    def __repr__(self) -> str:
        return f"<Receipt {self._counter} of producer {self._producer._outbox.number}>"

    @property
    def is_done(self) -> bool:
        """Whether `result` would return at once."""
        return self._producer._outbox.outcome(self._counter) is not False

    def result(self, timeout: float | None = None) -> str:
        """The message's id, once it is committed.

        Raises why it was not taken; `UnknownOutcome` when the library had to give up; `TimeoutError` when the time is
        over first, after which the message is still on its way.
        """
        return self._producer._result(self._counter, check_timeout(timeout))


class Receipts(Sequence[Receipt]):
    """The receipts of `send_many`, one for each body."""

    __slots__ = ("_counters", "_producer")

    def __init__(self, producer: "Producer", counters: Counters) -> None:
        self._producer, self._counters = producer, counters

    def __len__(self) -> int:
        return len(self._counters)

    @overload
    def __getitem__(self, place: int) -> Receipt: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Receipt]: ...
    def __getitem__(self, place: int | slice) -> Receipt | Sequence[Receipt]:
        found = self._counters[place]
        if isinstance(found, int):
            return Receipt(self._producer, found)
        return [Receipt(self._producer, counter) for counter in found]

    def __iter__(self) -> Iterator[Receipt]:
        return (Receipt(self._producer, counter) for counter in self._counters)

    def result(self, timeout: float | None = None) -> list[str]:
        """The ids of all, once they are committed; raises as `Receipt.result` does."""
        timeout = check_timeout(timeout)
        deadline = None if timeout is None else time.monotonic() + timeout
        return [receipt.result(None if deadline is None else max(0.0, deadline - time.monotonic())) for receipt in self]


class Producer:
    """Sends messages. Threads may share it; the order is that of the calls.

    `send` returns before the message is committed: the receipt, `flush` and `close` tell. What was sent and not
    confirmed is sent again after a reconnection, and stored once.
    """

    def __init__(self, line: Line, places: Places, outbox: Outbox, sending: Sending, destination: str | None) -> None:
        self._line = line
        self._places = places
        self._outbox = outbox
        self._sending = sending
        self._destination = destination
        self._is_plain = sending.is_plain and destination is not None
        self._others: dict[str, Producer] = {}  # by destination: a full one must not delay another
        self._streams: list[BodySending] = []
        self._is_closed = False
        self._lock = threading.Lock()  # of programs' threads alone: a counter and its message belong together
        self._forks = FORKS.number

    def __repr__(self) -> str:
        return f"<Producer for {self._destination or 'any destination'}>"

    def __enter__(self) -> "Producer":
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        if kind is None:
            self.close()
        elif not self._is_closed and FORKS.number == self._forks:
            self._take_no_more()
            flushing = Flushing(self._outboxes())
            self._line.wait_for(lambda: flushing.is_done, GIVE_UP_S)
            log_given_up(flushing.unconfirmed)
            self._end()

    def send(
        self,
        body: Any,
        *,
        properties: dict[str, Any] | None = None,
        priority: int | None = None,
        ttl: float | None = None,
        delay: float | None = None,
        key: str | None = None,
        type: str | None = None,
        correlation_id: str | None = None,
        reply_to: DestinationLike | None = None,
        destination: DestinationLike | None = None,
        wait: bool = False,
    ) -> Receipt:
        """Sends one message; with `wait=True` returns once it is committed.

        Waits while the destination takes nothing, or too much is unconfirmed; a producer with `on_block="raise"` raises
        `Blocked` instead, and nothing was sent. Raises `Misuse` for what cannot be sent. In a transacted session it
        leaves when that is committed.
        """
        if destination is not None and (other := self._producer_for(destination)) is not self:
            return other.send(
                body,
                properties=properties,
                priority=priority,
                ttl=ttl,
                delay=delay,
                key=key,
                type=type,
                correlation_id=correlation_id,
                reply_to=reply_to,
                wait=wait,
            )
        outbox = self._outbox
        if wait:
            outbox.check_wait(outbox.counter + 1)
        if (
            self._is_plain
            and properties is None
            and priority is None
            and ttl is None
            and delay is None
            and key is None
            and type is None
            and correlation_id is None
            and reply_to is None
            and destination is None
        ):
            data = pack_body(body)
            if not outbox.is_open or not outbox.has_room or FORKS.number != self._forks:
                self._make_room()
            with self._lock:
                if not outbox.is_open:
                    self._check()
                counter = outbox.add_plain(data)
        else:
            if not outbox.is_open or FORKS.number != self._forks:
                self._check()
            parcel = self._sending.parcel(
                self._place_of(destination),
                body,
                now_ms=time.time_ns() // 1_000_000,
                properties=properties,
                priority=priority,
                ttl=ttl,
                delay=delay,
                key=key,
                type=type,
                correlation_id=correlation_id,
                reply_to=reply_to,
            )
            if not outbox.is_open or outbox.why_full(parcel.place):
                self._make_room(parcel.place)
            with self._lock:
                if not outbox.is_open:
                    self._check()
                counter = outbox.add(parcel)
        if self._line.is_asleep and outbox.wants_packing:
            self._line.push()
        receipt = Receipt(self, counter)
        if wait:
            receipt.result()
        return receipt

    def send_stream(self, readable: Any, *, destination: DestinationLike | None = None, **fields: Any) -> StreamReceipt:
        """Sends all that can be read from `readable` as one message of any size; other fields are those of `send`.

        The stream is read as the cluster takes it, never far ahead, and small messages on the same connection pass by.
        Nobody receives anything of it before this returns, which is when the message is committed. Whatever `readable`
        raises is raised here, and what was sent of it is given up; so it is when the sending program ends. The message
        comes after all that this producer sent there before.
        """
        if destination is not None and (other := self._producer_for(destination)) is not self:
            return other.send_stream(readable, **fields)
        self._check()
        if self._outbox.is_transacted:
            raise Misuse("a stream is not part of a transaction; send it in a session that is not transacted")
        if destination is None and self._outbox.is_stale:
            destination = self._destination  # it was deleted, and is created anew
        place = self._place_of(destination)
        fields.pop("wait", None)  # it always does
        if unknown := sorted(set(fields) - set(FIELDS)):
            raise Misuse(f"send_stream has no {', '.join(unknown)}; it has {', '.join(FIELDS)} and destination")
        given = {name: fields.get(name) for name in FIELDS}
        sending = self._take_sending(parts_of(place)[0])
        last = self._outbox.counter
        try:
            return sending.send(readable, place, self._sending, given, lambda: self._await_confirmed(last))
        except InvalidDestination:
            self._outbox.on_vanished()  # the server says so too, in a moment; the next one looks for it all the same
            raise
        finally:
            self._give_sending_back(sending)

    def try_send(self, body: Any, **fields: Any) -> Receipt | None:
        """Like `send`, but gives None at once, with nothing sent, when the producer is blocked."""
        self._check()
        destination = fields.get("destination")
        if destination is not None and (other := self._producer_for(destination)) is not self:
            return other.try_send(body, **{**fields, "destination": None})
        return None if self._outbox.why_full(self._place_of(destination)) else self.send(body, **fields)

    def send_many(
        self, bodies: Iterable[Any], *, destination: DestinationLike | None = None, **fields: Any
    ) -> Receipts:
        """Sends a message for each body, all with the same other fields (as for `send`); much faster than one by one.

        Raises `Misuse` for a body that cannot be sent; some of those before it may have been sent.
        """
        if destination is not None and (other := self._producer_for(destination)) is not self:
            return other.send_many(bodies, **fields)
        counters = Counters()
        wait = fields.pop("wait", False)
        if wait:
            self._outbox.check_wait(self._outbox.counter + 1)
        is_plain = self._sending.is_plain and not any(value is not None for value in fields.values())
        source = iter(bodies)
        while part := list(islice(source, BODIES_AT_ONCE)):
            self._check()
            place = self._place_of(destination)
            if is_plain:
                parcels = [Parcel(place, 0, count, blob) for count, blob in pack_bodies(part, self._line.core.scratch)]
            else:
                parcels = self._parcels(place, part, fields)
            for parcel in parcels:
                if not self._outbox.is_open or self._outbox.why_full(place):
                    self._make_room(place)
                with self._lock:
                    if not self._outbox.is_open:
                        self._check()
                    counters.add(self._outbox.add(parcel), parcel.count or 1)
                if self._line.is_asleep and self._outbox.wants_packing:
                    self._line.wake()
        receipts = Receipts(self, counters)
        if wait:
            receipts.result()
        return receipts

    def is_blocked(self, destination: DestinationLike | None = None) -> bool:
        """Whether `send` would wait now, for this producer's own destination or for another that it has used."""
        if destination is None:
            return not self._outbox.has_room
        name = check_destination(destination)
        outbox = self._others.get(name, self)._outbox
        return bool(outbox.why_full(self._line.core.places.get(name, outbox.place)))

    def flush(self, timeout: float | None = None) -> None:
        """Waits until all that was sent is committed.

        Raises the first refusal since the last flush, `UnknownOutcome` when the library had to give up, `TimeoutError`
        when the time is over first. In a transacted session `commit` does this, and there is nothing to wait for.
        """
        timeout = check_timeout(timeout)
        if self._outbox.is_transacted:
            return
        self._line.check_thread()
        flushing = Flushing(self._outboxes())
        if not self._line.wait_for(lambda: flushing.is_done, timeout):
            raise TimeoutError(f"{flushing.unconfirmed} messages are not confirmed yet; they are still on their way")
        if (fault := flushing.take_fault()) is not None:
            raise again(fault)

    def close(self) -> None:
        """Flushes, then ends sending; nothing more is taken meanwhile. A second time does nothing."""
        if self._is_closed:
            return
        self._line.check_thread()
        self._take_no_more()
        try:
            self.flush()
        except Error:
            self._end()
            raise
        self._end()

    def _outboxes(self) -> list[Outbox]:
        return [producer._outbox for producer in (self, *self._others.values())]

    @property
    def _has_failed(self) -> bool:
        """Whether it cannot send any more to some destination that it has sent to."""
        return any(outbox.failure is not None for outbox in self._outboxes())

    def _take_no_more(self) -> None:
        """Whoever waits to send hears that it is closed; what was sent is still on its way."""
        with self._line.lock:
            for producer in (self, *self._others.values()):
                with producer._lock:  # nothing is added by somebody who has just seen that it is open
                    producer._outbox.is_open = False
            self._line.changed.notify_all()

    def _end(self) -> None:
        with self._line.lock:
            for producer in (self, *self._others.values()):
                self._line.core.close_outbox(producer._outbox)
                for sending in producer._streams:
                    self._line.core.close_outbox(sending.lane)
            self._is_closed = True
            self._line.changed.notify_all()

    def _take_sending(self, channel: int) -> BodySending:
        """One that sends no body at the moment; there are as many as were ever used at once."""
        with self._line.lock:
            for sending in self._streams:
                if sending.channel == channel and not sending.lane.is_stuck:
                    self._streams.remove(sending)
                    return sending
            return BodySending(self._line, self._line.core.open_lane(self._outbox.session), channel)

    def _give_sending_back(self, sending: BodySending) -> None:
        """Where a body was refused the cluster may have lost count of the lane, and would refuse the next one too."""
        with self._line.lock:
            if self._outbox.is_open and sending.lane.refusal is None:
                self._streams.append(sending)
            else:
                self._line.core.close_outbox(sending.lane)

    def _await_confirmed(self, counter: int) -> None:
        outbox = self._outbox
        self._line.wait_for(lambda: outbox.confirmed >= counter or outbox.failure is not None, None)
        if outbox.confirmed < counter:
            self._check()

    def _result(self, counter: int, timeout: float | None) -> str:
        outbox = self._outbox
        outbox.check_wait(counter)
        if not self._line.wait_for(lambda: outbox.outcome(counter) is not False, timeout):
            raise TimeoutError(f"message {counter} of this producer is not confirmed yet; it is still on its way")
        outcome = outbox.outcome(counter)
        if isinstance(outcome, Error):
            outbox.note_told(counter)
            raise again(outcome)
        return outbox.id_of(self._line.core.connection, counter)

    def _producer_for(self, destination: DestinationLike) -> "Producer":
        """Who sends to another destination than this producer's own: one of its own for each, as far as there may be.

        Temporary destinations come and go; messages to them go with this producer's own.
        """
        name = destination if type(destination) is str else check_destination(destination)
        known = self._others.get(name)
        if known is not None:
            return known
        name = check_destination(name)
        if name == self._destination or parse_destination(name).is_temporary or len(self._others) >= OTHERS_MAX:
            return self
        self._check()
        place = self._places.find(name)
        with self._line.lock:
            if name not in self._others:
                self._check()  # it may have been closed since
                session = self._line.core.sessions[self._outbox.session]
                is_persistent = self._sending.is_persistent
                outbox = self._line.core.open_outbox(session, place, is_persistent=is_persistent, destination=name)
                self._others[name] = Producer(self._line, self._places, outbox, self._sending, name)
        return self._others[name]

    def _place_of(self, destination: DestinationLike | None) -> int:
        if destination is not None:
            return self._places.find(destination)
        if self._destination is None:
            raise Misuse("this producer has no destination; give one with send(..., destination='queue:orders')")
        return self._outbox.place

    def _parcels(self, place: int, bodies: list[Any], fields: dict[str, Any]) -> list[Parcel]:
        if unknown := sorted(set(fields) - set(FIELDS)):
            raise Misuse(f"send_many has no {', '.join(unknown)}; it has {', '.join(FIELDS)}, destination and wait")
        given = {name: fields.get(name) for name in FIELDS}
        now_ms = time.time_ns() // 1_000_000
        return [self._sending.parcel(place, body, now_ms=now_ms, **given) for body in bodies]

    def _check(self) -> None:
        if FORKS.number != self._forks:
            raise forked()
        if self._outbox.failure is not None:
            raise again(self._outbox.failure)
        if not self._outbox.is_open:
            raise Misuse("this producer is closed; make another with session.producer")

    def _await_room(self, destination: DestinationLike, timeout: float | None) -> bool:
        """Waits until something may be sent there, or nothing may any more; False when the time is over first."""
        producer = self._producer_for(destination)
        place = producer._place_of(destination if producer is self else None)
        outbox = producer._outbox
        return self._line.wait_for(lambda: not outbox.why_full(place) or not outbox.is_open, timeout)

    def _make_room(self, place: int = 0) -> None:
        self._check()
        outbox = self._outbox
        outbox.check_room()
        reason = outbox.why_full(place)
        if reason and not self._sending.is_waiting:
            raise Blocked(reason)
        self._line.check_thread()
        self._line.wait_for(lambda: not outbox.why_full(place) or not outbox.is_open, None)
        self._check()
