"""The Client Manager: one machine for all its clients.

It keeps nothing that was promised: promises lie in the log, and whatever is here can be built again from what clients
and Message Managers say. Commands of one client leave in the order in which they came; no client waits for another.
"""

from collections.abc import Callable, Sequence
from typing import Any

from alphorn.client_manager.administration import Administration
from alphorn.client_manager.admitting import Admitting, MakePass, no_pass
from alphorn.client_manager.carrying import Carrying
from alphorn.client_manager.connection import Connection
from alphorn.client_manager.consuming import Consuming
from alphorn.client_manager.desk import Desk, Settings
from alphorn.client_manager.entering import Entering
from alphorn.client_manager.finding import Finding
from alphorn.client_manager.flow import FlowControl
from alphorn.client_manager.heeding import Heeding
from alphorn.client_manager.limits import admit, too_many
from alphorn.client_manager.log_clients import LogClients
from alphorn.client_manager.machine import (
    Closed,
    Committed,
    Hang,
    Hung,
    Input,
    Joined,
    Linked,
    Logged,
    Lost,
    Opened,
    Order,
    Output,
    Said,
    ServersStand,
    Told,
    Window,
    Writable,
)
from alphorn.client_manager.moving import Moving
from alphorn.client_manager.naming import Naming
from alphorn.client_manager.news import News
from alphorn.client_manager.picturing import Picturing
from alphorn.client_manager.placing import Placing
from alphorn.client_manager.publishing import Publishing
from alphorn.client_manager.recovering import Recovering
from alphorn.client_manager.streaming import Streaming
from alphorn.client_manager.transactions import Transactions
from alphorn.client_manager.wildcards import Wildcards
from alphorn.model import commands, conversation, link, moving_conversation, moving_link, process_conversation
from alphorn.model.conversation import place_of
from alphorn.model.errors import PeerViolation, Unavailable
from alphorn.model.ids import IdSource


class ClientManager:
    """The machine. `take_outputs` ends a turn: what clients wanted meanwhile becomes log entries."""

    def __init__(
        self,
        settings: Settings,
        ids: IdSource,
        *,
        origins: Sequence[bytes],
        signet: bytes,
        make_pass: MakePass = no_pass,
    ) -> None:
        """`signet` is 32 bytes of chance, for the cluster to keep where it has none yet."""
        self._origins = list(origins)  # of this node's member of each channel
        self._run = ids.origin
        self._desk = Desk(settings, ids)
        self._desk.auditing.begin(ids.origin)
        self._moving = Moving(self._desk)
        self._carrying = Carrying(self._desk)
        finding, naming = Finding(self._desk, self._moving), Naming(self._desk)
        self._flow = FlowControl(self._desk, self._moving)
        self.heeding = Heeding(self._desk, self._moving, self._send_back)
        self._publishing = Publishing(self._desk, finding, self._flow, self._moving)
        self._consuming = Consuming(self._desk, finding, self._moving)
        self._streaming = Streaming(self._desk, self._publishing)
        self._wildcards = Wildcards(self._desk, self._consuming, self._moving, finding, naming)
        self._administration = Administration(self._desk, naming, finding, self._consuming, self._flow, self._moving)
        self._picturing = Picturing(self._desk)
        self._news = News(self._desk)
        self._placing = Placing(self._desk, self._moving, naming)
        self._transactions = Transactions(self._desk, self._publishing, self._consuming, finding, self._moving)
        self._entering = Entering(self._desk, self._hang_up, signet)
        self._handlers: dict[type, Callable[[Connection, Any], None]] = {
            conversation.Publish: self._publishing.on_publish,
            conversation.Retire: self._publishing.on_retire,
            conversation.Acknowledge: self._consuming.on_acknowledge,
            conversation.Return: self._consuming.on_return,
            conversation.Consume: self._consuming.on_consume,
            conversation.Regulate: self._consuming.on_regulate,
            conversation.CloseConsumer: self._consuming.on_close,
            conversation.ConsumePattern: self._wildcards.on_consume,
            conversation.ClosePattern: self._wildcards.on_close,
            conversation.Recover: Recovering(self._desk, self._consuming, self._moving).on_recover,
            conversation.OpenSession: self._open_session,
            conversation.CloseSession: self._close_session,
            conversation.Resolve: self._administration.on_resolve,
            conversation.Administer: self._administration.on_administer,
            conversation.Unsubscribe: self._administration.on_unsubscribe,
            conversation.Browse: self._administration.on_browse,
            conversation.Status: self._picturing.on_status,
            conversation.SendFragment: self._streaming.on_fragment,
            conversation.AbandonStream: self._streaming.on_abandon,
            conversation.ReadFragment: self._streaming.on_read,
            conversation.Ping: self._on_ping,
            moving_conversation.Move: self._placing.on_move,
            moving_conversation.Drain: self._placing.draining.on_drain,
            conversation.Close: self._on_goodbye,
            conversation.CommitTransaction: self._transactions.on_commit,
            process_conversation.AskTicket: Admitting(self._desk, make_pass).on_ask,
            **LogClients(self._desk, self._flow).handlers(),
        }

    def receive(self, item: Input, now: float) -> None:
        """Takes in one thing that happened."""
        self._desk.now = now
        match item:
            case Said():
                self._on_said(item.stream, item.frame)
            case Committed():
                self._on_committed(item)
            case Told():
                self._on_told(item)
            case Opened():
                self._entering.on_opened(item.stream)
            case Closed():
                self._on_closed(item.stream)
            case Window():
                self._desk.channels[item.channel].is_open = item.is_open
            case Linked():
                self._on_linked(item)
            case Writable():
                self._on_writable(item)
            case Lost():
                self._on_lost(item)
            case Logged():
                self._administration.on_logged(self._run, item)
            case Joined():
                self._on_joined(item)
            case Hung():
                self._on_hung(item)
            case ServersStand():
                self._picturing.on_servers(item)

    def on_time(self, now: float) -> None:
        """Fetches are asked of others, patterns compared, frozen clients cut off, late transactions rolled back."""
        self._desk.now = now
        self._desk.on_time(now)
        self._consuming.awaiting.fetching.on_time(now)
        self._streaming.fetching.on_time(now)
        self._wildcards.on_time(now)
        self._transactions.on_time(now)
        self._picturing.on_time(now)
        self._news.on_time(now)
        for connection in self._consuming.outflow.on_time(now):
            self._hang_up(connection.stream, "the client took nothing of what it was sent for too long", at_once=True)

    def next_deadline(self) -> float:
        """When a fetch, a client, a transaction or an entry is overdue; at once where something is to be compared."""
        return min(
            self._consuming.awaiting.fetching.next_deadline(),
            self._streaming.fetching.next_deadline(),
            self._wildcards.next_deadline(),
            self._consuming.outflow.next_deadline(),
            self._transactions.next_deadline(),
            self._picturing.next_deadline(),
            self._news.next_deadline(),
            self._desk.next_deadline(),
            *(channel.next_deadline() for channel in self._desk.channels),
        )

    def watch_steps(self, reach: Callable[[str], None]) -> None:
        """Lets tests hear of every step of every transaction, at the moment it is taken."""
        self._desk.reach = reach

    def take_outputs(self) -> list[Output]:
        """Everything to do since the last call, in order; what is to be ordered comes first."""
        self._desk.auditing.flush(self._desk.now)
        self._consuming.awaiting.fetching.flush()
        self._streaming.fetching.flush()
        orders: list[Output] = []
        for number, channel in enumerate(self._desk.channels):
            orders += [Order(number, handle, payload) for handle, payload in channel.take_entries(self._desk.now)]
        self._flow.ease()
        self.heeding.regulate()
        outputs, self._desk.outbox = self._desk.outbox, []
        return orders + outputs if orders else outputs

    @property
    def busiest(self) -> tuple[int, int]:
        """Most bytes of one session that are not answered, and of one client that its stream may not have taken."""
        connections = self._desk.connections.values()
        coming = max((size for connection in connections for size in connection.under_way.values()), default=0)
        return coming, max((connection.unproven for connection in connections), default=0)

    def describe(self) -> dict[str, object]:
        """The one printable state."""
        return {
            "name": self._desk.settings.name,
            "connections": [connection.describe() for connection in self._desk.connections.values()],
            "channels": [channel.describe() for channel in self._desk.channels],
            "directory": self._desk.directory.describe(),
            "publishing": self._publishing.describe(),
            "consuming": self._consuming.describe(),
            "flow": self._flow.describe() | self.heeding.describe(),
            "streaming": self._streaming.describe(),
            "wildcards": self._wildcards.describe(),
            "transactions": self._transactions.describe(),
            "auditing": self._desk.auditing.describe(),
            "moving": self._moving.describe(),
            "carrying": self._carrying.describe(),
        }

    # --- clients ---

    def _on_said(self, stream: int, frame: conversation.AnyClientFrame) -> None:
        connection = self._desk.connections.get(stream)
        try:
            if connection is None:
                self._entering.on_said(stream, frame)
            elif isinstance(frame, conversation.Hello):
                raise PeerViolation("this connection has said hello before")
            elif admit(self._desk, connection, frame):
                self._handlers[type(frame)](connection, frame)
        except PeerViolation as error:
            self._desk.reply(stream, conversation.Goodbye(type(error).__name__, str(error)))
            self._hang_up(stream, str(error))

    def _hang_up(self, stream: int, reason: str, *, at_once: bool = False) -> None:
        self._desk.outbox.append(Hang(stream, reason, at_once))
        self._on_closed(stream)

    def _on_closed(self, stream: int) -> None:
        """A client is gone without goodbye: it may come back, so only the primary is told."""
        desk = self._desk
        self._entering.on_closed(stream)
        connection = desk.connections.pop(stream, None)
        if connection is None:
            return
        self._streaming.forget(connection)
        if desk.by_connection.get(connection.id) is connection:
            del desk.by_connection[connection.id]
        self._flow.leave(connection)
        self._consuming.outflow.leave(connection)
        self._transactions.on_closed(connection)
        for consumer in connection.consumers.values():
            desk.consumers.pop(consumer.key, None)
            desk.loose.let_go(consumer)
        self._wildcards.on_closed(connection)
        for number in range(len(desk.channels)):
            desk.ask_primary(number, link.ConnectionLost(connection.id))
        desk.log("info", "disconnected", f"connection={connection.id.hex()}")

    def _on_goodbye(self, connection: Connection, frame: conversation.Close) -> None:
        """A client ends in good order: nothing of it is kept."""
        for consumer in list(connection.consumers.values()):
            self._consuming.end(connection, consumer)
        for channel in self._desk.channels:
            channel.want(commands.Forget(connection.id))
        self._hang_up(connection.stream, "the client said goodbye")

    def _open_session(self, connection: Connection, frame: conversation.OpenSession) -> None:
        if error := too_many(len(connection.sessions), self._desk.settings.sessions_max, "sessions"):
            raise PeerViolation(str(error))  # nobody waits for an answer to this
        connection.sessions.add(frame.session)

    def _close_session(self, connection: Connection, frame: conversation.CloseSession) -> None:
        connection.sessions.discard(frame.session)
        self._wildcards.close_session(connection, frame.session)
        self._publishing.close_session(connection, frame.session)
        ending = list(connection.of_session(frame.session).consumers.values())
        left = len(ending)

        def on_ended() -> None:
            nonlocal left
            left -= 1
            if left <= 0:
                self._desk.reply(connection.stream, conversation.Done(frame.request))

        for consumer in ending:
            self._consuming.end(connection, consumer, on_ended, frame.unseen.get(consumer.number, ()))
        if not ending:
            on_ended()

    def _on_ping(self, connection: Connection, frame: conversation.Ping) -> None:
        self._desk.reply(connection.stream, conversation.Pong())

    def _on_writable(self, item: Writable) -> None:
        connection = self._desk.connections.get(item.stream)
        if connection is not None:
            self._consuming.outflow.on_writable(connection, is_writable=item.is_writable)
            self._streaming.go_on(connection)

    def _on_hung(self, item: Hung) -> None:
        """Nobody who was here before is heard any more (hanging.py)."""
        if self._desk.connections:
            self._desk.log("warning", "hung", f"seconds={item.seconds:.1f} connections={len(self._desk.connections)}")
        self._start_over("this Client Manager hung; come back")

    def _start_over(self, reason: str) -> None:
        """Every client comes back, here or elsewhere, and repeats what was not answered."""
        for stream in list(self._desk.connections):
            self._send_back(stream, reason)

    def _send_back(self, stream: int, reason: str) -> None:
        self._desk.reply(stream, conversation.Goodbye(Unavailable.__name__, reason))
        self._hang_up(stream, reason)

    # --- the log ---

    def _on_committed(self, item: Committed) -> None:
        channel = self._desk.channels[item.channel]
        entry = None
        if item.payload:
            entry = self._learn(item.channel, item.sequence, item.payload, item.epoch)
            if entry is not None:
                channel.cache.put(item.sequence, item.payload, entry)
            channel.heard = item.sequence
            self._consuming.awaiting.on_heard(item.channel, item.sequence)
        if item.handle and item.sequence:
            channel.committed(item.handle, item.sequence)
        elif item.handle:  # entries before it were not heard: one of them may have forbidden what this one wanted
            self._on_lost(Lost(item.channel, item.handle, "it is not known what came before an entry"))

    def _learn(self, channel: int, sequence: int, payload: bytes, epoch: int) -> commands.Entry | None:
        """Keeps the directory current from what the log says of destinations."""
        try:
            entry = commands.decode_heeded(payload, epoch)
        except PeerViolation as error:
            self._desk.log("error", "unreadable_entry", f"channel={channel} reason={error}")
            return None
        desk = self._desk
        for command in entry.commands:
            if self._moving.has_refused(channel, sequence, command):
                continue  # whoever wants it says it again where the destination went, unless that one is gone
            match command:
                case commands.Acknowledge() | commands.Return() if desk.loose:
                    desk.loose.settle(channel, command)
                case commands.DeleteDestination(number):
                    desk.loose.forget(channel, number)
                    self._moving.on_deleted(channel, number)
                    self._administration.on_deleted(place_of(channel, number))
                    self._placing.on_deleted(place_of(channel, number))
                case commands.Unsubscribe(number, subscription):
                    desk.loose.forget_subscription(channel, number, subscription)
                case commands.Purge(number):
                    desk.loose.forget(channel, number)
                case commands.SetPolicy(number, policy):
                    desk.directory.set_policy(place_of(channel, number), policy)
                case commands.Move():
                    self._moving.on_move(channel, sequence, command)
                    self._placing.on_moved(channel, command)
                case commands.Settle(number):
                    self._moving.on_settled(channel, number)
                case commands.Forget(connection):
                    desk.directory.forget_connection(channel, connection)
                    self._on_forgotten(connection)
                    desk.loose.forget_connection(channel, connection)
        return entry

    def _on_forgotten(self, identity: bytes) -> None:
        """A primary whose link was cut for long took a client for gone: nothing holds any more that the log knew of it.

        On another stream nothing of it is confirmed before the log has agreed.
        """
        connection = self._desk.by_connection.get(identity)
        if connection is not None:
            self._send_back(connection.stream, "the cluster took this connection for gone; come back")

    def _on_lost(self, item: Lost) -> None:
        """The bus does not know what became of an own entry: every client starts over, and repeats what it must."""
        channel = self._desk.channels[item.channel]
        self._desk.log("warning", "order_lost", f"channel={item.channel} reason={item.reason}")
        self._start_over("the log was interrupted; come back")
        if item.is_given_up:
            channel.forsake(item.handle, item.reason)
        else:
            channel.lost(item.handle)
            if item.channel == 0:
                self._entering.identity.on_lost()
        self._moving.on_lost(item.channel)  # now that nobody is there whose later messages could overtake the lost ones

    # --- Message Managers ---

    def _on_linked(self, item: Linked) -> None:
        channel = self._desk.channels[item.channel]
        if item.is_up:
            channel.links.add(item.name)
            self._introduce(item.channel, item.name)
            return
        channel.links.discard(item.name)
        if channel.primary == item.name:
            channel.primary = ""
            self._moving.on_primary_gone(item.channel)
            self._news.on_primary_gone(item.channel)
        self._consuming.awaiting.fetching.on_link_lost(item.channel, item.name)
        self._streaming.fetching.on_link_lost(item.channel, item.name)
        self._picturing.on_link_lost(item.channel, item.name)
        self._flow.on_stored(item.channel, item.name, "")

    def _on_joined(self, item: Joined) -> None:
        """Answers are sent to the origin of an entry, so whoever is linked must know the new one."""
        self._origins[item.channel] = item.origin
        channel = self._desk.channels[item.channel]
        for name in sorted(channel.links):
            if name != channel.primary:
                self._introduce(item.channel, name)
        if channel.primary:
            self._greet(item.channel)

    def _introduce(self, channel: int, name: str) -> None:
        settings = self._desk.settings
        connections = list(self._desk.by_connection)
        clients = [(known.id, known.client_id) for known in self._desk.connections.values() if known.client_id]
        origin = self._origins[channel]
        time_ms = self._desk.dating.time_ms(channel, self._desk.now)
        me = link.Introduce(settings.name, origin, settings.pid, settings.address, connections, clients, time_ms)
        self._desk.ask(channel, name, me)

    def _on_told(self, item: Told) -> None:
        channel, frame = self._desk.channels[item.channel], item.frame
        if isinstance(frame, link.Role):
            self._on_role(item.channel, item.name, frame)
        elif isinstance(frame, link.Entries):
            self._consuming.awaiting.fetching.on_entries(item.channel, frame)
            self._streaming.fetching.on_entries(item.channel, frame)
        elif isinstance(frame, link.Stored):
            self._flow.on_stored(item.channel, item.name, frame.reason)
        elif isinstance(frame, link.Described):
            self._picturing.on_described(item.channel, item.name, frame)
        elif item.name != channel.primary:
            return  # of one that is primary no more
        elif isinstance(frame, link.Deliver):
            self._consuming.on_deliver(item.channel, frame)
        elif isinstance(frame, link.Answered):
            channel.answered(frame)
        elif isinstance(frame, link.Time):
            self._desk.dating.learn(item.channel, frame.time_ms, self._desk.now)
        elif isinstance(frame, link.Full):
            self._flow.on_full(item.channel, frame)
        elif isinstance(frame, link.Detached):
            self._consuming.on_detached(frame)
        elif isinstance(frame, link.Lapsed):
            self._consuming.on_lapsed(frame)
        elif isinstance(frame, link.FragmentsLocated):
            self._streaming.on_located(item.channel, frame)
        elif isinstance(frame, link.Looked):
            self._administration.on_browsed(item.channel, frame)
        elif isinstance(frame, link.Advertised):
            self._wildcards.on_advertised(item.channel, frame)
        elif isinstance(frame, link.InDoubt):
            self._transactions.resolve(frame)
        elif isinstance(frame, moving_link.Exported):
            if not self._placing.draining.on_exported(item.channel, frame):
                self._carrying.on_exported(item.channel, frame)
        elif isinstance(frame, moving_link.Carry):
            self._carrying.on_carry(item.channel, frame)
        elif isinstance(frame, moving_link.Departed):
            self._moving.on_departed(item.channel, frame)
        elif isinstance(frame, moving_link.Landed):
            self._moving.on_landed(item.channel, frame)

    def _on_role(self, number: int, name: str, frame: link.Role) -> None:
        channel = self._desk.channels[number]
        if not frame.is_primary:
            if channel.primary == name:
                channel.primary = ""
                self._moving.on_primary_gone(number)
                self._news.on_primary_gone(number)
            return
        if frame.epoch < channel.epoch:
            return
        if channel.primary != name or channel.epoch != frame.epoch:
            self._moving.on_primary_gone(number)
        channel.primary, channel.epoch = name, frame.epoch
        self._news.on_primary(number)
        self._desk.log("info", "primary", f"channel={number} name={name}")
        self._greet(number)
        self._desk.dating.meet(number, frame.time_ms, self._desk.now)

    def _greet(self, number: int) -> None:
        """Tells the primary all that it must know of this Client Manager."""
        channel = self._desk.channels[number]
        self._introduce(number, channel.primary)
        channel.repeat_requests()
        if number == 0:
            self._entering.identity.on_primary()
        self._consuming.attach_all(number)
        self._streaming.ask_again(number)
        self._wildcards.on_primary(number)
        self._moving.on_primary(number)
        self._picturing.on_primary(number)
        self._desk.ask(number, channel.primary, link.Settled(self._desk.loose.of(number)))
        self._flow.greet(number)
