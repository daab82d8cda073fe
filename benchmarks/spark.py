"""How fast Spark reads and writes alphorn: a local Spark with two threads and a cluster of real processes beside it.

    python benchmarks/spark.py [--rows 1000000] [--only read,columns,large,parquet,sink] [--kafka FOLDER] [--json]

All share this machine's cores, so the figures are what a laptop sees, not what a cluster does. A first run of each work
warms Spark up and is not counted. The stream to Parquet is measured from the end of its first batch on, when it runs
steadily; all others with everything that belongs to them. With `--kafka` (benchmarks/kafka_broker.py) each work is done
with Kafka's own connector right after, on the same Spark, from one broker that keeps one copy and does not wait for its
disk; alphorn keeps two and does. Kafka's sink is not exactly once.
"""

import argparse
import contextlib
import datetime
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kafka_broker

import alphorn.testing
from alphorn.client.blocking.connection import Connection

WORKS = {
    "read": "batch read, 100-byte bodies, all columns",
    "columns": "the same, columns=body,sequence",
    "large": "batch read, 1 KB bodies, all columns",
    "parquet": "stream to Parquet (zstd)",
    "sink": "stream sink, exactly once",
}
TARGETS = {"read": 500_000, "columns": 1_300_000, "large": 250_000, "parquet": 250_000, "sink": 150_000}
SEND = 10_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--only", default=",".join(WORKS))
    parser.add_argument("--kafka", type=Path, help="a folder with Kafka's jars")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    figures: dict[str, dict[str, float]] = {}
    reason = kafka_broker.missing(arguments.kafka)
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(alphorn.testing.cluster(client_managers=1))
        spark = _spark([] if reason else kafka_broker.connector_jars(arguments.kafka))
        systems: list[Alphorn | Kafka] = [Alphorn(cluster.url, stack.enter_context(cluster.connect()))]
        if not reason:
            systems.append(Kafka(stack.enter_context(kafka_broker.broker(arguments.kafka)), spark))
        for name in arguments.only.split(","):
            figures[name] = {it.name: _rate(it, spark, arguments.rows, name) for it in systems}
            if not arguments.json:
                told = "   ".join(f"{system} {rate:12,.0f}" for system, rate in figures[name].items())
                print(f"{WORKS[name]:45} {told} rows/s   target {TARGETS[name]:,}", flush=True)
    kafka = f"not measured: {reason}" if reason else kafka_broker.versions(arguments.kafka)
    if arguments.json:
        print(json.dumps({"rows": arguments.rows, "rows_per_second": figures, "kafka": kafka, "spark": spark.version}))
    else:
        print(f"Spark {spark.version}; Kafka: {kafka}")


def _rate(system: "Alphorn | Kafka", spark: Any, rows: int, work: str) -> float:
    """Rows a second; not a number where Kafka's connector is too old for this Spark."""
    from pyspark.errors import PySparkException

    try:
        return float(getattr(Bench(system, spark, rows), work)())
    except PySparkException as error:
        if isinstance(system, Alphorn):
            raise
        print(f"Kafka's connector does not fit: {str(error).splitlines()[0]}", file=sys.stderr)
        return math.nan


def _spark(jars: list[str]) -> Any:
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.memory", "3g")
    )
    spark = (builder.config("spark.jars", ",".join(jars)) if jars else builder).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


class Alphorn:
    """How this cluster is filled, read and written."""

    name = "alphorn"
    format = "alphorn"
    body = "body"

    def __init__(self, url: str, connection: Connection) -> None:
        self._url = url
        self._connection = connection
        self._filled: dict[str, int] = {}

    def fill(self, topic: str, size: int, rows: int) -> int:
        if topic not in self._filled:
            self.create(topic)
            producer = self._connection.session().producer(f"topic:{topic}")
            for _ in range(0, rows, SEND):
                producer.send_many([os.urandom(size // 2).hex().encode() for _ in range(SEND)])
            producer.flush()
            self._filled[topic] = -(-rows // SEND) * SEND
        return self._filled[topic]

    def reading(self, topic: str, columns: str = "") -> dict[str, str]:
        chosen = {"columns": columns} if columns else {}
        return {"url": self._url, "destination": f"topic:{topic}", "start": "earliest", **chosen}

    def limits(self, rows: int) -> dict[str, str]:
        return {"maxMessagesPerTrigger": str(rows), "minPartitions": "2"}

    def writing(self, topic: str) -> dict[str, str]:
        return {"url": self._url, "destination": f"topic:{topic}"}

    def create(self, topic: str) -> None:
        self._connection.destinations.create(f"topic:{topic}", retain=86_400)

    def delete(self, topic: str) -> None:
        self._connection.destinations.delete(f"topic:{topic}")


class Kafka:
    """The same for a broker of Kafka; its connector fills it, and two partitions give both threads work."""

    name = "kafka"
    format = "kafka"
    body = "value"

    def __init__(self, address: str, spark: Any) -> None:
        self._servers = {"kafka.bootstrap.servers": address}
        self._spark = spark
        self._filled: set[str] = set()

    def fill(self, topic: str, size: int, rows: int) -> int:
        if topic not in self._filled:
            parts = ", ".join(f"sha2(concat(id, '.{part}'), 256)" for part in range(-(-size // 64)))
            text = f"substr(concat({parts}), 1, {size})"
            values = self._spark.range(0, rows, 1, 2).selectExpr(f"cast({text} as binary) value")
            values.write.format("kafka").options(**self.writing(topic)).save()
            self._filled.add(topic)
        return rows

    def reading(self, topic: str, columns: str = "") -> dict[str, str]:
        return {**self._servers, "subscribe": topic, "startingOffsets": "earliest"}

    def limits(self, rows: int) -> dict[str, str]:
        return {"maxOffsetsPerTrigger": str(rows)}

    def writing(self, topic: str) -> dict[str, str]:
        return {**self._servers, "topic": topic}

    def create(self, topic: str) -> None:
        """It creates topics on first use."""

    def delete(self, topic: str) -> None:
        """Its copies are let go with the broker."""


class Bench:
    """The works. Each gives rows a second."""

    def __init__(self, system: Alphorn | Kafka, spark: Any, rows: int) -> None:
        self._system = system
        self._spark = spark
        self._rows = rows

    def read(self) -> float:
        rows = self._system.fill("small", 100, self._rows)
        return self._best(rows, lambda: self._consume("small"))

    def columns(self) -> float:
        rows = self._system.fill("small", 100, self._rows)
        chosen = f"{self._system.body}", "offset" if isinstance(self._system, Kafka) else "sequence"
        return self._best(rows, lambda: self._consume("small", *chosen))

    def large(self) -> float:
        rows = self._system.fill("large", 1000, self._rows // 2)
        return self._best(rows, lambda: self._consume("large"))

    def parquet(self) -> float:
        self._system.fill("many", 100, 2 * self._rows)

        def archive() -> float:
            with tempfile.TemporaryDirectory() as directory:
                writer = self._stream("many", self._rows // 2).writeStream.format("parquet")
                writer = writer.option("compression", "zstd").option("path", f"{directory}/out")
                return _steady_rate(self._finish(writer, directory))

        archive()
        return max(archive() for _ in range(2))

    def sink(self) -> float:
        rows = self._system.fill("small", 100, self._rows)

        def copy() -> None:
            with tempfile.TemporaryDirectory() as directory:
                self._system.create("copy")
                read = self._stream("small", self._rows // 4, self._system.body).select(self._system.body)
                writer = read.writeStream.format(self._system.format).options(**self._system.writing("copy"))
                self._finish(writer, directory)
                self._system.delete("copy")

        return self._best(rows, copy)

    def _consume(self, topic: str, *columns: str) -> None:
        """Reads every row and keeps none."""
        options = self._system.reading(topic, ",".join(columns))
        read = self._spark.read.format(self._system.format).options(**options).load()
        (read.select(*columns) if columns else read).write.format("noop").mode("overwrite").save()

    def _stream(self, topic: str, batch: int, columns: str = "") -> Any:
        options = {**self._system.reading(topic, columns), **self._system.limits(batch)}
        return self._spark.readStream.format(self._system.format).options(**options).load()

    @staticmethod
    def _finish(writer: Any, directory: str) -> list[Any]:
        """Runs a stream to the end of what is there; gives its progress, batch by batch."""
        checkpoint = str(Path(directory) / "checkpoint")
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()
        return [progress for progress in query.recentProgress if progress.numInputRows]

    @staticmethod
    def _best(rows: int, work: Callable[[], None], rounds: int = 2) -> float:
        work()
        best = 0.0
        for _ in range(rounds):
            began = time.perf_counter()
            work()
            best = max(best, rows / (time.perf_counter() - began))
        return best


def _steady_rate(progress: list[Any]) -> float:
    """Rows a second from the end of the first batch to the end of the last."""
    ends = [_end_of(one) for one in progress]
    return sum(one.numInputRows for one in progress[1:]) / (ends[-1] - ends[0])


def _end_of(progress: Any) -> float:
    began = datetime.datetime.fromisoformat(progress.timestamp)
    return began.timestamp() + progress.durationMs["triggerExecution"] / 1000


if __name__ == "__main__":
    main()
