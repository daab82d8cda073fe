"""A Client Manager hangs with commands in its hand, until the group has given it up and its clients are elsewhere.

When all is well it stands still at the moment when it hands something of a client to its member of a channel's group,
or when that has sent it and nobody has heard it; and its streams break. Then it wakes, and nobody hears its members.
As soon as it has handed them something that they cannot send, it stands still once more. None of what it had in hand
either time is ordered when it wakes, unless the group could not do without its member, and no client misses anything.
"""

import math
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from alphorn.bus.config import Timing
from alphorn.client_manager.wishes import is_own, speaker_of
from alphorn.model.commands import Entry, decode_entry, encode_entry
from alphorn.testing.node import SimulatedNode
from alphorn.testing.watch import Violation

if TYPE_CHECKING:
    from alphorn.testing.simulated_cluster import SimulatedCluster

NAME = "what was in hand is over"
HANG = "hang"
PATIENCE_S = 3.0  # until it has something in hand
SENT_SHARE = 0.6  # of times in which its member has sent that, and nobody has heard it
SENT_S = 0.005  # in which it has
SAY_S = 0.2  # between two messages of a client
BREAK_S = 0.05  # after it stopped
LONGER_S = (0.3, 3.0)  # than it takes to be given up
EVICT_S = Timing().evict_s
BACK_S = 5.0  # after which all that it had in hand would have been ordered

Handle = tuple[int, int]  # channel, and what its workload knows an entry by


class Hanging:
    """One Client Manager that hangs, at most twice."""

    def __init__(self, cluster: "SimulatedCluster") -> None:
        self._cluster = cluster
        self._draw = Random(f"{cluster.plan.seed}/hanging")
        served = {client.served_by for client in cluster.clients}
        rooms = [room for room in cluster.client_managers if room.name in served]
        self._room = self._draw.choice(rooms or cluster.client_managers)
        self._has_sent = self._draw.random() < SENT_SHARE
        self._is_armed = False
        self._is_awake = True
        self._handed: set[Handle] = set()  # since it began, or came back
        self._old: set[Handle] = set()  # what was handed before it stood still
        self._waited: set[bytes] = set()  # commands of clients that it had not handed
        self._newest = [math.inf] * len(cluster.channels)  # numbers in the logs, that have given it up, when it woke
        self._apart: list[list[tuple[int, int]]] = []  # by channel: who does not hear whom
        self.times = 0
        self.is_over = False

    def begin(self) -> None:
        """Clients say something, and it hangs as soon as it has some of that in hand."""
        self._room.handing.append(self._on_handed)
        for number, channel in enumerate(self._cluster.channels):
            channel.simulation.watch.ordered.append(partial(self._on_ordered, number))
        if self._has_sent:
            self._be_unheard()
        self._arm()
        self._say_something()

    def _say_something(self) -> None:
        """Again and again, until something is in hand."""
        if self._is_armed:
            for client in self._cluster.clients:
                client.send_last()
            self._cluster.simulation.schedule.after(SAY_S, self._say_something)

    def _come_back(self) -> None:
        """Clients that have gone on elsewhere lose that one too."""
        for client in self._cluster.clients:
            if client.served_by != self._room.name:
                self._cluster.channels[0].streams.break_all(client.name)
        self._say_something()

    def _arm(self) -> None:
        self._is_armed = True
        self._cluster.simulation.schedule.after(PATIENCE_S, self._give_up, self.times)

    def _give_up(self, times: int) -> None:
        if self._is_armed and self.times == times:
            self._is_armed = False
            self._be_heard()
            self.is_over = True

    def _on_handed(self, channel: int, handle: int, payload: bytes) -> None:
        """Its member is about to get an entry."""
        if not self._room.node.is_running:
            return
        commands = decode_entry(payload).commands
        here = {connection.id for connection in self._desk.connections.values()}
        is_late = any(
            encode_entry(Entry([command])) in self._waited and speaker_of(command) not in here for command in commands
        )
        (self._old if is_late else self._handed).add((channel, handle))
        if self._is_armed and any(speaker_of(command) in here for command in commands):
            if not self.times and not self._has_sent:
                self._hang()
            elif not self.times:
                self._cluster.simulation.schedule.after(SENT_S, self._hang)
            elif not self._is_member(channel):
                self._cluster.simulation.schedule.after(0.0, self._hang)

    @property
    def _desk(self) -> Any:
        machine: Any = self._room.machine
        return machine._desk

    def _is_member(self, channel: int) -> bool:
        return bool(self._room.members[channel].describe()["membership"]["joined"])

    def _hang(self) -> None:
        if not (self._is_armed and self._room.node.is_running):
            return
        self._is_armed = self._is_awake = False
        self.times += 1
        self._waited |= self._waiting()
        self._room.freeze()
        schedule, lasts_s = self._cluster.simulation.schedule, EVICT_S + self._draw.uniform(*LONGER_S)
        self._cluster.simulation.tell_fault(HANG, f"{self._room.name} for {lasts_s:.1f} s")
        schedule.after(BREAK_S, self._break)
        schedule.after(lasts_s, self._wake)

    def _waiting(self) -> set[bytes]:
        """What it wants for clients and has not handed to any member."""
        found = set()
        for channel in self._desk.channels:
            wishes = [wish for line in channel._lines._lines.values() for wish, _, _ in line.waiting]
            wishes += [wish for line in channel._bulk._lines.values() for (_, wish), _, _ in line.waiting]
            wished = [wish.command for wish in wishes if not is_own(wish, b"")] + list(channel._commands)
            found |= {encode_entry(Entry([command])) for command in wished if speaker_of(command)}
        return found

    def _break(self) -> None:
        for channel in self._cluster.channels:
            channel.streams.break_all(self._room.name)

    def _wake(self) -> None:
        self._old |= self._handed
        self._handed.clear()
        engines = self._cluster.engines()
        self._newest = [
            engine.sequence if self._is_given_up(number) else math.inf for number, engine in enumerate(engines)
        ]
        self._is_awake = True
        self._be_heard()
        if self.times == 1:
            self._be_unheard()
            self._arm()
            self._cluster.simulation.schedule.after(BREAK_S, self._come_back)
        else:
            self._cluster.simulation.schedule.after(BACK_S, self._end)
        self._room.thaw()

    def _is_given_up(self, channel: int) -> bool:
        """Whether anybody knows the log so far that it says so."""
        place, group = self._room.places[channel], self._cluster.channels[channel].simulation
        me = group.nodes[place].name
        machines: list[Any] = [server.machine for server in group.servers() if server.index != place and server.is_up]
        known = [machine.describe()["state"]["members"].values() for machine in machines]
        return any(not any(each["name"] == me and each["live"] for each in members) for members in known)

    def _be_unheard(self) -> None:
        """Its members hear others, and are not heard."""
        for channel, member in zip(self._cluster.channels, self._room.places, strict=True):
            servers = [server.index for server in channel.simulation.servers() if server.index != member]
            self._apart.append([(member, server) for server in servers])
            channel.simulation.network.cut(self._apart[-1])

    def _be_heard(self) -> None:
        for channel, apart in zip(self._cluster.channels, self._apart, strict=False):
            channel.simulation.network.mend(apart)
        self._apart.clear()

    def _end(self) -> None:
        self.is_over = True

    def _on_ordered(self, channel: int, node: SimulatedNode, handle: int, sequence: int) -> None:
        if self._is_awake and (channel, handle) in self._old and sequence > self._newest[channel] and self.times:
            raise Violation(NAME, f"{node.name} had entry {sequence} in hand, or for one who is gone, when it hung")
