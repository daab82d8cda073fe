"""Faults of Client Managers and of their clients, in clusters of any number of channels."""

from collections.abc import Sequence

from alphorn.testing.client_manager_room import ClientManagerRoom
from alphorn.testing.faults import Nemesis
from alphorn.testing.node_faults import DOWN_S

SLOW_S = 0.5  # mean time that a client takes nothing


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
