"""Faults of disks: slow, failing, full, rotten, lost, lost and found again, and an old image put back by mistake.

What may be destroyed is limited by `Ruin`. An old image is the one fault a member cannot notice by itself: the
sequencer finds it out from the member's incarnation. So it is injected only while a sequencer is established elsewhere
and everyone is well, and nothing else goes wrong until that member follows the log again. A disk that was lost and is
found again is such an image; of what its member said on another one since, the sequencer may have heard nothing.
"""

from typing import TYPE_CHECKING

from alphorn.bus.config import Role
from alphorn.testing.disk import DiskState, Key
from alphorn.testing.late_copies import repeat_at_start
from alphorn.testing.node import NodeState, SimulatedNode
from alphorn.testing.node_faults import sequencer_of
from alphorn.testing.ruin import all_calm

if TYPE_CHECKING:
    from alphorn.testing.faults import Nemesis

HANG_S = 2.0  # mean
HANG_S_MAX = 8.0
CALM_POLL_S = 0.1
CALM_S_MAX = 20.0
FOUND_ATTEMPTS = 30
NEWEST = 5


def slow(nemesis: "Nemesis") -> str:
    """One disk takes up to 200 ms for an fsync."""
    node = nemesis.draw_node()
    if node is None:
        return ""
    node.disk.slow_chance = nemesis.stream.choice((0.1, 1.0))
    nemesis.after(nemesis.draw_s(1.5), _hasten, node)
    return node.name


def hang(nemesis: "Nemesis") -> str:
    """The next fsync of one disk takes seconds, and succeeds: its member says nothing of what it writes meanwhile."""
    node = nemesis.draw_node()
    if node is None:
        return ""
    node.disk.hang_s = min(HANG_S_MAX, 0.5 + nemesis.draw_s(HANG_S))
    return f"{node.name} for {node.disk.hang_s:.1f} s"


def fail_sync(nemesis: "Nemesis") -> str:
    """The next fsync of one disk fails: its member must stop. It starts again on a repaired disk."""
    node = nemesis.draw_node()
    if node is None:
        return ""
    node.disk.is_failing = True
    nemesis.after(nemesis.draw_s(1.5), _repair, nemesis, node)
    return node.name


def fill(nemesis: "Nemesis") -> str:
    """One disk is full for a while: its member must stop, as often as it is started."""
    node = nemesis.draw_node()
    if node is None:
        return ""
    node.disk.is_full = True
    nemesis.after(nemesis.draw_s(1.5), _repair, nemesis, node)
    return node.name


def damage(nemesis: "Nemesis") -> str:
    """Some stored records of one disk rot. Its member may be restarted to find out."""
    node = nemesis.stream.choice(nemesis.simulation.servers())
    keys = [key for key in _draw_keys(nemesis, node) if _may_damage(nemesis, node, key)]
    for key in keys:
        node.disk.damage(key)
    if keys and node.is_up and nemesis.stream.random() < 0.5:
        nemesis.crash(node, "crash")
        nemesis.after(nemesis.draw_s(0.3), nemesis.restart, node)
    return f"{node.name} {' '.join(f'{kind}:{number}' for kind, number, _ in keys)}" if keys else ""


def lose(nemesis: "Nemesis") -> str:
    """One member comes back with a blank disk."""
    node = nemesis.stream.choice(nemesis.simulation.servers())
    if not node.has_founded or not nemesis.ruin.may_lose_disk(node):
        return ""
    if node.is_up:
        nemesis.crash(node, "crash")
    node.disk.lose()
    nemesis.after(nemesis.draw_s(0.5), nemesis.restart, node)
    return node.name


def restore_old(nemesis: "Nemesis") -> str:
    """Takes an image of one disk; later its member is restarted on that image."""
    sequencer = sequencer_of(nemesis)
    nodes = [node for node in nemesis.simulation.servers() if node is not sequencer and node.has_founded]
    if not nodes or any(node.disk.durable.meta is None for node in nodes):
        return ""
    node = nemesis.stream.choice(nodes)
    nemesis.after(0.5 + nemesis.draw_s(2.0), _restore, nemesis, node, node.disk.durable.copy(), 0)
    return f"{node.name}: image taken"


def find(nemesis: "Nemesis") -> str:
    """One member goes on with a blank disk; when it votes again its first one is put back, and heard by another run of
    the sequencer.
    """
    nodes = [node for node in nemesis.simulation.servers() if node.has_founded and node is not sequencer_of(nemesis)]
    nodes = [node for node in nodes if node.disk.durable.meta is not None and nemesis.ruin.may_lose_disk(node)]
    if not nodes:
        return ""
    node = nemesis.stream.choice(nodes)
    if node.is_up:
        nemesis.crash(node, "crash")
    image = node.disk.durable.copy()
    node.disk.lose()
    nemesis.after(nemesis.draw_s(0.3), nemesis.restart, node)
    nemesis.after(0.5 + nemesis.draw_s(1.0), _find, nemesis, node, image, 0)
    return f"{node.name}: lost"


def _find(nemesis: "Nemesis", node: SimulatedNode, image: DiskState, attempt: int) -> None:
    if not nemesis.is_calm and not attempt:
        nemesis.simulation.network.heal()
    if nemesis.is_calm or not _may_restore(nemesis, node):
        if attempt < FOUND_ATTEMPTS:
            nemesis.after(CALM_POLL_S, _find, nemesis, node, image, attempt + 1)
        return
    sequencer = sequencer_of(nemesis)
    assert sequencer is not None
    _calm(nemesis)
    node.end("crash", keeps_prefix=False)
    nemesis.crash(sequencer, "crash")
    nemesis.restart(sequencer)
    nemesis.simulation.tell_fault("found-disk", f"{node.name} ends, {sequencer.name} starts again")
    until = nemesis.simulation.now + CALM_S_MAX
    nemesis.after_in_calm(CALM_POLL_S, _put_back, nemesis, node, image, nemesis.ruin.newest_epoch, until)


def _put_back(nemesis: "Nemesis", node: SimulatedNode, image: DiskState, epoch: int, until: float) -> None:
    is_led = nemesis.ruin.newest_epoch != epoch and nemesis.ruin.has_sequencer
    if not is_led and nemesis.simulation.now < until:
        nemesis.after_in_calm(CALM_POLL_S, _put_back, nemesis, node, image, epoch, until)
        return
    if is_led and not node.is_up and nemesis.ruin.may_lose_disk(node):
        node.disk.restore(image, is_found=True)
        nemesis.simulation.tell_fault("found-disk", f"{node.name}: put back")
    nemesis.restart(node)
    nemesis.after_in_calm(CALM_POLL_S, _wait_for, nemesis, node, until)


def _may_restore(nemesis: "Nemesis", node: SimulatedNode) -> bool:
    is_led = nemesis.ruin.has_sequencer and sequencer_of(nemesis) is not node
    return all_calm(nemesis.facts) and is_led and nemesis.ruin.may_lose_disk(node)


def _calm(nemesis: "Nemesis") -> None:
    """Nothing else goes wrong from now on."""
    nemesis.is_calm = True
    nemesis.simulation.network.heal()
    for node in nemesis.simulation.nodes:
        node.disk.repair()
        node.nap_s = 0.0


def _restore(nemesis: "Nemesis", node: SimulatedNode, image: DiskState, attempt: int) -> None:
    simulation = nemesis.simulation
    if nemesis.is_calm:
        return
    if not attempt:
        simulation.network.heal()
    if not _may_restore(nemesis, node):
        if attempt < 5:
            nemesis.after(CALM_POLL_S, _restore, nemesis, node, image, attempt + 1)
        return
    _calm(nemesis)
    node.end("crash", keeps_prefix=False)
    node.disk.restore(image)
    node.start_again()
    if nemesis.stream.random() < 0.5:
        repeat_at_start(nemesis, node)
    simulation.tell_fault("old-disk", f"{node.name}: image restored")
    nemesis.after_in_calm(CALM_POLL_S, _wait_for, nemesis, node, simulation.now + CALM_S_MAX)


def _wait_for(nemesis: "Nemesis", node: SimulatedNode, until: float) -> None:
    if (node.state is NodeState.UP and node.is_synchronised) or nemesis.simulation.now > until:
        nemesis.is_calm = node.disk.is_old = False
    else:
        nemesis.after_in_calm(CALM_POLL_S, _wait_for, nemesis, node, until)


def _draw_keys(nemesis: "Nemesis", node: SimulatedNode) -> list[Key]:
    state, stream = node.disk.durable, nemesis.stream
    draw = stream.random()
    if draw < 0.6 and state.entries:
        numbers = sorted(state.entries)
        if stream.random() < 0.5:
            numbers = numbers[-NEWEST:]  # what may still be open is what a candidate asks for
        return [("entry", number, 0) for number in stream.sample(numbers, min(len(numbers), stream.randint(1, 5)))]
    if draw < 0.8 and state.assignments:
        return [("assignment", stream.choice(sorted(state.assignments)), 0)]
    if draw < 0.9 and state.chunks:
        sequence, chunk = stream.choice(sorted(state.chunks))
        return [("chunk", sequence, chunk)]
    if draw < 0.95 and state.group_state is not None:
        return [("group_state", 0, 0)]
    if state.checkpoint is not None:
        return [("checkpoint", 0, 0)]
    return []


def _may_damage(nemesis: "Nemesis", node: SimulatedNode, key: Key) -> bool:
    ruin = nemesis.ruin
    match key[0]:
        case "entry":
            return ruin.may_damage_entry(node, key[1])
        case "assignment":
            return ruin.may_damage_number(node, key[1])
        case _:
            is_copy = Role.DATA not in node.me.roles or ruin.may_damage_checkpoint(node)
            return is_copy and ruin.may_damage_base(node, key)


def _hasten(node: SimulatedNode) -> None:
    node.disk.slow_chance = 0.01


def _repair(nemesis: "Nemesis", node: SimulatedNode) -> None:
    node.disk.is_failing = node.disk.is_full = False
    nemesis.restart(node)
