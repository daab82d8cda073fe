"""Strangers: they know the id of somebody's connection, as all do who have a message of it, and say that it is theirs.

They come to any Client Manager with no secret, a random one or that of another connection. Their streams draw by
themselves.
"""

from random import Random
from typing import Any

import msgspec

from alphorn.doors import native
from alphorn.model.conversation import Hello, Welcome
from alphorn.testing.client_life import ClientLife
from alphorn.testing.client_manager_room import ClientManagerRoom
from alphorn.testing.faults import Nemesis
from alphorn.testing.simulated_cluster import SimulatedCluster
from alphorn.testing.streams import SimulatedStreams, StreamEnd
from alphorn.testing.watch import Violation

FAULT = "stranger"
NAME = "nobody is taken over by a stranger"
COME_S = 0.3  # mean time between two
LATER = 1 << 20  # a resumption that no client comes to
_SECRET_BYTES = 32


class Strangers:
    """Those of one run. That its clients go on undisturbed is for the checkers that watch those."""

    __slots__ = ("_cluster", "_nemesis", "_stream", "_streams")

    def __init__(self, cluster: SimulatedCluster, nemesis: Nemesis) -> None:
        self._cluster = cluster
        self._nemesis = nemesis
        self._stream = Random(f"{cluster.plan.seed}/strangers")
        simulation = cluster.simulation
        self._streams = SimulatedStreams(
            simulation.schedule,
            simulation.network,
            Random(f"{cluster.plan.seed}/streams of strangers"),
            record=simulation.around.record,
            said=simulation.watch.said,
        )
        simulation.watch.ended.append(lambda node, reason: self._streams.break_of(node.name, reason))

    def start(self) -> None:
        """They come as long as there are faults."""
        self._nemesis.after(self._stream.expovariate(1.0) * COME_S, self._come)

    def _come(self) -> None:
        known = [program for program in self._cluster.programs if program.core.connection]
        if known:
            self._nemesis.counts[FAULT] = self._nemesis.counts.get(FAULT, 0) + 1
            victim, room = self._stream.choice(known), self._stream.choice(self._cluster.client_managers)
            others = [_hello_of(program).secret for program in known if program is not victim]
            secret = self._stream.choice((b"", self._stream.randbytes(_SECRET_BYTES), *others))
            self._knock(room, victim.name, msgspec.structs.replace(_hello_of(victim), resumption=LATER, secret=secret))
        self.start()

    def _knock(self, room: ClientManagerRoom, victim: str, hello: Hello) -> None:
        def on_frame(data: bytes) -> None:
            if isinstance(native.decode_server(data[native.LENGTH_BYTES :]), Welcome):
                raise Violation(NAME, f"a stranger is welcome at {room.name} as {victim}")

        def on_connected(end: StreamEnd | None) -> None:
            if end is not None:
                end.on_frame = on_frame
                end.send(native.encode(hello))

        self._cluster.simulation.tell_fault(FAULT, f"somebody says at {room.name} to be {victim}")
        self._streams.connect((room.place, FAULT), (room.place, room.name), room.accept, on_connected)


def _hello_of(program: ClientLife) -> Hello:
    """What it would say if it came back."""
    core: Any = program.core
    hello: Hello = core._hello
    return hello
