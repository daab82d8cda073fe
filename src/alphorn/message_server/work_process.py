"""The client half, which every work process runs: nodes of the cluster, and programs that have joined it.

It keeps a connection to each message server and has one of them as its home: the one that reaches most processes. What
it says it keeps until that is safe, and says it again where it may be lost. What it hears it hands to its owner once,
and confirms it when the owner has taken it: what its program does not read waits where it came from, and is bounded.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import msgspec

from alphorn.message_server import process_machine as machine
from alphorn.message_server.competing import Competing
from alphorn.message_server.lanes import Listening, OwnLane
from alphorn.message_server.outbox import Message, Outbox
from alphorn.message_server.process_machine import Changed, Cut, Given, Input, Outcome, Output, Send, Told, Turned
from alphorn.message_server.servers import Servers
from alphorn.message_server.tells import Hearing, Tells
from alphorn.model import internal
from alphorn.model.errors import Blocked, Error, Misuse, PeerViolation, Unavailable, UnknownOutcome
from alphorn.model.events import EVERYTHING, MISSED, Event
from alphorn.model.internal import OTHERS

EVENTS_MAX = 4_096  # whose names are remembered
REPORT_S = 60.0  # so long an event is worth telling
NEVER = float("inf")


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """One work process."""

    row: internal.Row
    secret: bytes  # its run is `run_of` it
    servers: tuple[str, ...]  # names, in the order in which all prefer them
    beat_s: float = 1.0
    silent_s: float = 4.0  # silence of a server after which it is taken for lost
    grace_s: float = 1.0  # so long a message waits for any server to be there
    settle_s: float = 1.0  # so long another server must be better before it becomes the home


class WorkProcess:
    """One work process. A machine: values and time in, values out."""

    def __init__(self, settings: Settings, *, now: float) -> None:
        self._settings = settings
        self._row = settings.row
        self._servers = Servers(settings.servers)
        self._better_since = NEVER  # when another one was first found to reach more
        self._alone_since = now  # when it had no server; NEVER while it has one
        self._outputs: list[Output] = []
        self._outbox = Outbox()
        self._tells = Tells(self._servers.find, self._say, self._on_lost)
        self._hearing = Hearing()
        self._lane = OwnLane()
        self._listening = Listening()
        self._competing = Competing(lambda: self.joined, self._say, lambda key: self._outputs.append(machine.Won(key)))
        self._events: OrderedDict[tuple[object, ...], None] = OrderedDict()  # names of those that were told
        self._given = 0  # things handed to the owner
        self._untaken: dict[int, tuple[bool, bytes, int]] = {}  # of them: is for all, sender, its number
        self._asked: dict[int, tuple[int, str]] = {}  # requests → handles, and the server
        self._request = 0
        self._look_at = now
        self.dropped_events = 0  # that nobody will hear of: too many at once, or no server for too long
        self._handlers: dict[type, Callable[[str, Any, float], None]] = {
            internal.Joined: self._on_joined,
            internal.Refused: self._on_refused,
            internal.Arrived: self._on_arrived,
            internal.Departed: self._on_departed,
            internal.Found: self._on_found,
            internal.Relay: self._on_relay,
            internal.Confirmed: self._on_confirmed,
            internal.RelayAll: self._on_relay_all,
            internal.Notify: self._on_notify,
            internal.Passed: self._on_passed,
            internal.Taken: self._on_taken,
            internal.Claimed: self._on_claimed,
            internal.Free: lambda server, frame, now: self._competing.on_free(frame.key),
            internal.Happened: self._on_happened,
            internal.Stands: self._on_stands,
            internal.Pong: lambda server, frame, now: None,
        }

    # --- what the owner may look at ---

    @property
    def others(self) -> list[internal.Row]:
        """All processes that some server reaches, this one left out, by name."""
        found = self._servers.rows()
        found.pop(self._row.run, None)
        return sorted(found.values(), key=lambda row: row.name)

    @property
    def joined(self) -> list[str]:
        """The servers that it has joined."""
        return self._servers.joined

    # --- the machine ---

    def receive(self, item: Input, now: float) -> None:
        """Takes in one thing that happened; raises `PeerViolation` for what no correct server says."""
        match item:
            case machine.Heard(server, frame):
                self._servers[server].heard_at = now
                self._handlers[type(frame)](server, frame, now)
            case machine.SendMessage():
                self._send_message(item, now)
            case machine.Taken(_, number):
                self._take(number)
            case machine.TellEvent(event):
                self._tell_event(event, now)
            case machine.WantEvents(kinds):
                self._row = msgspec.structs.replace(self._row, wants=list(kinds))
                self._say_to_all(internal.Want(list(kinds)))
            case machine.Connected(server):
                self._connect(server, now)
            case machine.Disconnected(server):
                self._lose(server, now)
            case machine.Compete(key):
                self._competing.compete(key)
            case machine.Complete(key):
                self._competing.complete(key)
            case machine.AskRecent(handle, maximum):
                self._ask_recent(handle, maximum)
            case machine.AskServers():
                self._request += 1
                self._say_to_all(internal.Look(self._request))
            case machine.Quit():
                self._confirm()  # what was taken before, it has
                self._say_to_all(internal.Leave())
            case _:
                raise AssertionError(f"a work process does not know the input {item!r}")

    def on_time(self, now: float) -> None:
        """Does what is due."""
        for message in self._outbox.overdue(now):
            self._give_up(message)
        if now < self._look_at:
            return
        self._look_at = now + self._settings.beat_s / 4
        for name, server in self._servers.items():
            if server.is_connected and now - server.heard_at > self._settings.silent_s:
                self._outputs.append(
                    Cut(name, f"nothing was heard of {name} for {self._settings.silent_s:.0f} seconds")
                )
                self._lose(name, now)
            elif server.is_joined and now - server.said_at >= self._settings.beat_s:
                self._say(name, internal.Ping())
                server.said_at = now
        self._choose_home(now)
        self._tells.look(now)
        self._lane.forget(now)
        if self._is_cut_off(now):
            self._refuse_unsaid()

    def next_deadline(self) -> float:
        """When `on_time` wants to be called."""
        return min(self._look_at, self._outbox.next_deadline())

    def take_outputs(self) -> list[Output]:
        """Everything to do since the last call, in order."""
        self._confirm()
        outputs, self._outputs = self._outputs, []
        return outputs

    def _confirm(self) -> None:
        for server, heard in self._hearing.confirmations(self.joined).items():
            self._say(server, internal.Confirm(heard))
        position = self._listening.confirmation() if self._servers.home else 0
        if position:
            self._say(self._servers.home, internal.Took(position))

    def describe(self) -> dict[str, object]:
        """The one printable state."""
        return {
            "name": self._row.name,
            "turn": self._row.turn,
            "joined": self.joined,
            "speaks_through": self._servers.home,
            "outbox": self._outbox.count,
            "outbox_bytes": self._outbox.bytes,
            "untaken": len(self._untaken),
            "dropped_events": self.dropped_events,
            "others": len(self.others),
        }

    # --- servers come and go ---

    def _connect(self, server: str, now: float) -> None:
        self._servers.begin(server, now, self._row.wants)
        self._say(server, internal.Join(internal.VERSION, self._row, self._settings.secret))

    def _lose(self, server: str, now: float) -> None:
        if not self._servers.lose(server):
            return
        self._competing.on_lost(server)
        if not self.joined:
            self._alone_since = now
            self._row = msgspec.structs.replace(self._row, turn=self._row.turn + 1)
        self._outputs.append(Changed())
        for request, (handle, asked) in list(self._asked.items()):
            if asked == server:
                del self._asked[request]
                self._outputs.append(Outcome(handle, Unavailable.__name__, f"{server} was lost; ask again"))
        self._tells.on_server_lost(server)
        self._choose_home(now)
        self._route_all(now)

    def _on_joined(self, server: str, frame: internal.Joined, now: float) -> None:
        state = self._servers[server]
        if state.is_joined:
            raise PeerViolation("a server welcomes once")
        state.is_joined, state.run = True, frame.run
        self._outputs.append(Turned(server))
        if self._row.wants != state.joined_with:  # since it asked to join
            self._say(server, internal.Want(self._row.wants))
        self._listening.begin(frame.lanes)
        self._alone_since = NEVER
        self._competing.on_joined(server)

    def _on_refused(self, server: str, frame: internal.Refused, now: float) -> None:
        self._outputs.append(Turned(server, frame.error, frame.reason))
        self._outputs.append(Cut(server, frame.reason))
        self._lose(server, now)

    def _on_arrived(self, server: str, frame: internal.Arrived, now: float) -> None:
        for row in frame.rows:
            self._servers[server].reach(row)
            self._tells.see(row.name, now)
        self._outputs.append(Changed())
        self._choose_home(now)
        for row in frame.rows:
            talk = self._tells.find(row.name)
            if talk is not None:
                self._tells.route(talk, now, is_anew=talk.via == server and talk.run == row.run)

    def _on_departed(self, server: str, frame: internal.Departed, now: float) -> None:
        for run in frame.runs:
            self._servers[server].lose(run)
            talk = self._tells.of_run(run)
            if talk is not None:
                if frame.have_ended:
                    self._tells.end(talk)
                self._tells.route(talk, now)
        self._outputs.append(Changed())

    def _choose_home(self, now: float) -> None:
        """The server that reaches most processes; of equals the first. One that is still there is kept for a while."""
        best = self._servers.best
        if not best or not len(self._servers[best]):
            return
        if best == self._servers.home:
            self._better_since = NEVER
            return
        if self._servers.home:
            self._better_since = min(self._better_since, now)
            if now - self._better_since < self._settings.settle_s:
                return
            self._say(self._servers.home, internal.Home(False))
        self._servers.home, self._better_since = best, NEVER
        first, frames = self._lane.to_say_again(self._servers[best].run)
        self._say(best, internal.Home(True, first, self._listening.come_home()))
        for frame in frames:
            self._say(best, frame)
        self._say_more()
        self._route_all(now)

    # --- the way to a name ---

    def _route_all(self, now: float) -> None:
        for talk in self._tells:
            self._tells.route(talk, now)
            self._ask_for(talk.name, now)

    def _ask_for(self, name: str, now: float) -> None:
        """Asks all servers whether somebody may have this name, where nobody of that name was seen."""
        talk = self._tells.find(name)
        if talk is not None and not talk.run and not talk.asked and not self._tells.is_known(name, now):
            for server in self.joined if self._servers.home else []:
                talk.asked.add(server)
                self._say(server, internal.Find(name))

    def _on_found(self, server: str, frame: internal.Found, now: float) -> None:
        talk = self._tells.find(frame.name)
        if frame.is_known:
            self._tells.see(frame.name, now)
        elif talk is not None and server in talk.asked:
            talk.asked.remove(server)
            if not talk.run and not talk.asked and not self._tells.is_known(frame.name, now):
                for message in list(talk.waiting.values()):
                    self._answer(message, Misuse(frame.reason))
                    self._drop(message)

    # --- speaking ---

    def _send_message(self, item: machine.SendMessage, now: float) -> None:
        message = Message(item.to, item.body, None, item.handle, now + item.timeout_s)
        if len(item.body) > internal.MESSAGE_BYTES_MAX:
            limit = f"{internal.MESSAGE_BYTES_MAX} fit, larger ones go by a queue"
            self._answer(message, Misuse(f"the message has {len(item.body)} bytes; {limit}"))
        elif not self._outbox.has_room(message):
            reason = f"{self._outbox.count} messages of this process are on their way; send more when they are over"
            self._answer(message, Blocked(reason))
        elif self._is_cut_off(now):
            self._answer(message, self._unavailable())
        elif item.to == OTHERS:
            self._outbox.add(message)
            self._lane.add(message)
            self._say_more()
        else:
            self._outbox.add(message)
            self._tells.add(message, now)
            self._ask_for(item.to, now)

    def _tell_event(self, event: Event, now: float) -> None:
        message = Message(OTHERS, b"", event, 0, now + REPORT_S)
        if not self._outbox.has_room(message):
            self.dropped_events += 1
            return
        self._outbox.add(message)
        self._lane.add(message)
        self._say_more()

    def _say_more(self) -> None:
        """What the lane has room for."""
        if self._servers.home:
            for frame in self._lane.say_more():
                self._say(self._servers.home, frame)

    def _give_up(self, message: Message) -> None:
        """Its time is up. What was said stays, where what comes after it needs that."""
        if message.event is not None:
            if not message.number:
                self.dropped_events += 1
                self._drop(message)
            return
        whom = message.to or "all others"
        if message.number:
            reason = f"{whom} did not say in time that it has the message; it may get it yet"
        else:
            reason = f"{whom} was away, and the message was not given to it"
        is_cut_off = not message.number and not self.joined
        self._answer(message, self._unavailable() if is_cut_off else UnknownOutcome(reason))
        self._drop(message)

    def _drop(self, message: Message) -> None:
        """Nobody waits for it any more."""
        if message.to != OTHERS:
            for over in self._tells.give_up(message):
                self._outbox.remove(over)
        elif not message.number:
            del self._lane.waiting[id(message)]
            self._outbox.remove(message)
        elif not self._lane.is_said(message):  # it was lost
            self._outbox.remove(message)

    def _refuse_unsaid(self) -> None:
        unsaid = [*self._lane.waiting.values(), *(m for talk in self._tells for m in talk.waiting.values())]
        for message in unsaid:
            if message.event is None:
                self._answer(message, self._unavailable())
                self._drop(message)

    def _is_cut_off(self, now: float) -> bool:
        return now - self._alone_since > self._settings.grace_s

    def _unavailable(self) -> Error:
        names = " and ".join(self._settings.servers) or "none in the cluster file"
        return Unavailable(f"no message server is there ({names}); nothing was sent, so send it again later")

    def _answer(self, message: Message, error: Error | None = None) -> None:
        if message.handle:
            outcome = (type(error).__name__, str(error)) if error is not None else ("", "")
            self._outputs.append(Outcome(message.handle, *outcome))
            message.handle = 0

    def _on_confirmed(self, server: str, frame: internal.Confirmed, now: float) -> None:
        for run, through in frame.by:
            for message in self._tells.confirm(run, through, now):
                self._answer(message)
                self._outbox.remove(message)

    def _on_lost(self, message: Message) -> None:
        reason = f"{message.to} ended before it said that it has the message; ask it, or say it again"
        self._answer(message, UnknownOutcome(reason))
        self._outbox.remove(message)

    def _on_taken(self, server: str, frame: internal.Taken, now: float) -> None:
        for message in self._lane.take(frame.through, frame.held, self._servers[server].run, now):
            if message.number in frame.lost and message.handle:
                continue  # nobody knows who has it; it is answered when its time is up
            self._answer(message)
            self._outbox.remove(message)
        self._say_more()

    # --- hearing ---

    def _on_relay(self, server: str, frame: internal.Relay, now: float) -> None:
        if self._hearing.hear(server, frame):
            given = self._give(is_for_all=False, run=frame.run, number=frame.number)
            self._outputs.append(Given(frame.sender, frame.run, given, frame.body))

    def _on_relay_all(self, server: str, frame: internal.RelayAll, now: float) -> None:
        if self._is_new(server, frame):
            given = self._give(is_for_all=True, run=frame.run, number=frame.number)
            self._outputs.append(Given(frame.sender, frame.run, given, frame.body))

    def _on_notify(self, server: str, frame: internal.Notify, now: float) -> None:
        if not self._is_new(server, frame):
            return
        name, wants = frame.event.name, self._row.wants
        if name in self._events or not (frame.event.kind in wants or EVERYTHING in wants):
            self._listening.take(frame.run, frame.number)
            return
        self._events[name] = None
        if len(self._events) > EVENTS_MAX:
            self._events.popitem(last=False)
        given = self._give(is_for_all=True, run=frame.run, number=frame.number)
        self._outputs.append(Told(frame.run, given, frame.event))

    def _is_new(self, server: str, frame: internal.RelayAll | internal.Notify) -> bool:
        position = frame.position if server == self._servers.home else 0
        return self._listening.hear(frame.run, frame.number, position)

    def _give(self, *, is_for_all: bool, run: bytes, number: int) -> int:
        self._given += 1
        self._untaken[self._given] = is_for_all, run, number
        return self._given

    def _take(self, given: int) -> None:
        is_for_all, run, number = self._untaken.pop(given)
        if is_for_all:
            self._listening.take(run, number)
        else:
            self._hearing.take(run, number)

    def _on_passed(self, server: str, frame: internal.Passed, now: float) -> None:
        self._listening.go_by(frame.lanes)
        if frame.missed:
            event = Event(kind=MISSED, node=self._row.name, details={"count": frame.missed})
            self._outputs.append(Told(b"", 0, event))

    # --- questions ---

    def _on_claimed(self, server: str, frame: internal.Claimed, now: float) -> None:
        self._competing.on_claimed(server, frame.key, is_yours=frame.is_yours)

    def _ask_recent(self, handle: int, maximum: int) -> None:
        if not self.joined:
            reason = "no message server is there to ask for events; try again later"
            self._outputs.append(Outcome(handle, Unavailable.__name__, reason))
            return
        self._request += 1
        server = self._servers.home or self.joined[0]
        self._asked[self._request] = handle, server
        self._say(server, internal.Recent(self._request, maximum))

    def _on_happened(self, server: str, frame: internal.Happened, now: float) -> None:
        handle, _ = self._asked.pop(frame.request, (0, ""))
        if handle:
            self._outputs.append(machine.Recent(handle, frame.events))

    def _on_stands(self, server: str, frame: internal.Stands, now: float) -> None:
        self._outputs.append(machine.Standing(server, frame.data))

    # --- parts ---

    def _say(self, server: str, frame: internal.ProcessFrame) -> None:
        self._outputs.append(Send(server, frame))

    def _say_to_all(self, frame: internal.ProcessFrame) -> None:
        for name in self.joined:
            self._say(name, frame)
