"""Starts Spark for a job: quiet, in UTC, and with what the source and small machines need."""

import contextlib
import logging
import os
import re
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from alphorn.model.errors import Misuse, Unavailable

LOCAL_PARTITIONS = 4  # of a shuffle; Spark's 200 are for clusters
MASTER = re.compile(r"local(\[(\*|\d+)(, ?\d+)?\]|-cluster\[.+\])?|yarn|(spark|k8s)://.+")
# They print every error of a query as a page of JSON, and it is raised besides.
CONTEXT_LOGGERS = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.streaming.stopActiveRunOnRestart": "true",
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "true",
    "spark.python.worker.reuse": "true",
}


def start_spark(name: str, master: str, settings: Mapping[str, str] | None = None) -> SparkSession:
    """A session on this master; raises `Unavailable` when none can be had, with the reason."""
    if not os.environ.get("JAVA_HOME") and not _has_java():
        raise Unavailable("Spark needs Java 17 or newer, and no java was found; install openjdk-17-jre-headless")
    builder = SparkSession.builder.appName(f"alphorn {name}").master(master)
    chosen = dict(SETTINGS)
    if master.startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers run what the driver runs
        chosen["spark.sql.shuffle.partitions"] = str(LOCAL_PARTITIONS)
        chosen["spark.driver.bindAddress"] = chosen["spark.driver.host"] = "127.0.0.1"
    for key, value in {**chosen, **(settings or {})}.items():
        builder = builder.config(key, value)
    logging.getLogger().addFilter(_is_no_interrupt)
    logging.getLogger("py4j.clientserver").setLevel(logging.CRITICAL)  # tells what else is broken by an interrupt
    others = _children()
    try:
        spark = builder.getOrCreate()
    except (PySparkException, PySparkRuntimeError) as error:
        raise Unavailable(f"Spark does not start on {master}: {_first_line(error)}") from None
    except KeyboardInterrupt:
        end_java(others)
        raise
    spark.sparkContext.setLogLevel("ERROR")
    for logger in CONTEXT_LOGGERS:
        PySparkLogger.getLogger(logger).disabled = True
    return spark


def check_master(master: str) -> None:
    """Raises `Misuse` for what Spark would refuse with a page of Java."""
    if not MASTER.fullmatch(master):
        raise Misuse(f"{master!r} is no master of Spark; write local[*], local[4], spark://host:7077, yarn or k8s://…")


def parse_setting(text: str) -> tuple[str, str]:
    """A setting as `spark.some.key=value`; raises `Misuse`."""
    key, equals, value = text.partition("=")
    if not equals or not key.startswith("spark."):
        raise Misuse(f"{text!r} is no setting of Spark; write spark.some.key=value")
    return key, value


def _is_no_interrupt(record: logging.LogRecord) -> bool:
    """Whether a line of the log is worth it: who interrupts a call of Spark knows that, and it is raised besides."""
    return record.exc_info is None or record.exc_info[0] is not KeyboardInterrupt


def end_java(others: set[int]) -> None:
    """Ends all that was started besides these: Spark's Java, which outlives who leaves it before it listens."""
    for pid in _children() - others:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _children() -> set[int]:
    """The processes that this one has started and that run."""
    listings = Path("/proc/self/task").glob("*/children")
    return {int(pid) for listing in listings for pid in listing.read_text().split()}


def _has_java() -> bool:
    return any(os.access(os.path.join(folder, "java"), os.X_OK) for folder in os.get_exec_path())


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
