"""The Spark part of a demonstration: a process of its own, started again when it dies, whose lines are passed on."""

import asyncio
import contextlib
import importlib.util
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import msgspec

from alphorn import aio
from alphorn.io.restarts import RestartPolicy

MODULE = "alphorn.spark.jobs.demonstration"
SALES = "topic:orders.by_region"
STOP_S = 10.0


class Sale(msgspec.Struct, frozen=True):
    """What the pipeline says of one region and span of time."""

    until: str
    region: str
    orders: int
    amount: int


async def run_pipeline(url: str, folder: Path, say: Callable[[str], None]) -> None:
    """Runs until it is cancelled; says why when it cannot, and the cluster goes on without it."""
    missing = missing_for_spark()
    if missing:
        say(f"spark: the pipeline does not run, because {missing}")
        return
    policy = RestartPolicy()
    clock = asyncio.get_running_loop()
    while True:
        began = clock.time()
        code = await _run_once(url, folder, say)
        wait_s = policy.on_end(clock.time() - began)
        if wait_s is None:
            say(f"spark: the pipeline ends again and again; {folder / 'spark.log'} says why")
            return
        say(f"spark: the pipeline ended with code {code}; it is started again")
        await asyncio.sleep(wait_s)


async def show_sales(url: str, say: Callable[[str], None]) -> None:
    """Tells of the sums by region that the pipeline publishes, as any consumer sees them."""
    async with aio.connect(url, client_id="demonstration of sales") as connection:
        consumer = await connection.session().consumer(SALES)
        async for message in consumer:
            say(f"spark: {sentence_of(message.body)}")


def sentence_of(body: object) -> str:
    """A sum by region as people read it; what somebody else sent to the topic is shown as it is."""
    try:
        found = msgspec.json.decode(str(body), type=Sale)
    except msgspec.MsgspecError:
        return f"{SALES} got {body!r}"
    return f"until {found.until} {found.region} ordered {found.orders} times, for {found.amount:,} in all"


def missing_for_spark() -> str:
    """What Spark lacks on this machine, as the end of a sentence; empty when it has all."""
    for name in ("pyspark", "pyarrow"):
        if importlib.util.find_spec(name) is None:
            return f"{name} is not installed; pip install 'alphorn[spark]'"
    if not os.environ.get("JAVA_HOME") and shutil.which("java") is None:
        return "there is no java; install openjdk-17-jre-headless"
    return ""


async def _run_once(url: str, folder: Path, say: Callable[[str], None]) -> int:
    """One life of the process. It has a session of its own, so that Ctrl-C reaches it through us only."""
    with _open_log(folder) as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            MODULE,
            url,
            str(folder),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
    try:
        assert process.stdout is not None, "it was asked for"
        async for line in process.stdout:
            say(f"spark: {line.decode(errors='replace').rstrip()}")
        return await process.wait()
    finally:
        await _end(process)


def _open_log(folder: Path) -> BinaryIO:
    folder.mkdir(parents=True, exist_ok=True)
    return (folder / "spark.log").open("ab")


async def _end(process: asyncio.subprocess.Process) -> None:
    """Ends the process and all it started: in good order if it hurries."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                await process.wait()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
