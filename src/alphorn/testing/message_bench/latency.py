"""How long a message takes: from `send` to `receive`, at a steady pace, both ends in one process."""

from alphorn.testing.clusters import Cluster
from alphorn.testing.message_bench.figures import WorkResult, at_most, figure
from alphorn.testing.message_bench.scale import Scale
from alphorn.testing.message_bench.tasks import Pace
from alphorn.testing.message_bench.traffic import run_clients
from alphorn.testing.message_bench.yardstick import Limit

P50_MS, P99_MS = at_most(0.9), at_most(2.0)


def measure_latency(cluster: Cluster, scale: Scale, limit: Limit | None) -> WorkResult:
    """W2. The yardstick runs twice: with one message in flight, which is its shortest time, and at the same pace."""
    messages = max(1, min(scale.messages, round(scale.per_second * scale.seconds)))
    task = Pace(
        url=cluster.url, destination="queue:bench", messages=messages, per_second=scale.per_second,
        size=scale.size, warm_up=min(200, messages),
    )  # fmt: skip
    measured = run_clients(cluster, [task])
    found = measured.results[0].latencies_ms
    paced = limit.paced if limit else None
    return WorkResult(
        work=scale.work,
        setting=f"{scale.per_second} msg/s, send and receive in 1 process on 2 connections",
        messages=messages,
        figures=(
            figure("p50", "ms", found["p50"], P50_MS, limit.p50_ms if limit else None),
            figure("p99", "ms", found["p99"], P99_MS, limit.p99_ms if limit else None),
            figure("p50 to the same pace", "ms", found["p50"], None, paced.p50_ms if paced else None),
            figure("p99 to the same pace", "ms", found["p99"], None, paced.p99_ms if paced else None),
            figure("longest", "ms", found["longest"]),
            figure("pace kept", "msg/s", messages / measured.seconds),
        ),
        cpu_s_per_million=measured.cost(messages),
        limit_cpu_s_per_million=limit.cpu_s_per_million if limit else {},
    )
