"""What all members of one simulation share: settings, time, network, and whom they tell what they do."""

import random
from collections.abc import Callable

from alphorn.bus.config import Budget, GroupConfig, Timing
from alphorn.bus.machine import Machine
from alphorn.testing.network import SimulatedNetwork
from alphorn.testing.schedule import Schedule
from alphorn.testing.watch import Watch

MachineFactory = Callable[..., Machine]


class Surroundings:
    """What all members of one simulation share."""

    __slots__ = (
        "budget",
        "config",
        "find",
        "machine",
        "network",
        "record",
        "schedule",
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
        record: Callable[[bytes], None],
        turn_s: float,
        sync_mean_s: float,
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
        self.record = record
        self.sync_mean_s = sync_mean_s
        self.turn_s = turn_s  # how long inputs gather before their outputs are performed; 0 for each by itself
