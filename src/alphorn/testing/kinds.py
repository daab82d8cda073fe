"""The two kinds of simulation: a group with its log alone, or a message cluster on one.

A seed means another run in each. A campaign of both kinds takes every fourth seed as a cluster.
"""

import enum

from alphorn.testing.cluster_plan import make_cluster_plan
from alphorn.testing.cluster_run import run_cluster
from alphorn.testing.plan import make_plan
from alphorn.testing.run import Result
from alphorn.testing.run import run_seed as run_log
from alphorn.testing.timeline import Timeline

CLUSTER_EVERY = 4


class Kind(enum.Enum):
    """What is simulated."""

    LOG = "log"
    CLUSTER = "cluster"
    BOTH = "both"

    def of(self, seed: int) -> "Kind":
        """What one seed of a campaign is."""
        if self is not Kind.BOTH:
            return self
        return Kind.LOG if seed % CLUSTER_EVERY else Kind.CLUSTER


def run_seed(seed: int, kind: Kind = Kind.BOTH, *, timeline: Timeline | None = None) -> Result:
    """Runs one seed. Every failure, of a checker or of a machine, is in the result."""
    return (run_log if kind.of(seed) is Kind.LOG else run_cluster)(seed, timeline=timeline)


def describe_seed(seed: int, kind: Kind = Kind.BOTH) -> str:
    """What a seed stands for, in one line."""
    is_log = kind.of(seed) is Kind.LOG
    return make_plan(seed).describe() if is_log else make_cluster_plan(seed).describe()
