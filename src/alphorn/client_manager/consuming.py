"""Messages to clients: consumers attach at the primary, deliveries come by reference, bodies from the receive cache.

A consumer's deliveries reach its client in the order in which the primary gave them. Where a batch is not in the cache
it is fetched from a backup, and what came later for the same consumer waits behind it.
"""

from collections.abc import Callable

from alphorn.client_manager.connection import Connection, Consumer
from alphorn.client_manager.desk import Desk
from alphorn.client_manager.directory import parts_of
from alphorn.model import commands, link
from alphorn.model.conversation import (
    Acknowledge,
    CloseConsumer,
    Consume,
    ConsumerClosed,
    Delivered,
    Done,
    Failed,
    Return,
)
from alphorn.model.destinations import DestinationKind, Policy
from alphorn.model.errors import Misuse, PeerViolation
from alphorn.model.messages import cut_batch
from alphorn.model.ranges import RangeSet

FETCH_MAX = 64  # entries asked for at a time


class Consuming:
    """All consumers of all clients."""

    __slots__ = ("_desk", "_fetches", "_fetching", "delivered")

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._fetching: dict[tuple[int, int], list[Consumer]] = {}  # channel and sequence → who waits
        self._fetches: dict[tuple[int, int], tuple[str, list[int]]] = {}  # channel and request → whom, what
        self.delivered = 0

    # --- beginning and ending ---

    def on_consume(self, connection: Connection, frame: Consume) -> None:
        """A consumer begins, or goes on after a reconnection."""
        desk, number = self._desk, frame.consumer
        if frame.session not in connection.sessions or number in connection.consumers:
            raise PeerViolation(f"consumer {number} is open already, or session {frame.session} is not")
        channel, destination = parts_of(frame.place)
        if not 0 <= channel < len(desk.channels):
            raise PeerViolation(f"no destination has the place {frame.place}; resolve its name first")
        key = commands.key_of(connection.id, number)
        consumer = Consumer(
            number=number,
            key=key,
            stream=connection.stream,
            session=frame.session,
            place=frame.place,
            channel=channel,
            destination=destination,
        )
        consumer.prefetch = max(1, frame.prefetch)
        consumer.request = frame.request
        consumer.held = RangeSet(zip(frame.held[::2], frame.held[1::2], strict=False))
        connection.consumers[number] = desk.consumers[key] = consumer
        self._begin(connection, consumer, frame)

    def _begin(self, connection: Connection, consumer: Consumer, frame: Consume) -> None:
        listed = self._desk.directory.at(frame.place)
        if listed is None:
            self._identify(connection, consumer, frame)
        elif listed.destination.kind is DestinationKind.TOPIC:
            self._subscribe(connection, consumer, frame)
        else:
            consumer.selector = frame.selector
            self._attach(connection, consumer)

    def _identify(self, connection: Connection, consumer: Consumer, frame: Consume) -> None:
        """A client that comes from another Client Manager may consume what was never heard of here."""

        def on_answer(answer: link.Answered) -> None:
            if not self._is_current(connection, consumer):
                return
            if answer.error or answer.destination is None:
                self._forget(connection, consumer)
                self._desk.reply(connection.stream, Failed(frame.request, answer.error, answer.reason))
                return
            self._desk.directory.learn(frame.place, answer.destination, answer.policy or Policy())
            self._begin(connection, consumer, frame)

        def on_lost() -> None:
            if self._is_current(connection, consumer):
                self._identify(connection, consumer, frame)

        request = self._desk.channels[consumer.channel].ask(on_answer, lost=on_lost)
        self._desk.ask_primary(consumer.channel, link.Identify(request, consumer.destination))

    def _subscribe(self, connection: Connection, consumer: Consumer, frame: Consume) -> None:
        is_named = bool(frame.subscription)
        command = commands.Subscribe(
            destination=consumer.destination,
            name=frame.subscription,
            client=connection.client_id,
            consumer=consumer.key,
            selector=frame.selector,
            is_durable=frame.is_durable and is_named,
            is_shared=frame.is_shared,
            no_local=connection.id if frame.no_local else b"",
            start=frame.start,
            start_ms=frame.start_ms,
        )

        def on_answer(answer: link.Answered) -> None:
            if not self._is_current(connection, consumer):
                return
            if answer.error:
                self._forget(connection, consumer)
                self._desk.reply(connection.stream, Failed(frame.request, answer.error, answer.reason))
                return
            consumer.subscription = answer.number
            consumer.owns_subscription = not command.is_durable and not command.is_shared
            if is_named:
                connection.subscriptions[frame.subscription] = (consumer.channel, consumer.destination, answer.number)
            self._attach(connection, consumer)

        self._desk.channels[consumer.channel].request(command, on_answer)

    def _attach(self, connection: Connection, consumer: Consumer) -> None:
        """Asks the primary for messages; a primary that comes later is asked again."""
        early, consumer.early = consumer.early, []
        consumer.is_attached = True
        if self._desk.loose:
            self._desk.loose.hold(consumer)
        consumer.waiting.clear()
        channel = self._desk.channels[consumer.channel]

        def on_answer(answer: link.Answered) -> None:
            if not self._is_current(connection, consumer):
                return
            request, consumer.request = consumer.request, 0
            if answer.error:
                self._forget(connection, consumer)
            if request:
                self._answer(connection, request, answer)
            elif answer.error:
                self._desk.reply(connection.stream, ConsumerClosed(consumer.number, answer.error, answer.reason))

        number = channel.ask(on_answer)
        self._desk.ask_primary(
            consumer.channel,
            link.Attach(
                number,
                consumer.key,
                consumer.destination,
                consumer.subscription,
                consumer.selector,
                consumer.prefetch,
                consumer.claims(),
            ),
        )
        for act in early:
            act()

    def _answer(self, connection: Connection, request: int, answer: link.Answered) -> None:
        if answer.error:
            self._desk.reply(connection.stream, Failed(request, answer.error, answer.reason))
        else:
            self._desk.reply(connection.stream, Done(request, answer.number))

    def _is_current(self, connection: Connection, consumer: Consumer) -> bool:
        return self._desk.is_there(connection) and connection.consumers.get(consumer.number) is consumer

    def on_close(self, connection: Connection, frame: CloseConsumer) -> None:
        """A consumer ends; what it holds comes back."""
        consumer = connection.consumers.get(frame.consumer)
        if consumer is None:
            self._desk.fail(connection.stream, frame.request, Misuse(f"consumer {frame.consumer} is not open"))
            return
        self._once_attached(
            consumer,
            lambda: self.end(connection, consumer, lambda: self._desk.reply(connection.stream, Done(frame.request))),
        )

    def _once_attached(self, consumer: Consumer, act: Callable[[], None]) -> None:
        """Does something now, or as soon as it is known what the consumer consumes."""
        if consumer.is_attached:
            act()
        else:
            consumer.early.append(act)

    def end(self, connection: Connection, consumer: Consumer, then: Callable[[], None] = lambda: None) -> None:
        """Detaches a consumer for good; `then` is called when what it held has come back."""
        self._forget(connection, consumer)
        channel = self._desk.channels[consumer.channel]
        if consumer.owns_subscription:
            channel.want(commands.Unsubscribe(consumer.destination, consumer.subscription))
        if not consumer.is_attached:
            then()
            return
        request = channel.ask(lambda answer: then(), lost=then)
        self._desk.ask_primary(consumer.channel, link.Detach(request, consumer.key))

    def _forget(self, connection: Connection, consumer: Consumer) -> None:
        connection.consumers.pop(consumer.number, None)
        self._desk.consumers.pop(consumer.key, None)
        self._desk.loose.let_go(consumer)
        consumer.waiting.clear()

    # --- what clients say about messages they hold ---

    def on_acknowledge(self, connection: Connection, frame: Acknowledge) -> None:
        """Consumed messages go into the log as such."""
        consumer = self._holder(connection, frame.request, frame.consumer, frame.positions)
        if consumer is None:
            return
        self._once_attached(consumer, lambda: self._acknowledge(connection, consumer, frame))

    def _acknowledge(self, connection: Connection, consumer: Consumer, frame: Acknowledge) -> None:
        channel = self._desk.channels[consumer.channel]
        command = commands.Acknowledge(consumer.destination, consumer.subscription, consumer.key, frame.positions)
        if frame.request:
            channel.want(command, lambda: self._settled(connection, consumer, frame.request, frame.positions))
        elif not channel.join(command):
            # The list grows with what joins the command, so all of it is settled together.
            channel.want(command, lambda: consumer.settle(command.positions))

    def on_return(self, connection: Connection, frame: Return) -> None:
        """Messages come back, to be given out again or as dead."""
        consumer = self._holder(connection, frame.request, frame.consumer, frame.positions)
        if consumer is None:
            return
        self._once_attached(consumer, lambda: self._return(connection, consumer, frame))

    def _return(self, connection: Connection, consumer: Consumer, frame: Return) -> None:
        # Not claimed any more: a primary that has applied this already would keep it for this consumer for ever.
        consumer.settle(frame.positions)
        self._desk.loose.add(consumer, frame.positions)
        command = commands.Return(
            consumer.destination,
            consumer.subscription,
            consumer.key,
            frame.positions,
            frame.delay_ms,
            frame.is_dead,
        )
        self._desk.channels[consumer.channel].want(
            command, lambda: self._settled(connection, consumer, frame.request, frame.positions)
        )

    def _settled(self, connection: Connection, consumer: Consumer, request: int, positions: list[int]) -> None:
        consumer.settle(positions)
        if request:
            self._desk.reply(connection.stream, Done(request))

    def _holder(self, connection: Connection, request: int, number: int, positions: list[int]) -> Consumer | None:
        """The consumer, with these positions taken out of what it holds; None, and told so, when it has them not."""
        consumer = connection.consumers.get(number)
        if consumer is None:
            self._desk.fail(connection.stream, request, Misuse(f"consumer {number} is not open"))
            return None
        if len(positions) % 2 or any(a > b for a, b in zip(positions[::2], positions[1::2], strict=True)):
            raise PeerViolation("positions come in pairs, the first not after the last")
        held = consumer.held
        for first, last in zip(positions[::2], positions[1::2], strict=True):
            if held.intersection(first, last) != [(first, last)]:
                error = Misuse(f"consumer {number} does not hold all of the messages {first} to {last}")
                self._desk.fail(connection.stream, request, error)
                return None
        for first, last in zip(positions[::2], positions[1::2], strict=True):
            held.remove(first, last)
            consumer.settling.add(first, last)
        return consumer

    # --- deliveries ---

    def on_deliver(self, channel: int, frame: link.Deliver) -> None:
        """The primary gives out messages."""
        consumer = self._desk.consumers.get(frame.consumer)
        if consumer is None:
            return  # it has ended; the primary hears of that, and the messages come back
        for run in frame.runs:
            if consumer.waiting or not self._pass_on(channel, consumer, run):
                self._wait(channel, consumer, run)

    def _pass_on(self, channel: int, consumer: Consumer, run: link.DeliveredRun) -> bool:
        batch = self._desk.channels[channel].cache.find(run.sequence, run.command)
        if batch is None:
            return False
        consumer.held.add(run.position, run.position + run.count - 1)
        self.delivered += run.count
        self._desk.reply(consumer.stream, delivered(consumer.number, run, batch))
        return True

    def _wait(self, channel: int, consumer: Consumer, run: link.DeliveredRun) -> None:
        consumer.waiting.append(run)
        if self._desk.channels[channel].cache.find(run.sequence, run.command) is None:
            self._want(channel, consumer, run.sequence)

    def _want(self, channel: int, consumer: Consumer, sequence: int, *, avoid: str = "") -> None:
        """Fetches an entry, unless that is under way; whoever waits for it is in `_fetching` for just as long."""
        waiters = self._fetching.setdefault((channel, sequence), [])
        if consumer not in waiters:
            waiters.append(consumer)
        if len(waiters) == 1:
            self._fetch(channel, [sequence], avoid=avoid)

    def _fetch(self, channel: int, sequences: list[int], *, avoid: str = "") -> None:
        """Asks a backup, or the primary where there is none, but not who was asked in vain if there is another."""
        ground = self._desk.channels[channel]
        backups = sorted(ground.links - {ground.primary, avoid})
        whom = backups[sequences[0] % len(backups)] if backups else ground.primary
        if not whom:  # without any link all consumers attach again later, and get it again
            for sequence in sequences:
                self._fetching.pop((channel, sequence), None)
            return
        request = ground.number()
        self._fetches[(channel, request)] = (whom, sequences)
        self._desk.ask(channel, whom, link.Fetch(request, sequences))

    def on_entries(self, channel: int, frame: link.Entries) -> None:
        """Fetched log entries: what waited for them goes on."""
        ground = self._desk.channels[channel]
        whom, wanted = self._fetches.pop((channel, frame.request), ("", []))
        for sequence, payload in frame.entries:
            ground.cache.pin(sequence, bytes(payload))
        for sequence in wanted:
            for consumer in self._fetching.pop((channel, sequence), []):
                self._go_on(channel, consumer, avoid=whom)
            ground.cache.unpin(sequence)

    def _go_on(self, channel: int, consumer: Consumer, *, avoid: str) -> None:
        while consumer.waiting and self._pass_on(channel, consumer, consumer.waiting[0]):
            consumer.waiting.popleft()
        if consumer.waiting:
            self._want(channel, consumer, consumer.waiting[0].sequence, avoid=avoid)

    def on_link_lost(self, channel: int, name: str) -> None:
        """What was asked of a Message Manager that is gone is asked of another."""
        for key, (whom, sequences) in list(self._fetches.items()):
            if key[0] == channel and whom == name:
                del self._fetches[key]
                self._fetch(channel, sequences)

    def attach_all(self, channel: int) -> None:
        """A primary is there, or another one: every consumer of the channel attaches with what it holds."""
        for connection in self._desk.connections.values():
            for consumer in list(connection.consumers.values()):
                if consumer.channel == channel and consumer.is_attached:
                    self._attach(connection, consumer)

    def on_detached(self, frame: link.Detached) -> None:
        """The primary gives this consumer nothing any more."""
        consumer = self._desk.consumers.get(frame.consumer)
        connection = self._desk.connections.get(consumer.stream) if consumer is not None else None
        if consumer is not None and connection is not None:
            self._forget(connection, consumer)
            self._desk.reply(consumer.stream, ConsumerClosed(consumer.number, frame.error, frame.reason))

    def describe(self) -> dict[str, object]:
        """For people."""
        return {"consumers": len(self._desk.consumers), "delivered": self.delivered, "fetching": len(self._fetching)}


def delivered(number: int, run: link.DeliveredRun, batch: commands.Publish) -> Delivered:
    """What a client hears of a run; the batch is cut only where the run is not all of it."""
    is_whole = run.index == 0 and run.count == batch.count
    blob = batch.blob if is_whole else memoryview(cut_batch(batch.blob, range(run.index, run.index + run.count)))
    return Delivered(
        number,
        run.position,
        run.delivery_count,
        run.sequence,
        run.index,
        batch.producer,
        batch.counter + run.index,
        batch.timestamp,
        run.history,
        blob,
    )
