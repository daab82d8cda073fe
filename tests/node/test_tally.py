from alphorn.bus.entries import digest_of
from alphorn.io.control import Seen
from alphorn.node.tally import HEAD, Tally

ONE, OTHER = b"a" * 8, b"b" * 8


def batch(sender: bytes, counter: int) -> bytes:
    return HEAD.pack(sender, counter) + b"filling"


def filled(*batches: tuple[bytes, int]) -> Tally:
    tally = Tally()
    for sequence, (sender, counter) in enumerate(batches, 1):
        tally.add(sequence, batch(sender, counter), digest_of(batch(sender, counter)))
    return tally


def test_members_that_delivered_the_same_have_the_same_tally():
    assert filled((ONE, 1), (OTHER, 1)).tallied() == filled((ONE, 1), (OTHER, 1)).tallied()


def test_another_order_is_another_tally():
    assert filled((ONE, 1), (OTHER, 1)).tallied() != filled((OTHER, 1), (ONE, 1)).tallied()


def test_another_number_is_another_tally():
    early, late = Tally(), Tally()
    early.add(1, b"x", 7)
    late.add(2, b"x", 7)
    assert early.tallied() != late.tallied()


def test_counters_are_kept_as_ranges():
    tally = filled((ONE, 1), (ONE, 2), (OTHER, 7), (ONE, 4))
    assert tally.seen() == [
        Seen(sender=ONE.hex(), ranges=[(1, 2), (4, 4)]),
        Seen(sender=OTHER.hex(), ranges=[(7, 7)]),
    ]
    assert tally.repeats == 0


def test_a_batch_that_comes_again_or_too_late_is_counted():
    assert filled((ONE, 1), (ONE, 1)).repeats == 1
    assert filled((ONE, 2), (ONE, 1)).repeats == 1


def test_a_batch_too_short_for_a_number_is_only_counted():
    tally = Tally()
    tally.add(1, b"short", 7)
    assert (tally.batches, tally.payload_bytes, tally.seen()) == (1, 5, [])


def test_a_tally_goes_on_from_its_checkpoint():
    tally, restored = filled((ONE, 1), (ONE, 2)), Tally()
    restored.load(iter(tally.save()))
    for member in (tally, restored):
        member.add(3, batch(ONE, 3), digest_of(batch(ONE, 3)))
    assert restored.tallied() == tally.tallied()
    assert restored.seen() == tally.seen()
