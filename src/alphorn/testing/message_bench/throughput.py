"""How many messages go through: one queue, a topic with many subscribers, many queues.

`send_many` is given, and `receive_many` asked for, 5,000 messages at a time (fewer of the large ones). Consumers have a
prefetch of 50,000 messages, or 64 MB of large ones, so that the servers are measured and not the time between them.
"""

from alphorn.testing.clusters import Cluster
from alphorn.testing.message_bench.figures import Figure, Target, WorkResult, at_least, figure
from alphorn.testing.message_bench.scale import Scale
from alphorn.testing.message_bench.tasks import Consume, Produce
from alphorn.testing.message_bench.traffic import run_clients
from alphorn.testing.message_bench.yardstick import Limit

ONE_QUEUE = {
    "W1": at_least(1_000_000),
    "W1-1k": at_least(250_000),
    "W1-16k": at_least(16_000),
    "W1-single": at_least(400_000),
}
OF_LIMIT = {"W1": at_least(0.5)}
TOPIC, MANY_QUEUES = at_least(2_000_000), at_least(400_000)
AT_ONCE, AT_ONCE_BYTES = 5000, 1 << 20
PREFETCH, PREFETCH_BYTES = 50_000, 64 << 20
SUBSCRIBERS, SUBSCRIBER_PROCESSES = 10, 2
QUEUES, SIDE_PROCESSES = 20, 4  # so many send, and as many receive


def measure_one_queue(cluster: Cluster, scale: Scale, limit: Limit | None) -> WorkResult:
    """W1: one producer, one queue, one consumer; confirmed and acknowledged."""
    is_single = scale.work == "W1-single"
    at_once, prefetch = sizes(scale.size)
    names = ("queue:bench",)
    produce = Produce(
        url=cluster.url, destinations=names, messages=scale.messages, size=scale.size, at_once=at_once,
        is_single=is_single, warm_up=scale.warm_up,
    )  # fmt: skip
    consume = Consume(
        url=cluster.url, destinations=names, messages=scale.messages, at_once=at_once, prefetch=prefetch,
        is_single=is_single, warm_up=scale.warm_up,
    )  # fmt: skip
    measured = run_clients(cluster, [produce, consume])
    way = "send and iteration" if is_single else "send_many and receive_many"
    return WorkResult(
        work=scale.work,
        setting=f"1 producer, 1 queue, 1 consumer, 2 processes, {scale.size} bytes, {way}, prefetch {prefetch}",
        messages=scale.messages,
        figures=_rates(scale, scale.messages / measured.seconds, ONE_QUEUE[scale.work], limit),
        cpu_s_per_million=measured.cost(scale.messages),
        limit_cpu_s_per_million=limit.cpu_s_per_million if limit else {},
    )


def _rates(scale: Scale, rate: float, target: Target, limit: Limit | None) -> tuple[Figure, ...]:
    found = [figure("end to end", "msg/s", rate, target, limit.per_second if limit else None)]
    if limit and scale.work in OF_LIMIT:
        found.append(figure("share of the yardstick", "", rate / limit.per_second, OF_LIMIT[scale.work]))
    return tuple(found)


def measure_topic(cluster: Cluster, scale: Scale, limit: Limit | None) -> WorkResult:
    """W3: one producer, a topic, durable subscribers who share a few processes."""
    at_once, prefetch = sizes(scale.size)
    names = ("topic:bench",)
    produce = Produce(
        url=cluster.url, destinations=names, messages=scale.messages, at_once=at_once, warm_up=scale.warm_up
    )
    consumes = [
        Consume(
            url=cluster.url, destinations=names, messages=scale.messages, at_once=at_once, prefetch=prefetch,
            client_id=f"bench-{number}", subscribers=SUBSCRIBERS // SUBSCRIBER_PROCESSES, warm_up=scale.warm_up,
        )
        for number in range(SUBSCRIBER_PROCESSES)
    ]  # fmt: skip
    measured = run_clients(cluster, [produce, *consumes])
    deliveries = scale.messages * SUBSCRIBERS
    return WorkResult(
        work=scale.work,
        setting=f"1 producer, 1 topic, {SUBSCRIBERS} durable subscribers in {SUBSCRIBER_PROCESSES} processes",
        messages=deliveries,
        figures=(figure("deliveries", "msg/s", deliveries / measured.seconds, TOPIC),),
        cpu_s_per_million=measured.cost(deliveries),
    )


def measure_many_queues(cluster: Cluster, scale: Scale, limit: Limit | None) -> WorkResult:
    """W4: many producers, queues and consumers in a few processes."""
    at_once, prefetch = sizes(scale.size)
    each = max(1, scale.messages // QUEUES)
    groups = [tuple(f"queue:bench-{number}" for number in range(side, QUEUES, SIDE_PROCESSES))
              for side in range(SIDE_PROCESSES)]  # fmt: skip
    warm_up = max(1, scale.warm_up // QUEUES)
    tasks: list[Produce | Consume] = [
        Produce(url=cluster.url, destinations=group, messages=each, at_once=at_once, warm_up=warm_up)
        for group in groups
    ]
    tasks += [
        Consume(url=cluster.url, destinations=group, messages=each, at_once=at_once, prefetch=prefetch, warm_up=warm_up)
        for group in groups
    ]
    measured = run_clients(cluster, tasks)
    messages = each * QUEUES
    return WorkResult(
        work=scale.work,
        setting=f"{QUEUES} producers, {QUEUES} queues, {QUEUES} consumers in {2 * SIDE_PROCESSES} processes",
        messages=messages,
        figures=(figure("end to end", "msg/s", messages / measured.seconds, MANY_QUEUES),),
        cpu_s_per_million=measured.cost(messages),
    )


def sizes(size: int) -> tuple[int, int]:
    """How many messages of this size are sent and asked for at once, and prefetched."""
    return min(AT_ONCE, max(1, AT_ONCE_BYTES // size)), min(PREFETCH, max(1, PREFETCH_BYTES // size))
