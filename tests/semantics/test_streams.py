"""Messages of any size: sent from a stream, received as a stream, and otherwise messages like all others."""

import asyncio
import hashlib
import io
import os
import random
from functools import partial

import pytest

import alphorn
from alphorn.client.lane import FRAGMENT_BYTES
from tests.semantics.pouring import PIECE, Source, digest_of
from tests.semantics.waiting import WAIT_S, bodies, is_quiet, send, take, until

pytestmark = pytest.mark.processes

LARGE = 12_000_000  # more than one batch can hold, and much more than is under way at a time
PART = 1_000


def streams_of(cluster, name):
    """What a Message Manager knows of bodies in fragments."""
    return cluster.describe(name)[name]["message_manager"]["engine"]["streams"]


def until_everywhere(cluster, is_so):
    """Waits until this is so of what every Message Manager knows."""
    for name in cluster.message_managers:
        until(partial(streams_of, cluster, name), is_so)


@pytest.mark.requirement("API-17", "VLM-1", "VLM-4", "VLM-8")
def test_a_message_larger_than_any_batch_comes_as_it_was_sent(door, connect, other, queue):
    source = Source(LARGE)
    with connect(door).session() as session, other.session() as receiving:
        receipt = session.producer(queue).send_stream(source, properties={"name": "film"}, priority=7, type="video")
        [message] = take(receiving.consumer(queue, selector="name = 'film'"), 1)
        assert digest_of(message) == source.digest.digest()
        assert (message.id, message.size, message.body) == (receipt.result(), LARGE, None)
        assert (message.properties, message.priority, message.type) == ({"name": "film"}, 7, "video")


@pytest.mark.parametrize("size", [0, 1, FRAGMENT_BYTES - 1, FRAGMENT_BYTES, FRAGMENT_BYTES + 1])
def test_every_size_comes_back(connection, queue, size):
    data = os.urandom(size)
    with connection.session() as session:
        session.producer(queue).send_stream(io.BytesIO(data))
        [message] = take(session.consumer(queue), 1)
        assert (message.open().read(), message.size) == (data, size)


def test_a_file_is_sent_and_copied_line_by_line(connection, queue, tmp_path):
    path = tmp_path / "lines"
    path.write_bytes(b"".join(b"line %d\n" % number for number in range(50_000)))
    with connection.session() as session:
        with path.open("rb") as file:
            session.producer(queue).send_stream(file)
        [message] = take(session.consumer(queue), 1)
        with message.open() as body:
            assert list(body) == path.read_bytes().splitlines(keepends=True)


def test_a_stream_that_gives_more_or_less_than_it_is_asked_for_is_cut_to_size(connection, queue):
    pieces = [bytes([number]) * size for number, size in enumerate([3_000_000, 1, 700_000, 5, 262_144])]

    class Careless:
        def __init__(self):
            self.rest = list(pieces)

        def read(self, size):
            return self.rest.pop(0) if self.rest else b""

    with connection.session() as session:
        session.producer(queue).send_stream(Careless())
        [message] = take(session.consumer(queue), 1)
        assert message.open().read() == b"".join(pieces)


def test_what_can_be_read_into_a_buffer_is_sent_whole_however_much_it_gives_at_a_time(connection, queue):
    body = random.Random(1).randbytes(5_000_000)
    sizes = [1, 700_000, 2_000_000, 3, 1_048_576]

    class Trickle:
        def __init__(self):
            self.place = 0
            self.rest = list(sizes)

        def read(self, size):
            raise AssertionError("it can be read into a buffer")

        def readinto(self, buffer):
            data = body[self.place : self.place + min(len(buffer), self.rest.pop(0) if self.rest else len(buffer))]
            buffer[: len(data)] = data
            self.place += len(data)
            return len(data)

    with connection.session() as session:
        session.producer(queue).send_stream(Trickle())
        [message] = take(session.consumer(queue), 1)
        assert message.open().read() == body


@pytest.mark.parametrize("answer", [None, -1, 3_000_000, "x"])
def test_a_stream_that_says_nonsense_of_what_it_has_read_is_refused(connection, queue, answer):
    class Broken:
        def read(self, size):
            return b""

        def readinto(self, buffer):
            return answer

    with connection.session() as session:
        with pytest.raises(alphorn.Misuse, match="readinto"):
            session.producer(queue).send_stream(Broken())
        assert is_quiet(session.consumer(queue))


def test_small_bodies_can_be_opened_too(connection, queue):
    with connection.session() as session:
        send(session, queue, [b"bytes", "text", {"a": 1}])
        data, text, value = take(session.consumer(queue), 3)
        assert (data.open().read(), text.open().read()) == (b"bytes", b"text")
        assert data.size is None
        with pytest.raises(alphorn.Misuse, match="dict"):
            value.open()


@pytest.mark.requirement("VLM-2", "VLM-7", "CM-26")
def test_small_messages_of_the_same_producer_and_connection_pass_by(connection, queue):
    with connection.session() as session:
        producer = session.producer(queue)
        consumer = session.consumer(queue)
        passed = []

        def pass_by():
            producer.send("small", wait=True)
            passed.extend(take(consumer, 1))

        producer.send_stream(Source(LARGE, at={LARGE // 2: pass_by}))
        assert bodies(passed) == ["small"]
        [message] = take(consumer, 1)
        assert message.size == LARGE


def test_two_streams_of_one_producer_do_not_mix(connection, queue):
    inner, outer = Source(LARGE // 2), Source(LARGE)
    with connection.session() as session:
        producer = session.producer(queue)
        outer._at = {LARGE // 2: lambda: producer.send_stream(inner)}
        producer.send_stream(outer)
        first, second = take(session.consumer(queue), 2)
        assert [digest_of(first), digest_of(second)] == [inner.digest.digest(), outer.digest.digest()]


@pytest.mark.requirement("VLM-3", "VLM-6", "VLM-8")
@pytest.mark.cluster_only
def test_the_beginning_is_on_every_message_manager_before_the_end_was_read(cluster, connection, queue):
    looks = []

    def look():
        until_everywhere(cluster, lambda streams: streams["open_bytes"] > LARGE // 2)
        looks.append("before the end")

    with connection.session() as session:
        session.producer(queue).send_stream(Source(LARGE, at={LARGE - PIECE: look}))
    assert looks == ["before the end"]


def test_nobody_sees_a_message_whose_stream_fails_and_the_producer_goes_on(cluster, connection, queue):
    def fail():
        raise OSError("the film tears")

    with connection.session() as session:
        producer, consumer = session.producer(queue), session.consumer(queue)
        with pytest.raises(OSError, match="tears"):
            producer.send_stream(Source(LARGE, at={LARGE // 2: fail}))
        whole = Source(LARGE)
        producer.send_stream(whole)
        [message] = take(consumer, 1)
        assert digest_of(message) == whole.digest.digest()
        assert is_quiet(consumer)


@pytest.mark.cluster_only
def test_a_client_that_ends_in_the_middle_leaves_nothing(connect, cluster, connection, queue):
    leaving = connect()

    def leave():
        leaving.close()

    with pytest.raises(alphorn.Error):
        leaving.session().producer(queue).send_stream(Source(LARGE, at={LARGE // 2: leave}))
    assert is_quiet(connection.session().consumer(queue))
    until_everywhere(cluster, lambda streams: streams["open"] == 0)


def test_a_stream_to_a_deleted_destination_is_refused_and_the_next_one_creates_it_anew(connection, queue):
    with connection.session() as session:
        producer = session.producer(queue)
        with pytest.raises(alphorn.InvalidDestination):
            producer.send_stream(Source(LARGE, at={LARGE // 2: lambda: connection.destinations.delete(queue)}))
        producer.send_stream(io.BytesIO(b"whole"))
        [message] = take(session.consumer(queue), 1)
        assert message.open().read() == b"whole"


def test_what_cannot_be_read_as_bytes_is_refused(connection, queue, tmp_path):
    (tmp_path / "text").write_text("text")
    producer = connection.session().producer(queue)
    with pytest.raises(alphorn.Misuse, match=r"read\(size\)"):
        producer.send_stream(b"bytes")
    with (tmp_path / "text").open() as text, pytest.raises(alphorn.Misuse, match="binary mode"):
        producer.send_stream(text)
    with pytest.raises(alphorn.Misuse, match="colour"):
        producer.send_stream(io.BytesIO(b""), colour="red")
    with pytest.raises(alphorn.Misuse, match="ttl"):
        producer.send_stream(io.BytesIO(b"x"), ttl=-1)
    producer.send_stream(io.BytesIO(b"fine"))


def test_a_message_keeps_its_place_behind_what_was_sent_before(connection, queue):
    with connection.session() as session:
        producer = session.producer(queue)
        for number in range(5_000):
            producer.send(number)
        producer.send_stream(io.BytesIO(b"last"))
        found = take(session.consumer(queue), 5_001)
        assert bodies(found[:-1]) == list(range(5_000))
        assert found[-1].open().read() == b"last"


def test_a_message_that_comes_back_can_be_read_again(connection, queue):
    source = Source(LARGE)
    with connection.session(ack="individual") as session:
        session.producer(queue).send_stream(source)
        consumer = session.consumer(queue)
        [message] = take(consumer, 1)
        message.open().read(PART)
        message.reject()
        [again] = take(consumer, 1)
        assert (again.delivery_count, digest_of(again)) == (2, source.digest.digest())
        again.acknowledge()


def test_dead_and_expired_messages_keep_their_bodies(connection, queue):
    connection.destinations.create(queue, dead_letter="graves")
    rejected, expired = Source(LARGE), Source(LARGE // 2)
    with connection.session(ack="individual") as session:
        producer = session.producer(queue)
        producer.send_stream(rejected)
        take(session.consumer(queue), 1)[0].reject(requeue=False)
        graves = session.consumer("queue:graves")
        [first] = take(graves, 1)
        assert digest_of(first) == rejected.digest.digest()
        producer.send_stream(expired, ttl=0.001)
        [second] = take(graves, 1)
        assert (second.history["reason"], digest_of(second)) == ("expired", expired.digest.digest())
        first.acknowledge()
        second.acknowledge()


def test_browsing_reads_a_body_and_consumes_nothing(connection, queue):
    source = Source(LARGE)
    with connection.session() as session:
        session.producer(queue).send_stream(source)
        for _ in range(2):
            [message] = list(session.browser(queue))
            assert digest_of(message) == source.digest.digest()
        assert len(take(session.consumer(queue), 1)) == 1


def test_every_subscriber_reads_the_body(connection, other, topic):
    source = Source(LARGE)
    with connection.session() as session, other.session() as elsewhere:
        consumers = [session.consumer(topic), elsewhere.consumer(topic)]
        session.producer(topic).send_stream(source)
        for consumer in consumers:
            [message] = take(consumer, 1)
            assert digest_of(message) == source.digest.digest()


def test_a_body_is_read_from_a_destination_that_a_pattern_found(connection, topic):
    source = Source(LARGE)
    with connection.session() as session:
        consumer = session.consumer(alphorn.glob(f"{topic}.*"))
        session.producer(f"{topic}.film").send_stream(source)
        [message] = take(consumer, 1)
        assert digest_of(message) == source.digest.digest()


def test_a_retained_topic_replays_a_body(connection, topic):
    connection.destinations.create(topic, retain=60)
    source = Source(LARGE)
    with connection.session() as session:
        session.producer(topic).send_stream(source)
        [message] = take(session.consumer(topic, start="earliest"), 1)
        assert digest_of(message) == source.digest.digest()


def test_a_listener_reads_a_body(connection, queue):
    source = Source(LARGE)
    found = []
    with connection.session() as session:
        session.producer(queue).send_stream(source)

        def on_message(message):
            found.append(digest_of(message))
            producer.send("heard", destination="queue:heard")

        producer = session.producer()
        session.consumer(queue).listen(on_message)
        take(connection.session().consumer("queue:heard"), 1)
    assert found == [source.digest.digest()]


@pytest.mark.requirement("API-17")
def test_streams_with_asyncio(cluster, queue):
    class AsyncSource(Source):
        async def read(self, size):
            await asyncio.sleep(0)
            return super().read(size)

    async def work():
        async with await alphorn.aio.connect(cluster.url) as connection, connection.session() as session:
            producer, consumer = await session.producer(queue), await session.consumer(queue)
            for source in (Source(LARGE), AsyncSource(LARGE)):
                receipt = await producer.send_stream(source, properties={"a": 1})
                message = await consumer.receive(timeout=WAIT_S)
                digest = hashlib.sha256()
                async with message.open() as body:
                    async for piece in body:
                        digest.update(piece)
                assert (message.id, message.size) == (await receipt.result(), LARGE)
                assert digest.digest() == source.digest.digest()
                assert await message.open().read(3) == bytes(3)
                message.acknowledge()
            await producer.send("plain")
            message = await consumer.receive(timeout=WAIT_S)
            assert await message.open().read() == b"plain"

    asyncio.run(asyncio.wait_for(work(), 3 * WAIT_S))


def test_a_cancelled_task_leaves_nothing_of_its_stream(cluster, queue):
    async def work():
        async with await alphorn.aio.connect(cluster.url) as connection, connection.session() as session:
            producer, consumer = await session.producer(queue), await session.consumer(queue)
            reached = asyncio.Event()

            class Stalling(Source):
                async def read(self, size):
                    if self.read_so_far > LARGE // 2:
                        reached.set()
                        await asyncio.Event().wait()
                    return super().read(size)

            task = asyncio.create_task(producer.send_stream(Stalling(LARGE)))
            await reached.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await producer.send_stream(io.BytesIO(b"whole"))
            message = await consumer.receive(timeout=WAIT_S)
            assert await message.open().read() == b"whole"

    asyncio.run(asyncio.wait_for(work(), 3 * WAIT_S))
