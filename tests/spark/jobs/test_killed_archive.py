"""The driver of an archive is killed at its worst moments and started again: nothing is there twice or missing."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet
import pytest

import alphorn.testing
from alphorn.spark.jobs.manifest import open_manifest

TOPIC = "topic:killed"
PATIENCE_S = 600.0  # generous: only what hangs meets it
ROOT = Path(__file__).parents[3]
DRIVER = Path(__file__).parent / "archive_driver.py"

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.spark]


def run_driver(url: str, root: Path, moment: str, version: int) -> int:
    arguments = [sys.executable, str(DRIVER), url, str(root), moment, str(version)]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    quiet = subprocess.DEVNULL  # no pipes: Spark's workers outlive the driver for a moment
    process = subprocess.Popen(arguments, start_new_session=True, env=environment, stdout=quiet, stderr=quiet)
    return process.wait(PATIENCE_S)


def archived(root: Path) -> list[int]:
    found: list[int] = []
    for path in open_manifest(root).files:
        found += [int(body) for body in pyarrow.parquet.read_table(root / path, columns=["body"])["body"].to_pylist()]
    return found


def test_an_archive_whose_driver_is_killed_has_each_message_once(tmp_path: Path) -> None:
    with alphorn.testing.cluster() as cluster, cluster.connect() as connection:
        connection.destinations.create(TOPIC, retain=3600)
        producer = connection.session().producer(TOPIC)
        for first in range(0, 400, 50):
            producer.send_many(list(range(first, first + 50)))
            producer.flush()
        # The files of the second batch are written, and no version names them.
        assert run_driver(cluster.url, tmp_path, "before", 2) == -signal.SIGKILL
        assert archived(tmp_path) == list(range(100))
        # The second batch is archived, and Spark does not know it.
        assert run_driver(cluster.url, tmp_path, "after", 2) == -signal.SIGKILL
        assert sorted(archived(tmp_path)) == list(range(200))
        assert run_driver(cluster.url, tmp_path, "never", 0) == 0
        assert sorted(archived(tmp_path)) == list(range(400))
