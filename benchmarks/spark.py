"""How fast Spark reads and writes alphorn: a local Spark with two threads and a cluster of real processes beside it.

    python benchmarks/spark.py [--rows 1000000] [--only read,columns,large,parquet,sink] [--json]

All share this machine's cores, so the figures are what a laptop sees, not what a cluster does. A first run of each work
warms Spark up and is not counted. The Kafka connector needs jars from Maven and is not measured here.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

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
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    figures: dict[str, float] = {}
    with alphorn.testing.cluster(client_managers=1) as cluster, cluster.connect() as connection:
        bench = Bench(cluster.url, connection, arguments.rows)
        for name in arguments.only.split(","):
            figures[name] = getattr(bench, name)()
            if not arguments.json:
                print(f"{WORKS[name]:45} {figures[name]:12,.0f} rows/s   target {TARGETS[name]:,}", flush=True)
    if arguments.json:
        print(json.dumps({"rows": arguments.rows, "rows_per_second": figures}))
    else:
        print("Kafka's connector was not measured: its jars come from Maven")


class Bench:
    """The works. Each gives rows a second."""

    def __init__(self, url: str, connection: Connection, rows: int) -> None:
        from pyspark.sql import SparkSession

        self._url = url
        self._connection = connection
        self._rows = rows
        self._filled: dict[str, int] = {}
        self._spark = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.driver.memory", "3g")
            .getOrCreate()
        )
        self._spark.sparkContext.setLogLevel("OFF")

    def read(self) -> float:
        rows = self._fill("topic:small", 100, self._rows)
        return self._best(rows, lambda: self._consume("topic:small"))

    def columns(self) -> float:
        rows = self._fill("topic:small", 100, self._rows)
        return self._best(rows, lambda: self._consume("topic:small", columns="body,sequence"))

    def large(self) -> float:
        rows = self._fill("topic:large", 1000, self._rows // 4)
        return self._best(rows, lambda: self._consume("topic:large"))

    def parquet(self) -> float:
        rows = self._fill("topic:small", 100, self._rows)

        def archive() -> None:
            with tempfile.TemporaryDirectory() as directory:
                writer = self._stream("topic:small").writeStream.format("parquet").option("compression", "zstd")
                self._finish(writer.option("path", f"{directory}/out"), directory)

        return self._best(rows, archive)

    def sink(self) -> float:
        rows = self._fill("topic:small", 100, self._rows)

        def copy() -> None:
            with tempfile.TemporaryDirectory() as directory:
                self._connection.destinations.create("topic:copy", retain=3600)
                writer = self._stream("topic:small", columns="body").writeStream.format("alphorn")
                self._finish(writer.options(url=self._url, destination="topic:copy"), directory)
                self._connection.destinations.delete("topic:copy")

        return self._best(rows, copy)

    def _fill(self, topic: str, size: int, rows: int) -> int:
        if topic not in self._filled:
            self._connection.destinations.create(topic, retain=86_400)
            producer = self._connection.session().producer(topic)
            for _ in range(0, rows, SEND):
                producer.send_many([os.urandom(size // 2).hex().encode() for _ in range(SEND)])
            producer.flush()
            self._filled[topic] = -(-rows // SEND) * SEND
        return self._filled[topic]

    def _consume(self, topic: str, **options: str) -> None:
        """Reads every row and keeps none."""
        reader = self._spark.read.format("alphorn").options(url=self._url, destination=topic, **options)
        reader.load().write.format("noop").mode("overwrite").save()

    def _stream(self, topic: str, **options: str):  # type: ignore[no-untyped-def]
        options = {"start": "earliest", "maxMessagesPerTrigger": "250000", "minPartitions": "2", **options}
        return self._spark.readStream.format("alphorn").options(url=self._url, destination=topic, **options).load()

    @staticmethod
    def _finish(writer, directory: str) -> None:  # type: ignore[no-untyped-def]
        checkpoint = str(Path(directory) / "checkpoint")
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()

    @staticmethod
    def _best(rows: int, work: Callable[[], None], rounds: int = 2) -> float:
        work()
        best = 0.0
        for _ in range(rounds):
            began = time.perf_counter()
            work()
            best = max(best, rows / (time.perf_counter() - began))
        return best


if __name__ == "__main__":
    main()
