"""How a job goes, on the terminal: a bar of tasks for a batch, a line for each batch of a stream."""

import contextlib
import threading
from collections.abc import Callable, Iterator

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from alphorn.spark.jobs.failures import translated

LOOK_S = 0.2
Say = Callable[[str], None]


@contextlib.contextmanager
def shown(spark: SparkSession, console: Console, what: str) -> Iterator[None]:
    """Shows the tasks of what Spark does meanwhile, where there is a terminal; errors come out as ours."""
    with translated():
        if not console.is_terminal:
            yield
            return
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=console, transient=True) as progress:
            ended = threading.Event()
            watcher = threading.Thread(target=_watch, args=(spark, progress, what, ended), daemon=True)
            watcher.start()
            try:
                yield
            finally:
                ended.set()
                watcher.join()


def _watch(spark: SparkSession, progress: Progress, what: str, ended: threading.Event) -> None:
    bar = progress.add_task(what, total=None)
    tracker = spark.sparkContext.statusTracker()
    seen: dict[int, tuple[int, int]] = {}  # stage → tasks done, tasks
    while not ended.wait(LOOK_S):
        for stage in tracker.getActiveStageIds():
            info = tracker.getStageInfo(stage)
            if info is not None:
                seen[stage] = info.numCompletedTasks, info.numTasks
        for stage in set(seen) - set(tracker.getActiveStageIds()):
            seen[stage] = seen[stage][1], seen[stage][1]
        if seen:
            done, total = (sum(pair[place] for pair in seen.values()) for place in (0, 1))
            progress.update(bar, completed=done, total=total)


def follow(query: StreamingQuery, say: Say) -> int:
    """Tells of each batch of a stream until it ends; gives how many rows there were. Raises what ended it."""
    rows, told = 0, -1
    with translated():
        is_over = False
        while not is_over:
            is_over = bool(query.awaitTermination(1))
            for batch in query.recentProgress:
                if batch["batchId"] > told:
                    told = batch["batchId"]
                    rows += batch["numInputRows"]
                    if batch["numInputRows"]:
                        rate = batch["processedRowsPerSecond"]
                        say(f"batch {told}: {batch['numInputRows']:,} messages, {rate:,.0f} in a second")
    return rows
