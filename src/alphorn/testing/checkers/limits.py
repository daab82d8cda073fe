"""Checkers of limits: no destination holds more than it may, and no Client Manager keeps more than it may."""

from alphorn.bus.machine import Deliver
from alphorn.testing.node import SimulatedNode
from alphorn.testing.simulated_cluster import SimulatedCluster
from alphorn.testing.watch import Violation

BATCH_BYTES = 400  # what clients mostly have for one destination; a limit is passed by one batch at most


class LimitsHold:
    """Looked at whenever anybody hears a batch of the log."""

    __slots__ = ("_cluster", "_limits")
    name = "limits hold"

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self._limits = cluster.plan.limits
        cluster.simulation.watch.delivered.append(self._on_delivered)

    def finish(self) -> None:
        """Nothing to do in the end."""

    def _on_delivered(self, node: SimulatedNode, output: Deliver) -> None:
        for room in self._cluster.message_managers:
            for destination in room.engine.destinations.values():
                limit = self._limits.max_lengths.get(str(destination.destination), 0)
                if limit and destination.count > limit:
                    held = f"{destination.count} messages where {limit} are allowed"
                    raise Violation(self.name, f"{destination.destination} of {room.node.name} has {held}")
        for client_manager in self._cluster.client_managers:
            if client_manager.turns is None:
                continue
            coming, going = client_manager.machine.busiest
            # A session with nothing under way may send one batch of any size, as a client does that was cut off.
            if coming > max(self._limits.session_bytes_max + BATCH_BYTES, client_manager.largest_frame_bytes):
                raise Violation(self.name, f"{client_manager.node.name} has {coming} bytes of one session under way")
            if going > self._limits.consumer_bytes_max + BATCH_BYTES:
                raise Violation(self.name, f"{client_manager.node.name} has {going} bytes on their way to one client")
