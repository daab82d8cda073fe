"""Messages to clients: consumers attach at the primary, deliveries come by reference, bodies from the receive cache.

A consumer's deliveries reach its client in the order in which the primary gave them. Where a batch is not in the cache
it comes with the log or is fetched from a backup, and what came later for the same consumer waits behind it.
"""

from collections.abc import Callable, Sequence
from functools import partial

from alphorn.client_manager.awaiting import Awaiting
from alphorn.client_manager.channel import bytes_of
from alphorn.client_manager.connection import Connection, Consumer
from alphorn.client_manager.desk import Desk
from alphorn.client_manager.directory import Listed
from alphorn.client_manager.finding import Finding
from alphorn.client_manager.limits import may_consume
from alphorn.client_manager.moving import Moving
from alphorn.client_manager.outflow import Outflow
from alphorn.client_manager.runs import delivered, pairs_of
from alphorn.client_manager.subscribing import claim, subscribe
from alphorn.model import commands, link, moving_link
from alphorn.model.conversation import (
    Acknowledge,
    CloseConsumer,
    Consume,
    ConsumerClosed,
    Done,
    Failed,
    Lapsed,
    Regulate,
    Return,
    parts_of,
)
from alphorn.model.destinations import DestinationKind, temporary_prefix
from alphorn.model.errors import InvalidDestination, Misuse, PeerViolation
from alphorn.model.ranges import RangeSet

PREFETCH_MAX = 1_000_000
ACKNOWLEDGE_S = 0.004  # so long an acknowledgement may wait to share a log entry with something else


class Consuming:
    """All consumers of all clients."""

    __slots__ = ("_desk", "_ending", "_finding", "_moving", "awaiting", "delivered", "outflow")

    def __init__(self, desk: Desk, finding: Finding, moving: Moving) -> None:
        self._desk = desk
        self._moving = moving
        moving.on_moved = self._on_moved
        self._finding = finding
        self.awaiting = Awaiting(desk, self._go_on)
        self.outflow = Outflow(desk, self._go_on)
        self._ending: dict[tuple[bytes, int], int] = {}  # connection and session → consumers that are not gone yet
        self.delivered = 0

    # --- beginning and ending ---

    def on_consume(self, connection: Connection, frame: Consume) -> None:
        """A consumer begins, or goes on after a reconnection."""
        if not may_consume(self._desk, connection, frame):
            return
        consumer = self._open(connection, frame)
        begin = partial(self._begin, connection, consumer, frame)
        self._moving.when(consumer.place, partial(self._finding.find, consumer.place, begin))

    def join(self, connection: Connection, frame: Consume, listed: Listed, on_begun: Callable[[], None]) -> None:
        """A consumer begins that no client asked for by itself; refused, it is closed. `on_begun` is called once."""
        if not may_consume(self._desk, connection, frame):
            on_begun()
            return
        consumer = self._open(connection, frame)
        consumer.on_begun = on_begun
        self._begin(connection, consumer, frame, listed)

    def _open(self, connection: Connection, frame: Consume) -> Consumer:
        desk, number = self._desk, frame.consumer
        if frame.session not in connection.sessions or number in connection.consumers:
            raise PeerViolation(f"consumer {number} is open already, or session {frame.session} is not")
        place = self._moving.current(frame.place)
        channel, destination = parts_of(place)
        if not 0 <= channel < len(desk.channels):
            raise PeerViolation(f"no destination has the place {frame.place}; resolve its name first")
        if not 0 <= number <= commands.NUMBER_MAX:
            raise PeerViolation(f"consumers have numbers from 0 to {commands.NUMBER_MAX}, and {number} is none")
        held = pairs_of(frame.held)
        key = commands.key_of(connection.id, number)
        consumer = Consumer(
            number=number,
            key=key,
            stream=connection.stream,
            session=frame.session,
            place=place,
            channel=channel,
            destination=destination,
        )
        consumer.prefetch = min(max(1, frame.prefetch), PREFETCH_MAX)
        consumer.request = frame.request
        consumer.held = RangeSet(held)
        desk.consumers[key] = consumer
        connection.add_consumer(consumer)
        return consumer

    def _begin(self, connection: Connection, consumer: Consumer, frame: Consume, listed: Listed | None) -> None:
        if not self.is_current(connection, consumer):
            return
        if listed is None:
            reason = "this destination is gone; resolve it anew"
            self._refuse(connection, consumer, Failed(frame.request, InvalidDestination.__name__, reason))
            return
        consumer.turn_to(listed.place, *parts_of(listed.place))
        found = listed.destination
        consumer.is_temporary = found.is_temporary
        if found.is_temporary and not found.name.startswith(temporary_prefix(connection.id)):
            reason = f"{found} belongs to another connection; only that one receives from it"
            self._refuse(connection, consumer, Failed(frame.request, InvalidDestination.__name__, reason))
        elif listed.destination.kind is DestinationKind.TOPIC:
            self._subscribe(connection, consumer, frame)
        else:
            consumer.selector = frame.selector
            self._enter(connection, consumer)

    def _enter(self, connection: Connection, consumer: Consumer) -> None:
        """It is known where the consumer belongs: what its client said of it meanwhile is done, and it attaches."""
        place = self._moving.current(consumer.place)
        consumer.turn_to(place, *parts_of(place))
        self._do_postponed(consumer)
        if self.is_current(connection, consumer):
            self.attach(connection, consumer)

    def _refuse(self, connection: Connection, consumer: Consumer, refusal: Failed) -> None:
        self._do_postponed(consumer)
        consumer.held = RangeSet()  # of nothing that is there
        self._forget(connection, consumer)
        if refusal.request:
            self._desk.reply(connection.stream, refusal)
        else:
            self._desk.reply(connection.stream, ConsumerClosed(consumer.number, refusal.error, refusal.reason))
        consumer.begin()

    @staticmethod
    def _do_postponed(consumer: Consumer) -> None:
        consumer.is_attached = True
        postponed, consumer.postponed = consumer.postponed, []
        for do in postponed:
            do()

    def _subscribe(self, connection: Connection, consumer: Consumer, frame: Consume) -> None:
        is_named = bool(frame.subscription)
        command = commands.Subscribe(
            destination=0,
            name=frame.subscription,
            client=connection.client_id,
            consumer=consumer.key,
            selector=frame.selector,
            is_durable=frame.is_durable and is_named,
            is_shared=frame.is_shared,
            no_local=connection.id if frame.no_local else b"",
            start=frame.start,
            start_ms=frame.start_ms,
            subscriptions_max=self._desk.settings.subscriptions_max,
        )

        def on_answer(answer: link.Answered) -> None:
            if not self.is_current(connection, consumer):
                return
            if answer.error:
                self._refuse(connection, consumer, Failed(frame.request, answer.error, answer.reason))
                return
            consumer.subscription = answer.number
            consumer.is_volatile = not command.is_durable
            self._enter(connection, consumer)

        is_current = partial(self.is_current, connection, consumer)
        if is_named:
            claim(self._desk, self._moving, consumer, command, on_answer, is_current=is_current)
        else:
            subscribe(self._moving, consumer, command, on_answer, is_current=is_current)

    def attach(self, connection: Connection, consumer: Consumer) -> None:
        """Asks the primary for messages; a primary that comes later is asked again."""
        if self._desk.loose:
            self._desk.loose.hold(consumer)
        consumer.waiting.clear()
        consumer.has_returned = False
        channel = self._desk.channels[consumer.channel]

        def on_answer(answer: link.Answered) -> None:
            if not self.is_current(connection, consumer) or self._desk.channels[consumer.channel] is not channel:
                return
            consumer.attaching = 0
            if answer.home is not None:
                self._follow(consumer, answer.home)
                return
            request, consumer.request = consumer.request, 0
            if answer.error:
                self._forget(connection, consumer)
            if answer.error == InvalidDestination.__name__:
                self._desk.directory.doubt(consumer.place)
            if request:
                self._answer(connection, request, answer)
            elif answer.error:
                self._desk.reply(connection.stream, ConsumerClosed(consumer.number, answer.error, answer.reason))
            consumer.begin()
            if not answer.error and consumer.must_attach_again:
                self.attach(connection, consumer)

        consumer.attaching = number = channel.ask(on_answer)
        self._desk.ask_primary(
            consumer.channel,
            link.Attach(
                number,
                consumer.key,
                consumer.destination,
                consumer.subscription,
                consumer.selector,
                consumer.prefetch if consumer.recovery is None else 0,
                consumer.claims(),
                connection.resumption,
                channel.heard,
            ),
        )
        self.outflow.attach(connection, consumer)

    def _follow(self, consumer: Consumer, home: moving_link.Home) -> None:
        """The destination has left before the consumer was attached."""
        redirect = self._moving.learn(consumer.place, home, is_silent=True)
        if redirect.is_done:
            self._on_moved([consumer], redirect.place)
        elif consumer not in redirect.consumers:
            self._moving.hold(redirect, consumer)

    def _on_moved(self, consumers: list[Consumer], place: int) -> list[tuple[int, list[int]]]:
        """A destination is at another place: its consumers go on there, with what they have.

        Gives what was on its way to them and cannot reach them any more.
        """
        unseen: list[tuple[int, list[int]]] = []
        for consumer in consumers:
            never = RangeSet((run.position, run.position + run.count - 1) for run in consumer.waiting)
            never.update(consumer.recovery or RangeSet())
            if never:
                unseen.append((consumer.subscription, never.flat()))
            connection = self._desk.connections.get(consumer.stream)
            if connection is not None and self.is_current(connection, consumer):
                self._enter(connection, consumer)
        return unseen

    def _answer(self, connection: Connection, request: int, answer: link.Answered) -> None:
        if answer.error:
            self._desk.reply(connection.stream, Failed(request, answer.error, answer.reason))
        else:
            self._desk.reply(connection.stream, Done(request, answer.number))

    def is_current(self, connection: Connection, consumer: Consumer) -> bool:
        """Whether a consumer is open and its client on the same stream."""
        return self._desk.is_there(connection) and connection.consumers.get(consumer.number) is consumer

    def on_close(self, connection: Connection, frame: CloseConsumer) -> None:
        """A consumer ends; what it holds comes back."""
        consumer = connection.consumers.get(frame.consumer)
        if consumer is None:
            self._desk.fail(connection.stream, frame.request, Misuse(f"consumer {frame.consumer} is not open"))
            return
        done = Done(frame.request)
        self.end(connection, consumer, lambda: self._desk.reply(connection.stream, done), frame.unseen)

    def end(
        self,
        connection: Connection,
        consumer: Consumer,
        then: Callable[[], None] = lambda: None,
        unseen: Sequence[int] = (),
    ) -> None:
        """Detaches a consumer for good; `then` is called when what it held has come back.

        Of what it holds, its program was never handed the `unseen`.

        First everything it said of its messages must be in the log, or the primary would give out again what the
        consumer has acknowledged.
        """
        never_handed = pairs_of(unseen)  # a violation must be found while its client is speaking
        if not consumer.is_attached:
            consumer.postponed.append(lambda: self.end(connection, consumer, then, unseen))
            return
        for first, last in never_handed:
            consumer.held.remove(first, last)
        self._forget(connection, consumer)
        consumer.begin()
        if consumer.is_volatile:

            def unsubscribe(number: int) -> commands.Unsubscribe:
                return commands.Unsubscribe(number, consumer.subscription, consumer.key)

            self._moving.want(consumer.place, unsubscribe)

        def detach() -> None:
            channel = self._desk.channels[consumer.channel]
            # A primary whose link broke may still have the consumer; any other one answers that it holds nothing.
            request = channel.ask(lambda answer: then(), lost=detach)
            self._desk.ask_primary(consumer.channel, link.Detach(request, consumer.key, consumer.held.flat()))

        if consumer.is_unheard:
            consumer.on_settled = detach
        else:
            detach()

    def _forget(self, connection: Connection, consumer: Consumer) -> None:
        connection.remove_consumer(consumer)
        self._desk.consumers.pop(consumer.key, None)
        self._desk.loose.let_go(consumer)
        consumer.waiting.clear()

    def on_regulate(self, connection: Connection, frame: Regulate) -> None:
        """A consumer can use no more at the moment, or again; one that has ended wants nothing."""
        consumer = connection.consumers.get(frame.consumer)
        if consumer is not None:
            self.outflow.regulate(connection, consumer, is_blocked=frame.is_blocked)

    # --- what clients say about messages they hold ---

    def on_acknowledge(self, connection: Connection, frame: Acknowledge) -> None:
        """Consumed messages go into the log as such."""
        consumer = self._holder(connection, frame.request, frame.consumer, frame.positions)
        if consumer is None:
            return
        if consumer.is_attached:
            self._acknowledge(connection, consumer, frame)
        else:
            consumer.postponed.append(lambda: self._acknowledge(connection, consumer, frame))

    def _acknowledge(self, connection: Connection, consumer: Consumer, frame: Acknowledge) -> None:
        channel, positions = self._desk.channels[consumer.channel], frame.positions

        def make(number: int) -> commands.Acknowledge:
            return commands.Acknowledge(number, consumer.subscription, consumer.key, positions)

        size, until = bytes_of(positions), self._desk.now + ACKNOWLEDGE_S if consumer.has_room else 0.0
        if frame.request:
            settled = partial(self._acknowledged, connection, consumer, frame.request, positions)
            self._moving.want(consumer.place, make, settled, size=size, until=until)
        elif not channel.join(make(consumer.destination), until=until):
            # The list grows with what joins the command, so all of it is settled together.
            self._moving.want(consumer.place, make, lambda: consumer.settle(positions), size=size, until=until)

    def on_return(self, connection: Connection, frame: Return) -> None:
        """Messages come back, to be given out again or as dead."""
        consumer = self._holder(connection, frame.request, frame.consumer, frame.positions)
        if consumer is None:
            return
        if consumer.is_attached:
            self._return(connection, consumer, frame)
        else:
            consumer.postponed.append(lambda: self._return(connection, consumer, frame))

    def _return(self, connection: Connection, consumer: Consumer, frame: Return) -> None:
        consumer.give_back(frame.positions)
        if not frame.is_unseen:
            self._desk.loose.add(consumer, frame.positions)
        settled = partial(self._returned, connection, consumer, frame.request, frame.positions)
        self._moving.want(
            consumer.place,
            lambda number: commands.Return(
                number,
                consumer.subscription,
                consumer.key,
                frame.positions,
                frame.delay_ms,
                frame.is_dead,
                frame.is_unseen,
            ),
            settled,
            size=bytes_of(frame.positions),
        )

    def return_consumed(
        self, connection: Connection, consumer: Consumer, positions: list[int], *, is_unseen: bool
    ) -> None:
        """What a transaction consumed comes back, because that was rolled back."""
        self._return(connection, consumer, Return(0, consumer.number, positions, is_unseen=is_unseen))

    def _acknowledged(self, connection: Connection, consumer: Consumer, request: int, positions: list[int]) -> None:
        consumer.settle(positions)
        self._desk.reply(connection.stream, Done(request))

    def _returned(self, connection: Connection, consumer: Consumer, request: int, positions: list[int]) -> None:
        consumer.come_back(positions)
        if consumer.must_attach_again and self.is_current(connection, consumer):
            self.attach(connection, consumer)
        if request:
            self._desk.reply(connection.stream, Done(request))

    def _holder(self, connection: Connection, request: int, number: int, positions: list[int]) -> Consumer | None:
        """The consumer, with these positions taken out of what it holds; None, and told so, when it has them not."""
        consumer = connection.consumers.get(number)
        if consumer is None:
            self._desk.fail(connection.stream, request, Misuse(f"consumer {number} is not open"))
            return None
        pairs = pairs_of(positions)
        held = consumer.held
        for first, last in pairs:
            if held.intersection(first, last) != [(first, last)]:
                error = Misuse(f"consumer {number} does not hold all of the messages {first} to {last}")
                self._desk.fail(connection.stream, request, error)
                return None
        for first, last in pairs:
            held.remove(first, last)
            consumer.settling.add(first, last)
        return consumer

    # --- deliveries ---

    def on_deliver(self, channel: int, frame: link.Deliver) -> None:
        """The primary gives out messages."""
        consumer = self._desk.consumers.get(frame.consumer)
        if consumer is None or consumer.channel != channel:
            return  # it has ended or turned elsewhere; the primary hears of that, and the messages come back
        if consumer.recovery is not None:
            for run in frame.runs:
                consumer.recovery.add(run.position, run.position + run.count - 1)
            return
        for run in frame.runs:
            if consumer.waiting or not self._pass_on(channel, consumer, run):
                self._wait(channel, consumer, run)

    def _pass_on(self, channel: int, consumer: Consumer, run: link.DeliveredRun) -> bool:
        if not self.outflow.may_pass(consumer):
            return False
        batch = self._desk.channels[channel].cache.find(run.sequence, run.command)
        if batch is None:
            return False
        consumer.held.add(run.position, run.position + run.count - 1)
        self.delivered += run.count
        frame = delivered(consumer.number, run, batch)
        self._desk.reply(consumer.stream, frame)
        if self._desk.auditing.covers(consumer.place):
            self._desk.auditing.delivered(consumer.place, consumer.subscription, consumer.key, frame)
        self.outflow.pass_on(consumer, len(frame.blob))
        return True

    def _wait(self, channel: int, consumer: Consumer, run: link.DeliveredRun) -> None:
        consumer.waiting.append(run)
        self._await(channel, consumer, run)

    def _await(self, channel: int, consumer: Consumer, run: link.DeliveredRun) -> None:
        """A batch that is here needs nobody to wait for it: it is looked for again when its turn comes.

        So is one for a client that takes nothing now.
        """
        cache = self._desk.channels[channel].cache
        if self.outflow.may_pass(consumer) and cache.find(run.sequence, run.command) is None:
            self.awaiting.wait(channel, run.sequence, consumer)

    def _go_on(self, consumer: Consumer) -> None:
        """Passes on what waits for a consumer, as far as it can be."""
        channel = consumer.channel
        while consumer.waiting and self._pass_on(channel, consumer, consumer.waiting[0]):
            consumer.waiting.popleft()
        if consumer.waiting:
            self._await(channel, consumer, consumer.waiting[0])

    def attach_all(self, channel: int) -> None:
        """A primary is there, or another one: every consumer of the channel attaches with what it holds."""
        for connection in self._desk.connections.values():
            for consumer in list(connection.consumers.values()):
                if consumer.channel == channel and consumer.is_attached:
                    self.attach(connection, consumer)

    def on_detached(self, frame: link.Detached) -> None:
        """The primary gives this consumer nothing any more."""
        consumer = self._desk.consumers.get(frame.consumer)
        connection = self._desk.connections.get(consumer.stream) if consumer is not None else None
        if consumer is not None and connection is not None:
            self.close(connection, consumer, frame.error, frame.reason)

    def on_lapsed(self, frame: link.Lapsed) -> None:
        """The time of messages that this consumer has is over: its client knows which of them its program has seen."""
        consumer = self._desk.consumers.get(frame.consumer)
        if consumer is not None:
            self._desk.reply(consumer.stream, Lapsed(consumer.number, frame.positions))

    def close(self, connection: Connection, consumer: Consumer, error: str, reason: str) -> None:
        """A consumer gets nothing any more; its client hears why, also while it still waits for the beginning."""
        self._forget(connection, consumer)
        if consumer.request:
            self._desk.reply(consumer.stream, Failed(consumer.request, error, reason))
        else:
            self._desk.reply(consumer.stream, ConsumerClosed(consumer.number, error, reason))
        consumer.begin()

    def describe(self) -> dict[str, object]:
        """For people."""
        return {
            "consumers": len(self._desk.consumers),
            "delivered": self.delivered,
            "fetched": self.awaiting.fetching.fetched,
            "waiting": len(self.awaiting),
            **self.outflow.describe(),
        }
