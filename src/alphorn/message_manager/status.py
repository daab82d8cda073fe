"""What `alphorn status` shows of a Message Manager and, from the primary, of its channel."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from alphorn.message_manager.dispatch import Dispatcher
from alphorn.message_manager.engine import Engine
from alphorn.message_manager.fullness import DiskGauge
from alphorn.message_manager.queue import Queue
from alphorn.message_manager.readers import Reader
from alphorn.message_manager.topic import Topic
from alphorn.model.link import Introduce

_COUNTER_SHIFT = 16  # an epoch's low bits name its sequencer


class About(msgspec.Struct, frozen=True, kw_only=True):
    """What a node knows of itself."""

    name: str
    pid: int
    address: str
    channel: str
    rank: int = 0
    run: bytes = b""  # another one for each start


def status_of(
    about: About,
    engine: Engine,
    dispatcher: Dispatcher | None,
    epoch: int,
    introduced: Sequence[Introduce],
    read: int = 0,
) -> dict[str, Any]:
    """The parts that a Client Manager puts together (client_manager/administration.py)."""
    node = {
        "name": about.name,
        "kind": "message_manager",
        "pid": about.pid,
        "address": about.address,
        "channel": about.channel,
        "role": "primary" if dispatcher is not None else "backup",
        "rank": about.rank,
        "epoch": epoch >> _COUNTER_SHIFT,
        "lag": 0,
        "applied": engine.sequence,
        "read": read,  # messages that readers of the log got here
    }
    if dispatcher is None:
        return {"node": node}
    consumers = dispatcher.counts()
    return {
        "node": node,
        "channel": {
            "name": about.channel,
            "primary": about.name,
            "epoch": epoch >> _COUNTER_SHIFT,
            "sequence": engine.sequence,
            "destinations": len(engine.destinations),
        },
        "client_managers": [
            {
                "name": frame.name,
                "kind": "client_manager",
                "pid": frame.pid,
                "address": frame.address,
                "channel": "",
                "role": "",
                "epoch": 0,
                "lag": 0,
            }
            for frame in introduced
        ],
        "readers": [_reader(reader, about.channel, engine) for reader in engine.readers],
        "destinations": [_destination(source, about.channel, consumers) for source in engine.destinations.values()],
    }


def _reader(reader: Reader, channel: str, engine: Engine) -> dict[str, Any]:
    """A named reader; its lag is in messages that arrived where it had not come to."""
    lag = 0
    for number in reader.destinations:
        source = engine.destinations.get(number)
        first = None if source is None else source.segments.from_arrival(reader.sequence)
        if source is not None and first is not None:
            lag += source.next_position - first
    return {"name": reader.name, "channel": channel, "sequence": reader.sequence, "lag": lag}


def with_flow(
    status: dict[str, Any], engine: Engine, disk: DiskGauge, full: Mapping[int, str], waiting: Mapping[int, int]
) -> dict[str, Any]:
    """The same, and what takes no messages at the moment: why, and how many producers wait for it."""
    space = disk.space
    status["node"] |= {"store_bytes": space.used, "store_bytes_max": space.limit, "blocked": disk.reason}
    for number, row in zip(engine.destinations, status.get("destinations", ()), strict=False):
        row |= {"blocked": disk.reason or full.get(number, ""), "blocked_producers": waiting.get(number, 0)}
    return status


def _destination(source: Queue | Topic, channel: str, consumers: dict[tuple[int, int], int]) -> dict[str, Any]:
    backlogs = source.backlogs()
    return {
        "name": str(source.destination),
        "channel": channel,
        "depth": max((len(backlog) for _, backlog in backlogs), default=0),
        "consumers": sum(consumers.get((source.number, subscription), 0) for subscription, _ in backlogs),
        "subscriptions": len(backlogs) if isinstance(source, Topic) else 0,
        "messages": source.next_position - 1,
        "policy": msgspec.to_builtins(source.policy),
    }
