"""The checker of groups: nobody is given what is to follow a message that came back and waits for its time."""

from alphorn.message_manager.queue import Queue
from alphorn.model.link import Deliver
from alphorn.testing.rooms import MessageManagerRoom
from alphorn.testing.simulated_cluster import SimulatedCluster
from alphorn.testing.watch import Violation


class GroupsKeepOrder:
    """Looks at what a primary gives out, as its own engine has it at that moment. All messages have one priority."""

    __slots__ = ()
    name = "what came back is not overtaken in its group"

    def __init__(self, cluster: SimulatedCluster) -> None:
        for room in cluster.message_managers:
            room.giving.append(self._on_deliver)

    def finish(self) -> None:
        """Nothing to do in the end."""

    def _on_deliver(self, room: MessageManagerRoom, deliver: Deliver) -> None:
        queue = room.engine.destinations.get(deliver.destination)
        if not isinstance(queue, Queue) or not queue.policy.groups or not queue.backlog.deferred:
            return
        keys, backlog = queue.keys, queue.backlog
        waiting = {position: keys.get(position) for position in backlog.deferred if position in backlog.counts}
        for run in deliver.runs:
            for position in range(run.position, run.position + run.count):
                key = keys.get(position)
                before = [other for other, group in waiting.items() if other < position and group == key is not None]
                if before:
                    where = f"{queue.destination} of {room.node.name}"
                    raise Violation(self.name, f"{position} of {where} is given out while {before} wait before it")
