"""The checker of the time of the log: it goes on, whichever clock an earlier primary had."""

from collections.abc import Callable

from alphorn.bus.machine import Deliver
from alphorn.message_manager.clock import HEAR_S
from alphorn.testing.rooms import MessageManagerRoom
from alphorn.testing.simulated_cluster import SimulatedCluster
from alphorn.testing.watch import Violation

LATENESS_S = HEAR_S + 0.1  # a new primary waits so long; ticks are not closer than some milliseconds


class TimeGoesOn:
    """Asks a primary after every entry of the log when it will say the time that is due next.

    The last time that the log was told was some while ago, so that this never asks for too much.
    """

    __slots__ = ()
    name = "the time of the log goes on"

    def __init__(self, cluster: SimulatedCluster) -> None:
        for room in cluster.message_managers:
            room.hearing.append(self._on_hearing)

    def finish(self) -> None:
        """Nothing to do in the end."""

    def _on_hearing(self, room: MessageManagerRoom, output: Deliver) -> Callable[[], None] | None:
        return (lambda: self._look(room)) if room.machine.is_primary else None

    def _look(self, room: MessageManagerRoom) -> None:
        due_ms, now = room.engine.next_due(), room.node.around.schedule.now
        if due_ms is None or not room.machine.is_primary:
            return
        waits_s = room.node.virtual(room.machine.clock.next_deadline(due_ms)) - now
        after_s = max(0, due_ms - room.engine.now_ms) / 1000
        if waits_s > after_s + LATENESS_S:
            told = f"{waits_s:.1f} s to say what is {after_s:.1f} s after the last time"
            raise Violation(self.name, f"the primary {room.node.name} waits {told}")
