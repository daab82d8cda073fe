"""Measures the log with real processes: throughput, processor time per batch, bytes on the wire, losses.

The group is one primary, some backups and two clients on loopback multicast; the first client orders batches as fast as
the window allows, both receive them. Every process reports its own use (getrusage) and its own clock before and after,
so nothing depends on when this one is scheduled. Time of the store's thread inside LMDB's commit, which is writing the
pages and fsync, is measured by that thread's own clock and shown apart.
"""

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from alphorn.io.control import Described, StartLoad
from alphorn.model.errors import Unavailable
from alphorn.testing.limit import STILL_S
from alphorn.testing.processes import GroupShape, ProcessGroup

WARM_UP_S = 1.0
CHECKPOINT_INTERVAL = 1024  # the log is collected while it is measured, as in a long run
CLIENTS = ("client-1", "client-2")
IN_FLIGHT = 96  # enough that the group's window, not the client, is the limit


class MemberCost(msgspec.Struct, frozen=True, kw_only=True):
    """Processor milliseconds of one member per batch."""

    user_ms: float
    system_ms: float
    sync_ms: float  # of these: in the store's thread, writing and syncing

    @property
    def outside_ms(self) -> float:
        """All but the commit."""
        return self.user_ms + self.system_ms - self.sync_ms


class Losses(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong on the way, of all members together."""

    asked: int  # requests for what was missing
    suppressed: int
    repair_bytes: int
    kernel_drops: int
    send_drops: int
    caught_up: int  # ranges fetched by unicast


class LogResult(msgspec.Struct, frozen=True, kw_only=True):
    """One measured run."""

    backups: int
    size: int
    seconds: float
    batches: int
    megabytes_per_s: float  # payload ordered, and delivered at both clients
    wire_per_payload: float  # bytes the sender hands to the network per byte of payload
    batches_per_fsync: float
    cost: dict[str, MemberCost]
    losses: Losses


async def measure_log(directory: Path, *, backups: int, size: int, seconds: float) -> LogResult:
    """One run in a new group, whose files go to `directory`."""
    shape = GroupShape(servers=backups + 1, clients=2, checkpoint_interval=CHECKPOINT_INTERVAL)
    async with ProcessGroup(directory, shape) as group:
        await group.start()
        await group.members["client-1"].start_load(StartLoad(size=size, in_flight=IN_FLIGHT, is_quiet=True))
        await asyncio.sleep(WARM_UP_S)
        before = await _describe_all(group)
        await asyncio.sleep(seconds)
        after = await _describe_all(group)
        patience = time.monotonic() + STILL_S
        while not _has_moved(before, after):  # a run shorter than one turn of a busy machine is prolonged
            if time.monotonic() > patience:
                raise Unavailable(f"the log has delivered nothing for {STILL_S:.0f} s; its files are in {directory}")
            await asyncio.sleep(seconds)
            after = await _describe_all(group)
        await group.members["client-1"].stop_load()
    return _compare(before, after, backups=backups, size=size)


def _has_moved(before: dict[str, Described], after: dict[str, Described]) -> bool:
    return all(after[name].tally.batches > before[name].tally.batches for name in CLIENTS)


async def _describe_all(group: ProcessGroup) -> dict[str, Described]:
    members = list(group.members.values())
    answers = await asyncio.gather(*(member.describe() for member in members))
    return {member.name: answer for member, answer in zip(members, answers, strict=True)}


def _compare(before: dict[str, Described], after: dict[str, Described], *, backups: int, size: int) -> LogResult:
    batches = {name: after[name].tally.batches - before[name].tally.batches for name in after}
    spans = {name: after[name].usage.at - before[name].usage.at for name in after}
    fsyncs = after["primary"].usage.syncs - before["primary"].usage.syncs
    return LogResult(
        backups=backups,
        size=size,
        seconds=spans["client-1"],
        batches=min(batches[name] for name in CLIENTS),
        megabytes_per_s=min(batches[name] / spans[name] for name in CLIENTS) * size / 1e6,
        wire_per_payload=_wire(before["client-1"], after["client-1"], size),
        batches_per_fsync=batches["primary"] / max(1, fsyncs),
        cost={name: _cost(before[name], after[name], max(1, batches[name])) for name in after},
        losses=_losses(before, after),
    )


def _cost(before: Described, after: Described, batches: int) -> MemberCost:
    old, new = before.usage, after.usage
    return MemberCost(
        user_ms=(new.user_s - old.user_s) / batches * 1e3,
        system_ms=(new.system_s - old.system_s) / batches * 1e3,
        sync_ms=(new.sync_cpu_s - old.sync_cpu_s) / batches * 1e3,
    )


def _wire(before: Described, after: Described, size: int) -> float:
    def sent(described: Described) -> tuple[int, int]:
        datagrams = _at(described.node, "transport", "datagrams", "sent")
        streams = _at(described.node, "transport", "connections", "sent", "bytes")
        payload = _at(described.node, "endpoint", "sender", "sent") * size
        return sum(target["bytes"] for target in datagrams.values()) + streams, payload

    (old_bytes, old_payload), (new_bytes, new_payload) = sent(before), sent(after)
    return (new_bytes - old_bytes) / max(1, new_payload - old_payload)


def _losses(before: dict[str, Described], after: dict[str, Described]) -> Losses:
    def total(*path: str) -> int:
        return sum(int(_at(after[name].node, *path)) - int(_at(before[name].node, *path)) for name in after)

    def drops(described: Described) -> int:
        received = _at(described.node, "transport", "datagrams", "received")
        return sum(source["kernel_drops"] for source in received.values())

    return Losses(
        asked=total("endpoint", "requests", "asked"),
        suppressed=total("endpoint", "requests", "suppressed"),
        repair_bytes=total("endpoint", "repairs", "to_group") + total("endpoint", "repairs", "to_members"),
        kernel_drops=sum(drops(after[name]) - drops(before[name]) for name in after),
        send_drops=total("transport", "datagrams", "send_drops"),
        caught_up=total("endpoint", "catch_up", "ranges"),
    )


def _at(described: Mapping[str, Any], *path: str) -> Any:
    found: Any = described
    for name in path:
        found = found[name]
    return found
