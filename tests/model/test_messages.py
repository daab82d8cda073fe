from collections.abc import Callable

import msgspec
import pytest

from alphorn.model.errors import PeerViolation
from alphorn.model.messages import PRIORITY_DEFAULT, Packed, check_plain, count_of, cut_batch, headers_of
from alphorn.model.nesting import DEPTH_MAX


def packed(count: int) -> bytes:
    return msgspec.msgpack.encode([[number] for number in range(count)])


def test_a_message_with_a_body_alone_is_a_list_of_one() -> None:
    batch = msgspec.msgpack.encode([["x"]])
    assert batch == bytes.fromhex("9191a178")
    header = headers_of(batch)[0]
    assert (header.priority, header.expiration, header.key, header.properties) == (PRIORITY_DEFAULT, 0, None, None)


def test_headers_leave_the_body_packed() -> None:
    batch = msgspec.msgpack.encode([Packed({"a": [1]}, {"n": 1, "b": b"x"}, 7, 8, 9, "k", "t", "c", "r", "text")])
    header = headers_of(batch)[0]
    assert bytes(header.body) == msgspec.msgpack.encode({"a": [1]})
    assert (header.properties, header.priority, header.expiration, header.deliver_at) == ({"n": 1, "b": b"x"}, 7, 8, 9)
    assert (header.key, header.type, header.correlation_id, header.reply_to) == ("k", "t", "c", "r")


@pytest.mark.parametrize("count", [0, 1, 15, 16, 450, 65_535, 65_536])
def test_the_count_stands_in_the_first_bytes(count: int) -> None:
    assert count_of(packed(count)) == count
    assert count_of(memoryview(packed(count))[:5]) == count


@pytest.mark.parametrize("blob", [b"", b"?", b"\xdc", b"\xdc\x01", b"\xdd\x00\x00\x01", b"\x81\x01\x02", b"\xc0"])
def test_bytes_without_a_count_are_no_batch(blob: bytes) -> None:
    with pytest.raises(PeerViolation):
        count_of(blob)


def test_every_beginning_of_a_batch_is_refused() -> None:
    batch = msgspec.msgpack.encode([Packed("body", {"n": 1}, 5, 6, 7, "key"), Packed("other")])
    for length in range(len(batch)):
        with pytest.raises(PeerViolation):
            headers_of(batch[:length])


@pytest.mark.parametrize("depth", [DEPTH_MAX, DEPTH_MAX + 1, 5_000])
@pytest.mark.parametrize(
    "opening", [b"\x91", b"\x81\x00", b"\xdc\x00\x01", b"\xdd\x00\x00\x00\x01", b"\xdf\x00\x00\x00\x01\xc0"]
)
def test_bodies_nested_too_deep_are_refused_wherever_the_caller_stands(depth: int, opening: bytes) -> None:
    blob = b"\x91\x91" + opening * depth + b"\xc0"
    if depth <= DEPTH_MAX:
        assert bytes(headers_of(blob)[0].body) == opening * depth + b"\xc0"
        return
    with pytest.raises(PeerViolation):
        headers_of(blob)


def test_large_flat_bodies_are_not_taken_for_deep_ones() -> None:
    values = [
        1,
        -1,
        300,
        -300,
        70_000,
        2**40,
        1.5,
        None,
        True,
        "x" * 40,
        "y" * 300,
        b"z" * 300,
        b"w" * 70_000,
        "v" * 70_000,
    ]
    values += [msgspec.msgpack.Ext(5, bytes(size)) for size in (1, 2, 4, 8, 16, 17, 300)]
    body = [{"a": values, "b": {"c": [[]]}, "d": {}} for _ in range(200)]
    blob = msgspec.msgpack.encode([Packed(body), Packed(list(range(70_000)))])
    assert len(headers_of(blob)) == 2


def is_let_in(blob: bytes) -> bool:
    try:
        check_plain(blob)
    except PeerViolation:
        return False
    return True


def further_down(frames: int, do: Callable[[], object]) -> object:
    return further_down(frames - 1, do) if frames else do()


@pytest.mark.parametrize("beside", [b"\x91\xc4\x01y", b"\x91\xc5\x10\x00" + bytes(4096)], ids=["little", "much"])
def test_a_plain_batch_that_is_let_in_can_be_read_by_whoever_stands_deeper(beside: bytes) -> None:
    def nested(depth: int) -> bytes:
        return b"\x92" + b"\x91" * depth + b"\x01" + beside

    assert is_let_in(nested(1 + DEPTH_MAX))
    deepest = max(depth for depth in range(1, 1_000) if is_let_in(nested(depth)))
    cut = further_down(300, lambda: cut_batch(nested(deepest), [1]))
    assert cut == b"\x91" + beside


@pytest.mark.parametrize("blob", [b"\x91\xc1", b"\x92\x91\x01", b"\x91\x91\xc5\x10\x00" + bytes(4095), b"\x91" * 5_000])
def test_a_plain_batch_that_cannot_be_read_is_refused(blob: bytes) -> None:
    assert not is_let_in(blob)


def test_properties_are_plain_values() -> None:
    with pytest.raises(PeerViolation, match="plain value"):
        headers_of(msgspec.msgpack.encode([["body", {"a": [1]}]]))


def test_a_cut_batch_holds_the_messages_at_the_places_as_they_were() -> None:
    batch = msgspec.msgpack.encode([["a"], ["b", {"n": 1}], ["c"]])
    assert cut_batch(batch, range(1, 3)) == msgspec.msgpack.encode([["b", {"n": 1}], ["c"]])
    assert cut_batch(batch, [0]) == msgspec.msgpack.encode([["a"]])
