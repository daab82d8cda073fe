"""Faults of Client Managers and of their clients, in clusters of any number of channels."""

from collections.abc import Sequence

from alphorn.message_manager.awaited import UNLINKED_S
from alphorn.testing.client_manager_room import ClientManagerRoom
from alphorn.testing.faults import Nemesis
from alphorn.testing.node_faults import DOWN_S, crash_sequencer

SLOW_S = 0.5  # mean time that a client takes nothing
LATE_S_MAX = 2.0  # longest time after which a Client Manager finds a new primary that waits for it no longer


def slow_client(nemesis: Nemesis, rooms: Sequence[ClientManagerRoom]) -> str:
    """A client takes nothing for a while."""
    room = nemesis.stream.choice(rooms)
    seconds = nemesis.draw_s(SLOW_S)
    return f"{room.name} {seconds:.2f} s" if room.slow_down(seconds, nemesis.stream) else ""


def crash_client_manager(nemesis: Nemesis, rooms: Sequence[ClientManagerRoom]) -> str:
    """A Client Manager's process ends, and starts again later."""
    nodes = [room.node for room in rooms if room.node.is_up]
    if not nodes:
        return ""
    node = nemesis.stream.choice(nodes)
    nemesis.crash(node, "crash")
    nemesis.after(nemesis.draw_s(DOWN_S), nemesis.restart, node)
    return node.name


def delay_client_manager(nemesis: Nemesis, rooms: Sequence[ClientManagerRoom]) -> str:
    """The primary ends while a Client Manager reaches no server; others are served before it finds the next one.

    It is one whose consumers have several messages, which are given to others by then.
    """
    found = [room for room in rooms if room.node.is_up and room.node.is_client and room.held > 1]
    if not found or not crash_sequencer(nemesis):
        return ""
    late, network = max(found, key=lambda room: room.held).node, nemesis.simulation.network
    servers = [server.index for server in nemesis.simulation.servers()]
    apart = [pair for server in servers for pair in ((late.index, server), (server, late.index))]
    network.cut(apart)
    nemesis.after(UNLINKED_S + nemesis.stream.uniform(0.2, LATE_S_MAX), network.mend, apart)
    return late.name
