"""Faults of the network that tell frames apart: by how they are sent, or by their kind. Each ends after a while.

A switch that forgets who wants a group's datagrams lets those to one member through. A full buffer drops large frames
and not small ones. So a question may arrive where what was said to all did not.
"""

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from alphorn.bus.config import Role
from alphorn.bus.frames import DATA_TYPE, FRAME_NAMES, REPAIR_TYPE, Fetch
from alphorn.testing.checkers.facts import EPOCH_PLACE, TYPE_PLACE
from alphorn.testing.network_faults import LASTS_S, Pairs
from alphorn.testing.node import SimulatedNode
from alphorn.testing.node_faults import sequencer_of
from alphorn.testing.simulator import join_names
from alphorn.testing.watch import Troubles

if TYPE_CHECKING:
    from alphorn.testing.faults import Nemesis

Rule = Callable[[int, int, bytes], bool]

KINDS_MAX = 4
UNHEARD_S = 0.1  # longest time in which batches reach nobody but the sequencer, and all hear it
ANSWERED_S_MAX = 0.02  # until they reach others too, once the candidate asks for them
USURPED_S = 1.0  # mean
FETCH_TYPE = next(kind for kind, name in FRAME_NAMES.items() if name == Fetch.__name__)


def deafen(nemesis: "Nemesis") -> str:
    """What members tell the group does not reach some others; what they tell these alone does."""
    pairs = _draw_pairs(nemesis)
    if not pairs:
        return ""
    network = nemesis.simulation.network
    network.cut_group(pairs)
    nemesis.after(nemesis.draw_s(LASTS_S), network.mend_group, pairs)
    return _describe(nemesis, pairs)


def lose_kinds(nemesis: "Nemesis") -> str:
    """Frames of some kinds do not reach some members."""
    pairs, kinds = (
        _draw_pairs(nemesis),
        nemesis.stream.sample(sorted(FRAME_NAMES), nemesis.stream.randint(1, KINDS_MAX)),
    )
    if not pairs:
        return ""
    _drop(nemesis, pairs, kinds, nemesis.draw_s(LASTS_S))
    return f"{' '.join(FRAME_NAMES[kind] for kind in kinds)} {_describe(nemesis, pairs)}"


def usurp(nemesis: "Nemesis") -> str:
    """A majority loses the sequencer and is asked by one of it; another server still hears the sequencer, and of the
    candidate only what is meant for it alone. Batches of that time are at the sequencer, and reach the others later.
    """
    first, stream = sequencer_of(nemesis), nemesis.stream
    if first is None or not first.is_up:
        return ""
    up = [node for node in nemesis.simulation.servers() if node.is_up and node is not first]
    stream.shuffle(up)
    voters = len([node for node in nemesis.simulation.servers() if Role.COMMIT in node.me.roles])
    candidates = [node for node in up if Role.SEQUENCER in node.me.roles]
    if len(candidates) < 2:
        return ""
    loyal, second = candidates[:2]
    others = [node for node in up if node not in (loyal, second)][: voters // 2]
    away = [second, *others]
    leaves_s, lasts_s = stream.uniform(0.0, UNHEARD_S), 0.5 + nemesis.draw_s(USURPED_S)
    servers = [node.index for node in up]
    late = [(node.index, target) for node in nemesis.simulation.nodes for target in servers if node.index != target]
    rule = _drop(nemesis, late, (DATA_TYPE, REPAIR_TYPE), leaves_s + lasts_s)
    epoch, network = nemesis.ruin.newest_epoch, nemesis.simulation.network

    def on_sent(node: SimulatedNode, to: str, data: bytes, troubles: Troubles) -> None:
        is_fetch = node in away and to == loyal.name and data[TYPE_PLACE] == FETCH_TYPE
        if is_fetch and int.from_bytes(data[EPOCH_PLACE], "big") > epoch:
            nemesis.after(stream.uniform(0.0, ANSWERED_S_MAX), network.remove_rule, rule)

    nemesis.simulation.watch.sent.append(on_sent)
    nemesis.workload.order_some(first)
    if stream.random() < 0.5:
        nemesis.quiet_until = nemesis.simulation.now + leaves_s + lasts_s
    nemesis.after(leaves_s, _leave_sequencer, nemesis, first, away, lasts_s)
    return f"{second.name} with {join_names(others)} from {first.name}, {loyal.name} stays"


def _leave_sequencer(nemesis: "Nemesis", first: SimulatedNode, away: list[SimulatedNode], lasts_s: float) -> None:
    network = nemesis.simulation.network
    apart = [pair for node in away for pair in ((first.index, node.index), (node.index, first.index))]
    rest = [node.index for node in nemesis.simulation.nodes if node not in away]
    unheard = [(node.index, target) for node in away for target in rest]
    network.cut(apart)
    network.cut_group(unheard)
    nemesis.after(lasts_s, network.mend, apart)
    nemesis.after(lasts_s, network.mend_group, unheard)


def _drop(nemesis: "Nemesis", pairs: Pairs, kinds: Collection[int], lasts_s: float) -> Rule:
    lost, network = frozenset(pairs), nemesis.simulation.network

    def drops(source: int, target: int, data: bytes) -> bool:
        return data[TYPE_PLACE] in kinds and (source, target) in lost

    network.add_rule(drops)
    nemesis.after(lasts_s, network.remove_rule, drops)
    return drops


def _draw_pairs(nemesis: "Nemesis") -> Pairs:
    """Directions between two, from one, to one, or any."""
    stream, indices = nemesis.stream, [node.index for node in nemesis.simulation.nodes]
    one, draw = stream.choice(indices), stream.random()
    pairs = [(source, target) for source in indices for target in indices if source != target]
    if draw < 0.3:
        return [stream.choice(pairs)]
    if draw < 0.5:
        return [pair for pair in pairs if pair[0] == one and stream.random() < 0.7]
    if draw < 0.7:
        return [pair for pair in pairs if pair[1] == one and stream.random() < 0.7]
    return [pair for pair in pairs if stream.random() < 0.2]


def _describe(nemesis: "Nemesis", pairs: Pairs) -> str:
    nodes = nemesis.simulation.nodes
    return " ".join(f"{nodes[source].name}>{nodes[target].name}" for source, target in pairs)
