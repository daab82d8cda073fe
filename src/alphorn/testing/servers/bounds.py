"""Servers and work processes hold no more than they may, and understand each other."""

from typing import Any

from alphorn.message_server.settings import Limits
from alphorn.testing.servers.cluster import ServersCluster
from alphorn.testing.servers.facts import ProcessRun, ServerRun
from alphorn.testing.watch import Violation


class HoldsNoMore:
    """Figures of `describe()` against the limits."""

    name = "memory is bounded"

    def __init__(self, cluster: ServersCluster) -> None:
        self._cluster = cluster
        cluster.facts.watch.looked.append(self._look)

    def _look(self) -> None:
        for server in self._cluster.servers:
            if server.is_up:
                self._look_at_server(server.name, server.machine.describe(), self._cluster.limits)
        for worker in self._cluster.workers:
            if worker.is_up:
                self._look_at_process(worker.name, worker.machine.describe())

    def _look_at_server(self, name: str, state: dict[str, Any], limits: Limits) -> None:
        self._compare(name, "entries in its ring", state["queued"], limits.ring_entries)
        self._compare(name, "bytes in its ring", state["queued_bytes"], limits.ring_bytes)
        self._compare(name, "claims", state["claims"], limits.claims)
        self._compare(name, "events of the past", state["exchange"]["events"], limits.events)

    def _look_at_process(self, name: str, state: dict[str, Any]) -> None:
        pass

    def _compare(self, name: str, what: str, figure: int, limit: int) -> None:
        if figure > limit:
            raise Violation(self.name, f"{name} has {figure} {what}, of {limit} allowed")


class PeersAreUnderstood:
    """No server refuses what a process that has joined says."""

    name = "peers are understood"

    def __init__(self, cluster: ServersCluster) -> None:
        cluster.facts.watch.refused.append(self._on_refused)

    def _on_refused(self, server: ServerRun, process: ProcessRun, error: str, reason: str) -> None:
        if error == "PeerViolation":
            raise Violation(self.name, f"{server} sends {process} away: {reason}")
