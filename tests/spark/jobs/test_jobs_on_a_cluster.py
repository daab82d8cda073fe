"""The jobs against a real cluster: what they read is what clients sent, and what they write clients receive."""

import contextlib
import datetime
import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import DataFrame, Row, SparkSession, functions
from rich.console import Console

import alphorn
import alphorn.testing
from alphorn.client.log_hashes import hash_replicas
from alphorn.client.log_reader import entry
from alphorn.model import log_link
from alphorn.model.errors import Misuse, Unavailable
from alphorn.model.log_hash import hash_text
from alphorn.spark import register
from alphorn.spark.jobs import consolidating
from alphorn.spark.jobs.archive import compact
from alphorn.spark.jobs.consolidate import Checkpoints
from alphorn.spark.jobs.consolidating import run_consolidate
from alphorn.spark.jobs.manifest import open_manifest
from alphorn.spark.jobs.runners import (
    CHECKPOINT,
    Surroundings,
    run_archive,
    run_audit,
    run_dead_letters,
    run_logs,
    run_replay,
    run_traffic,
    run_verify,
)
from alphorn.spark.tiers import read_tiers
from tests.client.replicas import Log, Replica
from tests.semantics.waiting import until

WAIT_S = 60.0
NO_TIME = datetime.timedelta(0)

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def cluster() -> Iterator[alphorn.testing.Cluster]:
    with alphorn.testing.cluster() as made:
        yield made


@pytest.fixture
def connection(cluster: alphorn.testing.Cluster) -> Iterator[alphorn.Connection]:
    with alphorn.connect(cluster.url, connect_timeout=WAIT_S) as made:
        yield made


@pytest.fixture
def around(spark: SparkSession, cluster: alphorn.testing.Cluster) -> Surroundings:
    return Surroundings(spark, cluster.url, Console(quiet=True), lambda sentence: None)


def send(connection: alphorn.Connection, destination: str, *bodies: object, **fields: object) -> None:
    with contextlib.closing(connection.session()) as session:
        producer = session.producer(destination)
        for body in bodies:
            producer.send(body, **fields)
        producer.flush()


def receive(connection: alphorn.Connection, destination: str, count: int, **options: object) -> list[alphorn.Message]:
    with contextlib.closing(connection.session()) as session:
        consumer = session.consumer(destination, **options)
        found = [consumer.receive(timeout=WAIT_S) for _ in range(count)]
        assert None not in found
        return [message for message in found if message is not None]


def numbers(around: Surroundings, destination: str, root: Path, tier: str = "auto") -> list[int]:
    rows = read_tiers(around.spark, url=around.url, destination=destination, archive=root, tier=tier)
    return sorted(int(bytes(row["body"])) for row in rows.select("body").collect())


def test_an_archive_and_the_log_together_have_each_message_once(
    around: Surroundings, connection: alphorn.Connection, tmp_path: Path
) -> None:
    topic = "topic:archived"
    connection.destinations.create(topic, retain=3600)
    send(connection, topic, *range(10))
    run_archive(around, tmp_path, topic)
    send(connection, topic, *range(10, 15))
    shutil.rmtree(tmp_path / CHECKPOINT)  # the job begins anew from the earliest message
    run_archive(around, tmp_path, topic, compacts=True)
    send(connection, topic, *range(15, 20))
    assert numbers(around, topic, tmp_path, "archive") == list(range(15))
    assert numbers(around, topic, tmp_path) == list(range(20))
    assert len(open_manifest(tmp_path).files) == 1
    assert run_verify(around, tmp_path) == []
    assert "archive" in str(connection.status()), "the job is a named reader"
    sent = run_replay(around, tmp_path, topic, to="queue:again", start=None, end=None)
    assert sent == 15
    again = receive(connection, "queue:again", 15)
    assert [message.body for message in again] == list(range(15))
    assert again[0].properties["replayed"].startswith("ID:")
    assert compact(around.spark, tmp_path).version == open_manifest(tmp_path).version


def read(around: Surroundings, destination: str, **options: str) -> DataFrame:
    register(around.spark)
    return around.spark.read.format("alphorn").options(url=around.url, destination=destination, **options).load()


def in_order(rows: DataFrame) -> list[Row]:
    return sorted(rows.collect(), key=lambda row: (row["sequence"], row["index"]))


def bodies(rows: DataFrame) -> list[int]:
    return sorted(int(bytes(row["body"])) for row in rows.select("body").collect())


def test_the_source_reads_archive_and_log_as_one_table(
    around: Surroundings, connection: alphorn.Connection, tmp_path: Path
) -> None:
    topic, root = "topic:tiers", str(tmp_path)
    connection.destinations.create(topic, retain=3600)
    send(connection, topic, *range(10), key="k", properties={"region": "eu"}, priority=7)
    run_archive(around, tmp_path, topic)
    connection.destinations.create("topic:tiers.later", retain=3600)
    send(connection, topic, *range(10, 15))
    send(connection, "topic:tiers.later", 99)
    live = in_order(read(around, topic, tier="live"))
    assert in_order(read(around, topic, archive=root)) == live
    assert in_order(read(around, topic, archive=root, tier="archive")) == live[:10]
    assert bodies(read(around, "glob:topic:tiers*", archive=root)) == [*range(15), 99]
    assert bodies(read(around, topic, archive=root, columns="destination,body")) == list(range(15))
    cut = json.dumps({live[0]["channel"]: live[0]["sequence"] + 1})
    assert bodies(read(around, topic, archive=root, start=cut)) == bodies(read(around, topic, start=cut, tier="live"))
    assert bodies(read(around, topic, archive=root, end=cut)) == bodies(read(around, topic, end=cut, tier="live"))


def test_what_is_archived_is_read_although_the_cluster_has_let_it_go(
    around: Surroundings, connection: alphorn.Connection, tmp_path: Path
) -> None:
    topic, root = "topic:tiers.released", tmp_path / "archive"
    connection.destinations.create(topic, retain=3600)
    send(connection, topic, *range(5), key="k")
    run_archive(around, root, topic)
    send(connection, "topic:tiers.others", 0)  # the log goes on meanwhile
    run_consolidate(around, tmp_path / "checkpoints", topic, releases=True)
    assert bodies(read(around, topic, archive=str(root))) == list(range(5))
    send(connection, topic, 5, key="k")
    assert bodies(read(around, topic, archive=str(root))) == list(range(6))
    assert bodies(read(around, topic, archive=str(root), pushdown="true").where("destination = 'topic:x'")) == []


def test_what_neither_tier_has_is_named(around: Surroundings, connection: alphorn.Connection, tmp_path: Path) -> None:
    topic, root = "topic:tiers.lost", tmp_path / "archive"
    connection.destinations.create(topic, retain=3600)
    send(connection, topic, 0, key="k")
    run_archive(around, root, topic)
    send(connection, topic, 1, key="k")
    run_consolidate(around, tmp_path / "checkpoints", topic, releases=True)
    send(connection, topic, 2, key="k")
    with pytest.raises(Exception, match=r"keeps no more of topic:tiers\.lost what arrived with log entries"):
        read(around, topic, archive=str(root)).collect()
    assert bodies(read(around, topic, archive=str(root), failOnDataLoss="false")) == [0, 2]


def test_an_archived_file_that_is_damaged_or_gone_is_named(
    around: Surroundings, connection: alphorn.Connection, tmp_path: Path
) -> None:
    topic, root = "topic:tiers.damaged", str(tmp_path)
    connection.destinations.create(topic, retain=3600)
    send(connection, topic, 0)
    run_archive(around, tmp_path, topic)
    [file] = open_manifest(tmp_path).files
    (tmp_path / file).write_bytes(b"PAR1 and nothing else PAR1")
    with pytest.raises(Exception, match=r"the archived file .*parquet cannot be read: .*; restore it from a copy"):
        read(around, topic, archive=root).collect()
    (tmp_path / file).unlink()
    with pytest.raises(Exception, match=r"the archived file .*parquet cannot be read: .*; restore it from a copy"):
        read(around, topic, archive=root).collect()


@pytest.mark.requirement("CKP-3", "CKP-7")
def test_a_topic_is_consolidated_step_by_step_and_the_cluster_forgets_what_all_replicas_agree_on(
    around: Surroundings, connection: alphorn.Connection, tmp_path: Path
) -> None:
    topic = "topic:prices"
    connection.destinations.create(topic, retain=3600)
    for key, body in (("a", 1), ("b", 2), ("a", 3)):
        send(connection, topic, body, key=key)
    made = run_consolidate(around, tmp_path, topic, publish="queue:state", releases=True)
    assert (made.keys, made.messages, made.before) == (2, 3, 0)
    state = {message.key: message.body for message in receive(connection, "queue:state", 2)}
    assert state == {"a": 3, "b": 2}
    assert numbers(around, topic, tmp_path, "live") == []
    for key, body in (("b", None), ("c", 9)):
        send(connection, topic, body, key=key)
    following = run_consolidate(around, tmp_path, topic)
    assert (following.keys, following.messages, following.before) == (2, 2, made.terminal)
    kept = Checkpoints(tmp_path, topic)
    rows = kept.state(around.spark, following).collect()
    assert {row["key"]: bytes(row["body"]) for row in rows} == {"a": b"3", "c": b"9"}
    with pytest.raises(Misuse, match="is consolidated through"):
        run_consolidate(around, tmp_path, topic, through=made.terminal)


def test_a_queue_that_retains_is_consolidated_with_what_was_consumed_and_keeps_what_was_not(
    around: Surroundings, connection: alphorn.Connection, tmp_path: Path
) -> None:
    queue = "queue:retained-prices"
    connection.destinations.create(queue, retain=3600)
    for key, body in (("a", 1), ("b", 2), ("a", 3)):
        send(connection, queue, body, key=key)
    assert [message.body for message in receive(connection, queue, 2)] == [1, 2]
    made = run_consolidate(around, tmp_path, queue, releases=True)
    assert (made.keys, made.messages) == (2, 3)
    rows = Checkpoints(tmp_path, queue).state(around.spark, made).collect()
    assert {row["key"]: bytes(row["body"]) for row in rows} == {"a": b"3", "b": b"2"}
    assert numbers(around, queue, tmp_path, "live") == [3], "it waits for a consumer"
    assert [message.body for message in receive(connection, queue, 1)] == [3]


def test_messages_without_a_key_are_not_forgotten_unasked(
    around: Surroundings, connection: alphorn.Connection, tmp_path: Path
) -> None:
    topic = "topic:unkeyed"
    connection.destinations.create(topic, retain=3600)
    send(connection, topic, 1, key="a")
    send(connection, topic, 2)
    with pytest.raises(Misuse, match="1 messages of topic:unkeyed have no key"):
        run_consolidate(around, tmp_path, topic, releases=True)
    assert numbers(around, topic, tmp_path, "live") == [1, 2]
    run_consolidate(around, tmp_path, topic, releases=True, forgets_unkeyed=True)
    assert numbers(around, topic, tmp_path, "live") == []


def test_a_topic_with_streams_is_not_consolidated_and_nothing_is_lost(
    around: Surroundings, connection: alphorn.Connection, tmp_path: Path
) -> None:
    topic = "topic:films"
    connection.destinations.create(topic, retain=3600)
    send(connection, topic, 1, key="a")
    with contextlib.closing(connection.session()) as session:
        session.producer(topic).send_stream(io.BytesIO(b"piece" * 300_000), key="film")
    with pytest.raises(Misuse, match="1 messages of topic:films were sent as streams"):
        run_consolidate(around, tmp_path, topic, releases=True)
    assert Checkpoints(tmp_path, topic).newest() is None
    rows = around.spark.read.format("alphorn").option("url", around.url).option("destination", topic)
    sizes = [row["stream_bytes"] for row in rows.option("columns", "sequence,stream_bytes").load().collect()]
    assert sorted(sizes, key=str) == [1_500_000, None]


@pytest.mark.requirement("CKP-3", "CKP-7")
def test_the_hash_of_what_was_read_is_that_of_every_replica_whichever_way_messages_came(
    around: Surroundings, connection: alphorn.Connection, tmp_path: Path
) -> None:
    topic = "topic:ways"
    connection.destinations.create(topic, retain=3600)
    send(connection, topic, *range(2000), key="plain", properties={"a": 1})
    send(connection, topic, "later", key="late", delay=3600.0)
    with contextlib.closing(connection.session(transacted=True)) as session:
        producer = session.producer(topic)
        producer.send("undone", key="t")
        session.rollback()
        producer.send("done", key="t")
        session.commit()
    rows = around.spark.createDataFrame([("s", f"{number}") for number in range(3000)], "key string, body string")
    rows.write.format("alphorn").option("url", around.url).option("destination", topic).mode("append").save()
    made = run_consolidate(around, tmp_path, topic)
    assert (made.messages, made.keys) == (2000 + 1 + 1 + 3000, 4)
    known, found = consolidating._locate(around.url, topic)
    assert len(known.servers) > 1
    hashes, reasons = hash_replicas(known.servers, found.number, entry(0), entry(made.terminal + 1), timeout_s=WAIT_S)
    assert reasons == {}
    assert {hash_text(said.hash) for said in hashes.values()} == {made.log_hash}


def assert_nothing_was_done(around: Surroundings, topic: str, tmp_path: Path) -> None:
    assert Checkpoints(tmp_path, topic).newest() is None
    assert numbers(around, topic, tmp_path, "live") == [1]


def with_other_hashes(rows: DataFrame) -> DataFrame:
    return rows.withColumn("log_hash", functions.bitwise_not("log_hash"))


def test_nothing_is_consolidated_when_something_else_was_read(
    around: Surroundings, connection: alphorn.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = "topic:misread"
    connection.destinations.create(topic, retain=3600)
    send(connection, topic, 1, key="a")
    live = consolidating.live
    monkeypatch.setattr(consolidating, "live", lambda *given: with_other_hashes(live(*given)))
    with pytest.raises(Unavailable, match=r"mm1 keeps 1 messages of topic:misread with hash \w{16}, and 1 with hash"):
        run_consolidate(around, tmp_path, topic, releases=True)
    assert_nothing_was_done(around, topic, tmp_path)


def test_nothing_is_consolidated_when_a_replica_keeps_something_else(
    around: Surroundings, connection: alphorn.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = "topic:disputed"
    connection.destinations.create(topic, retain=3600)
    send(connection, topic, 1, key="a")
    known, found = consolidating._locate(around.url, topic)
    with contextlib.closing(Replica(Log(), "mm9")) as other:
        other.change = lambda told: log_link.Hashed(told.request, entry(known.heard + 1), 1, 7)  # type: ignore[attr-defined]
        with_other = msgspec.structs.replace(known, servers=[*known.servers, ("mm9", other.address)])
        monkeypatch.setattr(consolidating, "_locate", lambda url, destination: (with_other, found))
        with pytest.raises(
            Unavailable,
            match=r"mm9 keeps 1 messages of topic:disputed with hash 0{15}7, and 1 .* nothing was consolidated, run it",
        ):
            run_consolidate(around, tmp_path, topic, releases=True)
    assert_nothing_was_done(around, topic, tmp_path)


@pytest.mark.requirement("DMQ-3")
def test_what_clients_did_on_an_audited_queue_breaks_no_rule_and_its_dead_are_sorted(
    around: Surroundings, connection: alphorn.Connection, tmp_path: Path
) -> None:
    queue = "queue:audited"
    connection.destinations.create(queue, audit=True, delivery_limit=2)
    send(connection, queue, *range(50))
    with contextlib.closing(connection.session(ack="individual")) as session:
        consumer = session.consumer(queue)
        refused = 0
        for _ in range(51):
            message = consumer.receive(timeout=WAIT_S)
            assert message is not None
            if message.body == 7:
                refused += 1
                message.reject()
            else:
                message.acknowledge()
        assert refused == 2

    def audit() -> tuple[dict[str, int], list[Row]]:
        around.spark.catalog.clearCache()  # what was read at an earlier look
        covered, found = run_audit(around, grace=NO_TIME, deadline=NO_TIME, out=tmp_path / "violations")
        return {row["stage"]: row["messages"] for row in covered if row["destination"] == queue}, found

    # What nodes testify follows what they did.
    expected = {"produced": 50, "committed": 50, "delivered": 50, "acknowledged": 49, "dead": 1}
    until(audit, lambda said: expected.items() <= said[0].items() and said[1] == [])
    [kind] = run_dead_letters(around, "queue:_DMQ")
    assert (kind["destination"], kind["reason"], kind["messages"], kind["samples"]) == (
        queue,
        "delivery limit",
        1,
        ["7"],
    )
    _, delays, drawn = run_traffic(around, queue, window="1 minute", archive_root=None, out=tmp_path / "pictures")
    assert [(row["destination"], row["messages"]) for row in delays] == [(queue, 50)]
    assert [path.name for path in drawn] == ["rates.png", "sizes.png", "delays.png", "traffic.html"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in drawn[:3])
    assert "queue:audited" in drawn[3].read_text()


def test_an_archive_goes_on_after_a_move_and_has_each_message_once(spark: SparkSession, tmp_path: Path) -> None:
    topic, root = "topic:moved", tmp_path / "archive"
    with alphorn.testing.cluster(backups=0, channels=2) as cluster, alphorn.connect(cluster.url) as connection:
        around = Surroundings(spark, cluster.url, Console(quiet=True), lambda sentence: None)
        connection.destinations.create(topic, retain=3600)
        send(connection, topic, *range(5))
        run_archive(around, root, topic)
        send(connection, topic, *range(5, 8))  # not archived before the move
        [home] = [row["channel"] for row in connection.destinations.list() if row["name"] == topic]
        connection.destinations.move(topic, "channel-2" if home == "channel-1" else "channel-1")
        send(connection, topic, *range(8, 10))
        with pytest.raises(Unavailable, match="came from another one topic:moved"):
            run_archive(around, root, topic)
        shutil.rmtree(root / CHECKPOINT)
        run_archive(around, root, topic)
        assert numbers(around, topic, root, "archive") == list(range(10))
        assert numbers(around, topic, root) == list(range(10)), "archive and log as one table"
        assert run_verify(around, root) == []


def test_traffic_has_no_delays_where_nothing_is_audited(spark: SparkSession) -> None:
    with alphorn.testing.cluster(backups=0) as cluster, alphorn.connect(cluster.url) as connection:
        send(connection, "queue:quiet", "one", "two")
        around = Surroundings(spark, cluster.url, Console(quiet=True), lambda sentence: None)
        totals, delays, drawn = run_traffic(around, "queue:quiet", window="1 minute", archive_root=None, out=None)
    assert ([row["messages"] for row in totals], delays, drawn) == ([2], [], [])


@pytest.mark.requirement("LOG-2")
def test_log_lines_of_all_nodes_come_in_order_of_time(around: Surroundings, tmp_path: Path) -> None:
    lines, complaints = run_logs(around, window="1 hour", last=1_000, out=tmp_path / "lines")
    assert {"cm1", "mm1", "mm2"} <= {line["node"] for line in lines}
    assert [line["time"] for line in lines] == sorted(line["time"] for line in lines)
    assert {row["node"] for row in complaints} >= {"cm1", "mm1", "mm2"}
    assert around.spark.read.parquet(str(tmp_path / "lines")).count() == len(lines)


def test_what_is_not_there_is_said_in_one_sentence(
    around: Surroundings, connection: alphorn.Connection, tmp_path: Path
) -> None:
    with pytest.raises(alphorn.InvalidDestination, match=r"^there is no topic:nowhere; create it"):
        run_archive(around, tmp_path, "topic:nowhere")
    with pytest.raises(Misuse, match="is no archive"):
        read_tiers(around.spark, url=around.url, destination="topic:x", archive=tmp_path / "nowhere")
    with pytest.raises(Misuse, match="tier is 'both'"):
        read_tiers(around.spark, url=around.url, destination="topic:x", archive=None, tier="both")
    with pytest.raises(Misuse, match="'glob:topic:x' names no kind of destination"):
        run_consolidate(around, tmp_path, "glob:topic:x")
    connection.destinations.create("queue:forgetful")
    with pytest.raises(Misuse, match="queue:forgetful keeps nothing for readers; give it a policy with retain"):
        run_consolidate(around, tmp_path, "queue:forgetful")
