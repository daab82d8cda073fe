"""A message server in the simulator: the real machine, with what its shell does in node/message_server.py."""

import random
from collections import deque
from collections.abc import Callable
from typing import Any

from alphorn.message_server import machine as ms
from alphorn.message_server.core import MessageServer
from alphorn.message_server.settings import Settings
from alphorn.model import internal
from alphorn.testing.model_channels import Process, StepReached, Tell
from alphorn.testing.node import UNIX_START_S
from alphorn.testing.servers.facts import Facts, ServerRun
from alphorn.testing.streams import SimulatedStreams, StreamEnd
from alphorn.testing.upper import Room

RELINK_S = 0.2  # as in the shell
MORTEM_S_MAX = 0.003  # what was said so long before a death may still arrive


class Observed:
    """A machine of which the harness sees what goes in."""

    def __init__(self, machine: Room, before: Callable[[Any], None], after: Callable[[Any], None]) -> None:
        self._machine = machine
        self._before = before
        self._after = after
        self.on_time = machine.on_time
        self.next_deadline = machine.next_deadline
        self.take_outputs = machine.take_outputs

    def receive(self, item: Any, now: float) -> None:
        """See `Room`."""
        self._before(item)
        self._machine.receive(item, now)
        self._after(item)


class Server(Process):
    """One message server. The second of two calls the first."""

    def __init__(
        self,
        name: str,
        place: int,
        streams: SimulatedStreams,
        tell: Tell,
        *,
        facts: Facts,
        stream: random.Random,
        settings: Callable[[bytes], Settings],
        unread_max: int,
    ) -> None:
        super().__init__(name, place, streams, tell)
        self._facts = facts
        self._stream = stream
        self._settings = settings
        self._unread_max = unread_max
        self.peer: Server | None = None
        self.is_second = False

    def start(self) -> None:
        """Begins, with nothing."""
        self.run += 1
        self.dies_at = ""
        self.facts_run = self._facts.server_began(self.name)
        run = int(self.schedule.now * 1e9).to_bytes(8, "big") + self._stream.randbytes(8)
        self.machine = MessageServer(self._settings(run), now=self.schedule.now, wall=lambda now: UNIX_START_S + now)
        self._ends: dict[int, StreamEnd] = {}
        self._said_all: deque[ServerRun] = deque()  # by whom each `Synchronised` was said that has come
        self._hung: set[int] = set()  # connections that it has closed: what comes there it does not hear
        self._rows: dict[int, internal.Row] = {}
        self._link: StreamEnd | None = None
        self._next_connection = 0
        self.begin(Observed(self.machine, self._on_hearing, self._on_heard), self._perform)
        self.tell(self.name, "starts")
        if self.is_second:
            self._call(self.run)

    def on_crashed(self) -> None:
        """See `Process`."""
        self._set_linked(is_linked=False)
        self._facts.server_ended(self.facts_run)

    def accept(self, end: StreamEnd) -> bool:
        """Somebody connects; False where nobody listens."""
        if not self.is_up:
            return False
        self._next_connection += 1
        number, run = self._next_connection, self.run
        self._ends[number] = end
        end.on_frame = lambda data: self._on_frame(number, run, end, data)
        end.on_closed = lambda reason: self._on_closed(number, run, end)
        self.receive(ms.Opened(number))
        return True

    # --- what it hears ---

    def _on_frame(self, number: int, run: int, end: StreamEnd, data: bytes) -> None:
        if run != self.run or not self.is_up:
            return
        frame = internal.decode_heard(data[internal.LENGTH_BYTES :])
        if isinstance(frame, internal.Meet) and self._ends.pop(number, None) is not None:
            self.receive(ms.Closed(number))
            self._set_peer(end)
        if end is self._link and isinstance(frame, internal.AnyPeerFrame):
            if isinstance(frame, internal.Synchronised):
                assert self.peer is not None
                self._said_all.append(self.peer.facts_run)
            self.receive(ms.PeerSaid(frame))
        elif isinstance(frame, internal.AnyProcessFrame):
            self.receive(ms.Said(number, frame))

    def _on_closed(self, number: int, run: int, end: StreamEnd) -> None:
        if run != self.run or not self.is_up:
            return
        if end is self._link:
            self._link = None
            self._set_linked(is_linked=False)
            self.receive(ms.Parted())
        if self._ends.pop(number, None) is not None:
            self.receive(ms.Closed(number))

    def _on_hearing(self, item: ms.Input) -> None:
        match item:
            case ms.Said(number, frame) if number not in self._hung:
                if isinstance(frame, internal.Join):
                    self._rows[number] = frame.row
                self._facts.server_heard(self.facts_run, frame, self.facts_run.joined.get(number))
            case ms.PeerSaid(frame):
                self._facts.server_heard(self.facts_run, frame)
            case ms.Clogged(number):
                self._hung.add(number)
            case ms.Closed(number):
                self._facts.server_lost(self.facts_run, number)

    def _on_heard(self, item: ms.Input) -> None:
        if isinstance(item, ms.PeerSaid) and isinstance(item.frame, internal.Synchronised):
            other = self._said_all.popleft()
            if other.is_alive and self.machine.describe()["peer"]:  # otherwise it comes from an earlier link
                self._facts.server_synchronised(self.facts_run, other)
        if isinstance(item, ms.Said | ms.PeerSaid) and self.dies_at == f"hears {type(item.frame).__name__}":
            self.dies_at = ""
            raise StepReached(f"hears {type(item.frame).__name__}")

    # --- the other server ---

    def _set_peer(self, end: StreamEnd) -> None:
        older, self._link = self._link, end
        if older is not None and older is not end:
            self.receive(ms.Parted())
            older.close()
        self._set_linked(is_linked=True)
        self.receive(ms.Met())

    def _set_linked(self, *, is_linked: bool) -> None:
        if self.peer is not None:
            pair = frozenset((self.name, self.peer.name))
            (self._facts.linked.add if is_linked else self._facts.linked.discard)(pair)

    def _call(self, run: int) -> None:
        peer = self.peer
        assert peer is not None

        def again() -> None:
            self.schedule.after(RELINK_S, self._call, run)

        def on_closed(end: StreamEnd) -> None:
            self._on_closed(0, run, end)
            again()

        def done(end: StreamEnd | None) -> None:
            if run != self.run or not self.is_up:
                if end is not None:
                    end.close()
            elif end is None or not self.is_running:
                if end is not None:
                    end.close()
                again()
            else:
                end.on_frame = lambda data: self._on_frame(0, run, end, data)
                end.on_closed = lambda reason: on_closed(end)
                self._set_peer(end)

        if run == self.run and self.is_up and not self.is_running:
            again()
        elif run == self.run and self.is_up:
            self.streams.connect((self.place, self.name), (peer.place, peer.name), peer.accept, done)

    # --- what it says ---

    def _perform(self, output: ms.Output) -> None:
        match output:
            case ms.Tell(number, frame):
                end = self._ends.get(number)
                if end is not None:
                    self._facts.server_told(self.facts_run, number, frame, self._rows.get(number))
                    end.send(internal.encode(frame))
                    if end.unread > self._unread_max and number not in self._hung:
                        self.receive(ms.Clogged(number))
                    self._on_said(frame)
            case ms.TellPeer(frame):
                if self._link is not None:
                    self._facts.server_told_peer(self.facts_run, frame)
                    self._link.send(internal.encode(frame))
                    self._on_said(frame)
            case ms.Hang(number, _):
                self._hung.add(number)
                end = self._ends.pop(number, None)
                self._facts.server_lost(self.facts_run, number)
                if end is not None:
                    end.close()
            case ms.Part(_):
                if self._link is not None:
                    self._link.close()
                    link, self._link = self._link, None
                    self._set_linked(is_linked=False)
                    self.receive(ms.Parted())
                    if self.is_second and link is not None:
                        self.schedule.after(RELINK_S, self._call, self.run)
            case ms.Log(_, event, details):
                self.tell(self.name, f"{event} {details}")
            case _:
                raise AssertionError(f"the simulator does not know the output {output!r}")

    def _on_said(self, frame: internal.ServerFrame | internal.PeerFrame) -> None:
        if self.dies_at == f"says {type(frame).__name__}":
            self.dies_at = ""
            self.schedule.after(self._stream.uniform(0.0, MORTEM_S_MAX), self._die, self.run, type(frame).__name__)

    def _die(self, run: int, frame: str) -> None:
        if run == self.run:
            self.crash(f"dies when it says {frame}")
