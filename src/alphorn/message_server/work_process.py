"""The client half, which every work process runs: nodes of the cluster, and programs that have joined it.

It keeps a connection to each message server, hears all of them and speaks through one: the one that reaches most
processes. What it says it says again, in order, when that server is lost. What it hears it hands to its owner once,
and confirms it when the owner has taken it, so that what its program does not read waits at the servers, where it is
bounded.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import msgspec

from alphorn.message_server.outbox import Outbox, Sent
from alphorn.message_server.process_machine import (
    AskRecent,
    AskServers,
    Changed,
    Compete,
    Complete,
    Connected,
    Cut,
    Disconnected,
    Given,
    Heard,
    Input,
    Outcome,
    Output,
    Quit,
    Recent,
    Send,
    SendMessage,
    Standing,
    Taken,
    TellEvent,
    Told,
    Turned,
    WantEvents,
    Won,
)
from alphorn.model import internal
from alphorn.model.errors import Blocked, Misuse, PeerViolation, Unavailable, UnknownOutcome
from alphorn.model.events import MISSED, Event

SENDERS_MAX = 10_000  # whose last numbers are remembered
EVENTS_MAX = 4_096  # whose names are remembered
DONE_MAX = 200  # claims that a server which comes back is told of
OUTBOX_BYTES_MAX = 32 << 20
OUTBOX_MAX = 50_000
REPORT_S = 60.0  # so long an event is worth telling
NEVER = float("inf")

Lane = tuple[bytes, bool]  # a sender's run, and whether it is what the sender says to all


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """One work process."""

    row: internal.Row
    servers: tuple[str, ...]  # names, in the order in which all prefer them
    beat_s: float = 1.0
    silent_s: float = 4.0  # silence of a server after which it is taken for lost
    grace_s: float = 1.0  # so long a message waits for any server to be there
    settle_s: float = 1.0  # so long another server must be better before it is spoken through


class _Server:
    """The connection to one server."""

    __slots__ = ("heard_at", "is_connected", "is_joined", "processes", "run", "said_at")

    def __init__(self) -> None:
        self.is_connected = False
        self.is_joined = False
        self.run = b""
        self.processes: dict[bytes, internal.Row] = {}  # that it reaches
        self.heard_at = self.said_at = 0.0


class WorkProcess:
    """One work process. A machine: values and time in, values out."""

    def __init__(self, settings: Settings, *, now: float) -> None:
        self._settings = settings
        self._row = settings.row
        self._servers = {name: _Server() for name in settings.servers}
        self._voice = ""  # the server that it speaks through
        self._better_since = NEVER  # when another one was first found to reach more
        self._alone_since = now  # when it had no server; NEVER while it has one
        self._has_joined = False  # in this turn
        self._missed_from = ""  # the server that told in this turn what was missed
        self._outbox = Outbox()
        self._number = 0
        self._last: OrderedDict[Lane, int] = OrderedDict()  # of each lane the last number that was handed out
        self._events: OrderedDict[tuple[object, ...], None] = OrderedDict()  # names of those that were
        self._confirming: dict[str, dict[bytes, list[int]]] = {}  # what each server is still to hear, by sender
        self._sources: dict[internal.Key, tuple[str, bool]] = {}  # what the owner has not taken → server, lane
        self._claims: dict[bytes, list[str]] = {}  # under way: servers that have said yes
        self._denied: OrderedDict[bytes, None] = OrderedDict()
        self._done: OrderedDict[bytes, None] = OrderedDict()
        self._asked: dict[int, int] = {}  # requests to the servers → handles
        self._request = 0
        self._outputs: list[Output] = []
        self._look_at = now
        self._handlers: dict[type, Callable[[str, Any, float], None]] = {
            internal.Joined: self._on_joined,
            internal.Refused: self._on_refused,
            internal.Arrived: self._on_arrived,
            internal.Departed: self._on_departed,
            internal.Relay: self._on_relay,
            internal.Notify: self._on_notify,
            internal.Taken: self._on_taken,
            internal.Settled: self._on_settled,
            internal.Failed: self._on_failed,
            internal.Missed: self._on_missed,
            internal.Claimed: self._on_claimed,
            internal.Free: self._on_free,
            internal.Happened: self._on_happened,
            internal.Stands: self._on_stands,
            internal.Pong: lambda server, frame, now: None,
        }

    # --- what the owner may look at ---

    @property
    def others(self) -> list[internal.Row]:
        """All processes that some server reaches, this one left out, by name."""
        found = {row.run: row for server in self._servers.values() for row in server.processes.values()}
        found.pop(self._row.run, None)
        return sorted(found.values(), key=lambda row: row.name)

    @property
    def joined(self) -> list[str]:
        """The servers that it has joined."""
        return [name for name, server in self._servers.items() if server.is_joined]

    # --- the machine ---

    def receive(self, item: Input, now: float) -> None:
        """Takes in one thing that happened; raises `PeerViolation` for what no correct server says."""
        match item:
            case Heard(server, frame):
                self._servers[server].heard_at = now
                self._handlers[type(frame)](server, frame, now)
            case SendMessage():
                self._send_message(item, now)
            case Taken(run, number):
                self._take(run, number)
            case TellEvent(event):
                self._number += 1
                self._post(Sent(internal.Report(self._number, event), 0, now + REPORT_S))
            case WantEvents(kinds):
                self._row = msgspec.structs.replace(self._row, wants=list(kinds))
                self._say_to_all(internal.Want(list(kinds)))
            case Connected(server):
                self._connect(server, now)
            case Disconnected(server):
                self._lose(server, now)
            case Compete(key):
                self._compete(key)
            case Complete(key):
                self._complete(key)
            case AskRecent(handle, maximum):
                self._ask_recent(handle, maximum)
            case AskServers():
                self._request += 1
                self._say_to_all(internal.Look(self._request))
            case Quit():
                self._say_to_all(internal.Leave())
            case _:
                raise AssertionError(f"a work process does not know the input {item!r}")

    def on_time(self, now: float) -> None:
        """Does what is due."""
        for number in self._outbox.overdue(now):
            self._give_up(number)
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
        self._choose_voice(now)
        if now - self._alone_since > self._settings.grace_s:
            for sent in self._outbox:
                if not sent.has_left and sent.handle:
                    self._refuse(sent, Unavailable, "")

    def next_deadline(self) -> float:
        """When `on_time` wants to be called."""
        return min(self._look_at, self._outbox.next_deadline())

    def take_outputs(self) -> list[Output]:
        """Everything to do since the last call, in order."""
        for server, heard in self._confirming.items():
            if heard and self._servers[server].is_joined:
                through = [(run, alone, for_all) for run, (alone, for_all) in heard.items()]
                self._outputs.append(Send(server, internal.Confirm(through)))
        self._confirming.clear()
        outputs, self._outputs = self._outputs, []
        return outputs

    def describe(self) -> dict[str, object]:
        """The one printable state."""
        return {
            "name": self._row.name,
            "turn": self._row.turn,
            "joined": self.joined,
            "speaks_through": self._voice,
            "outbox": len(self._outbox),
            "outbox_bytes": self._outbox.bytes,
            "untaken": len(self._sources),
            "others": len(self.others),
        }

    # --- servers come and go ---

    def _connect(self, server: str, now: float) -> None:
        state = self._servers[server] = _Server()
        state.is_connected = True
        state.heard_at = state.said_at = now
        self._say(server, internal.Join(internal.VERSION, self._row))

    def _lose(self, server: str, now: float) -> None:
        was_joined = self._servers[server].is_joined
        self._servers[server] = _Server()
        self._confirming.pop(server, None)
        for given, (source, is_for_all) in self._sources.items():
            if source == server:
                self._sources[given] = "", is_for_all
        for key, granted in list(self._claims.items()):
            if server in granted:
                granted.remove(server)
            self._go_on_claiming(key)
        if not was_joined:
            return
        if not self.joined:
            self._alone_since, self._has_joined = now, False
            self._row = msgspec.structs.replace(self._row, turn=self._row.turn + 1)
        self._outputs.append(Changed())
        if server == self._voice:
            self._voice = ""
            self._choose_voice(now)

    def _on_joined(self, server: str, frame: internal.Joined, now: float) -> None:
        state = self._servers[server]
        if state.is_joined:
            raise PeerViolation("a server welcomes once")
        state.is_joined, state.run = True, frame.run
        self._outputs.append(Turned(server))
        if self._row.wants:  # perhaps since it asked to join
            self._say(server, internal.Want(self._row.wants))
        if not self._has_joined:
            self._has_joined, self._alone_since = True, NEVER
            self._missed_from = ""
            if self._row.turn > 1 and not frame.is_known:
                self._tell_missed(server, -1)
        for key in self._done:
            self._say(server, internal.Finish(key))
        for key in list(self._claims):
            self._go_on_claiming(key)

    def _on_refused(self, server: str, frame: internal.Refused, now: float) -> None:
        self._outputs.append(Turned(server, frame.error, frame.reason))
        self._outputs.append(Cut(server, frame.reason))
        self._lose(server, now)

    def _on_arrived(self, server: str, frame: internal.Arrived, now: float) -> None:
        self._servers[server].processes.update((row.run, row) for row in frame.rows)
        self._outputs.append(Changed())
        self._choose_voice(now)

    def _on_departed(self, server: str, frame: internal.Departed, now: float) -> None:
        for run in frame.runs:
            self._servers[server].processes.pop(run, None)
        self._outputs.append(Changed())

    def _choose_voice(self, now: float) -> None:
        """The server that reaches most processes; of equals the first. One that is still there is kept for a while."""
        joined = [name for name in self.joined if self._servers[name].processes]
        if not joined:
            return
        best = max(joined, key=lambda name: len(self._servers[name].processes))
        if best == self._voice:
            self._better_since = NEVER
            return
        if self._voice:
            self._better_since = min(self._better_since, now)
            if now - self._better_since < self._settings.settle_s:
                return
            self._say(self._voice, internal.Speak(False))
        self._voice, self._better_since = best, NEVER
        self._say(best, internal.Speak(True))
        for sent in self._outbox:
            sent.has_left = True
            self._say(best, sent.frame)

    # --- speaking ---

    def _send_message(self, item: SendMessage, now: float) -> None:
        if len(item.body) > internal.MESSAGE_BYTES_MAX:
            reason = (
                f"the message has {len(item.body)} bytes; {internal.MESSAGE_BYTES_MAX} fit, larger ones go by a queue"
            )
            self._outputs.append(Outcome(item.handle, Misuse.__name__, reason))
            return
        if len(self._outbox) >= OUTBOX_MAX or self._outbox.bytes + len(item.body) > OUTBOX_BYTES_MAX:
            reason = f"{len(self._outbox)} messages of this process are not settled yet; send more when they are"
            self._outputs.append(Outcome(item.handle, Blocked.__name__, reason))
            return
        self._number += 1
        sent = Sent(internal.Say(self._number, item.to, item.body), item.handle, now + item.timeout_s)
        if now - self._alone_since > self._settings.grace_s:
            self._refuse(sent, Unavailable, "")
        else:
            self._post(sent)

    def _post(self, sent: Sent) -> None:
        self._outbox.add(sent)
        if self._voice:
            sent.has_left = True
            self._say(self._voice, sent.frame)

    def _give_up(self, number: int) -> None:
        sent = self._outbox.find(number)
        if sent is None or (not sent.handle and sent.has_left and isinstance(sent.frame, internal.Say)):
            return  # it has its answer, and is kept for those that do not have it
        if not sent.handle:
            self._outbox.remove(number)
        elif sent.has_left:
            to = getattr(sent.frame, "to", "") or "all others"
            self._refuse(sent, UnknownOutcome, f"{to} did not say in time that it has the message; it may get it yet")
        else:
            self._refuse(sent, Unavailable, "")

    def _refuse(self, sent: Sent, error: type[Exception], reason: str) -> None:
        self._outbox.remove(sent.frame.number)
        if sent.handle:
            names = " and ".join(self._settings.servers) or "none in the cluster file"
            reason = reason or f"no message server is there ({names}); nothing was sent, so send it again later"
            self._outputs.append(Outcome(sent.handle, error.__name__, reason))

    def _on_taken(self, server: str, frame: internal.Taken, now: float) -> None:
        for number in frame.numbers:
            sent = self._outbox.find(number)
            if sent is not None and sent.handle:
                self._outputs.append(Outcome(sent.handle))
                sent.handle = 0

    def _on_settled(self, server: str, frame: internal.Settled, now: float) -> None:
        for number in frame.numbers:
            sent = self._outbox.remove(number)
            if sent is not None and sent.handle:
                self._outputs.append(Outcome(sent.handle))

    def _on_failed(self, server: str, frame: internal.Failed, now: float) -> None:
        sent = self._outbox.remove(frame.number)
        if sent is not None and sent.handle:
            self._outputs.append(Outcome(sent.handle, frame.error, frame.reason))

    # --- hearing ---

    def _on_relay(self, server: str, frame: internal.Relay, now: float) -> None:
        if self._is_new(server, (frame.run, frame.is_for_all), frame.number):
            self._outputs.append(Given(frame.sender, frame.run, frame.number, frame.body))

    def _on_notify(self, server: str, frame: internal.Notify, now: float) -> None:
        if not self._is_new(server, (frame.run, True), frame.number):
            return
        name = frame.event.name
        if name in self._events:
            self._take(frame.run, frame.number)
            return
        self._events[name] = None
        if len(self._events) > EVENTS_MAX:
            self._events.popitem(last=False)
        self._outputs.append(Told(frame.run, frame.number, frame.event))

    def _is_new(self, server: str, lane: Lane, number: int) -> bool:
        """Whether it comes for the first time. What the owner has taken already is confirmed again."""
        run, is_for_all = lane
        if number > self._last.get(lane, 0):
            self._last[lane] = number
            self._last.move_to_end(lane)
            if len(self._last) > SENDERS_MAX:
                self._last.popitem(last=False)
            self._sources[run, number] = server, is_for_all
            return True
        if (run, number) in self._sources:
            self._sources[run, number] = server, is_for_all
        else:
            self._confirm(server, run, number, is_for_all=is_for_all)
        return False

    def _take(self, run: bytes, number: int) -> None:
        server, is_for_all = self._sources.pop((run, number))
        for name in (server,) if server else self.joined:
            self._confirm(name, run, number, is_for_all=is_for_all)

    def _confirm(self, server: str, run: bytes, number: int, *, is_for_all: bool) -> None:
        through = self._confirming.setdefault(server, {}).setdefault(run, [0, 0])
        through[is_for_all] = max(number, through[is_for_all])

    def _on_missed(self, server: str, frame: internal.Missed, now: float) -> None:
        self._tell_missed(server, frame.count)

    def _tell_missed(self, server: str, count: int) -> None:
        """Both servers count; the first that says so is believed until all are lost again."""
        if self._missed_from in ("", server):
            self._missed_from = server
            self._outputs.append(Told(b"", 0, Event(kind=MISSED, node=self._row.name, details={"count": count})))

    # --- once in the cluster ---

    def _compete(self, key: bytes) -> None:
        if key not in self._claims and key not in self._done:
            self._claims[key] = []
            self._go_on_claiming(key)

    def _go_on_claiming(self, key: bytes) -> None:
        """Asks one server after the other: all that are there must say yes."""
        granted = self._claims[key]
        waiting = [name for name in self.joined if name not in granted]
        if waiting:
            self._say(waiting[0], internal.Claim(key))
        elif granted:
            del self._claims[key]
            self._outputs.append(Won(key))

    def _on_claimed(self, server: str, frame: internal.Claimed, now: float) -> None:
        key = frame.key
        if key in self._denied:
            if frame.is_yours:
                del self._denied[key]
                self._compete(key)
        elif key not in self._claims:
            return
        elif frame.is_yours:
            if server not in self._claims[key]:
                self._claims[key].append(server)
            self._go_on_claiming(key)
        else:
            del self._claims[key]
            self._denied[key] = None
            if len(self._denied) > EVENTS_MAX:
                self._denied.popitem(last=False)

    def _on_free(self, server: str, frame: internal.Free, now: float) -> None:
        if frame.key in self._denied:
            del self._denied[frame.key]
            self._compete(frame.key)

    def _complete(self, key: bytes) -> None:
        self._done[key] = None
        if len(self._done) > DONE_MAX:
            self._done.popitem(last=False)
        self._say_to_all(internal.Finish(key))

    # --- questions ---

    def _ask_recent(self, handle: int, maximum: int) -> None:
        joined = self.joined
        if not joined:
            reason = "no message server is there to ask for events; try again later"
            self._outputs.append(Outcome(handle, Unavailable.__name__, reason))
            return
        self._request += 1
        self._asked[self._request] = handle
        self._say(self._voice or joined[0], internal.Recent(self._request, maximum))

    def _on_happened(self, server: str, frame: internal.Happened, now: float) -> None:
        handle = self._asked.pop(frame.request, 0)
        if handle:
            self._outputs.append(Recent(handle, frame.events))

    def _on_stands(self, server: str, frame: internal.Stands, now: float) -> None:
        self._outputs.append(Standing(server, frame.data))

    # --- parts ---

    def _say(self, server: str, frame: internal.ProcessFrame) -> None:
        self._outputs.append(Send(server, frame))

    def _say_to_all(self, frame: internal.ProcessFrame) -> None:
        for name in self.joined:
            self._say(name, frame)
