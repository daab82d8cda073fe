"""One simulated member: a machine, its disk, its replica, and the one place where the machine's outputs are performed.

Life: down → up (start) → paused ⇄ up → down (crash, stop). While paused, inputs queue up as in a stopped process and
timers are late. A machine that raises, or a disk that fails, ends the node as it would end a real process.
"""

import enum
import math
import random
from collections import deque
from collections.abc import Callable
from typing import Any

from alphorn.bus.config import MemberConfig, Role
from alphorn.bus.machine import (
    CONTROL_GROUP,
    DATA_GROUP,
    CheckpointWritten,
    Deliver,
    Durable,
    Input,
    InstallCheckpoint,
    Machine,
    MemberChanged,
    Ordered,
    Output,
    Persist,
    PrimaryChanged,
    Received,
    Refused,
    SealCheckpoint,
    Send,
    Stop,
    SynchronisedChanged,
    TakeCheckpoint,
    WindowChanged,
)
from alphorn.model.ids import START_UNITS_PER_S, start_units
from alphorn.testing.checkpointing import SimulatedCheckpointing
from alphorn.testing.disk import SimulatedDisk
from alphorn.testing.installing import UPPER_TOKEN, SimulatedInstalling
from alphorn.testing.replica import Replica
from alphorn.testing.surroundings import Surroundings
from alphorn.testing.upper import Upper
from alphorn.testing.watch import Violation

BACKLOG_MAX = 4096  # datagrams a paused member's socket buffer holds
TURN_INPUTS_MAX = 64  # inputs a member that wakes up takes in before it performs their outputs
TICKS_AT_ONCE_MAX = 500
UNIX_START_S = 1_750_000_000.0
WITHOUT_HISTORY = frozenset({"client_manager"})  # tags of members that begin at the newest number


def moment_of(local: float, offset: float) -> float:
    """When a clock that is ahead by so much shows a time: never a rounding before, or it would be woken for nothing."""
    moment = local - offset
    return moment if moment + offset >= local else moment + max(math.ulp(local), math.ulp(moment))


class NodeState(enum.Enum):
    """Whether the process runs."""

    DOWN = "down"
    UP = "up"
    PAUSED = "paused"


class SimulatedNode:
    """A member that can be started, fed, paused and ended."""

    __slots__ = (
        "_backlog",
        "_is_turn_open",
        "_last_now",
        "_offset",
        "_performers",
        "_starts",
        "_tick_at",
        "_ticked_at",
        "_ticks",
        "around",
        "budget",
        "checkpointing",
        "clock_skew_s",
        "disk",
        "has_founded",
        "has_left",
        "index",
        "installing",
        "is_client",
        "is_synchronised",
        "is_window_open",
        "last_words",
        "machine",
        "me",
        "nap_s",
        "replica",
        "run",
        "start_unix_s",
        "state",
        "upper",
    )

    def __init__(self, around: Surroundings, me: MemberConfig, index: int, disk_stream: random.Random) -> None:
        self.around = around
        self.me = me
        self.index = index
        self.budget = around.budget_of(index)
        self.is_client = me.number == 0
        self.disk = SimulatedDisk(
            around.schedule,
            disk_stream,
            on_durable=self._on_durable,
            on_error=self._on_disk_error,
            sync_mean_s=around.sync_mean_s,
        )
        self.upper = Upper()
        self.replica = Replica(keeps=around.keeps)
        self.installing = SimulatedInstalling(self)
        self.checkpointing = SimulatedCheckpointing(self)
        self.machine: Machine | None = None
        self.state = NodeState.DOWN
        self.run = 0  # how often it was started
        self.start_unix_s = 0.0  # what its wall clock showed when this run began, right or wrong
        self._starts: set[int] = set()  # of all runs, in the units of ids
        self.clock_skew_s = 0.0
        self.nap_s = 0.0  # a slow member works only between naps of this length
        self.has_founded = False  # its disk has been written once; a blank one is a lost one from then on
        self.has_left = False  # it said goodbye and is not started again
        self.is_synchronised = False
        self.is_window_open = False
        self.last_words = ""
        self._backlog: deque[Input] = deque()
        self._is_turn_open = False
        self._offset = 0.0  # its monotonic clock minus virtual time
        self._last_now = 0.0
        self._tick_at = float("inf")
        self._ticked_at = -1.0
        self._ticks = 0  # at that moment
        self._performers: dict[type[Output], Callable[[Any], None]] = {
            Send: self._send,
            Persist: self.persist,
            Deliver: self._deliver,
            Ordered: self._ordered,
            Refused: self._refused,
            WindowChanged: self._window_changed,
            TakeCheckpoint: self.checkpointing.begin,
            InstallCheckpoint: self._install_checkpoint,
            SynchronisedChanged: self._synchronised_changed,
            MemberChanged: lambda output: self.upper.on_member(output.event, output.member),
            PrimaryChanged: lambda output: self.upper.on_primary(
                output.epoch, is_self=output.is_self, members=output.members
            ),
            Stop: self._stop,
        }

    @property
    def name(self) -> str:
        """Its name, which is also its address."""
        return self.me.name

    @property
    def is_witness(self) -> bool:
        """Whether it votes and does nothing else."""
        return self.me.roles == Role.COMMIT

    @property
    def is_running(self) -> bool:
        """Whether the process exists and is not paused."""
        return self.state is NodeState.UP

    @property
    def keeps_entries(self) -> bool:
        """Whether it makes checkpoints, and so keeps what they need."""
        return Role.CHECKPOINT in self.me.roles

    @property
    def has_history(self) -> bool:
        """Whether it is given the log from the beginning, or from a checkpoint on."""
        return self.me.tag not in WITHOUT_HISTORY

    @property
    def has_all(self) -> bool:
        """Whether its state is that of the whole log; without checkpoints it begins anew wherever the log begins."""
        return self.has_history and self.around.config.makes_checkpoints

    @property
    def is_up(self) -> bool:
        """Whether the process exists, paused or not."""
        return self.state is not NodeState.DOWN

    def start(self, *, founding: bool = False) -> None:
        """Starts the process on whatever its disk holds."""
        assert self.state is NodeState.DOWN, self.name
        around, stream = self.around, self.around.streams_machines
        self.run += 1
        self.start_unix_s = self._find_start()
        self.state = NodeState.UP
        self.replica = around.make_replica(self)
        self.installing.reset()
        self.checkpointing.abandon()
        self.is_synchronised = False
        self.is_window_open = True
        self.last_words = ""
        self._backlog.clear()
        self._is_turn_open = False
        self._offset = stream.uniform(1.0, 1000.0)
        self._last_now = around.schedule.now + self._offset
        self._tick_at = float("inf")
        self.machine = around.machine(
            config=around.config,
            me=self.me,
            storage=self.disk,
            host=bytes((10, 0, 0, self.index + 1)),
            port=7000 + self.index,
            unix_s=self.start_unix_s,
            founding=founding,
            random=random.Random(stream.random()),
            timing=around.timing,
            budget=self.budget,
            now=self._last_now,
        )
        self.upper.on_started()
        for callback in around.watch.started:
            callback(self)
        self._settle()

    def _find_start(self) -> float:
        """No client's process starts twice within one unit of what ids say of that: a start takes longer."""
        unix_s = self.unix_s
        while self.is_client and start_units(unix_s) in self._starts:
            unix_s += 1 / START_UNITS_PER_S
        self._starts.add(start_units(unix_s))
        return unix_s

    def start_again(self) -> None:
        """Starts the process once more: as a founder only if nothing of an earlier start ever reached its disk."""
        self.start(founding=not self.is_client and not self.has_founded)

    def end(self, reason: str, *, keeps_prefix: bool = True, tears: bool = False) -> None:
        """The process is gone, with whatever its disk had not made durable."""
        assert self.state is not NodeState.DOWN, self.name
        self.state = NodeState.DOWN
        self.machine = None
        self.is_synchronised = False
        self._backlog.clear()
        self.around.network.end_member(self.index)
        for persist in self.disk.crash(keeps_prefix=keeps_prefix, tears=tears):
            self._tell_durable(persist)
        self.upper.on_ended()
        for callback in self.around.watch.ended:
            callback(self, reason)

    def pause(self) -> None:
        """Stops the process without ending it."""
        if self.state is NodeState.UP:
            self.state = NodeState.PAUSED

    def resume(self) -> None:
        """Lets it go on: first everything that queued up, then the late timers."""
        if self.state is not NodeState.PAUSED:
            return
        self.state = NodeState.UP
        while self._backlog and self.state is NodeState.UP:
            for _ in range(min(len(self._backlog), TURN_INPUTS_MAX)):
                self._receive(self._backlog.popleft())
            self._settle()
        self._tick(self._tick_at)
        self.upper.on_resumed()

    def nap(self) -> None:
        """Begins a nap, and after it the next, for as long as `nap_s` says."""
        if self.nap_s and self.state is NodeState.UP:
            self.pause()
            self.around.schedule.after(self.nap_s, self._end_nap, self.run)

    def _end_nap(self, run: int) -> None:
        if run == self.run:
            self.resume()
            self.nap()

    def feed(self, item: Input) -> None:
        """Gives the machine one input; a node that is down does not notice."""
        if self.state is NodeState.UP:
            self._receive(item)
            if not self.around.turn_s:
                self._settle()
            elif not self._is_turn_open:
                self._is_turn_open = True
                self.around.schedule.after(self.around.turn_s, self._end_turn, self.run)
        elif self.state is NodeState.PAUSED and (len(self._backlog) < BACKLOG_MAX or not isinstance(item, Received)):
            self._backlog.append(item)

    def local_now(self) -> float:
        """The node's own monotonic clock."""
        self._last_now = max(self._last_now, self.around.schedule.now + self._offset)
        return self._last_now

    def virtual(self, local: float) -> float:
        """When its own clock shows this time."""
        return moment_of(local, self._offset)

    @property
    def unix_s(self) -> float:
        """What its wall clock shows, right or wrong."""
        return UNIX_START_S + self.around.schedule.now + self.clock_skew_s

    def tell_input(self, event: str, details: str) -> None:
        """Lets others see something that happened on this member."""
        for callback in self.around.watch.input:
            callback(self, event, details)

    def _receive(self, item: Input) -> None:
        assert self.machine is not None
        self.machine.receive(item, self.local_now())

    def _end_turn(self, run: int) -> None:
        if run == self.run:
            self._is_turn_open = False
            if self.state is NodeState.UP:
                self._settle()

    def _settle(self) -> None:
        """Performs what the machine wants, then sees to its timer."""
        machine = self.machine
        if machine is None:
            return
        performers = self._performers
        outputs = list(machine.take_outputs())
        for observe in self.around.watch.turn:
            observe(self, outputs)
        for output in outputs:
            performer = performers.get(type(output))
            if performer is not None:
                performer(output)
                if self.machine is not machine:
                    return
            for callback in self.around.watch.other:
                callback(self, output)
        self._set_timer(machine)

    def _set_timer(self, machine: Machine) -> None:
        due = machine.next_deadline() - self._offset
        if due < self._tick_at:
            self._tick_at = max(due, self.around.schedule.now)
            self.around.schedule.at(self._tick_at, self._tick, self._tick_at)

    def _tick(self, set_for: float) -> None:
        if set_for != self._tick_at or self.state is not NodeState.UP:
            return  # superseded, or late: `resume` calls again
        machine = self.machine
        assert machine is not None
        self._tick_at = float("inf")
        deadline = machine.next_deadline()
        if deadline - self._offset <= self.around.schedule.now + 1e-9:
            self._look_for_spinning(machine)
            self._last_now = max(self.local_now(), deadline)
            machine.on_time(self._last_now)
            self._settle()
        else:
            self._set_timer(machine)

    def _look_for_spinning(self, machine: Machine) -> None:
        """A machine whose deadline stays where it is would keep a real process busy for ever."""
        now = self.around.schedule.now
        if now != self._ticked_at:
            self._ticked_at, self._ticks = now, 0
        self._ticks += 1
        if self._ticks > TICKS_AT_ONCE_MAX:
            raise Violation("machines do not spin", f"{self.name} wants the same moment again and again")

    # Outputs.

    def _send(self, output: Send) -> None:
        around = self.around
        parts = output.parts
        data = bytes(parts[0]) if len(parts) == 1 else b"".join(parts)
        around.record(data)
        if output.to == DATA_GROUP or output.to == CONTROL_GROUP:
            if len(data) > self.budget.datagram_bytes:
                raise Violation("frames fit", f"{self.name} sends {len(data)} bytes to the group in one datagram")
            troubles = around.network.multicast(self.index, data)
        else:
            target = around.find(output.to)
            if target is None:
                troubles = []
            elif len(data) > self.budget.datagram_bytes:
                troubles = around.network.stream(self.index, target, data)
            else:
                troubles = around.network.unicast(self.index, target, data)
        for callback in around.watch.sent:
            callback(self, output.to, data, troubles)

    def persist(self, output: Persist) -> None:
        """Hands writes of the machine or the upper layer to the disk."""
        for callback in self.around.watch.persisted:
            callback(self, output)
        self.disk.persist(output)

    def _on_durable(self, done: list[Persist]) -> None:
        for persist in done:
            self._tell_durable(persist)
        tokens = [persist.token for persist in done if persist.token != UPPER_TOKEN]
        if tokens:
            self.feed(Durable(tokens[-1]))
        for persist in done:
            sealed = [write.sequence for write in persist.writes if isinstance(write, SealCheckpoint)]
            if persist.token == UPPER_TOKEN and sealed:
                for callback in self.around.watch.checkpoint:
                    callback(self, sealed[-1])
                self.feed(CheckpointWritten(sealed[-1]))

    def _tell_durable(self, persist: Persist) -> None:
        self.has_founded = True
        for callback in self.around.watch.durable:
            callback(self, persist)

    def _on_disk_error(self, reason: str) -> None:
        """A failed fsync ends the node, as the real driver does; it is never tried again."""
        if self.is_up:
            self.last_words = reason
            self.end(reason)

    def _deliver(self, output: Deliver) -> None:
        for callback in self.around.watch.delivered:
            callback(self, output)
        wrong = self.replica.apply(output.sequence, output.assignment, output.payload)
        if wrong:
            raise Violation("delivery", f"at {self.name} {wrong}")
        self.upper.on_deliver(output)

    def _ordered(self, output: Ordered) -> None:
        for callback in self.around.watch.ordered:
            callback(self, output.handle, output.sequence)
        self.upper.on_ordered(output.handle, output.sequence)

    def _refused(self, output: Refused) -> None:
        for callback in self.around.watch.refused:
            callback(self, output.handle, output.reason, output.is_unknown)
        self.upper.on_refused(output.handle, output.reason, is_unknown=output.is_unknown)

    def _window_changed(self, output: WindowChanged) -> None:
        self.is_window_open = output.is_open
        self.upper.on_window(is_open=output.is_open)

    def _synchronised_changed(self, output: SynchronisedChanged) -> None:
        self.is_synchronised = output.is_synchronised
        self.upper.on_synchronised(is_synchronised=output.is_synchronised)

    def _stop(self, output: Stop) -> None:
        self.last_words = output.reason
        self.end(f"stopped: {output.reason}")

    def _install_checkpoint(self, output: InstallCheckpoint) -> None:
        self.checkpointing.abandon()
        if self.upper.keeps_state:
            self.installing.begin(output.sequence)
        else:
            self.last_words = f"it missed more of the log than is kept, up to {output.sequence}"
            self.end(self.last_words)
