"""Lets Spark find `.format("alphorn")` by itself: it imports every package whose name begins with pyspark_."""

from alphorn.spark.source import AlphornDataSource as DefaultSource

__all__ = ["DefaultSource"]
