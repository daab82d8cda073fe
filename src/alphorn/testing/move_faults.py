"""Faults of moves: who receives from a destination acknowledges or stops just as it leaves; then the primary ends.

What is said of its messages comes behind the beginning of the move, and is refused. What consumers had that stopped is
told by a primary that is gone by then: its successor, and the channel that the destination comes to, have to hear it
from Client Managers. A destination that some Client Managers know by patterns alone leaves now and then.
"""

from random import Random

from alphorn.bus.machine import Deliver
from alphorn.client.core import State
from alphorn.model.commands import Move, MoveStage, decode_entry
from alphorn.model.moving_conversation import Move as MoveFrame
from alphorn.testing.faults import Nemesis
from alphorn.testing.node import SimulatedNode
from alphorn.testing.simulated_channel import SimulatedChannel
from alphorn.testing.simulated_cluster import SimulatedCluster

LEAVE = "leave"
CLOSING_SHARE = 0.3  # of the moves that begin
ACKNOWLEDGING_SHARE = 0.2  # and of those of what is received by patterns alone all
PATIENCE_S = 0.02  # for the beginning of the move
CRASH_S_MAX = 0.005  # after that: the primary would soon tell what consumers had
LATE_MOVE_S = 0.5  # mean time between moves of what came late


class HardLeaving:
    """Watches one channel for moves that begin."""

    __slots__ = ("_channel", "_cluster", "_is_armed", "_nemesis", "_stream")

    def __init__(self, cluster: SimulatedCluster, channel: SimulatedChannel, nemesis: Nemesis) -> None:
        self._cluster = cluster
        self._channel = channel
        self._nemesis = nemesis
        self._stream = Random(f"{cluster.plan.seed}/{channel.number}/leaving")
        self._is_armed = False
        channel.workload.asked.append(self._on_asked)
        channel.simulation.watch.delivered.append(self._on_delivered)

    def _on_asked(self, payload: bytes) -> None:
        """A Client Manager asks that a move begins; what is said meanwhile comes behind it."""
        if self._is_armed or self._nemesis.is_calm:
            return
        for command in decode_entry(payload).commands:
            if isinstance(command, Move) and command.stage is MoveStage.BEGUN:
                self._nemesis.after(0.0, self._part, command.destination)

    def _part(self, number: int) -> None:
        primaries = [room for room in self._channel.message_managers if room.machine.is_primary]
        found = primaries[0].engine.destinations.get(number) if len(primaries) == 1 else None
        if found is None:
            return
        name, draw = str(found.destination), self._stream.random()
        is_late = any(name in client.late for client in self._cluster.plan.clients)
        closes = draw < CLOSING_SHARE and not is_late
        if draw > CLOSING_SHARE + ACKNOWLEDGING_SHARE and not is_late:
            return
        parting = [client.name for client in self._cluster.clients if client.part_with(name, closes=closes)]
        if parting:
            how = "stop to receive from" if closes else "acknowledge what they have of"
            self._channel.simulation.tell_fault(LEAVE, f"{', '.join(parting)} {how} {name}")
        if is_late:
            self._channel.streams.break_all(primaries[0].node.name)  # nobody hears of it but by the log
        if parting and closes:
            self._is_armed = True
            self._nemesis.after(PATIENCE_S, self._crash)

    def _on_delivered(self, node: SimulatedNode, output: Deliver) -> None:
        if self._is_armed and any(isinstance(each, Move) for each in decode_entry(bytes(output.payload)).commands):
            self._nemesis.after(self._stream.uniform(0.0, CRASH_S_MAX), self._crash)

    def _crash(self) -> None:
        if self._is_armed:
            self._is_armed = False
            self._nemesis.inject("crash-sequencer")


class LateMoves:
    """Moves what programs create late, which is received by patterns alone."""

    __slots__ = ("_cluster", "_names", "_nemesis", "_stream")

    def __init__(self, cluster: SimulatedCluster, nemesis: Nemesis) -> None:
        self._cluster = cluster
        self._nemesis = nemesis
        self._stream = Random(f"{cluster.plan.seed}/late moves")
        self._names = sorted({name for client in cluster.plan.clients for name in client.late})

    def start(self) -> None:
        """Goes on as long as there are faults."""
        if self._names:
            self._nemesis.after(self._stream.expovariate(1.0) * LATE_MOVE_S, self._move)

    def _move(self) -> None:
        open_clients = [client for client in self._cluster.clients if client.core.state is State.OPEN]
        name, channel = self._stream.choice(self._names), self._stream.choice(self._cluster.channels).name
        if open_clients and not self._nemesis.is_calm:
            client = self._stream.choice(open_clients)
            client.ask(lambda request: MoveFrame(request, name, channel), lambda answer: None)
            self._cluster.simulation.tell_fault("move", f"{name} to {channel}, asked by {client.name}")
        self.start()
