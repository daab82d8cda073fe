"""Old datagrams that arrive once more: seconds later, or when their sender or their target has started again.

Of each kind of frame the last few datagrams of each sender are remembered, so that a rare word, such as the one by
which a member joins, is repeated as often as a heartbeat.
"""

from collections import deque
from typing import TYPE_CHECKING

from alphorn.bus.machine import CONTROL_GROUP, DATA_GROUP
from alphorn.testing.checkers.facts import TYPE_PLACE
from alphorn.testing.node import SimulatedNode
from alphorn.testing.node_faults import sequencer_of
from alphorn.testing.simulator import Simulation
from alphorn.testing.watch import Troubles

if TYPE_CHECKING:
    from alphorn.testing.faults import Nemesis

REMEMBERED = 4  # datagrams of one kind, sender and target
COPIES_MAX = 10
LATE_S = 0.2  # mean
AT_START_S = 0.15  # mean time after a start
DOWN_S = 0.3  # mean


class LateCopies:
    """What members have said by datagrams, as far as it may arrive once more."""

    __slots__ = ("_said", "_simulation")

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._said: dict[tuple[int, str, int], deque[bytes]] = {}  # sender, target or group, kind of frame
        simulation.watch.sent.append(self._on_sent)

    def draw(self, nemesis: "Nemesis", node: SimulatedNode | None) -> list[tuple[int, bytes]]:
        """Some of it with its targets: by anybody, or what was said by or to one member."""
        stream, nodes = nemesis.stream, self._simulation.nodes
        kinds: dict[int, list[tuple[int, str, int]]] = {}
        for key in self._said:
            if node is None or key[0] == node.index or key[1] in (node.name, DATA_GROUP, CONTROL_GROUP):
                kinds.setdefault(key[2], []).append(key)
        if not kinds:
            return []
        drawn = []
        for _ in range(stream.randint(1, COPIES_MAX)):
            source, to, kind = stream.choice(kinds[stream.choice(sorted(kinds))])
            data = stream.choice(self._said[source, to, kind])
            targets = [other.index for other in nodes if other.name == to]
            if to in (DATA_GROUP, CONTROL_GROUP):
                targets = [other.index for other in nodes if other.index != source and stream.random() < 0.7]
            drawn += [(target, data) for target in targets]
        return drawn

    def _on_sent(self, node: SimulatedNode, to: str, data: bytes, troubles: Troubles) -> None:
        if len(data) > node.budget.datagram_bytes:
            return  # by a stream, which repeats nothing
        key = (node.index, to, data[TYPE_PLACE])
        said = self._said.get(key)
        if said is None:
            said = self._said[key] = deque(maxlen=REMEMBERED)
        said.append(data)


def repeat_late(nemesis: "Nemesis") -> str:
    """Old datagrams arrive again: now, or just after a member has started again that said or was told them."""
    if nemesis.stream.random() < 0.5:
        return _repeat(nemesis, None, LATE_S)
    node = sequencer_of(nemesis) if nemesis.stream.random() < 0.3 else nemesis.draw_node()
    if node is None or not node.is_up:
        return ""
    nemesis.crash(node, "crash")
    nemesis.after(nemesis.draw_s(DOWN_S), _start_and_repeat, nemesis, node)
    return f"at the next start of {node.name}"


def repeat_at_start(nemesis: "Nemesis", node: SimulatedNode) -> None:
    """A member that has just started hears, or is heard by, what an earlier run was told or said."""
    if details := _repeat(nemesis, node, AT_START_S):
        nemesis.simulation.tell_fault("late-copy", details)


def _start_and_repeat(nemesis: "Nemesis", node: SimulatedNode) -> None:
    nemesis.restart(node)
    repeat_at_start(nemesis, node)


def _repeat(nemesis: "Nemesis", node: SimulatedNode | None, delay_s: float) -> str:
    copies = nemesis.late.draw(nemesis, node)
    for target, data in copies:
        nemesis.simulation.network.repeat(target, data, nemesis.draw_s(delay_s))
    return f"{len(copies)} datagrams" if copies else ""
