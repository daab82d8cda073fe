"""The kinds of simulation: a group with its log alone, a message cluster on one, or one of two channels.

A seed means another run in each. A campaign of all kinds takes every fourth seed as a cluster, every other of these
with two channels and moves between them.
"""

import enum

from alphorn.testing.channel_run import CHANNELS, make_channel_plan, run_channels
from alphorn.testing.cluster_plan import make_cluster_plan
from alphorn.testing.cluster_run import run_cluster
from alphorn.testing.plan import make_plan
from alphorn.testing.run import Result
from alphorn.testing.run import run_seed as run_log
from alphorn.testing.timeline import Timeline

CLUSTER_EVERY = 4
CHANNELS_EVERY = 8


class Kind(enum.Enum):
    """What is simulated."""

    LOG = "log"
    CLUSTER = "cluster"
    CHANNELS = "channels"
    BOTH = "both"

    def of(self, seed: int) -> "Kind":
        """What one seed of a campaign is."""
        if self is not Kind.BOTH:
            return self
        if seed % CLUSTER_EVERY:
            return Kind.LOG
        return Kind.CLUSTER if seed % CHANNELS_EVERY else Kind.CHANNELS


def run_seed(seed: int, kind: Kind = Kind.BOTH, *, timeline: Timeline | None = None) -> Result:
    """Runs one seed. Every failure, of a checker or of a machine, is in the result."""
    match kind.of(seed):
        case Kind.LOG:
            return run_log(seed, timeline=timeline)
        case Kind.CHANNELS:
            return run_channels(seed, timeline=timeline)
    return run_cluster(seed, timeline=timeline)


def describe_seed(seed: int, kind: Kind = Kind.BOTH) -> str:
    """What a seed stands for, in one line."""
    match kind.of(seed):
        case Kind.LOG:
            return make_plan(seed).describe()
        case Kind.CHANNELS:
            return f"{make_channel_plan(seed).describe()}, on {CHANNELS} channels"
    return make_cluster_plan(seed).describe()
