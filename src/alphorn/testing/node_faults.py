"""Faults of processes and people: crashes, pauses, slowness, clocks, clients that come and go, changes of voters."""

from typing import TYPE_CHECKING

from alphorn.bus.config import Role
from alphorn.bus.entries import describe_epoch, epoch_number
from alphorn.bus.machine import ChangeInterval, ChangeVoters, Goodbye
from alphorn.testing.checkers.facts import COMMIT_TYPE, TYPE_PLACE
from alphorn.testing.node import NodeState, SimulatedNode

if TYPE_CHECKING:
    from alphorn.testing.faults import Nemesis

DOWN_S = 0.8  # mean
CLIENTS_LATER_MAX = 4
GOODBYE_S = 0.3
INTERVALS = (4, 16, 64, 200)
LIFETIMES = (0, 16, 64)


def crash(nemesis: "Nemesis") -> str:
    """One process ends, losing what is not durable, and starts again later."""
    node = nemesis.draw_node()
    if node is None:
        return ""
    nemesis.crash(node, "crash")
    nemesis.after(nemesis.draw_s(DOWN_S), nemesis.restart, node)
    return node.name


def crash_sequencer(nemesis: "Nemesis") -> str:
    """The sequencer's process ends."""
    node = sequencer_of(nemesis)
    if node is None or not node.is_up:
        return ""
    nemesis.crash(node, "crash")
    nemesis.after(nemesis.draw_s(DOWN_S), nemesis.restart, node)
    return node.name


def crash_at_commit(nemesis: "Nemesis") -> str:
    """The sequencer's process ends at its next commit, and nobody else hears of that."""
    node = sequencer_of(nemesis)
    if node is None or not node.is_up:
        return ""
    run, is_over = node.run, False

    def drops(source: int, target: int, data: bytes) -> bool:
        nonlocal is_over
        if source != node.index or node.run != run:
            return False
        if not is_over and data[TYPE_PLACE] == COMMIT_TYPE:
            is_over = True
            nemesis.simulation.schedule.after(0.0, _end_at_once, nemesis, node, run)
        return is_over

    nemesis.simulation.network.add_rule(drops)
    return node.name


def crash_all(nemesis: "Nemesis") -> str:
    """Every configured member loses power at once."""
    nodes = [node for node in nemesis.simulation.servers() if node.is_up]
    for node in nodes:
        nemesis.crash(node, "power cut")
        nemesis.after(nemesis.draw_s(DOWN_S), nemesis.restart, node)
    return f"{len(nodes)} members"


def pause(nemesis: "Nemesis") -> str:
    """One process stops for a while and then goes on as if nothing had happened."""
    node = nemesis.draw_node()
    if node is None:
        return ""
    node.pause()
    lasts_s = min(5.0, nemesis.draw_s(1.0))
    nemesis.after(lasts_s, node.resume)
    return f"{node.name} for {lasts_s:.1f} s"


def slow(nemesis: "Nemesis") -> str:
    """One process works only now and then."""
    node = nemesis.draw_node()
    if node is None or node.nap_s:
        return ""
    node.nap_s = nemesis.stream.choice((0.01, 0.04, 0.15))
    node.nap()
    nemesis.after(nemesis.draw_s(1.5), _wake, node)
    return f"{node.name}, naps of {node.nap_s * 1000:.0f} ms"


def jump_clock(nemesis: "Nemesis") -> str:
    """A member's wall clock is wrong from its next start on, which comes soon."""
    node = nemesis.draw_node()
    if node is None:
        return ""
    node.clock_skew_s = nemesis.stream.choice((-3600.0, -10.0, 5.0, 3600.0))
    nemesis.crash(node, "crash")
    nemesis.after(nemesis.draw_s(0.3), nemesis.restart, node)
    return f"{node.name} by {node.clock_skew_s:+.0f} s"


def change_clients(nemesis: "Nemesis") -> str:
    """A client leaves in good order, or a new one joins."""
    clients = [node for node in nemesis.simulation.nodes if node.is_client and node.state is NodeState.UP]
    if len(clients) > 1 and nemesis.stream.random() < 0.5:
        node = nemesis.stream.choice(clients)
        node.feed(Goodbye())
        nemesis.simulation.schedule.after(GOODBYE_S, _leave, node, node.run)
        return f"{node.name} leaves"
    if nemesis.clients >= CLIENTS_LATER_MAX:
        return ""
    nemesis.clients += 1
    node = nemesis.simulation.add_client(f"K{nemesis.clients}")
    node.start()
    nemesis.workload.add_sender(node)
    return f"{node.name} joins"


def change_voters(nemesis: "Nemesis") -> str:
    """An administrator removes a commit server, or brings one back, whatever the network does meanwhile."""
    node = sequencer_of(nemesis)
    if node is None or node.state is not NodeState.UP:
        return ""
    members = nemesis.simulation.config.members
    eligible = [index for index, member in enumerate(members) if Role.COMMIT in member.roles]
    index = nemesis.stream.choice(eligible)
    is_voter = index in nemesis.facts.voter_sets(nemesis.facts.last + 1)[-1]
    if is_voter and not nemesis.ruin.may_remove_voter(index):
        return ""
    nemesis.ruin.expect_change(node, index)
    node.feed(ChangeVoters(members[index].number, not is_voter))
    return f"{'remove' if is_voter else 'add'} {members[index].name} at {node.name}"


def change_interval(nemesis: "Nemesis") -> str:
    """An administrator sets another checkpoint interval and lifetime."""
    node = sequencer_of(nemesis)
    if node is None or node.state is not NodeState.UP:
        return ""
    interval, lifetime = nemesis.stream.choice(INTERVALS), nemesis.stream.choice(LIFETIMES)
    node.feed(ChangeInterval(interval, lifetime))
    return f"{interval} and lifetime {lifetime} at {node.name}"


def sequencer_of(nemesis: "Nemesis") -> SimulatedNode | None:
    """Who spoke last as sequencer, under the newest epoch."""
    epoch = nemesis.ruin.newest_epoch
    index = nemesis.facts.index_of(epoch_number(epoch))
    assert index >= 0 or not epoch, describe_epoch(epoch)
    return nemesis.simulation.nodes[index] if epoch else None


def _end_at_once(nemesis: "Nemesis", node: SimulatedNode, run: int) -> None:
    if node.is_up and node.run == run:
        nemesis.crash(node, "crash")
        nemesis.after(nemesis.draw_s(DOWN_S), nemesis.restart, node)


def _wake(node: SimulatedNode) -> None:
    node.nap_s = 0.0
    node.resume()


def _leave(node: SimulatedNode, run: int) -> None:
    if node.is_up and node.run == run:
        node.has_left = True
        node.end("left")
