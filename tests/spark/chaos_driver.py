"""A streaming job to be killed: copies one topic to another, exactly once, until a file says that it is enough.

    python -m tests.spark.chaos_driver URL CHECKPOINT STOP_FILE

Prints the number of each batch that is done. The copy goes through a shuffle, whose order is never the same twice.
"""

import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

SOURCE, TARGET = "topic:chaos.in", "topic:chaos.out"
LIMIT = 2_000  # messages of a batch
LOOK_S = 0.1


def main(url: str, checkpoint: str, stop: str) -> None:
    spark = (
        SparkSession.builder.master("local[2,4]")  # a task may fail three times
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.memory", "1g")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    common = {"url": url, "timeout": "60"}
    reading = {"start": "earliest", "maxMessagesPerTrigger": str(LIMIT), "minPartitions": "2", "subscription": "chaos"}
    frame = spark.readStream.format("alphorn").options(**common, **reading, destination=SOURCE).load()
    writer = frame.select("body", "key").repartition(2).writeStream.format("alphorn")
    query = writer.options(**common, destination=TARGET, checkpointLocation=checkpoint).start()
    last = -1
    while query.isActive:
        progress = query.lastProgress
        if progress is not None and progress.batchId != last:
            last = progress.batchId
            print(f"batch {last}", flush=True)
        is_idle = not query.status["isDataAvailable"] and not query.status["isTriggerActive"]
        if is_idle and Path(stop).exists():
            query.processAllAvailable()
            query.stop()
        time.sleep(LOOK_S)
    failure = query.exception()
    if failure is not None:
        print(f"failed: {str(failure).splitlines()[0]}", flush=True)
        sys.exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
