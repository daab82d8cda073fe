"""The sink over a real Spark and a real cluster: everything once, whatever fails."""

import os
import pickle
import shutil
import signal

import pyarrow
import pytest

import alphorn
from alphorn.spark.options import sink_options
from alphorn.spark.sink import BatchSink

TIMEOUT = "30"


@pytest.fixture
def save(cluster):
    """Writes a frame as a batch."""

    def make(frame, destination="", **options):
        chosen = {"url": cluster.url, "timeout": TIMEOUT, **options}
        if destination:
            chosen["destination"] = destination
        frame.write.format("alphorn").mode("append").options(**chosen).save()

    return make


@pytest.fixture
def run(cluster):
    """Runs a stream into a destination until it has written what is there."""

    def make(frame, destination, checkpoint):
        options = {"url": cluster.url, "timeout": TIMEOUT, "checkpointLocation": str(checkpoint)}
        writer = frame.writeStream.format("alphorn").options(**options).option("destination", destination)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return query

    return make


@pytest.fixture
def target(request, connection):
    name = f"topic:{request.node.name}.out"
    connection.destinations.create(name, retain=3600)
    return name


def received(connection, destination, count):
    with connection.session() as session:
        consumer = session.consumer(destination, **({"start": "earliest"} if destination.startswith("topic:") else {}))
        found = [consumer.receive(30) for _ in range(count)]
        assert consumer.receive(0.2) is None
        return found


def test_rows_arrive_with_all_they_say(spark, save, connection, target):
    frame = spark.sql(
        "select 'text' body, 'k' key, map('a', 'b') properties, 7 priority, 'order' type, 'c' correlation_id, "
        "'queue:back' reply_to, 'text/csv' content_type, timestamp'2100-01-01 00:00:00' expiration, 0D delay"
    )
    save(frame, target)
    [message] = received(connection, target, 1)
    assert (message.body, message.key, message.properties, message.priority) == ("text", "k", {"a": "b"}, 7)
    assert (message.type, message.correlation_id, message.reply_to) == ("order", "c", "queue:back")
    assert (message.content_type, message.expiration) == ("text/csv", 4_102_444_800.0)


def test_rows_are_routed_by_a_column(spark, save, connection, load):
    for name in ("topic:route.a", "topic:route.b", "topic:route.rest"):
        connection.destinations.create(name, retain=3600)
    frame = spark.sql(
        "select concat(kind, id) body, if(kind = 'rest', null, concat('topic:route.', kind)) destination "
        "from (select explode(array('a', 'b', 'rest')) kind) cross join range(50)"
    )
    save(frame, "topic:route.rest")
    for kind in ("a", "b", "rest"):
        found = {bytes(row.body).decode() for row in load(f"topic:route.{kind}").collect()}
        assert found == {f"{kind}{number}" for number in range(50)}


def test_a_delay_holds_messages_back(spark, save, connection, request):
    queue = f"queue:{request.node.name}"
    save(spark.sql("select 'later' body, 3600.0D delay union all select 'now' body, 0D delay"), queue)
    assert [message.body for message in received(connection, queue, 1)] == ["now"]


def test_what_was_read_can_be_written_as_it_was(spark, save, load, send, connection, topic, target):
    send(topic, b"bytes", "text", {"a": [1, None]}, None)
    save(load(topic).drop("destination"), target)
    assert [message.body for message in received(connection, target, 4)] == [b"bytes", "text", {"a": [1, None]}, None]


def test_nothing_of_a_failed_job_is_seen(spark, save, load, connection, target):
    frame = spark.range(2000, numPartitions=4).selectExpr(
        "if(id = 1999, cast(raise_error('broken') as string), cast(id as string)) body"
    )
    with pytest.raises(Exception, match="broken"):
        save(frame, target)
    assert load(target).count() == 0


def test_a_failed_job_leaves_nothing_staged_not_even_of_the_task_that_failed(cluster, connection):
    sink = BatchSink(sink_options({"url": cluster.url, "destination": "queue:given-up", "timeout": TIMEOUT}))
    staged = sink.write(iter([pyarrow.RecordBatch.from_pydict({"body": ["a", "b"]})]))
    pickle.loads(pickle.dumps(sink)).abort([None])
    with pytest.raises(alphorn.Unavailable, match="is not staged here as it was sent; run the batch again"):
        sink.commit([staged])


def test_a_retried_task_writes_once(spark, save, load, target, tmp_path):
    """A task that is killed after it has staged is run again by Spark (`local[2,3]` would; here the kill is staged by
    a row that kills its own worker the first time)."""
    mark = str(tmp_path / "killed")

    def kill_once(batches):
        for batch in batches:
            yield batch
            if not os.path.exists(mark):
                with open(mark, "w"):
                    pass
                os.kill(os.getpid(), signal.SIGKILL)

    frame = spark.range(100, numPartitions=1).selectExpr("cast(id as string) body").mapInArrow(kill_once, "body string")
    with pytest.raises(Exception, match=r".*"):
        save(frame, target)  # local Spark does not try tasks again: the job fails,
    assert load(target).count() == 0
    save(frame, target)  # and is run again
    assert load(target).count() == 100


def test_a_stream_is_written_once(stream, run, load, send, topic, target, tmp_path):
    for number in range(3):
        send(topic, *[f"{number}-{place}" for place in range(10)])
    frame = stream(topic, start="earliest", maxMessagesPerTrigger="10").select("body")
    run(frame, target, tmp_path)
    assert load(target).count() == 30
    ids = {row.id for row in load(target).collect()}
    for _ in range(2):
        newest = max(
            (file for file in (tmp_path / "commits").iterdir() if file.name.isdigit()), key=lambda f: int(f.name)
        )
        newest.unlink()
        for crc in newest.parent.glob(f".{newest.name}*.crc"):
            crc.unlink()
        run(frame, target, tmp_path)
    assert {row.id for row in load(target).collect()} == ids
    assert load(target).count() == 30
    assert load(target).select("body").distinct().count() == 30


def test_a_query_with_an_older_checkpoint_is_stopped_before_it_leaves_rows_out(
    stream, run, load, send, topic, target, tmp_path
):
    frame = stream(topic, start="earliest", columns="body")
    send(topic, "a")
    run(frame, target, tmp_path / "query")
    shutil.copytree(tmp_path / "query", tmp_path / "older")
    for body in "bc":
        send(topic, body)
        run(frame, target, tmp_path / "query")
    send(topic, "d")
    with pytest.raises(Exception, match="this query has written batch 2 before, and now comes with batch 1 again"):
        run(frame, target, tmp_path / "older")
    assert sorted(bytes(row.body) for row in load(target).collect()) == [b"a", b"b", b"c"]
    run(frame, target, tmp_path / "query")
    assert sorted(bytes(row.body) for row in load(target).collect()) == [b"a", b"b", b"c", b"d"]


def test_a_job_that_names_itself_writes_each_batch_once(spark, save, load, target):
    first, second = spark.sql("select 'first' body"), spark.sql("select 'second' body")
    for frame, batch in ((first, "3"), (first, "3"), (second, "4"), (first, "3")):
        save(frame, target, writer="nightly", batch=batch)
    assert [bytes(row.body) for row in load(target).collect()] == [b"first", b"second"]


def test_two_queries_write_both(stream, run, load, send, topic, target, tmp_path):
    send(topic, *"ab")
    frame = stream(topic, start="earliest").select("body")
    run(frame, target, tmp_path / "one")
    run(frame, target, tmp_path / "two")
    assert load(target).count() == 4


@pytest.mark.parametrize(
    ("query", "options", "sentence"),
    [
        ("select 'a' body", {}, "nothing says where to send"),
        ("select 'a' body, 11 priority", {"destination": "topic:t"}, "priorities go from 0 to 9"),
    ],
)
def test_what_cannot_be_written_is_refused_with_a_sentence(spark, save, query, options, sentence):
    with pytest.raises(Exception, match=sentence):
        save(spark.sql(query), **options)


def test_a_cluster_that_is_away_is_named_to_who_writes(spark, save):
    with pytest.raises(Exception, match=r"no Client Manager answered within 0.5 s: 127.0.0.1:1"):
        save(spark.sql("select 'a' body"), "topic:t", url="alphorn://127.0.0.1:1", timeout="0.5")


def test_a_destination_is_never_overwritten(spark, cluster):
    writer = spark.sql("select 'a' body").write.format("alphorn").mode("overwrite")
    with pytest.raises(Exception, match="never overwritten; write with mode append"):
        writer.options(url=cluster.url, destination="topic:t").save()
