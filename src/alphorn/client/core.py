"""The protocol of a connection, without hands: frames of the server and wishes of the API in, bytes to send out.

Rules. Whatever was asked and not answered stands in `_requests`, and unconfirmed messages in their outboxes, so coming
back is one act: name the connection, make the new Client Manager find the destinations of all consumers (RESUMING),
then (OPEN) open the sessions again, consume again naming what is held, repeat what was not answered, resend what was
not confirmed. Requests are such that a repetition does no harm; counters make repeated messages harmless.

The owner calls everything under one lock; callbacks are called within it and only note or notify. Time is seconds of
any clock that does not jump; `now_ms` is the calendar's.
"""

import enum
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from alphorn.client.browsing import Browsing, OnBrowsed
from alphorn.client.flow import SessionState
from alphorn.client.inbox import AckMode, Inbox
from alphorn.client.message import Message
from alphorn.client.outboxes import Outboxes
from alphorn.client.packing import Scratch
from alphorn.client.pattern_inbox import PatternInbox
from alphorn.client.patterns import Patterns
from alphorn.client.refusals import error_of
from alphorn.client.requests import Answer, OnAnswer, Requests
from alphorn.client.silence import Silence
from alphorn.client.transactions import note_lost, postpone_closing, return_unseen
from alphorn.client.whereabouts import Whereabouts
from alphorn.client.wishes import tell_wishes
from alphorn.doors.native import VERSION, decode_server, encode
from alphorn.model.conversation import (
    AnyClientFrame,
    Browse,
    Close,
    CloseConsumer,
    CloseSession,
    Confirmed,
    Consume,
    ConsumerClosed,
    Delivered,
    Done,
    Failed,
    Flow,
    FragmentRead,
    Goodbye,
    Hello,
    Hold,
    Joined,
    Lapsed,
    OpenSession,
    Ping,
    Pong,
    Postponed,
    Refused,
    Resolve,
    Resolved,
    StatusAnswer,
    Vanished,
    Welcome,
)
from alphorn.model.destinations import parse_destination
from alphorn.model.errors import AccessDenied, Error, InvalidDestination, Misuse, PeerViolation, Unavailable
from alphorn.model.joining import JOINED_FROM
from alphorn.model.log_conversation import ChannelsAnswer
from alphorn.model.process_conversation import TicketAnswer
from alphorn.model.ranges import RangeSet


class State(enum.Enum):
    """Where a connection stands."""

    CONNECTING = "connecting"  # no stream, or one without Welcome yet
    RESUMING = "resuming"  # welcome again; destinations are being found
    OPEN = "open"
    CLOSED = "closed"


class Core:
    """One connection, across all streams that carry it."""

    def __init__(
        self,
        *,
        user: str = "",
        password: str = "",
        client_id: str = "",
        on_event: Callable[[str, str], None] = lambda name, detail: None,
    ) -> None:
        self._hello = Hello(VERSION, client_id, user, password)
        self._on_event = on_event
        self.state = State.CONNECTING
        self.connection = b""
        self.server = ""
        self.addresses: list[str] = []
        self.failure: Error | None = None
        self.wants_reconnection = False  # the stream is of no more use
        self.sessions: dict[int, SessionState] = {}
        self.opener: Callable[[Message], Any] = lambda message: None  # the owner's way to read a message's body
        self.scratch: Scratch = []  # for producers, one at a time
        self._whereabouts = Whereabouts()
        self.places = self._whereabouts.places
        self.remember_place = self._whereabouts.remember
        self._outboxes = Outboxes(self.sessions, self._whereabouts, self.next_number)
        self.open_outbox = self._outboxes.open
        self.open_lane = self._outboxes.open_lane
        self.begin_body = self._outboxes.begin_body
        self.close_outbox = self._outboxes.close
        self.unknown_outcomes = self._outboxes.unknown_outcomes
        self._inboxes: dict[int, Inbox] = {}
        self._stirred: dict[int, Inbox] = {}  # those that are not quiet, and some that are: most of many are quiet
        self._requests = Requests()
        self._resolving: dict[int, str] = {}
        self._browsing = Browsing()
        self.patterns = Patterns(self, adopt=self._adopt_inbox, let_go=self._let_go, drop=self._drop_inbox)
        self._output: list[bytes | memoryview] = []
        self._number = 0
        self._resumptions = 0
        self.silence = Silence()

    # The stream.

    def on_connected(self, now: float, now_ms: int = 0) -> None:
        """A stream to some Client Manager is there."""
        self.wants_reconnection = False
        self._requests.on_connected(now - self.silence.heard_at if self.connection else 0.0)
        self.silence.begin(now)
        self._resumptions += bool(self.connection)
        self._output = [encode(msgspec.structs.replace(self._hello, resumption=self._resumptions, now_ms=now_ms))]

    def on_disconnected(self, reason: str) -> None:
        """The stream is gone."""
        was_open = self.state is State.OPEN
        if self.state is not State.CLOSED:
            self.state = State.CONNECTING
        self._output = []
        self.wants_reconnection = False
        if was_open:
            self._on_event("disconnected", reason)

    def receive(self, frames: list[memoryview], now: float) -> None:
        """What the server said; raises `PeerViolation` when the stream makes no sense."""
        self.silence.heard_at = now
        for data in frames:
            frame = decode_server(data)
            receive = _RECEIVERS[type(frame)]
            receive(self, frame)

    def on_time(self, now: float) -> None:
        """A quiet server is asked whether it is there, and left when it does not answer."""
        if self.state not in (State.OPEN, State.RESUMING):
            return
        for inbox in list(self._stirred.values()):
            inbox.on_time(now)
        if self.silence.is_death(now):
            self.wants_reconnection = True
        elif self.silence.asks(now):
            self._output.append(encode(Ping()))

    def next_deadline(self) -> float | None:
        """When `on_time` has something to do, unless the server says something before."""
        if self.state not in (State.OPEN, State.RESUMING):
            return None
        return self.silence.deadline

    @property
    def has_output(self) -> bool:
        """Whether there is something to send at once; acknowledgements in no hurry (`has_wishes`) do not count."""
        if self._output:
            return True
        if self.state is not State.OPEN:
            return False
        return self._outboxes.has_output or any(inbox.is_urgent for inbox in self._stirred.values())

    @property
    def has_wishes(self) -> bool:
        """Whether acknowledgements wait."""
        return self.state is State.OPEN and any(inbox.has_wishes for inbox in self._stirred.values())

    def take_output(self, now_ms: int, *, with_wishes: bool = True) -> list[bytes | memoryview]:
        """What to send: what was asked, then acknowledgements, then what producers have waiting."""
        if self.state is not State.OPEN:
            output, self._output = self._output, []
            return output
        for inbox in list(self._stirred.values()):
            if inbox.is_urgent or (with_wishes and inbox.has_wishes):
                tell_wishes(inbox, self.request)
                self.regulate(inbox)
            if inbox.is_quiet:
                self._stirred.pop(inbox.number, None)
        output, self._output = self._output, []
        output += self._outboxes.pack(now_ms, self.request)
        if self._output:
            output += self._output
            self._output = []
        return output

    def fail(self, error: Error) -> None:
        """Ends the connection for good; whoever waits hears it."""
        if self.state is State.CLOSED:
            return
        self.state = State.CLOSED
        self.failure = error
        self._outboxes.fail(error)
        for inbox in self._inboxes.values():
            inbox.on_closed(error)
        self.patterns.fail(error)
        self._requests.fail(error)
        self._on_event("closed", str(error))

    # Wishes.

    def next_number(self) -> int:
        """A number that this connection has not used for anything."""
        self._number += 1
        return self._number

    def request(self, make: Callable[[int], AnyClientFrame], on_answer: OnAnswer, *, forgives: bool = False) -> None:
        """Asks; `make` gets the request's number. The answer is repeated for until it comes or all is over.

        Raises `Misuse` for what cannot be encoded, of which nothing stays.
        """
        if self.failure is not None:
            on_answer(self.failure)
            return
        number = self.next_number()
        frame = make(number)
        data = _encode_request(frame)  # first: what fails here would fail again on every stream to come
        self._requests.add(number, frame, on_answer, forgives=forgives)
        if self.state is State.OPEN:
            self._output.append(data)

    def open_session(self, mode: AckMode) -> SessionState:
        """Begins a flow."""
        session = SessionState(self.next_number(), mode)
        self.sessions[session.number] = session
        if self.state is State.OPEN:
            self._output.append(encode(OpenSession(session.number)))
        return session

    def close_session(self, session: SessionState, on_answer: OnAnswer) -> None:
        """Ends a flow: what was not acknowledged comes back, what is not confirmed is given up. May be asked again."""
        if session.number not in self.sessions:
            return on_answer(Done(0))
        session.closers.append(on_answer)
        if len(session.closers) > 1:
            return  # it is under way
        unseen = {inbox.number: self._let_go(inbox) for inbox in session.inboxes.values()}
        self.patterns.close_session(session)
        for outbox in list(session.outboxes.values()):
            self.close_outbox(outbox)

        def on_closed(answer: Answer | Error) -> None:
            for inbox in list(session.inboxes.values()):
                self._drop_inbox(inbox)
            if self.sessions.pop(session.number, None) is not None and session.transaction is not None:
                self._outboxes.note_closed()
            closers, session.closers = session.closers, []
            for closer in closers:
                closer(answer)

        self.request(lambda number: CloseSession(number, session.number, unseen), on_closed)

    def open_inbox(self, session: SessionState, consume: Consume, destination: str, on_answer: OnAnswer) -> Inbox:
        """Begins to receive. `consume` needs no numbers yet."""
        consume = msgspec.structs.replace(consume, session=session.number, consumer=self.next_number())
        inbox = self._adopt_inbox(session, consume, destination)
        on_consumed = partial(self._on_consumed, inbox, on_answer)
        try:
            self.request(lambda request: msgspec.structs.replace(consume, request=request), on_consumed)
        except Misuse:
            self._drop_inbox(inbox)
            raise
        return inbox

    def _adopt_inbox(self, session: SessionState, consume: Consume, destination: str) -> Inbox:
        inbox = Inbox(consume=consume, destination=destination, mode=session.mode)
        inbox.acknowledge_session, inbox.opener = session.acknowledge, self.opener
        inbox.on_stir = lambda: self._stirred.__setitem__(consume.consumer, inbox)
        self._inboxes[inbox.number] = session.inboxes[inbox.number] = inbox
        return inbox

    def close_inbox(self, inbox: Inbox, on_answer: OnAnswer) -> None:
        """Ends receiving; what was not acknowledged comes back. Until that is answered it would be resumed as well."""
        if postpone_closing(self, inbox):
            return on_answer(Done(0))
        if isinstance(inbox, PatternInbox):
            return self.patterns.close(inbox, on_answer)
        unseen = self._let_go(inbox)

        def on_closed(answer: Answer | Error) -> None:
            self._drop_inbox(inbox)
            on_answer(answer)

        self.request(lambda request: CloseConsumer(request, inbox.number, unseen), on_closed)

    def browse(self, destination: str, make: Callable[[int], Browse], on_answer: OnBrowsed) -> None:
        """Looks at a page of a queue; one at a time."""
        self._browsing.begin(destination, make, on_answer, self.request).opener = self.opener

    def regulate(self, inbox: Inbox) -> None:
        """Says whether a consumer can use more, where the server does not know."""
        if self.state is State.OPEN and (regulation := inbox.take_regulation()) is not None:
            self._output.append(encode(regulation))

    @property
    def is_browsing(self) -> bool:
        """Whether a page is under way."""
        return self._browsing.inbox is not None

    def say_goodbye(self) -> None:
        """The last frame of a connection that ends in good order."""
        if self.state is State.OPEN:
            self._output.append(encode(Close()))

    def describe(self) -> dict[str, object]:
        """The printable state; no credentials."""
        return {
            "state": self.state.value,
            "connection": self.connection.hex(),
            "server": self.server,
            "sessions": len(self.sessions),
            "requests": len(self._requests),
            "producers": self._outboxes.describe(),
            "consumers": [inbox.describe() for inbox in self._inboxes.values()],
        }

    # What the server says.

    def _on_welcome(self, frame: Welcome) -> None:
        if self.connection and frame.connection != self.connection:
            self.fail(
                Unavailable("the cluster has forgotten this connection, which was cut off too long; connect again")
            )
            return
        is_resumed = bool(self.connection)
        self.connection, self.server, self.addresses = frame.connection, frame.server, frame.addresses
        self._hello = msgspec.structs.replace(self._hello, connection=frame.connection, secret=frame.secret)
        self.places.clear()
        self._outboxes.on_welcome()
        self._resolving = {self.next_number(): name for name in self._destinations_in_use()}
        if self._resolving:
            self.state = State.RESUMING
            self._output = [
                encode(Resolve(number, name, parse_destination(name).is_temporary))
                for number, name in self._resolving.items()
            ]
        else:
            self._resume(is_resumed=is_resumed)

    def _destinations_in_use(self) -> list[str]:
        """Those that the new Client Manager must know before anything can be said about their consumers."""
        inboxes = [*self._inboxes.values(), *([self._browsing.inbox] if self._browsing.inbox is not None else [])]
        return list(dict.fromkeys(inbox.destination for inbox in inboxes if inbox.number < JOINED_FROM))

    def _on_resolved_again(self, name: str, frame: Answer | Failed) -> None:
        if isinstance(frame, Resolved):
            self.places[name] = frame.place
        elif isinstance(frame, Failed):
            for inbox in [inbox for inbox in self._inboxes.values() if inbox.destination == name]:
                inbox.on_closed(error_of(frame.error, frame.reason))
                self._drop_inbox(inbox)
        if not self._resolving:
            self._resume(is_resumed=True)

    def _resume(self, *, is_resumed: bool) -> None:
        """Everything that the Client Manager must know, in an order in which it can take it."""
        self.state = State.OPEN
        output: list[bytes | memoryview] = [encode(OpenSession(number, is_resumed)) for number in self.sessions]
        asked = {consume.consumer for consume in self._requests.consumes()}
        for inbox in self._inboxes.values():
            inbox.is_blocked_told = False
            inbox.on_stir()
            if inbox.number not in asked:
                self._consume_again(inbox)
        self.patterns.resume(self._requests)
        unsettled = {number: inbox.unsettled() for number, inbox in self._inboxes.items()}
        output += map(encode, self._requests.repeat(self._renewed, unsettled, is_resumed=is_resumed))
        output += self._outboxes.unconfirmed_frames()
        self._browsing.begin_anew()
        self._output = output
        self._on_event("resumed" if is_resumed else "connected", self.server)

    def _consume_again(self, inbox: Inbox) -> None:
        number = self.next_number()
        frame = msgspec.structs.replace(inbox.consume, request=number)
        self._requests.add(number, frame, partial(self._on_consumed, inbox, lambda answer: None))

    def _on_consumed(self, inbox: Inbox, on_answer: OnAnswer, answer: Answer | Error) -> None:
        if isinstance(answer, Error) and self.failure is None:
            inbox.on_closed(answer)
            self._drop_inbox(inbox)
        on_answer(answer)

    def _renewed(self, frame: Consume, given_up: list[int]) -> Consume:
        """The frame again: at its place of today, with what the consumer has, be it held or given up just now.

        What the program was done with while there was no stream is told after this, so it counts as well.
        """
        inbox = self._inboxes.get(frame.consumer)
        if inbox is None:
            return frame
        held = inbox.unsettled()
        for first, last in zip(given_up[::2], given_up[1::2], strict=True):
            held.add(first, last)
        place = frame.place if inbox.number >= JOINED_FROM else self.places.get(inbox.destination, frame.place)
        return msgspec.structs.replace(frame, place=place, held=held.flat())

    def _on_answer(self, frame: Answer | Failed) -> None:
        if isinstance(frame, Failed) and frame.error == InvalidDestination.__name__:
            self.places.clear()  # one of them is gone; the others are soon found again
        name = self._resolving.pop(frame.request, None)
        if name is not None:
            self._on_resolved_again(name, frame)
        else:
            self._requests.on_answer(frame)

    def _on_delivered(self, frame: Delivered) -> None:
        inbox = self._inboxes.get(frame.consumer)
        if frame.consumer == 0 and self._browsing.inbox is not None:
            inbox = self._browsing.inbox
        if inbox is not None and (unseen := inbox.on_delivered(frame)):
            self.request(partial(return_unseen, inbox.number, unseen), lambda answer: None)

    def _on_lapsed(self, frame: Lapsed) -> None:
        """What came too late for the program goes back; what it has, it received in time."""
        inbox = self._inboxes.get(frame.consumer)
        if inbox is not None and (unseen := inbox.lapse(RangeSet.from_flat(frame.positions))):
            self.request(partial(return_unseen, inbox.number, unseen), lambda answer: None)

    def _on_consumer_closed(self, frame: ConsumerClosed) -> None:
        if inbox := self._inboxes.get(frame.consumer):
            inbox.on_closed(error_of(frame.error, frame.reason))
            self._drop_inbox(inbox)

    def _on_pong(self, frame: Pong) -> None:
        """That it came is all it says."""

    def _on_goodbye(self, frame: Goodbye) -> None:
        error = error_of(frame.error, frame.reason)
        if isinstance(error, AccessDenied | Misuse | PeerViolation):
            self.fail(error)
        self.wants_reconnection = True

    # What is told of consumers.

    def _let_go(self, inbox: Inbox) -> list[int]:
        """Tells what is to tell, then takes nothing more; gives what the program was never handed."""
        if self.state is not State.CLOSED:
            tell_wishes(inbox, self.request)
        unseen = inbox.unseen().flat()
        inbox.close()
        return unseen

    def _drop_inbox(self, inbox: Inbox) -> None:
        """It has ended: nothing of it is resumed, so neither is a wish to consume that was not answered before."""
        inbox.on_stir = lambda: None
        note_lost(self.sessions.get(inbox.session), inbox)
        self._inboxes.pop(inbox.number, None)
        self._stirred.pop(inbox.number, None)
        self._requests.forget(inbox.number, inbox.failure)
        session = self.sessions.get(inbox.session)
        if session is not None:
            session.inboxes.pop(inbox.number, None)


def _encode_request(frame: AnyClientFrame) -> bytes:
    try:
        return encode(frame)
    except (OverflowError, TypeError, ValueError) as error:
        raise Misuse(f"a value given for {type(frame).__name__} cannot be sent: {error}") from error


def _of_messages(core: Core, frame: Confirmed | Refused | Vanished | Postponed | Flow | Hold) -> None:
    core._outboxes.receive(frame)


_RECEIVERS: dict[type, Callable[[Core, Any], None]] = {
    Welcome: Core._on_welcome,
    **dict.fromkeys(
        (Resolved, Done, StatusAnswer, FragmentRead, ChannelsAnswer, TicketAnswer, Failed), Core._on_answer
    ),
    Confirmed: _of_messages,
    Refused: _of_messages,
    Postponed: _of_messages,
    Flow: _of_messages,
    Hold: _of_messages,
    Delivered: Core._on_delivered,
    ConsumerClosed: Core._on_consumer_closed,
    Lapsed: Core._on_lapsed,
    Pong: Core._on_pong,
    Goodbye: Core._on_goodbye,
    Joined: lambda core, frame: core.patterns.on_joined(frame),
    Vanished: _of_messages,
}
