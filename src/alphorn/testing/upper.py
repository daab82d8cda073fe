"""What stands on a simulated member's log: told what its member learns, at the moment it learns it.

`Upper` does nothing; a room that stands on the log (message_manager/, client_manager/) has a subclass that does what
its shell in node/ does. `Turns` is what io/driver.py is there: inputs go into the machine at once, and what it wants is
performed a little later, for all that arrived meanwhile.
"""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from alphorn.bus.entries import Member
from alphorn.bus.machine import Deliver
from alphorn.model.errors import PeerViolation
from alphorn.testing.watch import Violation

if TYPE_CHECKING:
    from alphorn.testing.node import SimulatedNode

ROUNDS_AT_ONCE_MAX = 1000


class Upper:
    """Nothing: the member's replica is all there is."""

    __slots__ = ()

    def on_started(self) -> None:
        """The process began; its machine is there."""

    def on_ended(self) -> None:
        """The process is gone."""

    def on_resumed(self) -> None:
        """The process goes on after a pause."""

    def on_deliver(self, output: Deliver) -> None:
        """A committed batch, after the replica has taken it in."""

    def on_ordered(self, handle: int, sequence: int) -> None:
        """An own batch is committed."""

    def on_refused(self, handle: int, reason: str, *, is_unknown: bool) -> None:
        """An own batch is not, or nobody knows."""

    def on_window(self, *, is_open: bool) -> None:
        """Whether the log takes more."""

    def on_member(self, event: str, member: Member) -> None:
        """Someone came or went."""

    def on_primary(self, epoch: int, *, is_self: bool, members: tuple[Member, ...]) -> None:
        """Who is primary from here on, and who was in the group then."""

    def on_synchronised(self, *, is_synchronised: bool) -> None:
        """Whether its member follows the log closely."""

    @property
    def keeps_state(self) -> bool:
        """Whether it can go on from a checkpoint; one that cannot ends instead."""
        return True


class Room(Protocol):
    """A machine of a room above the log."""

    def receive(self, item: Any, now: float) -> None:
        """Takes in one thing that happened."""

    def on_time(self, now: float) -> None:
        """A deadline has come."""

    def next_deadline(self) -> float:
        """When something is due."""

    def take_outputs(self) -> list[Any]:
        """Everything to do since the last call, in order."""


class Turns:
    """Runs one machine of a process on one simulated member, from its start to its end."""

    __slots__ = (
        "_armed_at",
        "_backlog",
        "_is_turn_due",
        "_node",
        "_perform",
        "_rounds",
        "_run",
        "_settled_at",
        "machine",
    )

    def __init__(self, node: "SimulatedNode", machine: Room, perform: Callable[[Any], None]) -> None:
        self._node = node
        self._run = node.run
        self.machine = machine
        self._perform = perform
        self._backlog: deque[Any] = deque()  # what came while the process was paused
        self._is_turn_due = False
        self._armed_at = float("inf")
        self._settled_at = -1.0
        self._rounds = 0

    @property
    def is_alive(self) -> bool:
        """Whether the process that it belongs to still exists."""
        return self._node.is_up and self._node.run == self._run

    def receive(self, item: Any) -> None:
        """Something happened; a process that is gone does not notice."""
        if not self.is_alive:
            return
        if not self._node.is_running:
            self._backlog.append(item)
            return
        try:
            self.machine.receive(item, self._node.local_now())
        except PeerViolation as error:  # nobody here lies
            raise Violation("peers are understood", f"{self._node.name} refuses {item}: {error}") from error
        self.finish_soon()

    def resume(self) -> None:
        """The process goes on: what came meanwhile, then what is due."""
        while self._backlog and self.is_alive and self._node.is_running:
            self.receive(self._backlog.popleft())
        self.finish_soon()

    def finish_soon(self) -> None:
        """The turn ends once all that arrives now has arrived."""
        if not self._is_turn_due:
            self._is_turn_due = True
            self._node.around.schedule.after(self._node.around.turn_s, self._finish)

    def _finish(self) -> None:
        self._is_turn_due = False
        if not self.is_alive or not self._node.is_running:
            return
        self._look_for_spinning()
        machine, now = self.machine, self._node.local_now()
        if machine.next_deadline() <= now + 1e-9:
            machine.on_time(now)
        for output in machine.take_outputs():
            if self.is_alive:
                self._perform(output)
        self._arm()

    def _arm(self) -> None:
        if not self.is_alive:
            return
        due = self._node.virtual(self.machine.next_deadline())
        if due < self._armed_at:
            self._armed_at = due
            self._node.around.schedule.at(due, self._on_timer, due)

    def _on_timer(self, due: float) -> None:
        if due == self._armed_at:
            self._armed_at = float("inf")
            if not self._is_turn_due:
                self._finish()

    def _look_for_spinning(self) -> None:
        now = self._node.around.schedule.now
        if now != self._settled_at:
            self._settled_at, self._rounds = now, 0
        self._rounds += 1
        if self._rounds > ROUNDS_AT_ONCE_MAX:
            raise Violation(
                "machines do not spin", f"the room on {self._node.name} wants turn after turn at one moment"
            )
