"""Kafka beside alphorn, for benchmarks/spark.py: one broker in KRaft mode, a local process from jars that are there.

Nothing is downloaded here. A folder has two others: `broker`, with org.apache.kafka:kafka_2.13 and what it needs, and
`connector`, with org.apache.spark:spark-sql-kafka-0-10_2.13 of Spark's version and what that needs beyond Spark.
Maven fills both (`dependency:copy-dependencies`).
"""

import contextlib
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

START_S = 60.0
CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"
SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{control}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{control}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={directory}/data
offsets.topic.replication.factor=1
num.partitions=2
"""


def missing(folder: Path | None) -> str:
    """Why Kafka cannot be measured; empty where it can."""
    if folder is None:
        return (
            "no jars were named; fill a folder with Maven as benchmarks/kafka_broker.py says, and give it with --kafka"
        )
    for part, jar in (("broker", "kafka_2.13-*.jar"), ("connector", "spark-sql-kafka-0-10_2.13-*.jar")):
        if not list((folder / part).glob(jar)):
            return f"{folder / part} holds no {jar}; fill it with Maven as benchmarks/kafka_broker.py says"
    return ""


def connector_jars(folder: Path) -> list[str]:
    """What Spark needs for `.format("kafka")`."""
    return [str(jar.resolve()) for jar in sorted((folder / "connector").glob("*.jar"))]


def versions(folder: Path) -> str:
    """Which broker and connector these are."""
    broker = next((folder / "broker").glob("kafka_2.13-*.jar")).stem.removeprefix("kafka_2.13-")
    found = next((folder / "connector").glob("spark-sql-kafka-0-10_2.13-*.jar")).stem
    return f"broker {broker}, connector {found.removeprefix('spark-sql-kafka-0-10_2.13-')}"


@contextlib.contextmanager
def broker(folder: Path) -> Iterator[str]:
    """A broker that runs, and its address."""
    with tempfile.TemporaryDirectory() as directory:
        port, control = _free_port(), _free_port()
        settings = Path(directory) / "server.properties"
        settings.write_text(SETTINGS.format(port=port, control=control, directory=directory))
        java = ["java", "-Xmx1g", "-cp", f"{folder}/broker/*"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        format_ = ["kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(settings)]
        subprocess.run([*java, *format_], check=True, **quiet)  # type: ignore[call-overload]
        process = subprocess.Popen([*java, "kafka.Kafka", str(settings)], **quiet)  # type: ignore[call-overload]
        try:
            _await(port)
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait()


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _await(port: int) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), 1.0).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise SystemExit(f"Kafka's broker did not start within {START_S:g} s")
