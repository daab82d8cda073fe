"""A node is killed exactly when the sink publishes: batches are whole, and there once."""

import pytest

import alphorn.testing
from alphorn.client_manager.log_clients import PUBLISH_ANSWERED, PUBLISH_ASKED
from alphorn.io.crash_points import PUBLISH_APPLIED
from tests.semantics.layouts import name_of
from tests.semantics.waiting import until
from tests.spark.test_sink_steps import Steps, stopping

CHANNELS = ("channel-1", "channel-2")
ROWS = 50
TIMEOUT = "120"


@pytest.fixture(scope="module")
def deadly():
    """A cluster of which nodes may die: each channel has a backup, and clients another Client Manager."""
    with alphorn.testing.cluster(client_managers=2, channels=2) as made:
        yield made


@pytest.fixture
def steps(spark):
    made = Steps()
    spark.dataSource.register(stopping(made.port))
    yield made
    made.close()


def serving(cluster):
    """The Client Managers that have a client."""
    return [name for name in cluster.client_managers if cluster.describe(name)[name]["client_manager"]["connections"]]


def received(connection, destination, count):
    with connection.session() as session, session.consumer(destination) as consumer:
        found = [consumer.receive(30).body for _ in range(count)]
        assert consumer.receive(0.2) is None
        return found


@pytest.mark.parametrize("step", [PUBLISH_ASKED, PUBLISH_APPLIED, PUBLISH_ANSWERED])
@pytest.mark.parametrize("channel", CHANNELS)
def test_a_batch_is_whole_and_there_once_when_a_node_is_killed_as_it_is_published(
    steps, spark, deadly, tmp_path, request, channel, step
):
    """Goal: what the sink is told to be published is there, whoever dies. Method: the sink waits before it publishes on
    each of two channels; before one of them its primary, or the Client Manager, is told to die at a step."""
    queues = {name: f"queue:{name_of(request.node)}.{name}" for name in CHANNELS}
    with deadly.connect() as connection:
        for name, queue in queues.items():
            connection.destinations.create(queue)
            connection.destinations.move(queue, name)
    until(lambda: not serving(deadly))
    (tmp_path / "lines").mkdir()
    lines = [f"{queue} {number}\n" for number in range(ROWS) for queue in queues.values()]
    (tmp_path / "lines" / "all").write_text("".join(lines))
    rows = spark.readStream.text(str(tmp_path / "lines")).coalesce(1)
    frame = rows.selectExpr("split(value, ' ')[0] destination", "split(value, ' ')[1] body")
    options = {"url": deadly.url, "timeout": TIMEOUT, "checkpointLocation": str(tmp_path / "checkpoint")}
    query = frame.writeStream.format("stopping").options(**options).trigger(availableNow=True).start()
    for name in CHANNELS:
        with steps.step():
            if name == channel:
                victim = deadly.primary(name) if step == PUBLISH_APPLIED else " ".join(serving(deadly))
                deadly.die_at(victim, step)
    query.awaitTermination()
    assert not deadly.nodes[victim], "it was reached"
    deadly.restart(victim)
    with deadly.connect() as connection:
        bodies = [f"{number}" for number in range(ROWS)]
        assert [received(connection, queue, ROWS) for queue in queues.values()] == [bodies, bodies]
