"""A broker for tests of the client library: queues in memory behind real loopback TCP, spoken to at the native door.

It keeps what a real cluster keeps across streams: connections by id, producers' counters, who holds what. It can cut a
stream at a chosen frame, before or after the frame had its effect. FIFO queues only; selectors are ignored.
"""

import asyncio
import threading
from collections.abc import Callable, Container, Coroutine
from typing import Any

import msgspec

from alphorn.doors.native import VERSION, decode_client, encode
from alphorn.io.streams import FrameStream
from alphorn.model import conversation as c
from alphorn.model.commands import key_of
from alphorn.model.messages import Flag, headers_of
from alphorn.model.ranges import RangeSet

_decode_batch = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_encode_batch = msgspec.msgpack.Encoder().encode
GIVEN_UP = "Unavailable", "it belongs to a body that was given up; send it again from the beginning"


class Stored:
    def __init__(self, raw: bytes, producer: bytes, counter: int, timestamp: int) -> None:
        self.raw, self.producer, self.counter, self.timestamp = raw, producer, counter, timestamp
        self.delivery_count = 1


class Queue:
    def __init__(self, name: str, place: int) -> None:
        self.name, self.place = name, place
        self.stored: dict[int, Stored] = {}
        self.available: set[int] = set()
        self.next_position = 1
        self.dead: list[Stored] = []


class Holder:
    """A consumer, across streams."""

    def __init__(self, key: bytes, number: int, queue: Queue) -> None:
        self.key, self.number, self.queue = key, number, queue
        self.held: set[int] = set()
        self.prefetch = 0
        self.stream: Stream | None = None


class Stream:
    """One client on one TCP connection."""

    def __init__(self, broker: "Broker", frames: FrameStream) -> None:
        self.broker, self.frames = broker, frames
        self.connection = b""
        self.port = frames._transport.get_extra_info("sockname")[1]

    def send(self, frame: c.ServerFrame) -> None:
        name = type(frame).__name__
        if self.broker.is_cut(f"send {name}"):
            self.frames.abort("cut")
            return
        self.broker.said.append(frame)
        if self.frames.is_open:
            self.frames.send(encode(frame))
            self.frames.flush()
        if self.broker.is_cut(f"sent {name}"):
            self.frames.abort("cut")


class Broker:
    """`with Broker() as broker: alphorn.connect(broker.url)`."""

    def __init__(self, ports: int = 1) -> None:
        self._ports = ports
        self.queues: dict[str, Queue] = {}
        self.counters: dict[bytes, RangeSet] = {}
        self.holders: dict[bytes, Holder] = {}
        self.streams: list[Stream] = []
        self.heard: list[c.ClientFrame] = []
        self.said: list[c.ServerFrame] = []
        self.page_rows = 1000  # destinations in one answer about the state
        self.nodes: list[dict[str, str]] = []  # in its status
        self.hidden: Container[int] = ()  # positions that browsers are not shown
        self.refusals: dict[str, tuple[str, str]] = {}  # destination: error, reason
        self.is_confirming = True
        self.is_welcoming = True
        self.disowns = False  # whoever comes back
        self.forgets = False
        self.known: set[tuple[int, int]] = set()  # like Client Managers, each port knows only what it was asked for
        self.sealed: dict[tuple[bytes, int], list[bytes]] = {}  # fragments by the message that they are the body of
        self._pieces: dict[bytes, list[bytes]] = {}  # those of bodies that are not whole yet
        self._transactions: dict[tuple[bytes, int], tuple[int, list[str]]] = {}  # of each session the last, and why not
        self._unconfirmed: list[Callable[[], None]] = []
        self._cuts: dict[str, int] = {}
        self._next_connection = 1
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> "Broker":
        self._thread.start()
        self.addresses = [self._run(self._listen()) for _ in range(self._ports)]
        self.url = f"alphorn://{self.addresses[0]}"
        return self

    def __exit__(self, *exception: object) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def cut(self, when: str, number: int = 1) -> None:
        """Cuts the stream at the number-th "hear X", "heard X", "send X" or "sent X" from now (before, after)."""
        self._cuts[when] = number

    def is_cut(self, when: str) -> bool:
        left = self._cuts.get(when, 0)
        if left:
            self._cuts[when] = left - 1
        return left == 1

    def cut_all(self) -> None:
        """Cuts every stream now."""
        self.call(lambda: [stream.frames.abort("cut") for stream in list(self.streams)])

    def call(self, function: Callable[[], Any]) -> Any:
        """Runs something in the broker's thread."""

        async def run() -> Any:
            return function()

        return self._run(run())

    def confirm(self) -> None:
        """Confirms what `is_confirming = False` held back, and everything from now on."""

        def release() -> None:
            self.is_confirming = True
            waiting, self._unconfirmed = self._unconfirmed, []
            for confirm in waiting:
                confirm()

        self.call(release)

    def fill(self, name: str, reason: str = "it is full") -> None:
        """Lets every client hear that a queue takes nothing, or (without a reason) that it does again."""
        place = self.queue(name).place
        self.call(lambda: [stream.send(c.Flow([place], reason)) for stream in self.streams])

    def bodies(self, name: str) -> list[Any]:
        """What a queue holds, in order."""
        return self.call(
            lambda: [msgspec.msgpack.decode(stored.raw)[0] for _, stored in sorted(self.queues[name].stored.items())]
        )

    def frames(self, kind: type) -> list[Any]:
        """What clients said of this kind."""
        return self.call(lambda: [frame for frame in self.heard if isinstance(frame, kind)])

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _listen(self) -> str:
        server = await self._loop.create_server(self._accept, "127.0.0.1", 0)
        self._servers = [*getattr(self, "_servers", []), server]
        host, port = server.sockets[0].getsockname()
        return f"{host}:{port}"

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        for stream in list(self.streams):
            stream.frames.abort("over")
        while self.streams:  # noqa: ASYNC110 - what is waited for has no event to wait on
            await asyncio.sleep(0)

    def _accept(self) -> FrameStream:
        streams: list[Stream] = []

        def on_open(frames: FrameStream) -> None:
            streams.append(Stream(self, frames))
            self.streams.append(streams[0])

        def on_closed(frames: FrameStream, reason: str) -> None:
            self.streams.remove(streams[0])
            for holder in self.holders.values():
                if holder.stream is streams[0]:
                    holder.stream = None

        return FrameStream(
            on_frames=lambda frames, data: self._on_frames(streams[0], data),
            on_closed=on_closed,
            on_open=on_open,
            frame_bytes_max=c.FRAME_BYTES_MAX,
        )

    def _on_frames(self, stream: Stream, data: list[memoryview]) -> None:
        for part in data:
            frame = decode_client(bytes(part))
            name = type(frame).__name__
            if self.is_cut(f"hear {name}"):
                stream.frames.abort("cut")
            if not stream.frames.is_open or stream.frames._transport.is_closing():
                return
            self.heard.append(frame)
            getattr(self, f"on_{name.lower()}")(stream, frame)
            self._dispatch()
            if self.is_cut(f"heard {name}"):
                stream.frames.abort("cut")
                return

    # What clients say.

    def on_hello(self, stream: Stream, frame: c.Hello) -> None:
        if frame.password == "wrong":
            stream.send(c.Goodbye("AccessDenied", f"user {frame.user} may not connect"))
            return
        if not self.is_welcoming:
            return
        stream.connection = frame.connection
        if not frame.connection or self.forgets:
            stream.connection = self._next_connection.to_bytes(16, "big")
            self._next_connection += 1
        secret = stream.connection[::-1] * 2
        if frame.connection == stream.connection and (self.disowns or frame.secret != secret):
            stream.send(c.Goodbye("AccessDenied", "who goes on with a connection says its secret"))
        else:
            stream.send(c.Welcome(VERSION, stream.connection, "broker", self.addresses, secret=secret))

    def on_resolve(self, stream: Stream, frame: c.Resolve) -> None:
        if frame.destination in self.refusals:
            stream.send(c.Failed(frame.request, *self.refusals[frame.destination]))
            return
        place = self.queue(frame.destination).place
        self.known.add((stream.port, place))
        stream.send(c.Resolved(frame.request, place, frame.destination))

    def on_opensession(self, stream: Stream, frame: c.OpenSession) -> None:
        pass

    def on_closesession(self, stream: Stream, frame: c.CloseSession) -> None:
        for consume in self.heard:
            if isinstance(consume, c.Consume) and consume.session == frame.session:
                self._end_holder(key_of(stream.connection, consume.consumer))
        stream.send(c.Done(frame.request))

    def on_publish(self, stream: Stream, frame: c.Publish) -> None:
        refusal, last = self.refusals.get(self._at(frame.place).name), frame.counter + frame.count - 1
        if frame.flags & Flag.STREAM:
            [header], pieces = headers_of(frame.blob), self._pieces.get(key_of(stream.connection, frame.producer), [])
            if header.stream is not None and header.stream.fragments != len(pieces):
                refusal = refusal or GIVEN_UP
        if refusal is not None:
            self._count(stream, frame, frame.count)
            stream.send(c.Refused(frame.producer, frame.counter, frame.count, *refusal))
            return
        self._store(stream, frame)
        if self.is_confirming:
            stream.send(c.Confirmed(frame.producer, last))
        else:
            self._unconfirmed.append(lambda: stream.send(c.Confirmed(frame.producer, last)))

    def on_committransaction(self, stream: Stream, frame: c.CommitTransaction) -> None:
        session = stream.connection, frame.session
        counter, why_not = self._transactions.get(session, (0, []))
        if frame.counter > counter:
            names = [self._at(publish.place).name for publish in frame.publishes]
            why_not = [self.refusals[name][1] for name in names if name in self.refusals]
            self._transactions[session] = frame.counter, why_not
            for publish in frame.publishes:
                if publish.counter > 1:  # those before may have been rolled back, which no server hears of
                    self._seen(stream, publish).add(1, publish.counter - 1)
                if why_not:
                    self._count(stream, publish, publish.count)
                else:
                    self._store(stream, publish)
            for consumer, _, positions in frame.consumed:
                self._settle(self.holders[key_of(stream.connection, consumer)], positions, is_done=not why_not)
        answer = c.Failed(frame.request, "TransactionRolledBack", why_not[0]) if why_not else c.Done(frame.request)
        if self.is_confirming:
            stream.send(answer)
        else:
            self._unconfirmed.append(lambda: stream.send(answer))

    def on_sendfragment(self, stream: Stream, frame: c.SendFragment) -> None:
        pieces = self._pieces.setdefault(key_of(stream.connection, frame.producer), [])
        refusal = self.refusals.get(self._at(frame.place).name)
        if self._count(stream, frame) and not refusal:
            if frame.index in (0, len(pieces)):
                pieces[frame.index :] = [bytes(frame.blob)]
            else:
                refusal = GIVEN_UP
        if refusal is None:
            stream.send(c.Confirmed(frame.producer, frame.counter))
        else:
            pieces.clear()
            stream.send(c.Refused(frame.producer, frame.counter, 1, *refusal))

    def on_abandonstream(self, stream: Stream, frame: c.AbandonStream) -> None:
        self._count(stream, frame)
        stream.send(c.Confirmed(frame.producer, frame.counter))

    def on_readfragment(self, stream: Stream, frame: c.ReadFragment) -> None:
        stream.send(c.FragmentRead(frame.request, memoryview(self.sealed[frame.producer, frame.counter][frame.index])))

    def on_retire(self, stream: Stream, frame: c.Retire) -> None:
        for number in set(range(1, frame.through + 1)) - set(frame.used):
            self.counters.pop(key_of(stream.connection, number), None)

    def on_consume(self, stream: Stream, frame: c.Consume) -> None:
        queue = self._at(frame.place)
        if (stream.port, frame.place) not in self.known:
            stream.send(c.Failed(frame.request, "InvalidDestination", "this destination is gone; resolve it anew"))
            return
        if frame.selector == "nonsense":
            stream.send(c.Failed(frame.request, "InvalidSelector", "nonsense is no selector"))
            return
        key = key_of(stream.connection, frame.consumer)
        holder = self.holders.setdefault(key, Holder(key, frame.consumer, queue))
        holder.stream, holder.prefetch = stream, frame.prefetch
        claimed = positions_of(frame.held)
        for position in holder.held - claimed:
            self._give_back(holder, position)
        holder.held |= claimed & queue.available
        queue.available -= claimed
        stream.send(c.Done(frame.request))

    def on_consumepattern(self, stream: Stream, frame: c.ConsumePattern) -> None:
        stream.send(c.Done(frame.request))  # nothing ever joins

    def on_closepattern(self, stream: Stream, frame: c.ClosePattern) -> None:
        stream.send(c.Done(frame.request))

    def on_acknowledge(self, stream: Stream, frame: c.Acknowledge) -> None:
        self._settle(self.holders[key_of(stream.connection, frame.consumer)], frame.positions)
        stream.send(c.Done(frame.request))

    def on_return(self, stream: Stream, frame: c.Return) -> None:
        holder = self.holders[key_of(stream.connection, frame.consumer)]
        for position in positions_of(frame.positions) & holder.held:
            if frame.is_dead:
                holder.held.discard(position)
                holder.queue.dead.append(holder.queue.stored.pop(position))
            else:
                self._give_back(holder, position, is_counted=not frame.is_unseen)
        stream.send(c.Done(frame.request))

    def on_recover(self, stream: Stream, frame: c.Recover) -> None:
        holder = self.holders[key_of(stream.connection, frame.consumer)]
        for position in holder.held - positions_of(frame.seen):
            self._give_back(holder, position, is_counted=False)
        for position in positions_of(frame.seen) & holder.held:
            self._give_back(holder, position)
        stream.send(c.Done(frame.request))

    def on_closeconsumer(self, stream: Stream, frame: c.CloseConsumer) -> None:
        self._end_holder(key_of(stream.connection, frame.consumer))
        stream.send(c.Done(frame.request))

    def on_unsubscribe(self, stream: Stream, frame: c.Unsubscribe) -> None:
        if frame.name in self.refusals:
            stream.send(c.Failed(frame.request, *self.refusals[frame.name]))
        else:
            self.refusals[frame.name] = ("InvalidDestination", f"there is no subscription {frame.name}")
            stream.send(c.Done(frame.request))

    def on_browse(self, stream: Stream, frame: c.Browse) -> None:
        queue = self._at(frame.place)
        positions = sorted(position for position in queue.stored if position >= frame.start)[: frame.maximum]
        for position in positions:
            if position not in self.hidden:
                stream.send(self._delivered(0, queue, [position]))
        stream.send(c.Done(frame.request, positions[-1] + 1 if positions else 0))

    def on_administer(self, stream: Stream, frame: c.Administer) -> None:
        if frame.action == "delete" and frame.destination not in self.queues:
            stream.send(c.Failed(frame.request, "InvalidDestination", f"there is no {frame.destination}"))
            return
        queue, count = self.queue(frame.destination), 0
        if frame.action == "purge":
            count = len(queue.stored)
            queue.stored.clear()
            queue.available.clear()
        if frame.action == "delete":
            del self.queues[frame.destination]
            for holder in self.holders.values():
                if holder.queue is queue and holder.stream is not None:
                    reason = f"{frame.destination} was deleted"
                    holder.stream.send(c.ConsumerClosed(holder.number, "InvalidDestination", reason))
        stream.send(c.Done(frame.request, count))

    def on_status(self, stream: Stream, frame: c.Status) -> None:
        destinations = [{"name": name, "depth": len(queue.stored)} for name, queue in self.queues.items()]
        first, last = frame.cursor, frame.cursor + self.page_rows
        state: dict[str, Any] = {"destinations": destinations[first:last]} | ({} if first else {"nodes": self.nodes})
        cursor = last if last < len(destinations) else 0
        stream.send(c.StatusAnswer(frame.request, msgspec.json.encode(state), cursor))

    def on_ping(self, stream: Stream, frame: c.Ping) -> None:
        stream.send(c.Pong())

    def on_close(self, stream: Stream, frame: c.Close) -> None:
        for key in [key for key in self.holders if key.startswith(stream.connection)]:
            self._end_holder(key)

    # Inside.

    def _count(self, stream: Stream, frame: c.Publish | c.SendFragment | c.AbandonStream, count: int = 1) -> range:
        """Which of a producer's counters are new."""
        seen = self._seen(stream, frame)
        assert frame.counter == 1 or frame.counter - 1 in seen, "a gap between counters"
        first = next((each for each in range(frame.counter, frame.counter + count) if each not in seen), 0)
        seen.add(frame.counter, frame.counter + count - 1)
        return range(first or frame.counter + count, frame.counter + count)

    def _seen(self, stream: Stream, frame: c.Publish | c.SendFragment | c.AbandonStream) -> RangeSet:
        return self.counters.setdefault(key_of(stream.connection, frame.producer), RangeSet())

    def _store(self, stream: Stream, frame: c.Publish) -> None:
        queue, key = self._at(frame.place), key_of(stream.connection, frame.producer)
        raws = _decode_batch(frame.blob)
        assert len(raws) == frame.count
        for counter in self._count(stream, frame, frame.count):
            raw = bytes(raws[counter - frame.counter])
            queue.stored[queue.next_position] = Stored(raw, key, counter, frame.timestamp)
            queue.available.add(queue.next_position)
            queue.next_position += 1
            self.sealed[key, counter] = self._pieces.pop(key, [])

    def _settle(self, holder: Holder, positions: list[int], *, is_done: bool = True) -> None:
        for position in positions_of(positions) & holder.held:
            if is_done:
                holder.held.discard(position)
                del holder.queue.stored[position]
            else:
                self._give_back(holder, position)

    def queue(self, name: str) -> Queue:
        if name not in self.queues:
            self.queues[name] = Queue(name, len(self.queues) + 1)
        return self.queues[name]

    def _at(self, place: int) -> Queue:
        return next(queue for queue in self.queues.values() if queue.place == place)

    def _end_holder(self, key: bytes) -> None:
        holder = self.holders.pop(key, None)
        if holder is not None:
            for position in list(holder.held):
                self._give_back(holder, position)

    def _give_back(self, holder: Holder, position: int, *, is_counted: bool = True) -> None:
        holder.held.discard(position)
        holder.queue.stored[position].delivery_count += is_counted
        holder.queue.available.add(position)

    def _dispatch(self) -> None:
        for holder in list(self.holders.values()):
            room = holder.prefetch - len(holder.held)
            if holder.stream is None or room <= 0 or not holder.queue.available:
                continue
            run: list[int] = []
            for position in sorted(holder.queue.available)[:room]:
                if run and not self._follows(holder.queue, run[-1], position):
                    self._deliver(holder, run)
                    run = []
                run.append(position)
            self._deliver(holder, run)

    def _follows(self, queue: Queue, one: int, other: int) -> bool:
        a, b = queue.stored[one], queue.stored[other]
        return (other, b.producer, b.counter, b.delivery_count) == (
            one + 1,
            a.producer,
            a.counter + 1,
            a.delivery_count,
        )

    def _deliver(self, holder: Holder, run: list[int]) -> None:
        holder.queue.available -= set(run)
        holder.held |= set(run)
        if holder.stream is not None:
            holder.stream.send(self._delivered(holder.number, holder.queue, run))

    def _delivered(self, consumer: int, queue: Queue, run: list[int]) -> c.Delivered:
        first = queue.stored[run[0]]
        blob = _encode_batch([msgspec.Raw(queue.stored[position].raw) for position in run])
        batch = first.producer, first.counter, first.timestamp, b"", memoryview(blob)
        return c.Delivered(consumer, run[0], first.delivery_count, run[0] + 100, 0, *batch)


def positions_of(flat: list[int]) -> set[int]:
    """The numbers of flat pairs."""
    return {number for first, last in RangeSet.from_flat(flat) for number in range(first, last + 1)}
