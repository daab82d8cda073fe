"""Streams over a real Spark and a real cluster."""

import json

import pytest


def run(frame, checkpoint, sink=None, **trigger):
    """Runs a query until it has read what is there; gives the rows of each batch by its number."""
    batches = {}

    def take(found, number):
        batches[number] = found.collect()
        if sink is not None:
            sink(number)

    writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(**(trigger or {"availableNow": True})).start()
    query.awaitTermination()
    return batches, query


def bodies(batches):
    return [bytes(row.body).decode() for number in sorted(batches) for row in batches[number]]


def test_a_stream_goes_on_where_it_was(stream, send, topic, tmp_path):
    send(topic, *"ab")
    frame = stream(topic, start="earliest")
    assert bodies(run(frame, tmp_path)[0]) == ["a", "b"]
    send(topic, *"cd")
    assert bodies(run(frame, tmp_path)[0]) == ["c", "d"]
    batches, query = run(frame, tmp_path)
    assert bodies(batches) == []
    [progress] = query.recentProgress or [None]
    offsets = json.loads(
        (tmp_path / "offsets" / max(file.name for file in (tmp_path / "offsets").iterdir() if file.name.isdigit()))
        .read_text()
        .splitlines()[-1]
    )
    assert list(offsets) == sorted(offsets)
    assert all(type(number) is int for number in offsets.values())
    assert progress is None or progress.numInputRows == 0


def test_a_stream_begins_with_what_is_new(stream, send, topic, tmp_path):
    send(topic, "old")
    frame = stream(topic)
    assert bodies(run(frame, tmp_path)[0]) == []
    send(topic, "new")
    assert bodies(run(frame, tmp_path)[0]) == ["new"]


def test_a_stream_of_a_queue_that_retains_has_each_message_once_whoever_consumes_it_meanwhile(
    stream, send, connection, tmp_path, request
):
    queue = f"queue:{request.node.name}"
    connection.destinations.create(queue, retain=3600)
    session = connection.session()
    consumer = session.consumer(queue)
    consumed = []

    def consume(number):
        """All that is there, after the first batch: the stream has read one message of four."""
        while number == 0 and len(consumed) < 4:
            message = consumer.receive(timeout=30)
            assert message is not None
            consumed.append(message.body)
        session.acknowledge()

    for letter in "abcd":
        send(queue, letter)
    frame = stream(queue, start="earliest", maxMessagesPerTrigger="1")
    batches, _ = run(frame, tmp_path, consume)
    assert [len(rows) for rows in batches.values()] == [1, 1, 1, 1]
    assert bodies(batches) == consumed == [*"abcd"]
    send(queue, "e")
    assert consumer.receive(timeout=30).body == "e"
    session.close()
    assert bodies(run(frame, tmp_path)[0]) == ["e"]


def test_limits_hold_for_messages_and_bytes_together(stream, send, topic, tmp_path):
    for number in range(6):
        send(topic, *[f"{number}{place:099}" for place in range(10)])
    by_messages, _ = run(stream(topic, start="earliest", maxMessagesPerTrigger="20"), tmp_path / "a")
    assert [len(rows) for rows in by_messages.values()] == [20, 20, 20]
    by_bytes, _ = run(stream(topic, start="earliest", maxBytesPerTrigger="1100"), tmp_path / "b")
    assert [len(rows) for rows in by_bytes.values()] == [10] * 6
    options = {"maxMessagesPerTrigger": "5", "maxBytesPerTrigger": "100000"}
    by_both, _ = run(stream(topic, start="earliest", **options), tmp_path / "c")
    assert [len(rows) for rows in by_both.values()] == [10] * 6, "a log entry is not divided"
    assert bodies(by_messages) == bodies(by_bytes) == bodies(by_both)


def test_once_reads_all_that_is_there(stream, send, topic, tmp_path):
    for body in "abc":
        send(topic, body)
    batches, _ = run(stream(topic, start="earliest", maxMessagesPerTrigger="1"), tmp_path, once=True)
    assert bodies(batches) == ["a", "b", "c"]
    assert len(batches) == 1


def test_new_destinations_join_a_glob(stream, send, connection, tmp_path):
    for name in ("join.a", "join.b"):
        connection.destinations.create(f"topic:{name}", retain=3600)
    send("topic:join.a", "a")
    frame = stream("glob:topic:join.*", start="earliest")
    assert bodies(run(frame, tmp_path)[0]) == ["a"]
    connection.destinations.create("topic:join.late", retain=3600)
    send("topic:join.late", "late")
    send("topic:join.b", "b")
    assert sorted(bodies(run(frame, tmp_path)[0])) == ["b", "late"]


def test_a_failed_batch_comes_again_with_the_same_rows(stream, send, topic, tmp_path):
    send(topic, *"abc")
    frame = stream(topic, start="earliest")
    seen = []

    def fail(number):
        seen.append(number)
        raise RuntimeError("the sink is broken")

    with pytest.raises(Exception, match="the sink is broken"):
        run(frame, tmp_path, fail)
    send(topic, "later")
    batches, _ = run(frame, tmp_path)
    assert [bytes(row.body) for row in batches[seen[0]]] == [b"a", b"b", b"c"]
    assert bodies(batches) == ["a", "b", "c", "later"]


def test_a_named_reader_shows_its_lag(stream, send, topic, connection, tmp_path, request):
    name = request.node.name
    send(topic, *"abc")
    frame = stream(topic, start="earliest", subscription=name)
    run(frame, tmp_path)
    run(frame, tmp_path)  # says where the first one came to
    send(topic, *"de")
    readers = [reader for reader in connection.status()["readers"] if reader["name"] == name]
    assert sum(reader["lag"] for reader in readers) == 2
    assert {reader["channel"] for reader in readers} == {found["name"] for found in connection.status()["channels"]}


def test_a_channel_that_vanished_stays_in_the_offset(stream, send, topic, tmp_path):
    send(topic, "a")
    frame = stream(topic, start="earliest")
    run(frame, tmp_path)
    rename_channel(tmp_path, {"gone": 9})
    send(topic, "b")
    assert bodies(run(frame, tmp_path)[0]) == ["b"]
    assert newest_offset(tmp_path)["gone"] == 9


def test_what_was_not_read_of_a_vanished_channel_is_named(stream, send, topic, tmp_path):
    send(topic, "a")
    frame = stream(topic, start="earliest")
    run(frame, tmp_path)
    rename_channel(tmp_path, {"gone": 9})
    start = newest_offset(tmp_path)
    number = newest_file(tmp_path / "offsets")
    following = number.with_name(str(int(number.name) + 1))
    lines = number.read_text().splitlines()
    following.write_text("\n".join([*lines[:-1], json.dumps({**start, "gone": 12})]))
    with pytest.raises(Exception, match="no channel gone any more, and log entries 9 to 11 of it were not read"):
        run(frame, tmp_path)
    assert bodies(run(stream(topic, start="earliest", failOnDataLoss="false"), tmp_path)[0]) == []


def test_a_damaged_checkpoint_is_named(stream, send, topic, tmp_path):
    send(topic, "a")
    frame = stream(topic, start="earliest")
    run(frame, tmp_path)
    rename_channel(tmp_path, {"channel-1": "seven"})
    with pytest.raises(Exception, match="is none of alphorn's; restore its checkpoint"):
        run(frame, tmp_path)


def test_an_end_is_for_batches(stream, topic, tmp_path):
    with pytest.raises(Exception, match="the option end is for batches"):
        run(stream(topic, end="latest"), tmp_path)


def newest_file(directory):
    return directory / max((file.name for file in directory.iterdir() if file.name.isdigit()), key=int)


def newest_offset(checkpoint):
    return json.loads(newest_file(checkpoint / "offsets").read_text().splitlines()[-1])


def rename_channel(checkpoint, change):
    """Changes the newest offset of a query's checkpoint."""
    file = newest_file(checkpoint / "offsets")
    lines = file.read_text().splitlines()
    file.write_text("\n".join([*lines[:-1], json.dumps({**json.loads(lines[-1]), **change})]))
    for other in file.parent.glob(f".{file.name}*.crc"):
        other.unlink()
