"""Global ids: unique over kinds, nodes, sites, restarts and overflow; ordered; sixteen plain bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alphorn.model.errors import Misuse
from alphorn.model.ids import (
    COUNTER_MAX,
    ID_BYTES,
    START_EPOCH_UNIX_S,
    START_MAX,
    START_UNITS_PER_S,
    IdSource,
    Kind,
    counter_of,
    describe_id,
    describe_origin,
    host_bytes,
    kind_of,
    make_id,
    make_origin,
    origin_of,
    start_units,
)

HOST = host_bytes("10.1.2.3")
NOON = START_EPOCH_UNIX_S + 43_200.0


def source(*, port: int = 7000, unix_s: float = NOON, previous_start: int = -1, host: bytes = HOST) -> IdSource:
    return IdSource(host, port, unix_s=unix_s, previous_start=previous_start)


def exhaust(ids: IdSource, kind: Kind) -> None:
    """Brings a kind to its last counter, as if all before had been taken."""
    ids._counters[kind] = COUNTER_MAX - 1


@pytest.mark.requirement("ID-1")
def test_things_of_every_kind_from_every_node_have_ids_of_their_own() -> None:
    nodes = [source(port=port) for port in range(7000, 7010)]
    ids = [node.next(kind) for _ in range(20) for node in nodes for kind in Kind]
    assert len(set(ids)) == len(ids) == 20 * len(nodes) * len(Kind)


@pytest.mark.requirement("ID-1")
def test_messages_sessions_destinations_consumers_and_nodes_are_kinds() -> None:
    assert {"MESSAGE", "SESSION", "DESTINATION", "CONSUMER", "NODE"} <= {kind.name for kind in Kind}


@pytest.mark.requirement("ID-2")
def test_an_id_tells_host_port_start_kind_and_counter() -> None:
    ids = source()
    ids.next(Kind.SESSION)
    found = ids.next(Kind.SESSION)
    assert found[:4] == bytes([10, 1, 2, 3])
    assert int.from_bytes(found[4:6], "big") == 7000
    assert int.from_bytes(found[6:10], "big") == ids.start == 43_200 * START_UNITS_PER_S
    assert (kind_of(found), counter_of(found), origin_of(found)) == (Kind.SESSION, 2, ids.origin)


@pytest.mark.requirement("ID-2")
def test_each_kind_counts_for_itself() -> None:
    ids = source()
    counters = [counter_of(ids.next(kind)) for kind in (Kind.BATCH, Kind.BATCH, Kind.MESSAGE, Kind.BATCH)]
    assert counters == [1, 2, 1, 3]


@pytest.mark.requirement("ID-3")
def test_two_nodes_on_one_host_that_start_at_the_same_moment_never_collide() -> None:
    first, second = source(port=7000), source(port=7001)
    assert first.start == second.start
    assert not {first.next(Kind.BATCH) for _ in range(100)} & {second.next(Kind.BATCH) for _ in range(100)}


@pytest.mark.requirement("ID-4")
def test_a_restart_mints_no_id_of_the_run_before() -> None:
    before = source(unix_s=NOON)
    after = source(unix_s=NOON + 1 / START_UNITS_PER_S)
    assert not {before.next(Kind.BATCH) for _ in range(100)} & {after.next(Kind.BATCH) for _ in range(100)}


@pytest.mark.requirement("ID-4")
@pytest.mark.parametrize("back_s", [0.0, 0.01, 3600.0], ids=["same-moment", "same-unit", "an-hour-back"])
def test_a_restart_takes_a_later_start_even_if_the_clock_went_back(back_s: float) -> None:
    before = source(unix_s=NOON)
    after = source(unix_s=NOON - back_s, previous_start=before.start)
    assert after.start == before.start + 1
    assert after.next(Kind.BATCH) > before.next(Kind.BATCH)


@pytest.mark.requirement("ID-5")
def test_an_id_is_sixteen_plain_bytes_so_that_comparing_and_hashing_need_no_python() -> None:
    found = source().next(Kind.MESSAGE)
    assert type(found) is bytes
    assert len(found) == ID_BYTES == 16
    assert type(found).__eq__ is bytes.__eq__
    assert type(found).__hash__ is bytes.__hash__


@pytest.mark.requirement("ID-5")
def test_a_counter_that_overflows_takes_a_new_start() -> None:
    ids = source()
    exhaust(ids, Kind.MESSAGE)
    last, following = ids.next(Kind.MESSAGE), ids.next(Kind.MESSAGE)
    assert (counter_of(last), counter_of(following)) == (COUNTER_MAX, 1)
    assert ids.start == source().start + 1
    assert origin_of(following) != origin_of(last)
    assert following > last


@pytest.mark.requirement("ID-5")
def test_other_kinds_go_on_unique_after_one_overflowed() -> None:
    ids = source()
    before = {ids.next(Kind.SESSION) for _ in range(5)}
    exhaust(ids, Kind.MESSAGE)
    ids.next(Kind.MESSAGE)
    ids.next(Kind.MESSAGE)
    assert not before & {ids.next(Kind.SESSION) for _ in range(5)}


@pytest.mark.requirement("ID-6")
def test_two_sites_with_the_same_private_addresses_have_ids_of_their_own() -> None:
    north, south = (source(host=host_bytes("192.168.0.5", site=site)) for site in (1, 2))
    assert north.next(Kind.NODE) != south.next(Kind.NODE)


@pytest.mark.requirement("ID-6")
def test_a_site_id_keeps_the_place_within_the_private_network() -> None:
    assert host_bytes("192.168.7.9", site=0x0102) == bytes([1, 2, 7, 9])
    assert host_bytes("192.168.7.9") == bytes([192, 168, 7, 9])


@pytest.mark.parametrize("site", [-1, 0x10000])
def test_a_site_id_outside_two_bytes_is_misuse(site: int) -> None:
    with pytest.raises(Misuse, match="choose one from 0 to 65535"):
        host_bytes("10.0.0.1", site=site)


@pytest.mark.parametrize("start", [-1, START_MAX + 1])
def test_a_clock_outside_the_format_is_misuse(start: int) -> None:
    with pytest.raises(Misuse, match="check this machine's clock"):
        make_origin(HOST, 7000, start)


def test_the_format_serves_for_more_than_fifteen_years() -> None:
    fifteen_years_s = 15 * 366 * 86_400
    assert start_units(START_EPOCH_UNIX_S + fifteen_years_s) <= START_MAX


@given(
    st.binary(min_size=4, max_size=4),
    st.integers(0, 0xFFFF),
    st.integers(0, START_MAX),
    st.sampled_from(Kind),
    st.integers(0, COUNTER_MAX),
)
def test_what_is_packed_is_read_back(host: bytes, port: int, start: int, kind: Kind, counter: int) -> None:
    origin = make_origin(host, port, start)
    found = make_id(origin, kind, counter)
    assert (origin_of(found), kind_of(found), counter_of(found), len(found)) == (origin, kind, counter, ID_BYTES)


@pytest.mark.requirement("ID-5")
@given(st.lists(st.tuples(st.integers(0, START_MAX), st.sampled_from(Kind), st.integers(0, COUNTER_MAX)), min_size=2))
def test_ids_of_a_node_sort_by_start_then_kind_then_age(parts: list[tuple[int, Kind, int]]) -> None:
    made = {part: make_id(make_origin(HOST, 7000, part[0]), part[1], part[2]) for part in parts}
    assert sorted(made, key=lambda part: made[part]) == sorted(made)


def test_people_can_read_an_id_even_of_an_unknown_kind() -> None:
    ids = source()
    assert describe_id(ids.next(Kind.BATCH)) == f"10.1.2.3:7000@{ids.start:x}/batch#1"
    assert describe_id(ids.origin + bytes([200, 0, 0, 0, 0, 7])) == f"10.1.2.3:7000@{ids.start:x}/200#7"
    assert describe_origin(ids.origin) == f"10.1.2.3:7000@{ids.start:x}"
