from random import Random

import msgspec
import pytest

from alphorn.message_manager.engine import Engine
from alphorn.model.commands import Forget
from alphorn.model.errors import Corruption
from alphorn.model.messages import Packed
from tests.message_manager.bench import ALICE, BOB, CAROL, Bench, arrived, batch, errors


@pytest.fixture(name="bench")
def make_bench() -> Bench:
    """A little of everything."""
    bench = Bench()
    queue = bench.create("queue:q", delivery_limit=3, groups=True, max_length=40, overflow="reject", ttl=9.5)
    topic = bench.create("topic:t", retain_s=60.0)
    bench.create("queue:temporary.a", CAROL)
    bench.subscribe(topic, BOB, selector="n > 1", no_local=ALICE)
    bench.subscribe(topic, BOB, name="s", client="c", is_durable=True, is_shared=True)
    bench.tick(1_000)
    particular = Packed("x", {"n": 2}, priority=7, expiration=5_000, deliver_at=3_000, key="k")
    for destination in (queue, topic):
        bench.publish(destination, "a", particular, "b", connection=CAROL)
    bench.tick(2_000)
    bench.give_back(queue, 1, 1, delay_ms=700)
    bench.give_back(queue, 3, 3, is_dead=True)
    bench.publish(queue, *range(100))
    return bench


def checkpoint_of(engine: Engine) -> bytes:
    return b"".join(engine.checkpoint())


@pytest.mark.requirement("HA-15")
def test_a_checkpoint_holds_everything(bench: Bench) -> None:
    twin = Engine.restore(bench.engine.checkpoint())
    assert twin.describe() == bench.engine.describe()
    assert (twin.sequence, twin.now_ms, twin.numbers) == (bench.engine.sequence, 2_000, bench.engine.numbers)
    assert twin.connections() == {ALICE, BOB, CAROL}
    assert twin.find_subscription("c", "s") == bench.engine.find_subscription("c", "s")
    assert twin.next_due() == bench.engine.next_due()
    assert twin.retained() == bench.engine.retained()


def test_what_follows_a_checkpoint_is_what_would_have_followed_without(bench: Bench) -> None:
    other = Bench()
    other.engine = Engine.restore(bench.engine.checkpoint())
    for now_ms in (2_500, 3_300, 6_000, 70_000):
        assert bench.tick(now_ms) == other.tick(now_ms)
    assert bench.apply(Forget(CAROL), Forget(BOB)) == other.apply(Forget(CAROL), Forget(BOB))
    resend = batch(1, range(100))
    assert errors(bench.apply(resend)) == errors(other.apply(resend)) == ["Blocked"]
    assert checkpoint_of(bench.engine) == checkpoint_of(other.engine)


@pytest.mark.parametrize("size", [1, 3, 64, 1_000])
def test_a_checkpoint_may_be_cut_anywhere(bench: Bench, size: int) -> None:
    data = checkpoint_of(bench.engine)
    pieces = [data[start : start + size] for start in range(0, len(data), size)]
    assert checkpoint_of(Engine.restore(pieces)) == data


def test_every_beginning_of_a_checkpoint_is_refused(bench: Bench) -> None:
    data = checkpoint_of(bench.engine)
    for length in range(len(data)):
        with pytest.raises(Corruption):
            Engine.restore([data[:length]])


def test_what_follows_the_end_is_refused(bench: Bench) -> None:
    data = checkpoint_of(bench.engine)
    for rest in (b"\x00", data):
        with pytest.raises(Corruption):
            Engine.restore([data, rest])


def test_changed_bytes_are_a_checkpoint_or_refused_and_nothing_else(bench: Bench) -> None:
    random = Random(3)
    data = checkpoint_of(bench.engine)
    refused = 0
    for _ in range(3_000):
        changed = bytearray(data)
        changed[random.randrange(len(changed))] = random.randrange(256)
        try:
            Engine.restore([bytes(changed)])
        except Corruption:
            refused += 1
    assert refused > 300


def test_pieces_of_a_large_checkpoint_are_small() -> None:
    bench = Bench()
    queue = bench.create("queue:q", groups=True)
    plain = batch(queue, [None])
    for number in range(30_000):
        bench.apply(*(msgspec.structs.replace(plain, counter=counter) for counter in (2 * number + 1, 2 * number + 2)))
    bench.publish(queue, *[Packed(key="k" * 3_000) for _ in range(1_000)], number=2)
    for position in range(2, 60_000, 4):
        bench.acknowledge(queue, position, position)
    bench.give_back(queue, 1, 61_000, delay_ms=50)
    sizes = [len(chunk) for chunk in bench.engine.checkpoint()]
    assert max(sizes) <= 1 << 20
    assert len(sizes) > 3
    assert checkpoint_of(Engine.restore(bench.engine.checkpoint())) == checkpoint_of(bench.engine)


def test_an_empty_engine_has_a_checkpoint_too() -> None:
    twin = Engine.restore(Engine().checkpoint())
    assert twin.describe() == Engine().describe()
    bench = Bench()
    bench.engine = twin
    assert arrived(bench.publish(bench.create("queue:q"), "a")) == [(1, 0, 1, 1)]


def test_a_checkpoint_holds_nothing_of_what_is_consumed() -> None:
    bench = Bench()
    queue = bench.create("queue:q", groups=True)
    bench.publish(queue, *[Packed(expiration=10**12, priority=8, key="k") for _ in range(50)])
    full = len(checkpoint_of(bench.engine))
    bench.acknowledge(queue, 1, 50)
    assert len(checkpoint_of(bench.engine)) < full - 150
    assert b"expirations" not in checkpoint_of(bench.engine)
    assert b"segments" not in checkpoint_of(bench.engine)
