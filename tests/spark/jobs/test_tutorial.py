"""The tutorial runs as its own program and shows what it promises; so does the demonstration's heart."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from alphorn.cli.pipeline import sentence_of
from alphorn.spark.jobs.demonstration import sales
from tests.spark.jobs.tables import message, table

ROOT = Path(__file__).parents[3]


@pytest.mark.processes
def test_the_tutorial_reads_aggregates_writes_back_and_queries_its_archive() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    environment.pop("ALPHORN_URL", None)
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "spark_orders.py")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    archived = [line for line in lines if line.startswith("archive: ")]
    assert len([line for line in lines if line.startswith("sales: ")]) == 3
    assert [line.split()[1] for line in archived] == ["asia", "eu", "us"]
    assert sum(int(line.split()[3]) for line in archived) == 300


def test_orders_are_summed_up_by_region_and_span_of_time(spark: SparkSession) -> None:
    rows = [
        message(second, body=json.dumps({"id": second, "amount": 10 + second}), properties={"region": region})
        for second, region in ((0, "eu"), (4, "eu"), (9, "us"), (11, "eu"))
    ]
    bodies = [row["body"] for row in sales(table(spark, rows)).collect()]
    assert "until 12:00:10 eu ordered 2 times, for 24 in all" in [sentence_of(body) for body in bodies]
    found = [json.loads(body) for body in bodies]
    assert sorted(found, key=lambda row: (row["until"], row["region"])) == [
        {"until": "12:00:10", "region": "eu", "orders": 2, "amount": 24},
        {"until": "12:00:10", "region": "us", "orders": 1, "amount": 19},
        {"until": "12:00:20", "region": "eu", "orders": 1, "amount": 21},
    ]
