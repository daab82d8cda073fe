"""What being large costs: many idle connections, a long backlog, many destinations."""

from alphorn.testing.clusters import Cluster
from alphorn.testing.message_bench.figures import WorkResult, at_least, at_most, figure
from alphorn.testing.message_bench.processes import client_processes, memory_bytes
from alphorn.testing.message_bench.scale import Scale
from alphorn.testing.message_bench.tasks import Consume, Idle, Produce
from alphorn.testing.message_bench.throughput import sizes
from alphorn.testing.message_bench.traffic import Measured, run_clients
from alphorn.testing.message_bench.yardstick import Limit

IDLE_KB, BACKLOG_MB = at_most(12.0), at_most(400.0)
DRAIN, GROWTH = at_least(0.5), at_most(1.3)
COMPARED_MESSAGES_MAX = 2_000_000
WARM_CONNECTIONS = 100  # opened before: what the first ones cost is not the connections'
FEW_DESTINATIONS = 10
BATCH = 100  # messages to one destination before the next one's turn
CLIENT_MANAGER = "cm1"


def measure_idle(cluster: Cluster, scale: Scale, limit: Limit | None) -> WorkResult:
    """W7: memory of a Client Manager for each connection that is there and says nothing."""
    pid = cluster.nodes[CLIENT_MANAGER]
    with client_processes([Idle(url=cluster.url, connections=WARM_CONNECTIONS)]) as (first,):
        first.await_ready()
        before = memory_bytes(pid, "VmRSS")
        with client_processes([Idle(url=cluster.url, connections=scale.connections)]) as (others,):
            others.await_ready()
            after = memory_bytes(pid, "VmRSS")
    each = (after - before) / scale.connections / 1024
    return WorkResult(
        work=scale.work,
        setting=f"{scale.connections} connections to 1 Client Manager, each greeted",
        messages=0,
        figures=(
            figure("memory of a connection", "KB", each, IDLE_KB),
            figure("Client Manager RSS", "MB", after / 1e6),
        ),
    )


def measure_backlog(cluster: Cluster, scale: Scale, limit: Limit | None) -> WorkResult:
    """Everything is sent before the first is received; beside it W1's rate in the same cluster, before."""
    usual = min(scale.messages, COMPARED_MESSAGES_MAX)
    both = run_clients(
        cluster, [_produce(cluster, usual, "queue:usual"), _consume(cluster, usual, "queue:usual")]
    )  # fmt: skip
    filled = run_clients(cluster, [_produce(cluster, scale.messages, "queue:backlog")])
    drained = run_clients(cluster, [_consume(cluster, scale.messages, "queue:backlog")])
    rate, drain = usual / both.seconds, scale.messages / drained.seconds
    managers = [cluster.nodes[name] for name in cluster.message_managers]
    most = max(memory_bytes(pid, "VmHWM") for pid in managers)
    return WorkResult(
        work=scale.work,
        setting=f"{scale.messages} messages queued, then drained; W1 of {usual} messages before",
        messages=scale.messages,
        figures=(
            figure("drain to W1", "", drain / rate, DRAIN),
            figure("drained", "msg/s", drain),
            figure("filled", "msg/s", scale.messages / filled.seconds),
            figure("W1 here", "msg/s", rate),
            figure("Message Manager RSS at most", "MB", most / 1e6, BACKLOG_MB),
            figure("of it, in the end, not mapped files", "MB", _anonymous(managers)),
        ),
        cpu_s_per_million=_sum_of_costs(filled, drained, scale.messages),
    )


def _produce(cluster: Cluster, messages: int, name: str) -> Produce:
    return Produce(url=cluster.url, destinations=(name,), messages=messages, at_once=sizes(100)[0])


def _consume(cluster: Cluster, messages: int, name: str) -> Consume:
    at_once, prefetch = sizes(100)
    return Consume(url=cluster.url, destinations=(name,), messages=messages, at_once=at_once, prefetch=prefetch)


def _anonymous(pids: list[int]) -> float:
    return max(memory_bytes(pid, "RssAnon") for pid in pids) / 1e6


def _sum_of_costs(first: Measured, second: Measured, messages: int) -> dict[str, float]:
    return {name: (first.cpu_s[name] + second.cpu_s[name]) / messages * 1e6 for name in first.cpu_s}


def measure_destinations(cluster: Cluster, scale: Scale, limit: Limit | None) -> WorkResult:
    """The same messages to few and to many queues, in batches of the same size; processor time of all servers."""
    few, many = (_cost_with(cluster, scale, count) for count in (FEW_DESTINATIONS, scale.destinations))
    servers = [sum(cost for name, cost in costs.items() if name != "clients") for costs in (few, many)]
    return WorkResult(
        work=scale.work,
        setting=f"1 producer and 1 consumer process, {BATCH} messages to each queue in turn",
        messages=scale.messages,
        figures=(
            figure("many to few", "", servers[1] / servers[0] if servers[0] else 0.0, GROWTH),
            figure(f"{FEW_DESTINATIONS} destinations", "CPU s per million", servers[0]),
            figure(f"{scale.destinations} destinations", "CPU s per million", servers[1]),
        ),
        cpu_s_per_million=many,
    )


def _cost_with(cluster: Cluster, scale: Scale, count: int) -> dict[str, float]:
    names = tuple(f"queue:of-{count}-{number}" for number in range(count))
    each = max(1, scale.messages // count)
    produce = Produce(
        url=cluster.url, destinations=names, messages=each, at_once=BATCH, has_one_producer=True, warm_up=1
    )
    consume = Consume(url=cluster.url, destinations=names, messages=each, at_once=BATCH, is_individual=True, warm_up=1)
    return run_clients(cluster, [produce, consume]).cost(each * count)
