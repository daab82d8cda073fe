import os
import random

import pytest

from alphorn.io.addresses import Lane
from alphorn.io.sealing import (
    OVERHEAD_BYTES,
    SENDERS_MAX,
    WINDOW,
    ReplayWindow,
    Seal,
    load_cluster_key,
    write_cluster_key,
)
from alphorn.model.errors import Misuse

KEY = bytes(range(32))
ALICE, BOB = b"alice-----", b"bob-------"
SALT = b"saltsa"
GOLDEN = (  # origin, salt, counter, then ciphertext and tag
    "616c6963652d2d2d2d2d73616c74736100000000000000017acf4cd7fca51052a0c8b9c41d033ee19b11b819ee4d"
)


def seals(**changes: object) -> tuple[Seal, Seal]:
    settings = {"group": 7} | changes
    return Seal(KEY, group=7, origin=ALICE), Seal(KEY, origin=BOB, **settings)


def sealed_by(seal: Seal, data: bytes, lane: Lane = Lane.DATA) -> bytes:
    return b"".join(seal.seal(lane, (data,)))


def test_what_one_member_seals_another_opens():
    alice, bob = seals()

    sealed = b"".join(alice.seal(Lane.DATA, (b"head", memoryview(b"body"))))

    assert len(sealed) == 8 + OVERHEAD_BYTES
    assert b"body" not in sealed
    assert bob.open(Lane.DATA, sealed) == b"headbody"


def test_the_bytes_of_a_seal_are_what_they_were():
    alice = Seal(KEY, group=7, origin=ALICE, salt=SALT)

    assert sealed_by(alice, b"frames").hex() == GOLDEN


def test_every_prefix_and_every_flipped_bit_is_foreign():
    alice, bob = seals()
    sealed = sealed_by(alice, b"frames")

    for end in range(len(sealed)):
        assert bob.open(Lane.DATA, sealed[:end]) is None
    for place in range(len(sealed) * 8):
        changed = bytearray(sealed)
        changed[place // 8] ^= 1 << place % 8
        assert bob.open(Lane.DATA, bytes(changed)) is None

    assert bob.foreign == len(sealed) * 9
    assert bob.open(Lane.DATA, sealed) == b"frames"


def test_a_seal_of_another_cluster_or_group_does_not_open():
    alice, stranger = seals(group=8)
    other_cluster = Seal(os.urandom(32), group=7, origin=BOB)
    sealed = sealed_by(alice, b"frames")

    assert stranger.open(Lane.DATA, sealed) is None
    assert other_cluster.open(Lane.DATA, sealed) is None
    assert stranger.foreign == other_cluster.foreign == 1


def test_a_seal_of_one_lane_does_not_open_on_another():
    alice, bob = seals()
    sealed = sealed_by(alice, b"frames", Lane.CONTROL)

    assert [bob.open(lane, sealed) for lane in (Lane.DATA, Lane.MEMBER, Lane.STREAM)] == [None, None, None]
    assert bob.open(Lane.CONTROL, sealed) == b"frames"


def test_a_replayed_datagram_is_dropped():
    alice, bob = seals()
    sealed = sealed_by(alice, b"frames")

    assert bob.open(Lane.DATA, sealed) == b"frames"
    assert bob.open(Lane.DATA, sealed) is None
    assert (bob.replayed, bob.foreign) == (1, 0)


def test_lanes_that_overtake_each_other_by_more_than_a_window_lose_nothing():
    alice, bob = seals()
    slow = [sealed_by(alice, b"bulk", Lane.DATA) for _ in range(3)]
    for _ in range(2 * WINDOW):
        assert bob.open(Lane.CONTROL, sealed_by(alice, b"word", Lane.CONTROL)) == b"word"

    assert [bob.open(Lane.DATA, sealed) for sealed in slow] == [b"bulk"] * 3


def test_a_member_ignores_what_it_sealed_itself():
    alice, _ = seals()

    assert alice.open(Lane.DATA, sealed_by(alice, b"frames")) is None
    assert alice.foreign == alice.replayed == 0


def test_two_runs_with_the_same_origin_never_share_a_key_and_nonce():
    first, second = Seal(KEY, group=7, origin=ALICE), Seal(KEY, group=7, origin=ALICE)
    bob = Seal(KEY, group=7, origin=BOB)
    sealed = [sealed_by(first, b"frames"), sealed_by(second, b"frames")]

    assert sealed[0][24:] != sealed[1][24:]
    assert [bob.open(Lane.DATA, each) for each in sealed] == [b"frames", b"frames"]


def test_remembered_senders_are_bounded_and_strangers_are_not_remembered():
    bob = Seal(KEY, group=7, origin=BOB)
    for number in range(SENDERS_MAX + 10):
        sender = Seal(KEY, group=7, origin=number.to_bytes(10, "big"))
        assert bob.open(Lane.DATA, sealed_by(sender, b"x")) == b"x"
    for _ in range(10):
        assert bob.open(Lane.DATA, os.urandom(100)) is None

    assert bob.describe() == {"senders": SENDERS_MAX, "foreign": 10, "replayed": 0}


def test_the_replay_window_agrees_with_a_set_of_all_counters():
    stream = random.Random(4)
    window, seen, newest, front = ReplayWindow(), set(), 0, 1
    for _ in range(20_000):
        front += stream.choice((0, 1, 1, 2, 50)) if stream.random() < 0.99 else 3 * WINDOW
        counter = max(1, front - stream.randrange(2 * WINDOW))
        expected = counter in seen or newest - counter >= WINDOW

        assert window.has_seen(counter) == expected, counter
        if not expected:
            window.add(counter)
            seen.add(counter)
            newest = max(newest, counter)


def test_a_key_file_is_made_once_and_for_its_owner_only(tmp_path):
    path = tmp_path / "cluster.key"
    write_cluster_key(path)

    assert path.stat().st_mode & 0o777 == 0o600
    assert len(load_cluster_key(path)) == 32
    with pytest.raises(Misuse, match="exists"):
        write_cluster_key(path)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_key_file_that_others_can_read_is_refused(tmp_path, mode):
    path = tmp_path / "cluster.key"
    write_cluster_key(path)
    path.chmod(mode)

    with pytest.raises(Misuse, match="chmod 600"):
        load_cluster_key(path)


@pytest.mark.parametrize("text", ["", "abc", "0" * 63, "0" * 65, "x" * 64])
def test_a_key_file_without_a_whole_key_is_refused(tmp_path, text):
    path = tmp_path / "cluster.key"
    path.write_text(text)
    path.chmod(0o600)

    with pytest.raises(Misuse, match="64 hexadecimal digits"):
        load_cluster_key(path)


def test_a_missing_key_file_is_named(tmp_path):
    with pytest.raises(Misuse, match=r"nokey cannot be read"):
        load_cluster_key(tmp_path / "nokey")
