"""One local Spark for all tests of jobs, and tables made up of a few rows."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pyspark = pytest.importorskip("pyspark")

from pyspark.sql import SparkSession  # noqa: E402


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from alphorn.spark.jobs.starting import start_spark

    os.environ["PYSPARK_PYTHON"] = sys.executable
    source = Path(__file__).parents[3] / "src"
    os.environ["PYTHONPATH"] = f"{source}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    small = {  # tables of a few rows: what makes large ones fast takes most of the time here
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        "spark.sql.shuffle.partitions": "1",
        "spark.default.parallelism": "1",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    }
    made = start_spark("tests", "local[2]", small)
    yield made
    made.stop()
