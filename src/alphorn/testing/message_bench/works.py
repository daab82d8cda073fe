"""The works that `alphorn bench messages` knows, by name, and how one is measured.

Every work runs in a cluster of its own: primary, one backup, and one Client Manager, which hosts a witness, each a
process; two copies are on stable storage before anything is confirmed. Together, the Client Manager is in the primary's
process, and the witness in one of its own.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from alphorn.testing.clusters import Cluster, cluster
from alphorn.testing.message_bench.figures import WorkResult
from alphorn.testing.message_bench.latency import measure_latency
from alphorn.testing.message_bench.scale import Scale
from alphorn.testing.message_bench.state import measure_backlog, measure_destinations, measure_idle
from alphorn.testing.message_bench.throughput import measure_many_queues, measure_one_queue, measure_topic
from alphorn.testing.message_bench.yardstick import Limit, run_limit

LATENCY_MESSAGES = 5000


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """One work: what is measured, and how large a yardstick it has."""

    name: str
    measure: Callable[[Cluster, Scale, Limit | None], WorkResult]
    messages: int  # unless the user says otherwise
    size: int = 100
    limit_messages: int = 0  # 0 where the yardstick cannot measure it
    is_latency: bool = False


WORKS = {
    work.name: work
    for work in (
        Work(name="W1", measure=measure_one_queue, messages=3_000_000, limit_messages=3_000_000),
        Work(name="W1-1k", measure=measure_one_queue, messages=600_000, size=1024, limit_messages=600_000),
        Work(name="W1-16k", measure=measure_one_queue, messages=45_000, size=16_384, limit_messages=45_000),
        Work(name="W1-single", measure=measure_one_queue, messages=2_000_000, limit_messages=3_000_000),
        Work(
            name="W2", measure=measure_latency, messages=1_000_000_000, limit_messages=LATENCY_MESSAGES, is_latency=True
        ),
        Work(name="W3", measure=measure_topic, messages=500_000),
        Work(name="W4", measure=measure_many_queues, messages=2_000_000),
        Work(name="W7", measure=measure_idle, messages=0),
        Work(name="backlog", measure=measure_backlog, messages=2_000_000),
        Work(name="destinations", measure=measure_destinations, messages=1_000_000),
    )
}


def measure_limit(work: Work, scale: Scale, directory: Path | None) -> Limit | None:
    """The yardstick of a work; None where it has none, or where it stands still."""
    if not work.limit_messages:
        return None
    messages = min(work.limit_messages, scale.messages or work.limit_messages)
    if not work.is_latency:
        return run_limit(messages=messages, size=work.size, directory=directory)
    alone = run_limit(messages=messages, size=work.size, directory=directory, is_one_in_flight=True)
    paced = run_limit(messages=messages, size=work.size, directory=directory, per_second=scale.per_second)
    return msgspec.structs.replace(alone, paced=paced) if alone is not None else None


def measure(work: Work, scale: Scale, limit: Limit | None, directory: Path | None) -> WorkResult:
    """Runs a work in a new cluster, whose files are made in `directory` and removed; raises an `Error`."""
    sized = msgspec.structs.replace(scale, work=work.name, messages=scale.messages or work.messages, size=work.size)
    temporary = tempfile.TemporaryDirectory(prefix="alphorn-bench-", dir=directory)
    with temporary as folder, cluster(directory=Path(folder), together=scale.together) as made:
        if scale.together:
            [beside] = set(made.beside(made.client_managers[0])) & set(made.message_managers)
            made.make_primary(beside)
        return work.measure(made, sized, limit)
