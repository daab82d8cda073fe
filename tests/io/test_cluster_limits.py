"""Limits in the cluster file: what they must leave room for, and what a store counts as used."""

from pathlib import Path

import msgspec
import pytest

from alphorn.bus.entries import digest_of
from alphorn.bus.machine import DropThrough, Persist, PutAssignments, PutEntry, Retain
from alphorn.io.cluster_file import ClusterFile
from alphorn.io.local_cluster import LocalShape, lay_out
from alphorn.io.store import Store
from alphorn.model.errors import Misuse
from alphorn.model.messages import BATCH_BYTES_MAX
from alphorn.model.ranges import RangeSet
from tests.bus.frame_values import ASSIGNMENTS


def limited(file: ClusterFile, kind: str, **limits: int) -> ClusterFile:
    nodes = tuple(msgspec.structs.replace(node, **limits) if node.kind == kind else node for node in file.nodes)
    return msgspec.structs.replace(file, nodes=nodes)


@pytest.mark.requirement("FC-4")
def test_the_reserve_of_a_disk_covers_what_all_client_managers_may_have_under_way(tmp_path: Path) -> None:
    few = lay_out(tmp_path, LocalShape(client_managers=1))
    many = lay_out(tmp_path, LocalShape(client_managers=3))
    each = few.channel_bytes_max + BATCH_BYTES_MAX
    assert many.reserve_bytes(0) - few.reserve_bytes(0) == 2 * each


@pytest.mark.requirement("FC-4")
@pytest.mark.parametrize("client_managers", [1, 2, 4])
def test_client_managers_keep_less_where_a_disk_is_small(tmp_path: Path, client_managers: int) -> None:
    file = lay_out(tmp_path, LocalShape(client_managers=client_managers))
    small = limited(file, "message_manager", store_bytes_max=64 << 20)
    small.check()
    assert client_managers * small.channel_bytes_max == 8 << 20
    assert small.reserve_bytes(64 << 20) < 40 << 20
    assert file.channel_bytes_max == 16 << 20


@pytest.mark.requirement("FC-4")
def test_message_managers_of_one_machine_share_its_disk_and_those_of_others_do_not(tmp_path: Path) -> None:
    file = lay_out(tmp_path, LocalShape(backups=1, channels=2))
    assert file.sharers_of(file.node("mm1")) == 4
    away = msgspec.structs.replace(file.node("mm1"), bus="10.0.0.1:7720")
    file = msgspec.structs.replace(file, nodes=(away, *file.nodes[1:]))
    assert [file.sharers_of(file.node(name)) for name in ("mm1", "mm2")] == [1, 3]


@pytest.mark.parametrize(
    ("kind", "limits", "reason"),
    [
        ("message_manager", {"store_bytes_max": 1 << 20}, "store_bytes_max of node mm1 is 1048576, which leaves"),
        ("client_manager", {"session_bytes_max": 10}, "session_bytes_max of node cm1 is 10"),
        ("client_manager", {"consumer_bytes_max": 10}, "consumer_bytes_max of node cm1 is 10"),
    ],
)
def test_a_limit_that_leaves_no_room_to_work_in_is_refused(
    tmp_path: Path, kind: str, limits: dict[str, int], reason: str
) -> None:
    file = limited(lay_out(tmp_path, LocalShape()), kind, **limits)
    with pytest.raises(Misuse, match=reason):
        file.check()


@pytest.mark.requirement("FC-4")
def test_a_store_counts_what_it_holds_and_not_what_it_has_dropped(tmp_path: Path) -> None:
    store = Store(tmp_path, on_durable=lambda token: None, on_failure=pytest.fail)
    try:
        empty = store.used_bytes()
        payload = bytes(100_000)
        for sequence in range(1, 21):
            entry = PutEntry(sequence, payload, digest_of(payload))
            store.submit(Persist(sequence, [entry, PutAssignments(sequence, [ASSIGNMENTS[0]])]))
        store.flush()
        assert 2_000_000 < store.used_bytes() - empty < 2_500_000
        store.submit(Persist(21, [Retain(20, RangeSet([(3, 3)])), DropThrough(20, True)]))
        store.flush()
        assert store.used_bytes() - empty < 300_000
    finally:
        store.close()


def test_many_destinations_and_subscriptions_are_possible_where_the_file_says_nothing(tmp_path: Path) -> None:
    file = lay_out(tmp_path, LocalShape())
    assert file.destinations_max >= 100_000
    assert file.subscriptions_max >= 100_000


def test_what_writers_may_stage_leaves_most_of_the_smallest_disk_to_others(tmp_path: Path) -> None:
    file = lay_out(tmp_path, LocalShape())
    small = limited(file, "message_manager", store_bytes_max=800 << 20)
    assert small.writer_bytes_max == 100 << 20
    assert msgspec.structs.replace(small, staged_bytes_max=7).writer_bytes_max == 7


@pytest.mark.parametrize("name", ["destinations_max", "subscriptions_max"])
def test_a_cluster_that_may_have_nothing_is_refused(tmp_path: Path, name: str) -> None:
    file = lay_out(tmp_path, LocalShape())
    with pytest.raises(Misuse, match=f"{name} is 0; write 1 or more"):
        msgspec.structs.replace(file, **{name: 0}).check()


def test_a_negative_limit_of_what_is_staged_is_refused(tmp_path: Path) -> None:
    file = lay_out(tmp_path, LocalShape())
    with pytest.raises(Misuse, match="staged_bytes_max is -1; write 0 for an eighth of the smallest store, or more"):
        msgspec.structs.replace(file, staged_bytes_max=-1).check()
