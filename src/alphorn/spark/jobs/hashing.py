"""Hashes of tables that do not depend on the order of rows, nor on how they are cut into files.

Each row has a hash of 64 bits (`row_hash`); a table's hash is their sum modulo 2**64, with the number of rows beside
it. So the hash of a table is the sum of its parts' hashes, which makes an archive comparable before and after it was
compacted.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from alphorn.model.log_hash import hash_text
from alphorn.spark.schema import COLUMNS

SUM_TYPE = "decimal(38,0)"


def row_hash() -> Column:
    """The hash of a row with the columns of a message."""
    hashed = [F.array_sort(F.map_entries(name)) if name == "properties" else F.col(name) for name in COLUMNS]
    return F.xxhash64(*hashed)


def table_hash(messages: DataFrame) -> tuple[int, str]:
    """Rows, and the hash as 16 hexadecimal digits."""
    return sum_hashes(messages, row_hash())


def sum_hashes(messages: DataFrame, hashes: Column) -> tuple[int, str]:
    """Rows, and the sum of what each has as its hash, as 16 hexadecimal digits."""
    found = messages.agg(F.count("*").alias("rows"), F.sum(hashes.cast(SUM_TYPE)).alias("sum")).first()
    assert found is not None, "an aggregate has one row"
    return int(found["rows"]), hash_text(int(found["sum"] or 0))


def add_hashes(hashes: list[str]) -> str:
    """The hash of a table whose parts have these."""
    return hash_text(sum(int(part, 16) for part in hashes))
