"""Simulated clients: the real client core on a simulated stream, and a program that sends and receives by it.

A client connects to any Client Manager, and to any other when its stream breaks, as the library's shells do. Its
program acts now and then: it sends some messages, takes what has come, acknowledges or gives back, closes a consumer
and opens it again. A client may end without a word, or in good order; then a new one takes its place.
"""

import random
from collections.abc import Callable, Mapping, Sequence

import msgspec

from alphorn.client.core import Core, State
from alphorn.client.flow import SessionState
from alphorn.client.inbox import AckMode, Inbox
from alphorn.client.message import Message
from alphorn.client.outbox import Outbox, Parcel
from alphorn.client.packing import flags_of, pack_body, pack_message
from alphorn.client.pattern_inbox import PatternInbox
from alphorn.client.requests import Answer
from alphorn.doors import native
from alphorn.model.commands import key_of
from alphorn.model.conversation import Acknowledge, AnyClientFrame, Consume, ConsumePattern, Done, Refused, Resolve
from alphorn.model.destinations import Policy
from alphorn.model.errors import Error, Misuse
from alphorn.model.messages import Packed
from alphorn.model.patterns import is_pattern
from alphorn.testing.book import Book, Receipt
from alphorn.testing.client_life import ClientLife, Door
from alphorn.testing.node import UNIX_START_S
from alphorn.testing.pouring import Pouring
from alphorn.testing.streams import SimulatedStreams, StreamEnd
from alphorn.testing.watch import Violation

THINK_S = 0.15  # mean time between two steps of a program
CALM_THINK_S = 0.02
RECONNECT_S = (0.02, 0.4)
TAKE_MAX = 8
BURST_MAX = 4
KEYS = ("k", "l", "m")  # of messages to queues with a policy
LATE_SHARE = 0.05  # of steps in which a program first uses a destination that nobody had before
ACKNOWLEDGE_TAG, DONE_TAG, REFUSED_TAG = 7, 103, 106
TAG_PLACE = native.LENGTH_BYTES + 1  # of a frame's kind


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What a program receives from, and how."""

    destination: str
    mode: AckMode
    prefetch: int
    subscription: str = ""
    is_shared: bool = False

    def source(self, client: str, destination: str) -> str:
        """What its messages from a destination have in common with those of no other subscription."""
        return f"{destination}/{self.subscription}/{client}" if self.subscription else destination


class _Consumer:
    """One consumer of a program: closed, opening, or open with its inbox."""

    __slots__ = ("inbox", "is_busy", "kept", "reading", "session")

    def __init__(self, reading: Reading, session: SessionState) -> None:
        self.reading = reading
        self.session = session
        self.inbox: Inbox | None = None
        self.is_busy = False  # opening or closing
        self.kept: list[Message] = []  # handed out, and not decided upon

    def inboxes(self) -> list[Inbox]:
        """What it receives by: one, or one for each destination that matches a pattern."""
        if isinstance(self.inbox, PatternInbox):
            return list(self.inbox.joined.values())
        return [] if self.inbox is None else [self.inbox]


class SimulatedClient(ClientLife):
    """One client and its program, through all its runs."""

    reconnect_s = RECONNECT_S

    def __init__(
        self,
        name: str,
        *,
        client_id: str,
        place: int,
        book: Book,
        streams: SimulatedStreams,
        stream: random.Random,
        managers: Sequence[Door],
        targets: tuple[str, ...],
        late: tuple[str, ...],
        readings: tuple[Reading, ...],
        max_lengths: Mapping[str, int],
        policies: Mapping[str, Policy],
        retained: Mapping[str, Policy],
        tell: Callable[[str, str], None],
    ) -> None:
        super().__init__(name, place=place, managers=managers, streams=streams, stream=stream, tell=tell)
        self.streams = True  # now and then it sends a body in fragments
        self._client_id = client_id
        self._book = book
        self._targets = targets + late
        self._late = late
        self._readings = readings
        self._max_lengths = max_lengths
        self._policies = policies
        self._retained = retained

    # --- life ---

    def _make_core(self) -> Core:
        return Core(client_id=self._client_id)

    def _begin(self) -> None:
        self._places: dict[str, int] = {}
        self._pouring = Pouring(self.name, self.core, self._book, self._stream)
        self._outboxes: dict[str, Outbox] = {}
        self._requests: dict[int, tuple[bytes, list[int]]] = {}  # acknowledgements under way
        self._consumers = [_Consumer(reading, self.core.open_session(reading.mode)) for reading in self._readings]
        self._find_places()

    def end(self, *, says_goodbye: bool) -> None:
        """Ends this run: without a word, or in good order."""
        if says_goodbye and self._end is not None:
            self.core.say_goodbye()
            self._flush()
        if self._end is not None:
            self._end.close()
        self._end = None
        self._run += 1
        self._tell(self.name, "says goodbye" if says_goodbye else "crashes")

    def ask(self, make: Callable[[int], AnyClientFrame], on_answer: Callable[[Answer | Error], None]) -> None:
        """Asks something that is no part of its program."""
        self.core.request(make, on_answer)
        self._flush()

    def part_with(self, destination: str, *, closes: bool) -> bool:
        """Is handed what it has of a destination, and acknowledges all or closes; False where it has none."""
        found = False
        for consumer in self._consumers:
            inbox = consumer.inbox
            if inbox is None or not inbox.is_open or consumer.is_busy or self._pouring.is_reading(inbox):
                continue
            if any(each.destination == destination and len(each.held) for each in consumer.inboxes()):
                found = True
                self._take(consumer, inbox)
                if closes:
                    self._close(consumer, inbox)
                elif inbox.mode is AckMode.AUTO:
                    self._take(consumer, inbox)  # going on is an acknowledgement
                else:
                    for message in consumer.kept:
                        message.acknowledge()
                    consumer.kept.clear()
        self._flush()
        return found

    def find_unfinished(self) -> str:
        """What is still to be done, in words; nothing when all is well."""
        if self.core.state is not State.OPEN:
            return f"{self.name} is {self.core.state.value}"
        for destination in self._targets:
            outbox = self._outboxes.get(destination)
            if outbox is None or not outbox.is_flushed:
                return f"{self.name} has unconfirmed messages to {destination}"
        if unfinished := self._pouring.find_unfinished():
            return unfinished
        for consumer in self._consumers:
            if consumer.inbox is None or consumer.is_busy or not consumer.inbox.is_open:
                return f"{self.name} does not receive from {consumer.reading.destination}"
            if consumer.kept or any(len(inbox.held) or len(inbox.acknowledging) for inbox in consumer.inboxes()):
                return f"{self.name} has messages of {consumer.reading.destination} that are not acknowledged"
        return ""

    def send_last(self) -> bool:
        """Sends one more message everywhere; False while that cannot be."""
        if any(destination not in self._outboxes for destination in self._targets):
            return False
        for destination in self._targets:
            self._send(destination)
        self._flush()
        return True

    def _on_frame(self, run: int, end: StreamEnd, data: bytes) -> None:
        if run != self._run or end is not self._end:
            return
        body = data[native.LENGTH_BYTES :]
        if data[TAG_PLACE] == DONE_TAG:
            done = native.decode_server(body)
            if isinstance(done, Done) and done.request in self._requests:
                self._book.acknowledge(*self._requests.pop(done.request))
        elif data[TAG_PLACE] == REFUSED_TAG:
            refused = native.decode_server(body)
            assert isinstance(refused, Refused)
            self._pouring.hear(refused)
        self.core.receive([memoryview(body)], self._now)
        if self.core.failure is not None:
            self._on_failed(self.core.failure)
            return
        self._look_at_outboxes()
        self._pouring.look()
        self._look_at_inboxes()
        if self.core.wants_reconnection:
            end.close()
            self._leave(run, end, "sent away")
        self._flush()

    def _on_failed(self, failure: Error) -> None:
        """Only one thing may keep a client out: the cluster has not noticed yet that its predecessor is gone."""
        if not self._client_id or not isinstance(failure, Misuse) or "client id" not in str(failure):
            raise Violation("clients are served", f"{self.name} was refused: {failure}")
        self.end(says_goodbye=False)
        self._streams.schedule.after(self._stream.uniform(*RECONNECT_S), self._start_again, self._run)

    def _start_again(self, run: int) -> None:
        if run == self._run:
            self.start()

    def _flush(self) -> None:
        if self._end is None:
            return
        for frame in self._take_output():
            if frame[TAG_PLACE] == ACKNOWLEDGE_TAG:
                said = native.decode_client(frame[native.LENGTH_BYTES :])
                if isinstance(said, Acknowledge):
                    consumer = key_of(self.core.connection, said.consumer)
                    self._book.wish(consumer, said.positions)
                    self._requests[said.request] = (consumer, said.positions)
            self._end.send(frame)

    def _take_output(self) -> list[bytes]:
        """All there is to say; a lane gives one frame at a time."""
        now_ms = int((UNIX_START_S + self._now) * 1000)
        frames = self.core.take_output(now_ms)
        while self.core.has_output:
            frames += self.core.take_output(now_ms)
        return [bytes(frame) for frame in frames]  # a real stream copies them too

    def _draw_s(self) -> float:
        return self._stream.expovariate(1.0) * (CALM_THINK_S if self.is_calm else THINK_S)

    # --- the program ---

    def _find_places(self) -> None:
        self._unsought = list(self._late)
        wanted = {*self._targets, *(reading.destination for reading in self._readings)} - {*self._late}
        for destination in sorted(name for name in wanted if not is_pattern(name)):
            self._find_place(destination)

    def _find_place(self, destination: str) -> None:
        def on_answer(answer: Answer | Error) -> None:
            if self.core.failure is not None:
                return  # of the whole connection
            if isinstance(answer, Error):
                raise Violation("clients are served", f"{self.name} cannot have {destination}: {answer}")
            place = self._places[destination] = self.core.remember_place(destination, answer)
            if destination in self._targets:
                session = self.core.open_session(AckMode.AUTO)
                self._outboxes[destination] = self.core.open_outbox(session, place, is_persistent=True)

        limit, drawn = self._max_lengths.get(destination, 0), self._policies.get(destination, Policy())
        kept = self._retained.get(destination, Policy())
        wanted = msgspec.structs.replace(
            drawn, max_length=limit, retain_s=kept.retain_s, retain_bytes=kept.retain_bytes
        )
        policy = b"" if wanted == Policy() else msgspec.msgpack.encode(wanted)
        self.core.request(lambda number: Resolve(number, destination, policy=policy), on_answer)

    def _act(self) -> None:
        if self._unsought and (self.is_calm or self._stream.random() < LATE_SHARE):
            self._find_place(self._unsought.pop())
        if not self.is_calm:
            for destination in self._targets:
                if self._stream.random() < 0.5:
                    for _ in range(self._stream.randint(1, BURST_MAX)):
                        self._send(destination)
        if self.streams:
            self._pouring.step(self._places, self._targets, self._now, is_calm=self.is_calm)
        for consumer in self._consumers:
            self._consume(consumer)

    def _send(self, destination: str) -> None:
        outbox = self._outboxes.get(destination)
        if outbox is not None:
            producer = key_of(self.core.connection, outbox.number)
            token = self._book.send(destination, producer, outbox.counter + 1, self._now)
            if destination in self._policies:
                message = Packed(token, key=self._stream.choice(KEYS))
                outbox.add(Parcel(self._places[destination], flags_of(message), 0, pack_message(message)))
            else:
                outbox.add_plain(pack_body(token))

    def _look_at_outboxes(self) -> None:
        for outbox in self._outboxes.values():
            if (refusal := outbox.take_refusal()) is not None:
                raise Violation("clients are served", f"{self.name} has messages refused: {refusal}")
            producer = key_of(self.core.connection, outbox.number)
            for counter in range(outbox.confirmed, 0, -1):
                if self._book.by_counter[producer, counter].is_confirmed:
                    break
                self._book.confirm(producer, counter)

    def _consume(self, consumer: _Consumer) -> None:
        inbox = consumer.inbox
        if inbox is not None and not inbox.is_open and not consumer.is_busy:
            consumer.inbox, consumer.kept = None, []
        elif consumer.is_busy:
            return
        elif inbox is None:
            self._open(consumer)
        elif not self.is_calm and self._stream.random() < 0.02:
            self._close(consumer, inbox)
        elif not self._pouring.is_reading(inbox):
            if isinstance(inbox, Inbox):
                self._regulate(inbox)
            self._take(consumer, inbox)
            self._decide(consumer, inbox)

    def _regulate(self, inbox: Inbox) -> None:
        """Now and then a program has more than it can use, however little that is."""
        is_blocked = not self.is_calm and self._stream.random() < 0.1
        if is_blocked is not inbox.is_blocked:
            inbox.is_blocked = is_blocked
            inbox.on_stir()

    def _open(self, consumer: _Consumer) -> None:
        reading = consumer.reading
        place = self._places.get(reading.destination)
        if place is None and not is_pattern(reading.destination):
            return

        def on_answer(answer: Answer | Error) -> None:
            consumer.is_busy = False
            if isinstance(answer, Error):
                self._tell(self.name, f"cannot receive from {reading.destination}: {answer}")
                consumer.inbox = None
            for inbox in consumer.inboxes():
                self._book.cover(reading.source(self._client_id, inbox.destination), self._now)

        consumer.is_busy = True
        consumer.kept = []
        if place is None:
            wish = ConsumePattern(
                0,
                0,
                0,
                reading.destination,
                reading.prefetch,
                subscription=reading.subscription,
                is_durable=bool(reading.subscription),
                is_shared=reading.is_shared,
            )
            consumer.inbox = self.core.patterns.open(consumer.session, wish, on_answer)
            return
        consume = Consume(
            0,
            0,
            0,
            place,
            reading.prefetch,
            subscription=reading.subscription,
            is_durable=bool(reading.subscription),
            is_shared=reading.is_shared,
        )
        consumer.inbox = self.core.open_inbox(consumer.session, consume, reading.destination, on_answer)
        self._look_at_inboxes()

    def _look_at_inboxes(self) -> None:
        """Notes consumers that begin; those of patterns do so when the server says it."""
        for consumer in self._consumers:
            for inbox in consumer.inboxes():
                key = key_of(self.core.connection, inbox.number)
                if key not in self._book.sources:
                    source = consumer.reading.source(self._client_id, inbox.destination)
                    self._book.open(key, source)
                    if source == inbox.destination:
                        self._book.cover(source, self._now)  # a queue gives all that it ever got

    def _close(self, consumer: _Consumer, inbox: Inbox) -> None:
        def on_answer(answer: Answer | Error) -> None:
            consumer.is_busy = False
            consumer.inbox = None

        consumer.is_busy = True
        consumer.kept = []
        self.core.close_inbox(inbox, on_answer)

    def _take(self, consumer: _Consumer, inbox: Inbox) -> None:
        taken = inbox.take(self._stream.randint(0, TAKE_MAX))
        for message in taken:
            arrival = message._arrival
            is_streamed = message.size is not None
            source = consumer.reading.source(self._client_id, message.destination)
            token = self._pouring.read(arrival.keeper, source, message) if is_streamed else message.body
            self._book.receive(
                Receipt(
                    source,
                    message.destination,
                    key_of(self.core.connection, arrival.keeper.number),
                    token,
                    arrival.position + message._index,
                    arrival.delivery_count,
                    arrival.producer,
                    arrival.counter + message._index,
                )
            )
        consumer.kept += taken

    def _decide(self, consumer: _Consumer, inbox: Inbox) -> None:
        kept, draw = consumer.kept, self._stream.random
        match inbox.mode:
            case AckMode.CLIENT:
                if kept and (self.is_calm or draw() < 0.5):
                    kept[-1].acknowledge()
                    kept.clear()
                elif not self.is_calm and draw() < 0.1:
                    consumer.session.recover()
                    kept.clear()
            case AckMode.INDIVIDUAL:
                still = []
                for message in kept:
                    choice = 0.0 if self.is_calm else draw()
                    if choice < 0.7:
                        message.acknowledge()
                    elif choice < 0.8:
                        message.reject()
                    elif choice < 0.83:
                        source = consumer.reading.source(self._client_id, message.destination)
                        self._book.dead.add((source, message._arrival.position + message._index))
                        message.reject(requeue=False)
                    else:
                        still.append(message)
                consumer.kept = still
            case _:
                kept.clear()
                if not self.is_calm and draw() < 0.03:
                    inbox.unhand()
