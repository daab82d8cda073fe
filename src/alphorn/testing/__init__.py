"""For tests: real small clusters (`cluster`), and the simulator (docs/simulation.md explains it).

Shipped with the package so that users can test what they build on alphorn with the same tools and faults. The simulator
runs whole groups in one thread under virtual time, from one seed; nothing of it uses a clock, a socket, a file or a
thread, and `campaign` alone starts processes, to use every core.
"""

from alphorn.testing.clusters import Cluster, cluster

__all__ = ["Cluster", "cluster"]
