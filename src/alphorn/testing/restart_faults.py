"""Faults of members that start again at a bad moment: within a checkpoint, or again and again on a damaged log."""

from typing import TYPE_CHECKING

from alphorn.bus.config import Role
from alphorn.bus.machine import DropThrough, Persist, PutAssignments, Write
from alphorn.testing.network_faults import Pairs
from alphorn.testing.node import SimulatedNode
from alphorn.testing.node_faults import sequencer_of

if TYPE_CHECKING:
    from alphorn.testing.faults import Nemesis

DOWN_S = 0.3  # mean
SLOW_S = 2.0  # how long a checkpoint takes at least
STARTS_MAX = 5
UP_S = 0.15  # mean
NEWEST = 4
TAIL = 8  # numbers at the end of a sequencer that was alone
ALONE_S_MAX = 2.0
POLL_S = 0.01


def crash_at_checkpoint(nemesis: "Nemesis") -> str:
    """A process takes so long over a checkpoint that its log begins behind the one before, and ends at that moment."""
    nodes = [node for node in nemesis.simulation.servers() if node.is_up and Role.CHECKPOINT in node.me.roles]
    if not nodes:
        return ""
    node = nemesis.stream.choice(nodes)
    run, is_over = node.run, False

    def on_durable(other: SimulatedNode, persist: Persist) -> None:
        nonlocal is_over
        if other is node and node.run == run and not is_over and _is_behind(node, persist):
            is_over = True
            nemesis.after(0.0, _end, nemesis, node, run)

    node.checkpointing.least_s = SLOW_S
    nemesis.simulation.watch.durable.append(on_durable)
    return node.name


def _is_behind(node: SimulatedNode, persist: Persist) -> bool:
    """Whether it drops more of its log than its own checkpoint covers, and another disk has one that does."""
    dropped = max((write.sequence for write in persist.writes if isinstance(write, DropThrough)), default=0)
    others = [other for other in node.around.servers() if other is not node]
    return _newest_of(node) < dropped <= max(map(_newest_of, others), default=0)


def _newest_of(node: SimulatedNode) -> int:
    own = node.disk.durable.checkpoint
    return own.sequence if own is not None else 0


def restart_often(nemesis: "Nemesis") -> str:
    """A process ends and starts several times in a row; one of its newest numbers may rot."""
    node = nemesis.draw_node()
    if node is None:
        return ""
    starts = nemesis.stream.randint(2, STARTS_MAX)
    nemesis.crash(node, "crash")
    number = _rot(nemesis, node) if nemesis.stream.random() < 0.7 else 0
    nemesis.after(nemesis.draw_s(DOWN_S), _start, nemesis, node, starts, number)
    return f"{node.name} {starts} times{_describe(number)}"


def leave_tail(nemesis: "Nemesis") -> str:
    """The sequencer is alone until there is another; then it comes back with numbers that nobody else has, one of
    which may rot, and ends once more as soon as that is written anew.
    """
    node = sequencer_of(nemesis)
    if node is None or not node.is_up:
        return ""
    simulation = nemesis.simulation
    others = [other.index for other in simulation.nodes if other is not node and not other.is_client]
    pairs = [pair for other in others for pair in ((node.index, other), (other, node.index))]
    simulation.network.cut(pairs)
    until = simulation.now + ALONE_S_MAX
    nemesis.after(POLL_S, _come_back, nemesis, node, pairs, nemesis.ruin.newest_epoch, until)
    return node.name


def _come_back(nemesis: "Nemesis", node: SimulatedNode, pairs: Pairs, epoch: int, until: float) -> None:
    if nemesis.ruin.newest_epoch == epoch and nemesis.simulation.now < until:
        nemesis.after(POLL_S, _come_back, nemesis, node, pairs, epoch, until)
        return
    nemesis.simulation.network.mend(pairs)
    if node.is_up:
        nemesis.crash(node, "crash")
        number = _rot(nemesis, node, newest=TAIL)
        nemesis.simulation.tell_fault("stale-tail", f"{node.name} is back{_describe(number)}")
        nemesis.after(nemesis.draw_s(DOWN_S), _start, nemesis, node, 2, number)


def _start(nemesis: "Nemesis", node: SimulatedNode, starts: int, rotten: int) -> None:
    nemesis.restart(node)
    if starts < 2 or not node.is_up:
        return
    if rotten and nemesis.stream.random() < 0.8:
        _end_when_written(nemesis, node, rotten, starts - 1)
    else:
        nemesis.after(nemesis.draw_s(UP_S), _end_again, nemesis, node, node.run, starts - 1, rotten)


def _end_when_written(nemesis: "Nemesis", node: SimulatedNode, number: int, starts: int) -> None:
    run, is_over = node.run, False

    def on_durable(other: SimulatedNode, persist: Persist) -> None:
        nonlocal is_over
        if other is node and node.run == run and not is_over and any(_puts(write, number) for write in persist.writes):
            is_over = True
            nemesis.after(0.0, _end_again, nemesis, node, run, starts, 0)

    nemesis.simulation.watch.durable.append(on_durable)


def _puts(write: Write, number: int) -> bool:
    return isinstance(write, PutAssignments) and write.first <= number < write.first + len(write.assignments)


def _end_again(nemesis: "Nemesis", node: SimulatedNode, run: int, starts: int, rotten: int) -> None:
    if node.is_up and node.run == run:
        nemesis.crash(node, "crash")
        nemesis.after(nemesis.draw_s(DOWN_S), _start, nemesis, node, starts, rotten)


def _end(nemesis: "Nemesis", node: SimulatedNode, run: int) -> None:
    if node.is_up and node.run == run:
        node.checkpointing.least_s = 0.0
        nemesis.crash(node, "crash")
        nemesis.simulation.tell_fault("crash-at-checkpoint", f"{node.name} ends")
        nemesis.after(nemesis.draw_s(DOWN_S), nemesis.restart, node)


def _rot(nemesis: "Nemesis", node: SimulatedNode, newest: int = NEWEST) -> int:
    """One of the last numbers of a member cannot be read any more, where the group can do without; 0 for none."""
    numbers = [] if node.is_client else sorted(node.disk.durable.assignments)[-newest:]
    numbers = [number for number in numbers if nemesis.ruin.may_damage_number(node, number)]
    if not numbers:
        return 0
    number = nemesis.stream.choice(numbers)
    node.disk.damage(("assignment", number, 0))
    return number


def _describe(rotten: int) -> str:
    return f", number {rotten} is damaged" if rotten else ""
