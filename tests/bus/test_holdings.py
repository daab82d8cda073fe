"""Batches in memory: fragments, bounds, and nothing taken that does not match its digest."""

import random

import msgspec
import pytest

from alphorn.bus.entries import digest_of
from alphorn.bus.frames import Data, fragment_batch
from alphorn.bus.holdings import Holdings
from tests.bus.stations import batch_id

PAYLOAD = bytes(range(250)) * 4
LIMIT = 300
BATCH = batch_id(1)
PLACE_BYTES = 8


def fragments(payload: bytes = PAYLOAD, batch: bytes = BATCH) -> list[Data]:
    return fragment_batch(batch, payload, digest=digest_of(payload), timestamp=5, limit=LIMIT)


def test_a_batch_is_whole_with_its_last_fragment_whatever_the_order() -> None:
    for seed in range(10):
        holdings, pieces = Holdings(10_000), fragments()
        random.Random(seed).shuffle(pieces)
        *first, last = [holdings.add(data) for data in pieces]
        assert first == [None] * len(first)
        assert last is not None
        assert (bytes(last.payload), last.timestamp, last.digest) == (PAYLOAD, 5, digest_of(PAYLOAD))
        assert BATCH in holdings


def test_a_fragment_that_comes_twice_counts_once() -> None:
    holdings = Holdings(10_000)
    first, *_, last = fragments()
    assert holdings.add(first) is None
    assert holdings.add(first) is None
    assert holdings.missing(BATCH) == (1, last.fragments, last.fragments)


def test_what_is_missing_is_named_from_the_first_gap_to_the_last() -> None:
    holdings, pieces = Holdings(10_000), fragments()
    assert holdings.missing(BATCH) == (0, 0, 0)
    for data in (pieces[0], pieces[2], pieces[-1]):
        holdings.add(data)
    assert holdings.missing(BATCH) == (1, len(pieces) - 1, len(pieces))


def test_fragments_of_a_whole_batch_are_of_no_interest() -> None:
    holdings = Holdings(10_000)
    holdings.put(BATCH, PAYLOAD, 5, digest_of(PAYLOAD))
    assert holdings.add(fragments()[0]) is None
    assert not holdings.partial(BATCH)


@pytest.mark.parametrize("size", [10, len(PAYLOAD)], ids=["one-fragment", "many-fragments"])
def test_a_batch_whose_digest_does_not_match_is_not_taken(size: int) -> None:
    holdings = Holdings(10_000)
    for data in fragments(PAYLOAD[:size]):
        assert holdings.add(msgspec.structs.replace(data, digest=data.digest ^ 1)) is None
    assert BATCH not in holdings
    assert (holdings.damaged, holdings.bytes_held) == (1, 0)


def test_what_does_not_fit_is_not_taken_and_may_come_again_later() -> None:
    holdings = Holdings(len(PAYLOAD) + 100)
    holdings.put(batch_id(2), bytes(200), 0, digest_of(bytes(200)))
    for data in fragments():
        assert holdings.add(data) is None
    assert holdings.refused == len(fragments())
    holdings.drop(batch_id(2))
    assert [holdings.add(data) for data in fragments()][-1] is not None


def test_what_all_others_wait_for_is_taken_even_when_there_is_no_room() -> None:
    holdings = Holdings(10)
    assert holdings.put(BATCH, PAYLOAD, 0, digest_of(PAYLOAD)) is None
    assert holdings.put(BATCH, PAYLOAD, 0, digest_of(PAYLOAD), is_needed=True) is not None
    holdings.drop(BATCH)
    assert [holdings.add(data, is_needed=True) for data in fragments()][-1] is not None


def test_this_members_own_batch_is_taken_even_when_there_is_no_room() -> None:
    holdings = Holdings(10)
    holdings.put_own(BATCH, PAYLOAD, 0, digest_of(PAYLOAD))
    assert BATCH in holdings
    assert holdings.bytes_held == len(PAYLOAD)


def test_bytes_are_counted_through_every_way_in_and_out() -> None:
    holdings = Holdings(10_000)
    holdings.add(fragments()[0])
    # The rest of the batch is expected, and each fragment's place takes memory from the start.
    assert holdings.bytes_held == len(PAYLOAD) + PLACE_BYTES * len(fragments())
    holdings.put(BATCH, PAYLOAD, 0, digest_of(PAYLOAD))
    assert holdings.bytes_held == len(PAYLOAD)
    holdings.drop(BATCH)
    holdings.drop(BATCH)
    assert holdings.bytes_held == 0
    holdings.add(fragments()[0])
    holdings.drop(BATCH)
    assert (holdings.bytes_held, holdings.describe()["partial"]) == (0, 0)


def test_fragments_cut_anew_replace_those_cut_before() -> None:
    holdings = Holdings(10_000)
    holdings.add(fragments()[0])
    other = fragment_batch(BATCH, PAYLOAD, digest=digest_of(PAYLOAD), timestamp=5, limit=500)
    assert [holdings.add(data) for data in other][-1] is not None
    assert holdings.bytes_held == len(PAYLOAD)


def test_fragments_whose_sizes_do_not_add_up_are_forgotten() -> None:
    holdings, pieces = Holdings(10_000), fragments()
    pieces[0] = msgspec.structs.replace(pieces[0], payload=b"short")
    assert [holdings.add(data) for data in pieces] == [None] * len(pieces)
    assert (BATCH in holdings, holdings.bytes_held) == (False, 0)


def test_batches_of_which_anything_is_here_are_known() -> None:
    holdings = Holdings(10_000)
    holdings.add(fragments()[0])
    holdings.put(batch_id(2), b"x", 0, digest_of(b"x"))
    assert sorted(holdings.ids()) == [BATCH, batch_id(2)]


def test_a_small_view_is_copied_so_that_it_does_not_keep_its_datagram() -> None:
    holdings, datagram = Holdings(1 << 20), bytes(60_000)
    small = holdings.put(batch_id(1), memoryview(datagram)[:100], 0, digest_of(datagram[:100]))
    large = holdings.put(batch_id(2), memoryview(datagram), 0, digest_of(datagram))
    assert small is not None
    assert large is not None
    assert isinstance(small.payload, bytes)
    assert isinstance(large.payload, memoryview)


def test_whole_batches_are_named_oldest_first_as_a_data_server_reports_them() -> None:
    holdings = Holdings(10_000)
    for counter in (3, 1, 2):
        holdings.put(batch_id(counter), b"x" * counter, counter, digest_of(b"x" * counter))
    held = [batch.held(number) for number, batch in holdings.whole()]
    assert [(each.id, each.timestamp, each.size) for each in held] == [(batch_id(n), n, n) for n in (3, 1, 2)]


def test_places_for_fragments_count_as_bytes_held() -> None:
    holdings = Holdings(10_000)
    for place in range(100):
        holdings.add(Data(bytes([place] * 16), 0, 0, 0, 1, 0, 0, 0xFFFF, b""))
    assert holdings.refused == 100
    assert holdings.describe()["partial"] == 0
