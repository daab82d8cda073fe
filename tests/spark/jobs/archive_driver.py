"""An archive's driver to be killed: `python archive_driver.py URL FOLDER MOMENT VERSION`.

It dies with all it started, as by `kill -9`, `before` or `after` the manifest has this version; `never` lets it end.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from alphorn.spark.jobs.manifest import Manifest
from alphorn.spark.jobs.runners import Surroundings, run_archive
from alphorn.spark.jobs.starting import start_spark
from tests.spark.jobs.small import make_small

TOPIC = "topic:killed"
BATCH = 100

url, folder, moment, version = sys.argv[1:]
commit = Manifest.commit


def commit_and_die(self: Manifest, *args: Any, **options: Any) -> Manifest:
    is_last = self.version + 1 == int(version)
    if is_last and moment == "before":
        os.killpg(0, signal.SIGKILL)
    made = commit(self, *args, **options)
    if is_last and moment == "after":
        os.killpg(0, signal.SIGKILL)
    return made


Manifest.commit = commit_and_die  # type: ignore[method-assign]
spark = start_spark("tests", "local[2]")
make_small(spark)
around = Surroundings(spark, url, Console(quiet=True), lambda sentence: None)
run_archive(around, Path(folder), TOPIC, batch=BATCH)
