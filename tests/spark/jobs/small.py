"""What makes Spark quick where there is little data: no plans are compiled, and nothing is spread over partitions."""

from pyspark.sql import SparkSession

SMALL = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


def make_small(spark: SparkSession) -> None:
    """Sets a session up for small tables."""
    for name, value in SMALL.items():
        spark.conf.set(name, value)
