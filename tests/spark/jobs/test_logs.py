"""The log lines of the nodes of every channel, read by a job and received by a client: each once."""

import datetime
import json
from collections import Counter

import pytest
from pyspark.sql import SparkSession
from rich.console import Console

import alphorn
import alphorn.testing
from alphorn.spark.jobs.runners import Surroundings, run_logs

WAIT_S = 60.0

pytestmark = pytest.mark.processes


@pytest.mark.requirement("LOG-2", "WKD-1")
def test_a_job_and_a_client_have_the_same_lines_of_all_channels(
    spark: SparkSession, cluster: alphorn.testing.Cluster, connection: alphorn.Connection
) -> None:
    nodes = {node["name"] for node in cluster.status()["nodes"] if node["kind"].endswith("_manager")}
    received: Counter[tuple[str, str, str]] = Counter()
    with connection.session() as session:
        consumer = session.consumer("topic:_LOG", start="earliest")
        while {node for _, node, _ in received} < nodes:
            message = consumer.receive(WAIT_S)
            assert message is not None
            line = json.loads(message.body)
            received[line["time"][:26], line["node"], line["event"]] += 1
    around = Surroundings(spark, cluster.url, Console(quiet=True), lambda sentence: None)
    lines, _ = run_logs(around, window="1 hour", last=100_000, out=None)
    read = Counter(
        (line["time"].astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%f"), line["node"], line["event"])
        for line in lines
    )
    assert {line: read[line] for line in received} == dict(received)
