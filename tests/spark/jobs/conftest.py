"""Settings for tables of a few rows: what makes large ones fast takes most of the time here."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.jobs.small import SMALL, make_small


@pytest.fixture(autouse=True, scope="package")
def small_tables(spark: SparkSession) -> Iterator[None]:
    source = str(Path(__file__).parents[3] / "src")
    os.environ["PYTHONPATH"] = f"{source}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    before = {name: spark.conf.get(name) for name in SMALL}
    make_small(spark)
    yield
    for name, value in before.items():
        spark.conf.set(name, value)
