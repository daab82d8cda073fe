"""The pipeline of `make run`: demonstration orders are archived, and summed up by region onto a topic of their own.

    python -m alphorn.spark.jobs.demonstration URL FOLDER

Both are streams that go on where they were when they are started again. One line for each archived batch goes to
standard output; the sums are messages, for whoever consumes them.
"""

import signal
import sys
import threading
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from alphorn.spark import register
from alphorn.spark.jobs.archive import append
from alphorn.spark.jobs.failures import translated
from alphorn.spark.jobs.starting import start_spark

ORDERS, SALES = "topic:orders", "topic:orders.by_region"
WINDOW, LATE = "10 seconds", "5 seconds"
ARCHIVE_EVERY, SUM_EVERY = "10 seconds", "5 seconds"


def sales(orders: DataFrame, *, window: str = WINDOW, late: str = LATE) -> DataFrame:
    """Orders and their amounts for each region and span of time, as messages for the sink."""
    order = F.from_json(F.col("body").cast("string"), "id long, amount long")
    seen = orders.select("timestamp", F.col("properties")["region"].alias("region"), order["amount"].alias("amount"))
    spans = (
        seen.withWatermark("timestamp", late)
        .groupBy(F.window("timestamp", window).alias("span"), "region")
        .agg(F.count("*").alias("orders"), F.sum("amount").alias("amount"))
    )
    told = F.struct(F.date_format("span.end", "HH:mm:ss").alias("until"), "region", "orders", "amount")
    return spans.select(
        F.to_json(told).alias("body"), F.lit("application/json").alias("content_type"), F.col("region").alias("key")
    )


def start(spark: SparkSession, url: str, folder: Path) -> list[StreamingQuery]:
    """Starts both streams."""
    register(spark)

    def orders() -> DataFrame:
        reader = spark.readStream.format("alphorn").option("url", url).option("destination", ORDERS)
        return reader.option("start", "earliest").option("failOnDataLoss", "false").load()

    def archive(rows: DataFrame, number: int) -> None:
        before = rows.count()
        manifest = append(rows, folder / "archive")
        total = sum(file.rows for file in manifest.files.values())
        print(f"{before} orders archived, {total} in {folder / 'archive'} by now", flush=True)

    archiving = orders().writeStream.foreachBatch(archive).trigger(processingTime=ARCHIVE_EVERY)
    summing = sales(orders()).writeStream.format("alphorn").option("url", url).option("destination", SALES)
    return [
        archiving.option("checkpointLocation", str(folder / "checkpoints" / "archive")).start(),
        summing.trigger(processingTime=SUM_EVERY)
        .outputMode("append")
        .option("checkpointLocation", str(folder / "checkpoints" / "sales"))
        .start(),
    ]


def main(arguments: list[str]) -> None:
    """Runs until it is told to end, or until a stream fails."""
    url, folder = arguments[0], Path(arguments[1])
    told = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: told.set())
    spark = start_spark("demonstration", "local[2]")
    try:
        queries = start(spark, url, folder)
        print(
            f"the archive and sums by region are running; follow them with: alphorn tail {SALES} --url {url}",
            flush=True,
        )
        while not told.wait(0.5):
            for query in queries:
                if not query.isActive:
                    with translated():
                        query.awaitTermination()
                    return
        for query in queries:
            query.stop()
    finally:
        spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
