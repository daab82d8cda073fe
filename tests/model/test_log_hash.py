"""The log hash: the same for the same messages, however they are cut, and another one for any others."""

import pytest

from alphorn.model.log_hash import MASK, base_of, hash_of, hash_text, mixed

PRODUCER = b"p" * 20
BASE = base_of(9, PRODUCER, 1, 0, 1000, b"blob")


def test_a_number_is_mixed_as_others_do_it() -> None:
    assert mixed(1) == 0x910A2DEC89025CC1, "SplitMix64, its first step from 1"
    assert mixed(MASK + 2) == mixed(1)


def test_a_hash_is_the_sum_of_its_parts_however_they_are_cut() -> None:
    whole = hash_of(BASE, 0, 10)
    assert whole == (hash_of(BASE, 7, 3) + hash_of(BASE, 0, 4) + hash_of(BASE, 4, 3)) & MASK
    assert whole == sum(hash_of(BASE, index, 1) for index in range(10)) & MASK
    assert hash_of(BASE, 5, 0) == 0


def test_it_says_which_messages_of_a_batch_there_are() -> None:
    singles = [hash_of(BASE, index, 1) for index in range(8)]
    pairs = {(singles[low] + singles[high]) & MASK for low in range(8) for high in range(low, 8)}
    assert len(pairs) == 36, "all pairs, with one message twice among them"


@pytest.mark.parametrize(
    "other",
    [
        (8, PRODUCER, 1, 0, 1000, b"blob"),
        (9, b"q" * 20, 1, 0, 1000, b"blob"),
        (9, PRODUCER, 2, 0, 1000, b"blob"),
        (9, PRODUCER, 1, 16, 1000, b"blob"),
        (9, PRODUCER, 1, 0, 1001, b"blob"),
        (9, PRODUCER, 1, 0, 1000, b"blOb"),
    ],
)
def test_it_depends_on_all_that_a_reader_gets(other: tuple[int, bytes, int, int, int, bytes]) -> None:
    assert hash_of(base_of(*other), 0, 1) != hash_of(BASE, 0, 1)


def test_it_is_written_with_sixteen_digits() -> None:
    assert (hash_text(10), hash_text(-1), hash_text(MASK + 3)) == ("0" * 15 + "a", "f" * 16, "0" * 15 + "2")
