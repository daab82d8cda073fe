"""alphorn for Apache Spark: `.format("alphorn")` reads and writes destinations like any table or stream.

    from alphorn.spark import register

    register(spark)                  # not needed where alphorn is installed: Spark finds the package pyspark_alphorn
    prices = spark.read.format("alphorn").option("url", url).option("destination", "topic:prices").load()

Nothing here is imported by the rest of alphorn, so PySpark is needed by nobody else. docs/spark.md lists the options.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: "SparkSession") -> None:
    """Makes the format known to a session; a second time changes nothing."""
    from alphorn.spark.source import AlphornDataSource

    spark.dataSource.register(AlphornDataSource)
