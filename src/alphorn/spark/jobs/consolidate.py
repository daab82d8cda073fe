"""`consolidate`: folds what a topic keeps, through a terminal number, into the last message of each key.

The heart is `fold`. A checkpoint is a table of messages and a manifest that names the terminal number, the hash of the
state, and the log hash of what was folded (model/log_hash.py). The log hash must equal that of every replica that
answers, each of which finds it from its own disk; only then may the cluster be told to keep those messages no more.
"""

import datetime
import os
from pathlib import Path

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from alphorn.model.errors import Corruption, Misuse
from alphorn.spark.jobs.hashing import sum_hashes, table_hash
from alphorn.spark.jobs.parquet_files import escape
from alphorn.spark.schema import COLUMNS, LOG_HASH

FORMAT = 2


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The manifest of a consolidation."""

    format: int = FORMAT
    destination: str
    channel: str
    terminal: int  # all that arrived through this log entry is folded in
    messages: int  # that were folded since the checkpoint before
    log_hash: str = ""  # of those, 16 hexadecimal digits; format 1 had none
    keys: int
    hash: str  # jobs/hashing.py, of the state
    before: int = 0  # the terminal number of the checkpoint that this one continues
    time: str = ""


def fold(messages: DataFrame, state: DataFrame | None = None) -> DataFrame:
    """The last message of each key, continuing an earlier state. A message without a body ends its key.

    Messages without a key have no place in a state and are left out: `unkeyed` counts them.
    """
    keyed = messages.select(*COLUMNS).where(F.col("key").isNotNull())
    together = keyed if state is None else state.select(*COLUMNS).unionByName(keyed)
    place = F.struct("sequence", "index")
    last = together.groupBy("destination", "key").agg(F.max_by(F.struct(*COLUMNS), place).alias("last"))
    return last.select("last.*").where(F.col("body").isNotNull())


def unkeyed(messages: DataFrame) -> int:
    """How many messages have no key."""
    return messages.where(F.col("key").isNull()).count()


def log_hash(messages: DataFrame) -> tuple[int, str]:
    """How many messages there are, and their log hash: of the bytes that executors read (spark/arrow.py)."""
    return sum_hashes(messages, F.col(LOG_HASH))


class Checkpoints:
    """The checkpoints of one destination below a folder that driver and executors see under the same path."""

    def __init__(self, root: Path, destination: str) -> None:
        self._destination = destination
        self.folder = root / f"destination={escape(destination)}"

    def newest(self) -> Checkpoint | None:
        """The checkpoint that reaches furthest; raises `Corruption` for one that cannot be read."""
        found = [self._read(path) for path in self.folder.glob("*/checkpoint.json")]
        return max(found, key=lambda checkpoint: checkpoint.terminal, default=None)

    def state(self, spark: SparkSession, checkpoint: Checkpoint) -> DataFrame:
        """The state of a checkpoint; raises `Corruption` when it is not what its manifest says."""
        state = spark.read.parquet(str(self._path(checkpoint.terminal) / "state"))
        if table_hash(state) != (checkpoint.keys, checkpoint.hash):
            raise Corruption(
                f"the state of {checkpoint.destination} at {checkpoint.terminal} is not what its manifest says; "
                f"delete {self._path(checkpoint.terminal)} and go on from the one before, or restore it from a copy"
            )
        return state

    def write(
        self, state: DataFrame, channel: str, terminal: int, *, messages: int, log_hash: str, before: int
    ) -> Checkpoint:
        """Writes a state and then, as the act that makes it count, its manifest. Again it is written anew."""
        place = self._path(terminal)
        state.coalesce(1).write.mode("overwrite").option("compression", "zstd").parquet(str(place / "state"))
        keys, found = table_hash(state.sparkSession.read.parquet(str(place / "state")))
        checkpoint = Checkpoint(
            destination=self._destination,
            channel=channel,
            terminal=terminal,
            messages=messages,
            log_hash=log_hash,
            keys=keys,
            hash=found,
            before=before,
            time=datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
        )
        draft = place / "checkpoint.draft"
        with draft.open("wb") as stream:
            stream.write(msgspec.json.format(msgspec.json.encode(checkpoint)))
            stream.flush()
            os.fsync(stream.fileno())
        draft.replace(place / "checkpoint.json")
        return checkpoint

    def _path(self, terminal: int) -> Path:
        return self.folder / f"through={terminal}"

    @staticmethod
    def _read(path: Path) -> Checkpoint:
        try:
            found = msgspec.json.decode(path.read_bytes(), type=Checkpoint)
        except (OSError, msgspec.MsgspecError) as error:
            raise Corruption(f"the checkpoint {path} cannot be read: {error}; delete its folder to go on") from None
        if found.format > FORMAT:
            raise Misuse(
                f"the checkpoint {path} has format {found.format}, and this alphorn knows {FORMAT}; use the newer one"
            )
        return found
