"""Settings for tables of a few rows: what makes large ones fast takes most of the time here."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

SMALL = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


@pytest.fixture(autouse=True, scope="package")
def small_tables(spark: SparkSession) -> Iterator[None]:
    source = str(Path(__file__).parents[3] / "src")
    os.environ["PYTHONPATH"] = f"{source}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    before = {name: spark.conf.get(name) for name in SMALL}
    for name, value in SMALL.items():
        spark.conf.set(name, value)
    yield
    for name, value in before.items():
        spark.conf.set(name, value)
