"""One flow of control with asyncio: `Session`, which makes producers and consumers."""

import asyncio
import datetime
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from alphorn.client import temporary, transactions
from alphorn.client.aio.consumer import Browser, Consumer
from alphorn.client.aio.line import AsyncLine
from alphorn.client.aio.listening import Listening
from alphorn.client.aio.places import Places
from alphorn.client.aio.producer import Producer, Receipt
from alphorn.client.choices import (
    PREFETCH_DEFAULT,
    DestinationLike,
    Source,
    check_destination,
    check_timeout,
    choose_consume,
    choose_pattern,
    choose_sending,
    named,
    pattern_of,
)
from alphorn.client.flow import SessionState
from alphorn.client.flushing import Flushing, give_up_at, log_fault, log_given_up
from alphorn.client.inbox import Inbox
from alphorn.client.message import Message
from alphorn.client.packing import check_text
from alphorn.client.refusals import again
from alphorn.client.replies import Replies
from alphorn.client.requests import OnAnswer
from alphorn.model.conversation import Consume, Unsubscribe
from alphorn.model.destinations import Destination, DestinationKind, parse_destination
from alphorn.model.errors import Blocked, Error, InvalidDestination, Misuse
from alphorn.model.messages import PRIORITY_DEFAULT
from alphorn.model.patterns import Pattern


class Session:
    """Producers and consumers that belong together, and one way of acknowledging.

    Sessions of one connection do not wait for each other. One task should use a session's consumers at a time.
    """

    def __init__(
        self, line: AsyncLine, places: Places, state: SessionState, on_closed: Callable[["Session"], None]
    ) -> None:
        self._line = line
        self._places = places
        self._state = state
        self._on_closed = on_closed
        self._listening = Listening(line)
        self._producers: list[Producer] = []
        self._consumers: list[Consumer] = []
        self._is_open = True  # takes something new
        self._is_closed = False  # has nothing left to close
        self._asking = asyncio.Lock()
        self._replies: Replies | None = None
        self._asker: Producer | None = None

    def __repr__(self) -> str:
        return f"<Session {self._state.number} ack={self._state.mode.value}>"

    async def __aenter__(self) -> "Session":
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        try:
            log_given_up(await self._end(until=give_up_at(time.monotonic(), is_failed=kind is not None)))
        except asyncio.CancelledError:
            if not self._line.is_closed:  # nobody else would end it, and it would keep what its consumers hold
                self._line.start_task(self._end_unheard(), "alphorn-session")
            raise

    async def _end_unheard(self) -> None:
        self._listening.cancel()
        with suppress(Error):
            log_given_up(await self._end(until=give_up_at(time.monotonic(), is_failed=True)))

    def __await__(self) -> Generator[Any, None, "Session"]:
        """Lets `await connection.session()` be written as well: a session is there at once."""
        yield from ()
        return self

    def queue(self, name: str) -> Destination:
        """The queue of this name, which exists from its first use on."""
        return named(DestinationKind.QUEUE, name)

    def topic(self, name: str) -> Destination:
        """The topic of this name, which exists from its first use on."""
        return named(DestinationKind.TOPIC, name)

    async def temporary_queue(self) -> Destination:
        """A new queue that lives as long as this connection."""
        self._check()
        return parse_destination(await self._places.make_temporary("queue"))

    async def temporary_topic(self) -> Destination:
        """A new topic that lives as long as this connection."""
        self._check()
        return parse_destination(await self._places.make_temporary("topic"))

    async def producer(
        self,
        destination: DestinationLike | None = None,
        *,
        persistent: bool = True,
        priority: int = PRIORITY_DEFAULT,
        ttl: float | None = None,
        delay: float | None = None,
        on_block: str = "wait",
    ) -> Producer:
        """Begins to send, to this destination or (without one) to that of each message.

        What is given here holds for all messages that do not say otherwise.
        """
        self._check()
        sending = choose_sending(persistent=persistent, priority=priority, ttl=ttl, delay=delay, on_block=on_block)
        name = check_destination(destination) if destination is not None else None
        place = await self._places.find(name) if name is not None else 0
        self._check()  # it may have been closed since
        outbox = self._line.core.open_outbox(self._state, place, is_persistent=sending.is_persistent, destination=name)
        producer = Producer(self._line, self._places, outbox, sending, name)
        self._producers = [known for known in self._producers if not known._is_closed]
        self._producers.append(producer)
        return producer

    async def consumer(
        self,
        destination: Source,
        *,
        selector: str | None = None,
        no_local: bool = False,
        prefetch: int = PREFETCH_DEFAULT,
        subscription: str | None = None,
        shared: bool = False,
        durable: bool = True,
        start: str | int | datetime.datetime = "new",
    ) -> Consumer:
        """Begins to receive. `prefetch` is how many messages may be here and not acknowledged.

        On topics: `subscription` names a subscription that stays when the consumer is gone (unless `durable=False`);
        `shared=True` lets several consumers share it; `start` is "new", "earliest", a sequence number or a datetime.

        `alphorn.glob` and `alphorn.regex` name many destinations at once, those that are created later included; then
        `prefetch` counts for each of them, and `message.destination` tells which it was.
        """
        self._check()
        choices: dict[str, Any] = {
            "selector": selector,
            "no_local": no_local,
            "prefetch": prefetch,
            "subscription": subscription,
            "shared": shared,
            "durable": durable,
            "start": start,
        }
        pattern = pattern_of(destination)
        inbox = (
            await self._open_pattern(pattern, choices)
            if pattern is not None
            else await self._open(destination, choices)
        )
        consumer = Consumer(self._line, inbox, self._listening)
        self._consumers = [known for known in self._consumers if known._inbox.is_open]
        self._consumers.append(consumer)
        return consumer

    async def _open_pattern(self, pattern: Pattern, choices: dict[str, Any]) -> Inbox:
        wish = choose_pattern(pattern, **choices)
        return await self._begin(partial(self._line.core.patterns.open, self._state, wish))

    async def _open(self, destination: Source, choices: dict[str, Any]) -> Inbox:
        name = check_destination(destination)
        consume = choose_consume(name, **choices)
        try:
            return await self._consume(consume, name)
        except InvalidDestination:
            # It may have been deleted since somebody here looked it up: looked up again, it is created anew.
            return await self._consume(consume, name)

    async def _consume(self, consume: Consume, name: str) -> Inbox:
        consume = msgspec.structs.replace(consume, place=await self._places.find(name))
        return await self._begin(partial(self._line.core.open_inbox, self._state, consume, name))

    async def _begin(self, wish: Callable[[OnAnswer], Inbox]) -> Inbox:
        def begin(on_answer: OnAnswer) -> Inbox:
            self._check()  # it may have been closed since
            return wish(on_answer)

        return await self._line.open_inbox(begin)

    async def browser(self, queue: DestinationLike, selector: str | None = None) -> Browser:
        """Looks at a queue without consuming: at what waits and what consumers hold, not at what is not due yet."""
        self._check()
        name = check_destination(queue)
        if parse_destination(name).kind is not DestinationKind.QUEUE:
            raise InvalidDestination(f"{name} is no queue; only queues can be browsed")
        check_text("selector", selector)
        return Browser(self._line, self._places, name, await self._places.find(name), selector or "")

    async def acknowledge(self) -> None:
        """Everything this session has received so far is consumed."""
        self._check_untransacted("commit() consumes what it has received")
        self._state.acknowledge()
        self._line.schedule()

    async def recover(self) -> None:
        """Everything that was received and not acknowledged comes again, in order, with `delivery_count` raised."""
        self._check_untransacted("rollback() returns what it has received")
        self._state.recover()
        self._line.schedule()

    async def commit(self) -> None:
        """Does all that this session sent and received since the last time, or nothing of it; then begins anew.

        Raises `TransactionRolledBack` when nothing was done: what was received comes again, with `delivery_count`
        raised. A lost connection is no reason: the outcome is found out on the next one. Raises `UnknownOutcome` only
        when the library had to give up, and `Misuse` in a session that is not transacted. Cancelled, it goes on: who
        ends the session's next transaction waits for that, and `commit` raises what became of it if it was not done.
        """
        await self._begin_to_end("there is nothing to commit")
        line, state = self._line, self._state
        now_ms = time.time_ns() // 1_000_000
        try:
            await line.await_answer(lambda on_answer: transactions.commit(line.core, state, now_ms, on_answer))
        except Error:
            transactions.note_told(state)
            raise

    async def rollback(self) -> None:
        """Drops what this session sent since the last commit; what it received comes again, `delivery_count` raised."""
        await self._begin_to_end("recover() returns what is not acknowledged")
        transactions.roll_back(self._line.core, self._state)
        self._line.schedule()

    async def _begin_to_end(self, hint: str) -> None:
        """A transaction whose end was cancelled is over before the next one ends."""
        self._check_transacted(hint)
        await self._await_committed()

    async def _await_committed(self) -> None:
        transaction, core = self._state.transaction, self._line.core
        if transaction is not None:
            await self._line.wait_for(lambda: not transaction.is_committing or core.failure is not None, None)

    async def unsubscribe(self, name: str) -> None:
        """Ends a named subscription; what it had not consumed is let go."""
        self._check()
        if not check_text("name", name):
            raise Misuse("unsubscribe needs the name of a subscription")
        await self._line.ask(lambda request: Unsubscribe(request, name), forgives=True)

    async def request(
        self, destination: DestinationLike, body: Any, timeout: float | None = None, **fields: Any
    ) -> Message:
        """Sends a message and waits for the answer to it, which the other side sends to its `reply_to`.

        Other fields are those of `send`. Raises `TimeoutError` when no answer came in time, be it because the
        destination was full and nothing was sent; an answer that comes later is dropped.
        """
        self._check_untransacted("a request would leave only with commit(); ask in another session")
        timeout = check_timeout(timeout)
        deadline = None if timeout is None else time.monotonic() + timeout
        async with self._asking:
            replies, asker = await self._prepare_replies()
        number = replies.expect()
        fields.pop("wait", None)  # it waits for more than that
        send = partial(
            asker.send, body, destination=destination, reply_to=replies.queue, correlation_id=number, **fields
        )
        try:
            receipt = await self._send_request(asker, destination, send, deadline)
            if receipt is None:
                raise TimeoutError(f"{destination} took nothing within {timeout} s; the request was not sent")
            outcome, counter = receipt._producer._outbox.outcome, receipt._counter
            await self._line.wait_for(
                lambda: replies.has(number) or isinstance(outcome(counter), Error), _left(deadline)
            )
            answer = replies.take(number)
        finally:
            replies.forget(number)
        if answer is not None:
            return answer
        if isinstance(outcome(counter), Error):
            await receipt.result()
        self._check()
        if replies.failure is not None:
            raise again(replies.failure)
        raise TimeoutError(f"no answer came from {destination} within {timeout} s")

    async def _prepare_replies(self) -> tuple[Replies, Producer]:
        """Where answers come, and who asks; that one never waits for room, which has a time of its own for each."""
        if self._asker is None or self._asker._has_failed:
            self._asker = await self.producer(on_block="raise")
        if self._replies is None:
            queue = await self._places.make_temporary("queue")
            try:
                inbox = await self._consume(choose_consume(queue, **_REPLY_CHOICES), queue)
            except BaseException:
                self._delete(queue)
                raise
            self._replies = Replies(inbox)
        return self._replies, self._asker

    async def _send_request(
        self,
        asker: Producer,
        destination: DestinationLike,
        send: Callable[[], Awaitable[Receipt]],
        deadline: float | None,
    ) -> Receipt | None:
        """None when there was no room in time."""
        while True:
            try:
                return await send()
            except Blocked:
                if not await asker._await_room(destination, _left(deadline)):
                    return None

    def _delete(self, queue: str) -> None:
        """A reply queue that nobody reads any more is deleted."""
        temporary.delete(self._line.core, queue)
        self._line.schedule()

    async def close(self) -> None:
        """Flushes the producers and ends the consumers; what was not acknowledged comes back. May be repeated.

        An open transaction is rolled back.
        """
        await self._end(until=None)

    async def _end(self, *, until: float | None) -> int:
        """After a failure of the program what is in hand was not used, and comes back as well.

        Then what is not confirmed `until` some time is given up; gives how many messages that were. Whoever is
        interrupted leaves the rest to the next one who closes the session, or its connection.
        """
        if self._is_closed:
            return 0
        self._is_open = False
        if until is not None:
            self._take_no_more()  # a listener that waits for room would wait without limit
        await self._listening.close()
        try:
            given_up = await self._close_parts(until) if self._line.core.failure is None else 0
        except Error:
            self._leave()
            raise
        self._leave()
        return given_up

    def _leave(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._on_closed(self)

    def _take_no_more(self) -> None:
        for producer in self._producers:
            if not producer._is_closed:
                producer._take_no_more()

    async def _close_parts(self, until: float | None) -> int:
        await self._await_committed()
        self._take_no_more()
        producers = [producer for producer in self._producers if not producer._is_closed]
        flushing = Flushing(outbox for producer in producers for outbox in producer._outboxes())
        await self._line.wait_for(lambda: flushing.is_done, _left(until))
        fault, given_up = flushing.take_fault(), flushing.unconfirmed

        def wish(on_answer: OnAnswer) -> None:
            if self._state.transaction is not None:
                transactions.drop_sent(self._state)
            for consumer in self._consumers:
                if until is not None:
                    consumer._inbox.unhand(is_closing=True)
                else:
                    consumer._inbox.finish()
            self._line.core.close_session(self._state, on_answer)

        try:
            await self._line.await_answer(wish)
        except Error as error:
            if not self._is_closed:  # by another, who may have closed the connection since
                fault = fault or error
        replies, self._replies = self._replies, None
        if replies is not None:
            self._delete(replies.queue)
        if fault is not None and until is None:
            raise again(fault)
        if fault is not None:
            log_fault(fault)
        return given_up

    def _check_transacted(self, hint: str) -> None:
        self._check()
        if self._state.transaction is None:
            raise Misuse(f"this session is not transacted; {hint}")

    def _check_untransacted(self, hint: str) -> None:
        self._check()
        if self._state.transaction is not None:
            raise Misuse(f"this session is transacted; {hint}")

    def _check(self) -> None:
        self._line.check()
        if not self._is_open:
            raise Misuse("this session is closed; make another with connection.session")


_REPLY_CHOICES: dict[str, Any] = {
    "selector": None,
    "no_local": False,
    "prefetch": PREFETCH_DEFAULT,
    "subscription": None,
    "shared": False,
    "durable": False,
    "start": "new",
}


def _left(deadline: float | None) -> float | None:
    """How much time there is until then."""
    return None if deadline is None else max(0.0, deadline - time.monotonic())
