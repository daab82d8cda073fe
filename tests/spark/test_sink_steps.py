"""The sink's driver is killed, and destinations are moved, exactly between two steps of a publication."""

import contextlib
import os
import signal
import socket
from collections.abc import Iterator
from unittest import mock

import pytest

from alphorn.client.staging import drop_staged
from alphorn.spark.source import AlphornDataSource

TIMEOUT = "120"
PATIENCE_S = 120.0  # generous: only what hangs meets it
STEP_BYTES = 8  # the pid of who takes it


def stopping(port: int) -> type[AlphornDataSource]:
    """A data source "stopping", whose sink asks before it publishes on each channel, and goes on when it is answered.

    Its classes are made in a function, so that Spark sends them to its workers, which do not find modules of tests.
    """
    from alphorn.client import staging
    from alphorn.spark.sink import StreamSink

    class StoppingSink(StreamSink):
        def commit(self, messages, batchId):  # noqa: N803 Spark's name
            original = staging._ask

            def ask(connection, make, what, timeout_s):
                with socket.create_connection(("127.0.0.1", port)) as stream:
                    stream.sendall(os.getpid().to_bytes(STEP_BYTES, "big"))
                    stream.recv(1)
                return original(connection, make, what, timeout_s)

            with mock.patch.object(staging, "_ask", ask):
                super().commit(messages, batchId)

    class StoppingSource(AlphornDataSource):
        @classmethod
        def name(cls):
            return "stopping"

        def streamWriter(self, schema, overwrite):  # noqa: N802 Spark's name
            return StoppingSink(super().streamWriter(schema, overwrite)._options)

    return StoppingSource


class Steps:
    """Where sinks ask. Each is answered before the next one asks."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._listening.settimeout(PATIENCE_S)
        self.port = self._listening.getsockname()[1]

    @contextlib.contextmanager
    def step(self) -> Iterator[int]:
        """The next one: nothing is published inside the `with` block. Gives the pid of whoever publishes then."""
        with self._listening.accept()[0] as stream:
            stream.settimeout(PATIENCE_S)
            yield int.from_bytes(stream.recv(STEP_BYTES, socket.MSG_WAITALL), "big")
            with contextlib.suppress(OSError):  # who was killed hears nothing
                stream.sendall(b".")

    def close(self) -> None:
        self._listening.close()


@pytest.fixture
def steps(spark):
    made = Steps()
    spark.dataSource.register(stopping(made.port))
    yield made
    made.close()


@pytest.fixture
def start(spark, cluster, tmp_path):
    """Starts a query that writes lines to a queue that they name, and ends when it has written all; always the same."""
    (tmp_path / "lines").mkdir()

    def make(lines, sink):
        (tmp_path / "lines" / "all").write_text("".join(f"{destination} {body}\n" for destination, body in lines))
        rows = spark.readStream.text(str(tmp_path / "lines"))
        frame = rows.selectExpr("split(value, ' ')[0] destination", "split(value, ' ')[1] body")
        options = {"url": cluster.url, "timeout": TIMEOUT, "checkpointLocation": str(tmp_path / "checkpoint")}
        return frame.writeStream.format(sink).options(**options).trigger(availableNow=True).start()

    return make


def received(connection, destination, count):
    with connection.session() as session:
        consumer = session.consumer(destination)
        found = sorted(consumer.receive(30).body for _ in range(count))
        assert consumer.receive(0.2) is None
        return found


def test_a_batch_is_not_taken_for_written_where_a_queue_moved_on_before_it_was_published(
    steps, start, connection, cluster, request
):
    """Whoever publishes is killed between two channels; then the queue of the second one moves to the first, and back.

    It leaves the first when the batch, run again, is staged for it there and not published yet. What is staged is let
    go before, as whoever moves a destination is told to.
    """
    staying, moving = f"queue:{request.node.name}.staying", f"queue:{request.node.name}.moving"
    for name, channel in ((staying, "channel-1"), (moving, "channel-2")):
        connection.destinations.create(name)
        connection.destinations.move(name, channel)
    lines = [(name, f"{number}") for name in (staying, moving) for number in range(20)]
    query = start(lines, "stopping")
    with steps.step():
        pass
    with steps.step() as pid:
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(Exception, match=r".*"):
        query.awaitTermination()
    connection.destinations.move(moving, "channel-1")
    query = start(lines, "stopping")
    with steps.step():
        drop_staged(connection, str(query.id), 0, [0])
        connection.destinations.move(moving, "channel-2")
    with pytest.raises(Exception, match=r"to another channel before batch 0 of .* was in it; run the batch again"):
        query.awaitTermination()
    start(lines, "alphorn").awaitTermination()
    bodies = sorted(f"{number}" for number in range(20))
    assert received(connection, staying, 20) == bodies
    assert received(connection, moving, 20) == bodies
