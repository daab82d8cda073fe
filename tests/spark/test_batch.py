"""Batch reads over a real Spark and a real cluster."""

import datetime
import json
import re
import time

import pytest

import alphorn
from alphorn.spark.schema import COLUMNS, SCHEMA
from tests.semantics.waiting import until


def rows(frame, *columns):
    return [tuple(row) if len(columns) > 1 else row[0] for row in frame.select(*columns).collect()]


def test_every_column_says_what_was_sent(load, connection, topic):
    with connection.session() as session:
        producer = session.producer(topic)
        sent = producer.send(
            b"body",
            properties={"text": "a", "number": 3, "truth": True, "share": 0.5},
            key="k",
            priority=7,
            ttl=1000.0,
            type="order",
            correlation_id="c",
            reply_to="queue:answers",
            wait=True,
        ).result(10)
        consumer = session.consumer(topic, start="earliest")
        message = consumer.receive(10)
    assert message is not None
    frame = load(topic)
    assert frame.schema == SCHEMA
    [row] = frame.collect()
    assert (row.destination, row.sequence, row["index"], row.id) == (topic, message.sequence, message.index, sent)
    assert row.id == f"ID:{row.producer}:{row.producer_counter}"
    assert (bytes(row.body), row.content_type, row.key, row.priority) == (b"body", None, "k", 7)
    assert row.properties == {"text": "a", "number": "3", "truth": "true", "share": "0.5"}
    assert (row.type, row.correlation_id, row.reply_to) == ("order", "c", "queue:answers")
    assert row.channel in {channel["name"] for channel in connection.status()["channels"]}
    assert row.timestamp == datetime.datetime.fromtimestamp(message.timestamp, datetime.UTC).replace(tzinfo=None)
    lived = row.expiration - row.timestamp
    assert abs(lived.total_seconds() - 1000) < 5


def test_bodies_come_as_bytes_and_say_what_they_were(load, send, topic):
    send(topic, b"bytes", "text", {"a": 1}, None, [1, "b"])
    assert rows(load(topic), "body", "content_type") == [
        (bytearray(b"bytes"), None),
        (bytearray(b"text"), "text/plain; charset=utf-8"),
        (bytearray(b'{"a":1}'), "application/vnd.alphorn.value+json"),
        (None, None),
        (bytearray(b'[1,"b"]'), "application/vnd.alphorn.value+json"),
    ]


def test_columns_are_chosen_by_an_option(load, send, topic):
    send(topic, "a", "b")
    frame = load(topic, columns="body,sequence")
    assert frame.columns == ["body", "sequence"]
    assert frame.count() == 2
    assert load(topic, columns="sequence,index").count() == 2


def test_what_is_sent_after_planning_is_not_read(load, send, topic):
    send(topic, "a")
    frame = load(topic)
    assert frame.count() == 1
    send(topic, "b")
    assert load(topic).count() == 2


def test_start_and_end_are_numbers_by_channel(load, send, topic):
    for body in "abcd":
        send(topic, body)
    found = load(topic).collect()
    channel, numbers = found[0].channel, [row.sequence for row in found]
    some = load(topic, start=json.dumps({channel: numbers[1]}), end=json.dumps({channel: numbers[3]}))
    assert [bytes(row.body) for row in some.collect()] == [b"b", b"c"]
    assert load(topic, start="latest").count() == 0
    assert load(topic, start="latest", end="earliest").count() == 0
    assert load(topic, start="earliest", end="latest").count() == 4


def test_start_and_end_are_times(load, connection, topic, send):
    send(topic, "a")
    first = load(topic, columns="timestamp").collect()[0].timestamp
    while int(time.time() * 1000) <= int(first.timestamp() * 1000) + 1:  # the next millisecond
        pass
    between = datetime.datetime.now(datetime.UTC)
    send(topic, "b")
    assert [bytes(row.body) for row in load(topic, start=between.isoformat()).collect()] == [b"b"]
    assert [bytes(row.body) for row in load(topic, end=between.isoformat()).collect()] == [b"a"]
    tomorrow = between + datetime.timedelta(days=1)
    assert load(topic, start=tomorrow.isoformat()).count() == 0


def test_a_queue_is_read_without_consuming(load, send, connection, request):
    queue = f"queue:{request.node.name}"
    send(queue, *"abc")
    assert load(queue).count() == 3
    with connection.session() as session:
        consumer = session.consumer(queue)
        assert consumer.receive(10).body == "a"
        assert consumer.receive(10).body == "b"  # so a is acknowledged
        session.acknowledge()
    assert "c" in [bytes(row.body).decode() for row in load(queue).collect()]


def test_a_glob_reads_all_destinations_of_all_channels(load, send, connection):
    for name in ("glob.a", "glob.b", "glob.c", "globless"):
        connection.destinations.create(f"topic:{name}", retain=3600)
        send(f"topic:{name}", name)
    connection.destinations.create("topic:glob.keeps-nothing")
    frame = load("glob:topic:glob.*")
    found = {(row.destination, bytes(row.body).decode()) for row in frame.collect()}
    assert found == {("topic:glob.a", "glob.a"), ("topic:glob.b", "glob.b"), ("topic:glob.c", "glob.c")}
    assert len({row.channel for row in load("glob:topic:glob*").collect()}) == 2
    several = load("topic:glob.a, topic:globless")
    assert {row.destination for row in several.collect()} == {"topic:glob.a", "topic:globless"}


def test_work_is_divided_by_the_partitions_and_bytes_that_are_wanted(load, send, topic):
    for number in range(40):
        send(topic, f"{number:1000}")
    whole = sorted(rows(load(topic), "id"))
    assert load(topic).rdd.getNumPartitions() == 1
    four = load(topic, minPartitions="4")
    assert four.rdd.getNumPartitions() >= 4
    assert sorted(rows(four, "id")) == whole
    small = load(topic, maxBytesPerPartition="5000")
    assert small.rdd.getNumPartitions() >= 8
    assert sorted(rows(small, "id")) == whole


def test_a_batch_of_the_sink_is_divided_too(spark, load, cluster, topic):
    frame = spark.range(20_000).selectExpr("repeat(cast(id as string), 20) body")
    frame.write.format("alphorn").mode("append").option("url", cluster.url).save(topic)
    divided = load(topic, minPartitions="4")
    assert divided.select("sequence").distinct().count() == 1
    assert divided.rdd.getNumPartitions() >= 4
    assert divided.select("id").distinct().count() == divided.count() == 20_000
    assert divided.select("index").distinct().count() == 20_000


def until_backups_have_all(connection):
    """Waits until every backup has applied what its primary has: one that is behind is left for the primary."""

    def lags():
        roles = {"backup": [], "primary": []}
        for node in connection.status()["nodes"]:
            roles.get(node["role"], []).append(node["lag"])
        return roles

    until(lags, lambda roles: len(roles["primary"]) == 2 and roles["backup"] == [0, 0])


def read_by(connection):
    return {node["name"]: node["read"] for node in connection.status()["nodes"] if node["kind"] == "message_manager"}


def primaries(connection):
    return {channel["primary"] for channel in connection.status()["channels"]}


@pytest.mark.parametrize("read_from", ["any", "backup"])
def test_a_primary_is_left_alone(load, send, connection, topic, read_from):
    send(topic, *range(50))
    until_backups_have_all(connection)
    before = read_by(connection)
    assert load(topic, readFrom=read_from).count() == 50
    after = read_by(connection)
    grown = {name for name in after if after[name] > before[name]}
    assert grown
    assert not grown & primaries(connection)


def test_a_primary_is_read_where_that_is_wanted(load, send, connection, topic):
    send(topic, *range(50))
    before = read_by(connection)
    assert load(topic, readFrom="primary").count() == 50
    after = read_by(connection)
    assert {name for name in after if after[name] > before[name]} <= primaries(connection)


def test_filters_on_numbers_and_destinations_are_pushed_down(load, send, topic):
    for body in "abcd":
        send(topic, body)
    numbers = rows(load(topic), "sequence")
    frame = load(topic, pushdown="true")
    some = frame.where(f"sequence >= {numbers[1]} and sequence < {numbers[3]} and destination = '{topic}'")
    assert rows(some, "body") == [bytearray(b"b"), bytearray(b"c")]
    assert "Filter (" not in some._jdf.queryExecution().executedPlan().toString(), "nothing is left for Spark to do"
    assert rows(frame.where(f"sequence = {numbers[2]}"), "body") == [bytearray(b"c")]
    assert frame.where(f"sequence > {numbers[2]} and priority = 4").count() == 1
    assert frame.where(f"sequence <= {numbers[0]}").count() == 1
    assert frame.where("destination in ('topic:other', 'topic:another')").count() == 0


def test_what_is_kept_no_more_is_named_or_left_out(load, send, connection, request):
    topic = f"topic:{request.node.name}"
    connection.destinations.create(topic, retain="2000B")
    for number in range(10):
        send(topic, f"{number:500}")
    # While it is looked at, replicas may still let go of something, until there are three, which are no 2000 bytes.
    found = until(lambda: load(topic, failOnDataLoss="false").collect(), lambda found: len(found) <= 3)
    channel, first = found[0].channel, found[0].sequence
    with pytest.raises(Exception, match=f"{topic} what arrived with log entries 1 to ") as caught:
        load(topic, start=json.dumps({channel: 1})).collect()
    missing = re.search(r"log entries 1 to (\d+);", str(caught.value))
    assert missing is not None
    assert 1 < int(missing[1]) < first, "what is there is not said to be missing"
    rest = load(topic, start=json.dumps({channel: 1}), failOnDataLoss="false").collect()
    assert [row.id for row in rest] == [row.id for row in found]


def consume(connection, queue, count, *, spared=()):
    """Receives messages and acknowledges all but those at the places spared, which come back."""
    session = connection.session(ack="individual")
    consumer = session.consumer(queue)
    found = []
    for place in range(count):
        message = consumer.receive(timeout=30)
        assert message is not None
        found.append(message)
        if place not in spared:
            message.acknowledge()
    session.close()
    return [message.body for message in found]


def test_a_queue_that_retains_is_read_consumed_or_not_and_gives_each_message_once(load, send, connection, request):
    queue = f"queue:{request.node.name}"
    connection.destinations.create(queue, retain=3600)
    send(queue, *range(5))
    assert consume(connection, queue, 3) == [0, 1, 2]
    before = load(queue).collect()
    assert [bytes(row.body) for row in before] == [b"0", b"1", b"2", b"3", b"4"]
    assert consume(connection, queue, 2) == [3, 4]
    send(queue, 5)
    assert load(queue).where(f"sequence <= {before[-1].sequence}").collect() == before, "a range stays as it was"
    assert consume(connection, queue, 1) == [5]
    connection.destinations.policy(queue)
    assert load(queue).count() == 0, "nothing is kept any more, and nothing waits"


def test_an_old_message_that_waits_is_read_although_later_ones_are_kept_no_more(load, send, connection, request):
    queue = f"queue:{request.node.name}"
    connection.destinations.create(queue, retain="2000B")
    for number in range(10):
        send(queue, f"{number:500}")
    consume(connection, queue, 10, spared={0, 1})
    # The two that wait, and three: no four are within 2000 bytes.
    found = until(lambda: load(queue, failOnDataLoss="false").collect(), lambda found: len(found) <= 5)
    assert [bytes(row.body).split() for row in found] == [[b"0"], [b"1"], [b"7"], [b"8"], [b"9"]]
    assert load(queue).collect() == found, "the earliest that is there is no loss"
    channel = found[0].channel
    with pytest.raises(Exception, match=f"{queue} what arrived with log entries {found[0].sequence} to "):
        load(queue, start=json.dumps({channel: found[0].sequence})).collect()
    with pytest.raises(Exception, match=f"{queue} what arrived with log entries {found[1].sequence + 1} to "):
        load(queue, start=json.dumps({channel: found[1].sequence + 1})).collect()
    whole = load(queue, start=json.dumps({channel: found[2].sequence}))
    assert whole.collect() == found[2:]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"destination": "topic:t", "colour": "red"}, "alphorn has no option 'colour' for reading"),
        ({"destination": "topic:nobody-made-this"}, "there is no topic:nobody-made-this; create it"),
    ],
)
def test_bad_options_are_refused_with_a_sentence(load, options, sentence):
    with pytest.raises(Exception, match=sentence):
        load(**options).collect()


def test_a_topic_that_keeps_nothing_says_what_to_do(load, connection):
    connection.destinations.create("topic:forgetful")
    with pytest.raises(Exception, match="topic:forgetful keeps nothing for readers; give it a policy with retain"):
        load("topic:forgetful").collect()


def test_a_cluster_that_is_away_is_named(spark):
    frame = spark.read.format("alphorn").options(url="alphorn://127.0.0.1:1", destination="topic:t", timeout="0.5")
    with pytest.raises(Exception, match=r"no Client Manager answered within 0.5 s: 127.0.0.1:1"):
        frame.load().collect()


def test_the_source_is_found_without_registration_and_can_be_registered(spark):
    alphorn_spark = pytest.importorskip("alphorn.spark")
    alphorn_spark.register(spark)
    assert spark.read.format("alphorn").option("destination", "topic:t").load().columns == list(COLUMNS)
    assert alphorn.__version__
