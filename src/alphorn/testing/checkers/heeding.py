"""The checker of epochs above the log: what a primary wanted is done in its own epoch, and never later."""

from collections.abc import Callable

from alphorn.bus.machine import Deliver
from alphorn.message_manager.engine import Engine
from alphorn.model.commands import decode_entry
from alphorn.testing.rooms import MessageManagerRoom
from alphorn.testing.simulated_cluster import SimulatedCluster
from alphorn.testing.watch import Violation


class EarlierPrimariesAreNotHeeded:
    """Compares the state of a replica before and after an entry of an earlier primary."""

    __slots__ = ()
    name = "what an earlier primary wanted is not done"

    def __init__(self, cluster: SimulatedCluster) -> None:
        for room in cluster.message_managers:
            room.hearing.append(self._on_hearing)

    def finish(self) -> None:
        """Nothing to do in the end."""

    def _on_hearing(self, room: MessageManagerRoom, output: Deliver) -> Callable[[], None] | None:
        entry = decode_entry(output.payload)
        if entry.epoch in (0, output.assignment.epoch):
            return None
        before, wanted = _state_of(room.engine), ", ".join(type(command).__name__ for command in entry.commands)

        def compare() -> None:
            if _state_of(room.engine) != before:
                raise Violation(self.name, f"{wanted} at {output.sequence} changed the state of {room.node.name}")

        return compare


def _state_of(engine: Engine) -> dict[str, object]:
    """All that is told of it but the number of the last entry; a checkpoint may be under way, so none is made here."""
    return engine.describe() | {"sequence": 0}
