from alphorn.client_manager.cache import ReceiveCache
from alphorn.model.commands import Acknowledge, Entry, Publish, decode_entry, encode_entry
from tests.client_manager.managing import encode


def put(cache: ReceiveCache, sequence: int, entry: Entry) -> None:
    payload = encode_entry(entry)
    cache.put(sequence, payload, decode_entry(payload))


def batch(counter: int) -> Publish:
    return Publish(5, b"p" * 20, counter, 1, 0, 1000, memoryview(encode([["body"]])))


def test_entries_without_messages_take_no_room() -> None:
    cache = ReceiveCache(10_000)
    put(cache, 1, Entry([batch(1)]))
    for sequence in range(2, 1000):
        put(cache, sequence, Entry([Acknowledge(5, 0, b"c" * 20, [sequence, sequence])]))
    assert cache.find(1, 0) is not None
    assert cache.describe()["entries"] == 1


def test_small_messages_count_with_what_is_known_of_them() -> None:
    """Their bytes in the log are a small part of what they take, and many clients send nothing else."""
    cache = ReceiveCache(10_000)
    for sequence in range(1, 1000):
        put(cache, sequence, Entry([batch(sequence)]))
    assert cache.describe()["entries"] == 11
    assert cache.find(988, 0) is None
    assert cache.find(989, 0) is not None
    put(cache, 1000, Entry([batch(counter) for counter in range(1000, 1010)]))
    assert cache.describe()["entries"] == 5, "an entry of ten batches has pushed out seven of one"
