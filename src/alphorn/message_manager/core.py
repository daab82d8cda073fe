"""The Message Manager: one replica's engine, and what the primary alone does.

Every replica applies the log. The one that is primary also has a dispatcher, answers what Client Managers asked, and
puts commands of its own into the log: the time, what a vanished consumer held, connections that did not come back.
Being primary ends without notice; nothing that only the primary knew is missed, because Client Managers say it again.
"""

from collections.abc import Callable
from functools import partial

from alphorn.message_manager.absent import Absent
from alphorn.message_manager.advertising import Advertising
from alphorn.message_manager.answers import answers_to
from alphorn.message_manager.awaited import Awaited
from alphorn.message_manager.claiming import answer_claim, attach
from alphorn.message_manager.claims import Claims
from alphorn.message_manager.clock import Clock
from alphorn.message_manager.dispatch import Dispatcher
from alphorn.message_manager.doubts import Doubts
from alphorn.message_manager.early import Early
from alphorn.message_manager.effects import Effect
from alphorn.message_manager.engine import Engine
from alphorn.message_manager.farewells import Farewells
from alphorn.message_manager.flow import FlowControl
from alphorn.message_manager.lengthy import Lengthy, Question
from alphorn.message_manager.machine import (
    Asked,
    Break,
    ClientManagerJoined,
    ClientManagerLeft,
    Committed,
    Demoted,
    Following,
    Input,
    LinkClosed,
    LinkOpened,
    Log,
    Logged,
    Measured,
    Order,
    Output,
    Promoted,
    Supply,
    Tell,
    WitnessesChanged,
)
from alphorn.message_manager.orders import OWN_REQUESTS, Orders
from alphorn.message_manager.presence import Presence
from alphorn.message_manager.questions import Wish, answer_question, refusal
from alphorn.message_manager.reading import Reading
from alphorn.message_manager.speaking import Speaking
from alphorn.message_manager.status import About, Picture
from alphorn.message_manager.travelling import Travelling, owners_away
from alphorn.message_manager.untold import Untold
from alphorn.model import frame_kinds, link, moving_link
from alphorn.model.commands import Entry, Forget, Tick, connection_of, decode_entry, decode_heeded
from alphorn.model.errors import Error, Misuse, PeerViolation
from alphorn.model.ranges import RangeSet


class MessageManager:
    """The machine. `wall_ms` turns the time of a turn into milliseconds since 1970; only ticks use it."""

    def __init__(
        self,
        about: About,
        *,
        wall_ms: Callable[[float], int],
        read: Callable[[int], bytes | memoryview | None],
    ) -> None:
        self.engine = Engine().read_with(self._entry)
        self._about = about
        self.clock = Clock(wall_ms)
        self._read = read
        self._origin = b""
        self._epoch = 0
        self._dispatcher: Dispatcher | None = None
        self.flow = FlowControl(about.name, self._tell, self._log)
        self._picture = Picture(about, self.flow)
        self._lengthy = Lengthy(self._picture, Reading(self._entry), read)
        self._links: dict[int, link.Introduce | None] = {}
        self._attached: dict[int, set[bytes]] = {}  # by link: consumers that attached since the introduction
        self._link_of: dict[bytes, int] = {}  # by the Client Manager's origin
        self._untold = Untold()
        self._numbers: dict[bytes, int] = {}  # of Client Managers, as the dispatcher knows them
        self._awaited = Awaited()
        self._absent = Absent()
        self._presence = self._picture.presence
        self._doubts = Doubts()
        self._advertising = Advertising(self.engine, self._tell, self._log)
        self._claims, self._early = Claims(), Early()
        self._outbox: list[Output] = []
        self._orders = Orders()
        self._order = self._orders.want
        self._travelling = Travelling(self._link_of, tell=self._tell, order=self._order)
        self._speaking = Speaking(about)
        self._farewells = Farewells()

    @property
    def is_primary(self) -> bool:
        """Whether this replica serves."""
        return self._dispatcher is not None

    def receive(self, item: Input, now: float) -> None:
        """Takes in one thing that happened."""
        self._presence.now = now
        self._farewells.begin_turn(now)
        match item:
            case Committed():
                self._on_committed(item, now)
                self._serve_early(now)
                self._doubts.look(self.engine.unresolved, now)
                self._speak(now)
            case Asked():
                self._on_asked(item.link, item.frame, now)
                self._untold.settle(item.link)
            case LinkOpened():
                self._links[item.link] = None
                self._untold.on_opened(item.link)
                self._tell_role(item.link, now)
                self.flow.on_link(item.link)
            case Measured():
                self.flow.measure(item.space, self._links)
                self._speaking.news.on_disk(is_full=self.flow.is_disk_full)
            case LinkClosed():
                self._on_link_closed(item.link, now)
            case Promoted():
                self._speaking.news.on_primary(item.epoch, self._about.name, is_self=True)
                self._on_promoted(item, now)
            case Demoted():
                self._speaking.news.on_primary(item.epoch, item.primary, is_self=False)
                self._on_demoted(item.epoch, now)
            case Following():
                self._speaking.news.on_following(now, is_synchronised=item.is_synchronised)
            case WitnessesChanged():
                self._picture.witnesses = item.witnesses
            case Logged():
                self._speaking.add(item.run, item.lines)
                if self._epoch:  # while nobody is primary they wait
                    self._speak(now)
            case ClientManagerJoined():
                self._advertising.on_joined(item.origin)
            case ClientManagerLeft():
                self._farewells.on_left(now)
                self._travelling.doubt(self.engine, item.origin)
                self._untold.forget(item.origin)
                self._advertising.on_left(item.origin)
                self._on_client_manager_left(item.origin)
        if self._claims:
            self._decide_claims(now)

    def restore(self, engine: Engine) -> None:
        """Goes on from a checkpoint."""
        self.engine = engine.read_with(self._entry)
        self._dispatcher = None
        self.flow.end()
        self._travelling.on_demoted()
        self._farewells.on_restored()
        self._travelling.doubt(self.engine)

    def on_time(self, now: float) -> None:
        """The primary puts the time into the log when something is due, and ends what did not come back."""
        self._speaking.news.on_time(now)
        if self._dispatcher is None:
            return
        self._advertising.on_time(now)
        self._presence.now = now
        for origin in self._awaited.overdue(now):
            self._on_client_manager_left(origin)
        for consumer in self._absent.overdue_consumers(now):
            self._detach(consumer, None)
        for connection in self._absent.overdue_connections(now):
            self._presence.forget(connection)
            self._order(Forget(connection))
        self._doubts.ask(self.engine.unresolved, now, list(self._link_of.values()), self._tell)
        if self._claims:
            self._decide_claims(now)
        if (wall := self.clock.tick(self.engine.next_due(), now)) is not None:
            self._order(Tick(wall, *self._dispatcher.names_of(self.engine.expiring(wall))))

    def next_deadline(self) -> float:
        """When something is due, as far as it is known now."""
        if self._lengthy or (self._dispatcher is not None and self._dispatcher.has_more):
            return 0.0
        if self._dispatcher is None:
            return self._speaking.news.next_deadline()
        waiting = (self._absent, self._advertising, self._awaited, self._doubts, self._speaking.news)
        deadline = min(each.next_deadline() for each in waiting)
        if not self._dispatcher.missing:
            deadline = min(deadline, self._claims.next_deadline())
        return min(deadline, self.clock.next_deadline(self.engine.next_due()))

    def take_outputs(self) -> list[Output]:
        """Everything to do since the last call, in order."""
        if self._lengthy:
            number, answers = self._lengthy.answer_one(self.engine, self._dispatcher, self._epoch, self._links)
            self._outbox += [Tell(number, answer) for answer in answers]
        if self._dispatcher is not None:
            self._advertising.release(is_complete=not self._dispatcher.missing)
            for delivery in self._dispatcher.take_deliveries():
                self._tell_client_manager(delivery.client_manager, delivery.deliver)
            for number, notice in self._dispatcher.take_notices():
                self._tell_client_manager(number, notice)
            for refused in self._dispatcher.take_refused():
                self._order(refused)
        self._outbox += [*map(Order, self._orders.take_entries(self._epoch)), *self._speaking.take()]
        outputs, self._outbox = self._outbox, []
        return outputs

    # --- the log ---

    def _on_committed(self, item: Committed, now: float) -> None:
        try:
            entry = decode_heeded(item.payload, item.epoch)
        except PeerViolation as error:  # the same on every replica: it changes nothing
            self._log("error", "unreadable_entry", f"sequence={item.sequence} reason={error}")
            entry = Entry([])
        effects = self.engine.apply(item.sequence, entry)
        self._speaking.hear(self.engine, self._epoch, item, entry, effects, now)
        self._travelling.note(effects, is_doubtful=self._farewells.is_recent(now))
        if self._dispatcher is None:
            return
        self._dispatcher.on_effects(effects)
        self.flow.on_applied(entry.commands, effects, self._link_of.values())  # who hears an answer knows it already
        self._travelling.on_effects(self.engine, self._dispatcher, effects)
        for connection in owners_away(effects, self.engine, self._presence):
            self._absent.lose(connection, now)
        self._advertising.on_effects(effects)
        if entry.requests:
            self._answer(item.origin, entry, effects, now)

    def _answer(self, origin: bytes, entry: Entry, effects: list[Effect], now: float) -> None:
        if max(entry.requests) >= OWN_REQUESTS:  # a Client Manager may have the same origin
            if origin == self._origin:
                self._orders.on_applied(entry.requests)
            return
        for command, answered in answers_to(self.engine, entry, effects):
            self._advertising.answer(command, partial(self._tell_origin, origin, answered), now)

    def _tell_origin(self, origin: bytes, answer: link.Answered) -> None:
        number = self._link_of.get(origin)
        self._untold.keep(origin, answer, is_told=number is not None)
        if number is not None:
            self._tell(number, answer)

    def _speak(self, now: float) -> None:
        if self._speaking.is_waiting and not self.flow.is_disk_full:  # else it waits, as far as there is room for it
            self._speaking.order(self.engine, self._orders, self.clock.wall_ms(now))

    # --- being primary ---

    def _on_promoted(self, item: Promoted, now: float) -> None:
        self._epoch, self._origin = item.epoch, item.origin
        self.clock.follow(self.engine.now_ms, now, is_alone=not item.client_managers)
        self._orders.forget_all()
        self._link_of.clear()
        self._untold.forget_all()
        linked = {frame.origin for frame in self._links.values() if frame is not None}
        self._awaited.on_promoted(item.client_managers, linked, now)
        known = [self._number_of(origin) for origin in item.client_managers]
        self._dispatcher = Dispatcher(self.engine, self._entry, known, is_doubtful=self._farewells.is_recent(now))
        self.flow.begin(self.engine)
        self._absent = Absent()
        self._presence = self._picture.presence = Presence()
        self._doubts = Doubts(self.engine.unresolved, now)
        self._advertising = Advertising(self.engine, self._tell, self._log, is_complete=not known)
        self._claims, self._early = Claims(), Early()
        for connection in self.engine.connections():
            self._absent.lose(connection, now)
        self._travelling.on_promoted(self.engine, item.client_managers)
        for number in self._links:
            self._links[number] = None  # they introduce themselves again
            self._tell_role(number, now)
        self._log("info", "promoted", f"epoch={item.epoch}")

    def _on_demoted(self, epoch: int, now: float) -> None:
        self._epoch = epoch
        if self._dispatcher is None:
            return
        self._dispatcher = None
        self.flow.end()
        self._travelling.on_demoted()
        self._orders.forget_all()
        for number in self._links:
            self._tell_role(number, now)
        self._log("info", "demoted", f"epoch={epoch}")

    def _entry(self, sequence: int) -> Entry | None:
        payload = self._read(sequence)
        return None if payload is None else decode_entry(bytes(payload))

    def _number_of(self, origin: bytes) -> int:
        return self._numbers.setdefault(origin, len(self._numbers) + 1)

    # --- Client Managers ---

    def _on_asked(self, number: int, frame: link.AnyAsked, now: float) -> None:
        if isinstance(frame, link.Fetch):
            applied = [each for each in frame.sequences if each <= self.engine.sequence]  # others may not be committed
            self._outbox.append(Supply(number, frame.request, applied))
        elif isinstance(frame, Question):
            self._lengthy.add(number, frame)
        elif self._dispatcher is not None:
            self._early.add(number, frame)
            self._serve_early(now)
        elif isinstance(frame, link.Introduce):  # the rest it will say to the primary
            self._links[number] = frame
            self._awaited.on_linked(frame.origin, now)

    def _serve_early(self, now: float) -> None:
        """Serves what Client Managers said, in their order, as far as the log has come."""
        if self._dispatcher is not None:
            for number, frame in self._early.take(self.engine.sequence):
                self._serve(self._dispatcher, number, frame, now)

    def _serve(self, dispatcher: Dispatcher, number: int, frame: link.AnyAsked, now: float) -> None:
        introduced = self._links.get(number)
        if introduced is None and not isinstance(frame, link.Introduce):
            self._outbox.append(Break(number, "a Client Manager introduces itself first"))
            return
        match frame:
            case link.Introduce():
                if introduced is not None and introduced.origin != frame.origin:
                    self._link_of.pop(introduced.origin, None)
                    self._lose(dispatcher, dispatcher.consumers_at(self._number_of(introduced.origin)), now)
                self._on_introduced(number, frame, now)
            case link.Settled() if introduced is not None:
                self._on_settled(dispatcher, number, self._number_of(introduced.origin), frame, now)
            case link.ConnectionOpened(connection):
                self._presence.enter(connection, number)
                self._absent.back(connection)
            case link.ConnectionLost(connection) if introduced is not None:
                keys = dispatcher.consumers_of(connection, self._number_of(introduced.origin))
                self._lose(dispatcher, keys, now)
                if self._presence.leave(connection, number):
                    self._absent.lose(connection, now)
            case link.Attach() if introduced is not None:
                mine = self._number_of(introduced.origin)
                self._attempt(number, frame, lambda: self._attach(dispatcher, number, mine, frame))
            case link.Detach(request, consumer, held):
                seen = RangeSet(zip(held[::2], held[1::2], strict=True))
                self._detach(consumer, lambda: self._tell(number, link.Answered(request)), seen)
            case link.Waiting(producers):
                self.flow.waiting.on_told(number, producers)
            case link.Regulate(consumers, is_blocked):
                dispatcher.regulate(consumers, is_blocked=is_blocked)
            case link.RegulateClient(connection, is_slow) if introduced is not None:
                dispatcher.regulate_client(connection, self._number_of(introduced.origin), is_slow=is_slow)
            case link.Pause(request, consumer):
                dispatcher.pause(consumer)
                self._tell(number, link.Answered(request))
            case link.Locate() | link.Name() | link.LocateFragments() | link.AskPending():
                self._attempt(number, frame, lambda: answer_question(self.engine, frame, self._read))
            case link.FindSubscription() | link.Claim():
                self._attempt(number, frame, lambda: self._claim(dispatcher, frame))
            case link.ClaimClient():
                self._claims.add(number, frame, now)
            case link.Watch() | link.Noted() if introduced is not None:
                self._advertising.on_asked(number, introduced.origin, frame)
            case moving_link.Export():
                self._travelling.export(self.engine, dispatcher, number, frame, self._read)
            case moving_link.Followed() if introduced is not None:
                self._travelling.on_followed(self.engine, dispatcher, introduced.origin, frame)

    def _on_introduced(self, number: int, frame: link.Introduce, now: float) -> None:
        self._links[number] = frame
        self._attached[number] = set()
        self._link_of[frame.origin] = number
        self._number_of(frame.origin)
        self.flow.on_introduced(number)
        for untold in self._untold.take(frame.origin, number):
            self._tell(number, untold)
        self._awaited.on_introduced(frame.origin, now)
        for connection in frame.connections:
            self._presence.enter(connection, number)
            self._absent.back(connection)
        # It names all that it has: of those it named before and lost since, it may have had nobody to tell.
        for connection in sorted(self._presence.named_by(number).difference(frame.connections)):
            if self._presence.leave(connection, number):
                self._absent.lose(connection, now)
        for connection, client in frame.clients:
            self._presence.name(connection, client)
        self._presence.give_up(frame.origin)
        if frame.time_ms and self.clock.hear(frame.time_ms, now):
            for linked in self._links:
                self._tell(linked, link.Time(self.clock.time_ms(now)))
        self._travelling.on_introduced(self.engine, frame.origin)

    def _on_settled(self, dispatcher: Dispatcher, number: int, mine: int, frame: link.Settled, now: float) -> None:
        """Whoever did not attach now is gone, also where the word of it was lost with an earlier link."""
        here, attached = dispatcher.consumers_at(mine), self._attached.pop(number, set())
        self._lose(dispatcher, [key for key in here if key not in attached], now)
        for destination, subscription, positions in frame.loose:
            dispatcher.doubt(destination, subscription, positions)
        dispatcher.introduce(mine)

    def _on_client_manager_left(self, origin: bytes) -> None:
        self._awaited.leave(origin)
        self._presence.on_left(origin, is_linked=origin in self._link_of)
        if self._dispatcher is not None and origin in self._numbers:
            self._dispatcher.leave(self._numbers[origin])
            self._travelling.on_left(self.engine, self._dispatcher, origin)

    def _attach(self, dispatcher: Dispatcher, number: int, mine: int, frame: link.Attach) -> list[frame_kinds.Told]:
        connection = connection_of(frame.consumer)
        if not self._presence.is_current(connection, frame.resumption):
            raise Misuse("this connection goes on through another Client Manager")
        attach(dispatcher, mine, frame)
        self._presence.enter(connection, number)
        self._absent.back(connection)
        self._absent.consumer_back(frame.consumer)
        if number in self._attached:
            self._attached[number].add(frame.consumer)
        return [link.Answered(frame.request)]

    def _detach(self, consumer: bytes, then: Callable[[], None] | None, seen: RangeSet | None = None) -> None:
        """Ends a consumer; `then` is called once what it held has come back."""
        assert self._dispatcher is not None
        returns = self._dispatcher.detach(consumer, seen)
        for place, command in enumerate(returns, 1):
            self._order(command, then if place == len(returns) else None)
        if not returns and then is not None:
            then()

    def _on_link_closed(self, number: int, now: float) -> None:
        introduced = self._links.pop(number, None)
        self.flow.waiting.leave(number)
        self._attached.pop(number, None)
        self._untold.settle(number)
        self._advertising.lose(number)
        self._early.forget(number)
        self._lengthy.forget(number)
        if introduced is None:
            return
        self._awaited.on_broken(introduced.origin, now)
        for connection in self._presence.leave_all(number, introduced.origin):
            self._absent.lose(connection, now)
        if self._link_of.get(introduced.origin) != number:
            return
        self._awaited.lose(introduced.origin, now)
        del self._link_of[introduced.origin]
        if self._dispatcher is not None:
            self._travelling.assign(self.engine)
            keys = self._dispatcher.consumers_at(self._number_of(introduced.origin))
            self._lose(self._dispatcher, keys, now)

    def _lose(self, dispatcher: Dispatcher, consumers: list[bytes], now: float) -> None:
        """These are reached no more, and keep for a while what they hold."""
        dispatcher.suspend(consumers)
        self._absent.lose_consumers(consumers, now)

    def _claim(self, dispatcher: Dispatcher, frame: link.Claim | link.FindSubscription) -> list[frame_kinds.Told]:
        answered, lost = answer_claim(self.engine, dispatcher, frame, self._presence.is_lost)
        for consumer in lost:
            self._absent.consumer_back(consumer)
            self._detach(consumer, None)
        return [answered]

    def _decide_claims(self, now: float) -> None:
        """Client ids are given only when every Client Manager has said which are in use."""
        if self._dispatcher is None or self._dispatcher.missing:
            return
        for number, wanted, answer in self._claims.decide(self._presence, self._links, now):
            if not answer.error:
                self._absent.back(wanted.connection)
            self._tell(number, answer)

    def _attempt(self, number: int, asked: Wish, do: Callable[[], list[frame_kinds.Told]]) -> None:
        """Says what this gives, or why it cannot be."""
        try:
            for frame in do():
                self._tell(number, frame)
        except Error as error:
            self._tell(number, refusal(self.engine, asked, error))

    # --- saying ---

    def _tell(self, number: int, frame: frame_kinds.Told) -> None:
        self._outbox.append(Tell(number, frame))

    def _tell_client_manager(self, client_manager: int, frame: frame_kinds.Told) -> None:
        for origin, number in self._link_of.items():
            if self._numbers[origin] == client_manager:
                self._tell(number, frame)

    def _tell_role(self, number: int, now: float) -> None:
        time_ms = self.clock.time_ms(now) if self.is_primary else 0
        self._tell(number, link.Role(self._about.name, self._epoch, self.is_primary, time_ms))

    def _log(self, level: str, event: str, details: str) -> None:
        self._outbox.append(Log(level, event, f"node={self._about.name} {details}"))

    def describe(self) -> dict[str, object]:
        """The one printable state."""
        return {
            "is_primary": self.is_primary,
            "links": len(self._links),
            "engine": self.engine.describe(),
            "dispatcher": self._dispatcher.describe() if self._dispatcher is not None else None,
        }
