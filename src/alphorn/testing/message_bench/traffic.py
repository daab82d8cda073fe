"""Runs client processes against a cluster, and measures the time it took and what it cost every node."""

from collections.abc import Sequence

import msgspec

from alphorn.testing.clusters import Cluster
from alphorn.testing.message_bench.processes import client_processes, cpu_s
from alphorn.testing.message_bench.tasks import Consume, Done, Pace, Produce


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One run of clients."""

    seconds: float  # from the first send to the last confirmation or acknowledgement
    cpu_s: dict[str, float]  # of every node, and of the clients together
    results: tuple[Done, ...]  # in the order of the tasks

    def cost(self, messages: int) -> dict[str, float]:
        """Processor seconds per million messages."""
        return {name: used / messages * 1e6 for name, used in self.cpu_s.items()}


def run_clients(cluster: Cluster, tasks: Sequence[Produce | Consume | Pace]) -> Measured:
    """Lets all begin at once, when all are warm. Consumers are there before the first message is sent."""
    consuming = [task for task in tasks if isinstance(task, Consume)]
    sending = [task for task in tasks if not isinstance(task, Consume)]
    with client_processes(list(consuming)) as consumers:
        for client in consumers:
            client.await_open()
        with client_processes(list(sending)) as senders:
            for client in (*senders, *consumers):
                client.await_ready()
            before = _look(cluster)
            for client in (*consumers, *senders):
                client.go()
            done = {id(task): client.result() for task, client in zip(sending, senders, strict=True)}
            done |= {id(task): client.result() for task, client in zip(consuming, consumers, strict=True)}
            after = _look(cluster)
    results = tuple(done[id(task)] for task in tasks)
    used = {name: after[name] - before[name] for name in after}
    return Measured(
        seconds=max(result.ended for result in results) - min(result.begun for result in results),
        cpu_s={**used, "clients": sum(result.cpu_s for result in results)},
        results=results,
    )


def _look(cluster: Cluster) -> dict[str, float]:
    processes: dict[int, list[str]] = {}
    for name, pid in cluster.nodes.items():
        if name not in cluster.message_servers:  # they are in the processes of others
            processes.setdefault(pid, []).append(name)
    return {"+".join(names): cpu_s(pid) for pid, names in processes.items()}
