"""The kinds of simulation: a group with its log alone, a message cluster on one or on two, transfers over several, or
message servers.

A seed means another run in each. A campaign of all kinds takes of four seeds one as a cluster and one as transfers;
every other of these clusters has several channels, and moves between them. Message servers stand on no log and have
campaigns of their own.
"""

import enum

from alphorn.testing.cluster_plan import make_channel_plan, make_cluster_plan
from alphorn.testing.cluster_run import run_channels, run_cluster
from alphorn.testing.plan import make_plan
from alphorn.testing.run import Result
from alphorn.testing.run import run_seed as run_log
from alphorn.testing.servers.plan import make_servers_plan
from alphorn.testing.servers.run import run_servers
from alphorn.testing.timeline import Timeline
from alphorn.testing.transfer_run import make_transfer_plan, run_transfers

CLUSTER_EVERY = 4
TRANSFERS_AT = 2  # of these, counted from the cluster
CHANNELS_EVERY = 8


class Kind(enum.Enum):
    """What is simulated."""

    LOG = "log"
    CLUSTER = "cluster"
    CHANNELS = "channels"
    TRANSFERS = "transfers"
    SERVERS = "servers"
    ALL = "all"

    def of(self, seed: int) -> "Kind":
        """What one seed of a campaign is."""
        if self is not Kind.ALL:
            return self
        if seed % CHANNELS_EVERY == 0:
            return Kind.CHANNELS
        return {0: Kind.CLUSTER, TRANSFERS_AT: Kind.TRANSFERS}.get(seed % CLUSTER_EVERY, Kind.LOG)


def run_seed(seed: int, kind: Kind = Kind.ALL, *, timeline: Timeline | None = None) -> Result:
    """Runs one seed. Every failure, of a checker or of a machine, is in the result."""
    match kind.of(seed):
        case Kind.CLUSTER:
            return run_cluster(seed, timeline=timeline)
        case Kind.CHANNELS:
            return run_channels(seed, timeline=timeline)
        case Kind.TRANSFERS:
            return run_transfers(seed, timeline=timeline)
        case Kind.SERVERS:
            return run_servers(seed, timeline=timeline)
    return run_log(seed, timeline=timeline)


def describe_seed(seed: int, kind: Kind = Kind.ALL) -> str:
    """What a seed stands for, in one line."""
    match kind.of(seed):
        case Kind.CLUSTER:
            return make_cluster_plan(seed).describe()
        case Kind.CHANNELS:
            return make_channel_plan(seed).describe()
        case Kind.TRANSFERS:
            return make_transfer_plan(seed).describe()
        case Kind.SERVERS:
            return make_servers_plan(seed).describe()
    return make_plan(seed).describe()
