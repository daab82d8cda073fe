"""Several channels in one thread, on logs that keep what the bus promises: one order, and nothing committed is lost.

The rooms above the log are the real ones. The bus itself is simulated elsewhere (simulator.py); leaving it out lets one
run have several channels, which transactions need. A log takes entries only while it has a primary; what a sender had
under way when it died may or may not be in it. Replicas come back from a checkpoint and what it retains.
"""

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from alphorn.message_manager import machine as mm
from alphorn.message_manager.core import MessageManager
from alphorn.message_manager.engine import Engine
from alphorn.message_manager.status import About
from alphorn.model import frame_kinds, link
from alphorn.model.commands import (
    TransactionCommit,
    TransactionDecide,
    TransactionFinish,
    TransactionPrepare,
    decode_entry,
)
from alphorn.model.ranges import RangeSet
from alphorn.testing.node import UNIX_START_S
from alphorn.testing.schedule import Schedule
from alphorn.testing.streams import SimulatedStreams, StreamEnd
from alphorn.testing.upper import Room, Turns
from alphorn.testing.watch import Violation

if TYPE_CHECKING:
    from alphorn.testing.node import SimulatedNode

LOG_S = 0.002  # mean time until an entry is committed, and until a reader hears of it
ELECTION_S = (0.1, 1.0)
LEFT_S = (0.5, 2.0)  # until a Client Manager that died is no member any more
CHECKPOINT_EVERY = 20
STEPS = tuple(step.__name__ for step in (TransactionCommit, TransactionPrepare, TransactionDecide, TransactionFinish))

Tell = Callable[[str, str], None]


class StepReached(Exception):
    """The process dies in the middle of what it does."""


class Process:
    """A process that can die, freeze and come back. `Turns` takes it for a member."""

    def __init__(self, name: str, place: int, streams: SimulatedStreams, tell: Tell) -> None:
        self.name = name
        self.place = place
        self.streams = streams
        self.tell = tell
        self.run = 0
        self.is_up = False
        self.is_running = False
        self.turns: Turns | None = None
        self.dies_at = ""  # the step of a transaction that it dies at

    @property
    def around(self) -> "Process":
        """As a simulated member has it."""
        return self

    @property
    def schedule(self) -> Schedule:
        """Time."""
        return self.streams.schedule

    @property
    def turn_s(self) -> float:
        """How long inputs gather before their outputs are performed."""
        return 0.0002

    @property
    def origin(self) -> bytes:
        """Of this run."""
        return f"{self.name}#{self.run}".encode().ljust(10, b".")[:10]

    def local_now(self) -> float:
        """Its clock."""
        return self.schedule.now

    def virtual(self, time: float) -> float:
        """When its clock shows this."""
        return time

    def begin(self, machine: Room, perform: Callable[[Any], None]) -> None:
        """The process is there, with this machine."""
        self.is_up = self.is_running = True
        self.turns = Turns(cast("SimulatedNode", self), machine, perform)
        self.turns.finish_soon()

    def receive(self, item: object) -> None:
        """Something happened; a step that kills the process does so at once."""
        turns = self.turns
        if turns is not None:
            self._do(lambda: turns.receive(item))

    def _do(self, act: Callable[[], None]) -> None:
        try:
            act()
        except StepReached as step:
            self.crash(f"dies at {step}")

    def crash(self, reason: str) -> None:
        """Ends at once."""
        if self.is_up:
            self.tell(self.name, reason)
            self.is_up = self.is_running = False
            self.turns = None
            self.streams.break_of(self.name, reason)
            self.on_crashed()

    def on_crashed(self) -> None:
        """What follows for others."""

    def freeze(self, seconds: float) -> None:
        """Stands still for so long."""
        if self.is_up and self.is_running:
            self.tell(self.name, f"freezes for {seconds:.1f} s")
            self.is_running = False
            self.schedule.after(seconds, self._thaw, self.run)

    def _thaw(self, run: int) -> None:
        if self.is_up and run == self.run:
            self.is_running = True
            if self.turns is not None:
                self._do(self.turns.resume)


class ModelChannel:
    """One log, the replicas that apply it, and who of them is primary."""

    def __init__(self, number: int, schedule: Schedule, stream: random.Random) -> None:
        self.number = number
        self.log: list[tuple[bytes, int, bytes, int]] = []  # origin, handle, payload, epoch; numbers begin with 1
        self.replicas: list[Replica] = []
        self.readers: list[Callable[[], None]] = []  # told that the log has grown
        self.client_managers: Callable[[], tuple[bytes, ...]] = lambda: ()
        self.primary: Replica | None = None
        self.checkpoints: dict[int, bytes] = {0: b"".join(Engine().checkpoint())}
        self.stalled_until = 0.0
        self._schedule = schedule
        self._stream = stream
        self._epoch = 0
        self._busy: dict[bytes, float] = {}  # by origin: one sender's entries keep their order
        self._waiting: list[tuple[bytes, int, bytes]] = []

    def order(self, process: Process, handle: int, payload: bytes) -> None:
        """A process wants this in the log."""
        origin = process.origin
        after = self._schedule.now + self._stream.expovariate(1.0) * LOG_S
        self._busy[origin] = max(after, self._busy.get(origin, 0.0) + 1e-7)
        self._schedule.at(self._busy[origin], self._take, process, process.run, (origin, handle, payload))

    def _take(self, process: Process, run: int, entry: tuple[bytes, int, bytes]) -> None:
        is_dead = not process.is_up or process.run != run
        if is_dead and self._stream.random() < 0.5:
            return
        self._waiting.append(entry)
        self.go_on()

    def go_on(self) -> None:
        """Commits what waits, where the channel can."""
        now = self._schedule.now
        if now < self.stalled_until:
            self._schedule.at(self.stalled_until, self.go_on)
        elif self.primary is not None and self._waiting:
            self.log += [(*entry, self._epoch) for entry in self._waiting]
            self._waiting = []
            for tell in list(self.readers):
                tell()

    def on_replica_lost(self, replica: "Replica") -> None:
        """Where it was the primary, another one takes over after a while."""
        if replica is self.primary:
            self.primary = None
            self._schedule.after(self._stream.uniform(*ELECTION_S), self.elect)

    def elect(self) -> None:
        """The replica that has applied most becomes primary, once it has applied all."""
        up = [replica for replica in self.replicas if replica.is_up and replica.is_running]
        if self.primary is not None or not up:
            return
        self._epoch += 1
        self.primary = chosen = max(up, key=lambda replica: replica.applied)
        chosen.catch_up()
        if not chosen.is_up:
            return
        for replica in self.replicas:
            if replica is not chosen:
                replica.receive(mm.Demoted(self._epoch))
        chosen.receive(mm.Promoted(self._epoch, chosen.origin, self.client_managers()))
        self.go_on()

    def keep_checkpoint(self, sequence: int, data: bytes) -> None:
        """Every replica must come to the same state."""
        if self.checkpoints.setdefault(sequence, data) != data:
            raise Violation("engines are equal", f"channel {self.number} has two states at {sequence}")


class Cursor:
    """One process's place in one log: entries come in order, each a little later, and end with the process's run."""

    def __init__(self, process: Process, channel: ModelChannel, deliver: Callable[[int], None], applied: int) -> None:
        self.applied = applied
        self._process, self._channel, self._deliver = process, channel, deliver
        self._run = process.run
        self._is_due = False
        channel.readers.append(self.notice)
        self.notice()

    def notice(self) -> None:
        """The log may have grown."""
        if not self._process.is_up or self._process.run != self._run:
            self._channel.readers.remove(self.notice)
        elif not self._is_due and self.applied < len(self._channel.log):
            self._is_due = True
            schedule, stream = self._process.schedule, self._process.streams.stream
            schedule.after(stream.expovariate(1.0) * LOG_S, self._step)

    def _step(self) -> None:
        self._is_due = False
        if self._process.is_up and self._process.run == self._run:
            if self._process.is_running and self.applied < len(self._channel.log):
                self.applied += 1
                self._deliver(self.applied)
            if not self._process.is_running:
                self._process.schedule.after(0.05, self._step)  # it stands still
                self._is_due = True
            else:
                self.notice()

    def catch_up(self) -> None:
        """Everything at once."""
        while self.applied < len(self._channel.log) and self._process.is_up:
            self.applied += 1
            self._deliver(self.applied)


class Replica(Process):
    """One Message Manager."""

    def __init__(self, channel: ModelChannel, name: str, place: int, streams: SimulatedStreams, tell: Tell) -> None:
        super().__init__(name, place, streams, tell)
        self.channel = channel
        channel.replicas.append(self)

    @property
    def applied(self) -> int:
        """How far it has come."""
        return self._cursor.applied

    @property
    def engine(self) -> Engine:
        """Its state."""
        return self.machine.engine

    def start(self) -> None:
        """Begins, or comes back from some checkpoint and the entries that it retains."""
        self.run += 1
        kept = [number for number in self.channel.checkpoints if number <= len(self.channel.log)]
        self._floor = kept[-1 - min(len(kept) - 1, self.streams.stream.randrange(3))]
        about = About(name=self.name, pid=self.run, address=self.name, channel=str(self.channel.number))
        self.machine = MessageManager(
            about, wall_ms=lambda now: int((UNIX_START_S + now) * 1000), read=lambda number: self.read(number)
        )
        engine = Engine.restore([self.channel.checkpoints[self._floor]])
        self._retained: RangeSet = engine.retained()
        self.machine.restore(engine)
        self._ends: dict[int, StreamEnd] = {}
        self._next_link = 0
        self.begin(self.machine, self._perform)
        self._cursor = Cursor(self, self.channel, self._deliver, self._floor)
        self.tell(self.name, f"starts at {self._floor}")
        if self.channel.primary is None:
            self.schedule.after(self.streams.stream.uniform(*ELECTION_S), self.channel.elect)

    def catch_up(self) -> None:
        """Applies all there is."""
        self._cursor.catch_up()

    def read(self, sequence: int) -> bytes | None:
        """An entry that this replica has."""
        is_here = self._floor < sequence <= len(self.channel.log) or sequence in self._retained
        return self.channel.log[sequence - 1][2] if is_here else None

    def accept(self, end: StreamEnd) -> bool:
        """A Client Manager connects; False where nobody listens."""
        if not self.is_up:
            return False
        self._next_link += 1
        number, run = self._next_link, self.run
        self._ends[number] = end
        end.on_frame = lambda data: self.receive(mm.Asked(number, link.decode_asked(data[link.LENGTH_BYTES :])))
        end.on_closed = lambda reason: self._on_closed(number, run)
        self.receive(mm.LinkOpened(number))
        return True

    def on_crashed(self) -> None:
        """See `Process`."""
        self.channel.on_replica_lost(self)

    def _deliver(self, sequence: int) -> None:
        origin, _, payload, epoch = self.channel.log[sequence - 1]
        self.receive(mm.Committed(sequence, origin, payload, epoch))
        if sequence % CHECKPOINT_EVERY == 0:
            self.channel.keep_checkpoint(sequence, b"".join(self.engine.checkpoint()))
        if self.dies_at and self.channel.primary is self:
            self._die_if_reached(self.dies_at, payload)

    def _die_if_reached(self, step: str, payload: bytes) -> None:
        if any(type(command).__name__ == step for command in decode_entry(payload).commands):
            self.dies_at = ""
            self.crash(f"dies at {step}")

    def _on_closed(self, number: int, run: int) -> None:
        if run == self.run and self._ends.pop(number, None) is not None:
            self.receive(mm.LinkClosed(number))

    def _perform(self, output: mm.Output) -> None:
        match output:
            case mm.Tell(number, frame):
                self._say(number, frame)
            case mm.Order(payload):
                self.channel.order(self, 0, payload)
            case mm.Supply(number, request, sequences):
                found = [(sequence, self.read(sequence)) for sequence in sequences]
                entries = [(sequence, memoryview(payload)) for sequence, payload in found if payload is not None]
                self._say(number, link.Entries(request, entries))
            case mm.Break(number, _):
                end = self._ends.get(number)
                if end is not None:
                    end.close()
                    self._on_closed(number, self.run)
            case mm.Log(_, event, details):
                self.tell(self.name, f"{event} {details}")

    def _say(self, number: int, frame: frame_kinds.Told) -> None:
        end = self._ends.get(number)
        if end is not None:
            end.send(link.encode(frame))
