"""What all members of one simulation share: settings, time, network, and whom they tell what they do."""

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from alphorn.bus.config import Budget, GroupConfig, Timing
from alphorn.bus.machine import Machine
from alphorn.testing.network import SimulatedNetwork
from alphorn.testing.replica import Replica
from alphorn.testing.schedule import Schedule
from alphorn.testing.watch import Watch

if TYPE_CHECKING:
    from alphorn.testing.node import SimulatedNode

MachineFactory = Callable[..., Machine]


class Surroundings:
    """What all members of one simulation share."""

    __slots__ = (
        "budget",
        "checkpoint_s_max",
        "config",
        "datagrams",
        "find",
        "install_s_max",
        "keeps",
        "machine",
        "make_replica",
        "network",
        "record",
        "schedule",
        "servers",
        "streams_machines",
        "sync_mean_s",
        "timing",
        "turn_s",
        "watch",
    )

    def __init__(
        self,
        *,
        config: GroupConfig,
        timing: Timing,
        budget: Budget,
        machine: MachineFactory,
        schedule: Schedule,
        network: SimulatedNetwork,
        watch: Watch,
        machines_stream: random.Random,
        find: Callable[[str], int | None],
        servers: "Callable[[], list[SimulatedNode]]",
        record: Callable[[bytes], None],
        turn_s: float,
        sync_mean_s: float,
        keeps: int,
        install_s_max: float,
        checkpoint_s_max: float,
        datagrams: Sequence[int],
        make_replica: "Callable[[SimulatedNode], Replica] | None" = None,
    ) -> None:
        self.config = config
        self.timing = timing
        self.budget = budget
        self.machine = machine
        self.schedule = schedule
        self.network = network
        self.watch = watch
        self.streams_machines = machines_stream
        self.find = find
        self.servers = servers
        self.record = record
        self.sync_mean_s = sync_mean_s
        self.turn_s = turn_s  # how long inputs gather before their outputs are performed; 0 for each by itself
        self.keeps = keeps  # delivered batches that an upper layer needs on, at most
        self.make_replica = make_replica or (lambda node: Replica(keeps=keeps))
        self.checkpoint_s_max = checkpoint_s_max  # longest time that one takes until it is handed to the disk
        self.datagrams = (
            datagrams  # the largest datagrams of members, by place and around again; empty for the budget's
        )
        self.install_s_max = install_s_max  # longest time that an upper layer takes over a checkpoint

    def draw_install_s(self) -> float:
        """How long one upper layer takes over one checkpoint: mostly no time."""
        stream = self.streams_machines
        return stream.uniform(0.0, self.install_s_max) if self.install_s_max and stream.random() < 0.3 else 0.0

    def draw_checkpoint_s(self) -> float:
        """How long one upper layer takes until all of a checkpoint is handed to the disk: mostly no time."""
        stream = self.streams_machines
        return stream.uniform(0.0, self.checkpoint_s_max) if self.checkpoint_s_max and stream.random() < 0.5 else 0.0

    def budget_of(self, index: int) -> Budget:
        """One member's bounds: interfaces may take datagrams of different sizes."""
        if not self.datagrams:
            return self.budget
        return msgspec.structs.replace(self.budget, datagram_bytes=self.datagrams[index % len(self.datagrams)])
