"""The runner of `consolidate`: reads, hashes as the replicas that answer do, folds, writes, lets the cluster forget."""

import json
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import alphorn
from alphorn.client.log_hashes import hash_replicas
from alphorn.client.log_reader import entry
from alphorn.model.destinations import parse_destination
from alphorn.model.errors import Misuse, Unavailable
from alphorn.model.log_conversation import ChannelKnown
from alphorn.model.log_hash import hash_text
from alphorn.model.log_link import SurveyedDestination
from alphorn.spark.cluster import ClusterView
from alphorn.spark.jobs.consolidate import Checkpoint, Checkpoints, fold, log_hash, unkeyed
from alphorn.spark.jobs.progress import shown
from alphorn.spark.jobs.replay import SENT
from alphorn.spark.jobs.runners import Surroundings
from alphorn.spark.options import source_options
from alphorn.spark.schema import COLUMNS, LOG_HASH, STREAM_BYTES
from alphorn.spark.tiers import live

TIMEOUT_S = 60.0  # for each answer of a replica


def run_consolidate(
    around: Surroundings,
    root: Path,
    destination: str,
    *,
    through: int | None = None,
    publish: str | None = None,
    releases: bool = False,
    forgets_unkeyed: bool = False,
) -> Checkpoint:
    """Makes the next checkpoint of a destination, or gives the newest one where nothing was added since.

    Raises `Unavailable` when what was read is not what the replicas keep, and `Misuse` when messages without a
    key would be forgotten unasked, or some were sent as streams. The checkpoint is there before the cluster is told to
    let anything go.
    """
    known, found = _locate(around.url, destination)
    terminal = known.heard if through is None else through
    if terminal > known.heard:
        raise Misuse(f"channel {known.name} has come to log entry {known.heard}; name one through there")
    kept = Checkpoints(root, destination)
    newest = kept.newest()
    if newest is not None and (newest.channel != known.name or newest.terminal < found.came_at):
        raise Misuse(
            f"{destination} is consolidated through log entry {newest.terminal} of channel {newest.channel}, and has "
            f"moved since, now to {known.name}, so its numbers are others; consolidate it into a new folder"
        )
    if newest is not None and newest.terminal >= terminal:
        raise Misuse(f"{destination} is consolidated through {newest.terminal} already; name a later log entry")
    first = max(found.first, found.kept_from) if newest is None else newest.terminal + 1
    with shown(around.spark, around.console, f"consolidating {destination}"):
        messages = _read(around, known, destination, first, terminal).cache()
        count, found_hash = log_hash(messages)
        _compare(known, found, first, terminal, count, found_hash)
        streams = messages.where(F.col(STREAM_BYTES).isNotNull()).count()
        if streams:
            raise Misuse(
                f"{streams} messages of {destination} were sent as streams, and Spark has no bodies of those, so no "
                "state would be right; consolidate destinations without streams"
            )
        loose = unkeyed(messages) if releases and not forgets_unkeyed else 0
        if loose:
            raise Misuse(
                f"{loose} messages of {destination} have no key, so no state has them; archive them, and then say "
                "--forget-unkeyed"
            )
        state = fold(messages, None if newest is None else kept.state(around.spark, newest))
        before = 0 if newest is None else newest.terminal
        made = kept.write(state, known.name, terminal, messages=count, log_hash=found_hash, before=before)
        if publish is not None:
            _publish(around, kept.state(around.spark, made), publish)
    if releases:
        with alphorn.connect(around.url) as connection:
            connection.destinations.release(destination, terminal)
    return made


def _locate(url: str, destination: str) -> tuple[ChannelKnown, SurveyedDestination]:
    """The channel of a destination that keeps its messages, and what is known of it there."""
    parse_destination(destination)  # one, and no pattern
    view = ClusterView(source_options({"url": url, "destination": destination}))
    try:
        channels = view.channels()
        for name, found in view.destinations(channels).items():
            for one in found.values():
                if one.is_retaining:
                    return channels[name], one
    finally:
        view.close()
    raise Misuse(f"{destination} keeps nothing for readers; give it a policy with retain")


def _read(around: Surroundings, known: ChannelKnown, destination: str, first: int, terminal: int) -> DataFrame:
    options = {
        "start": json.dumps({known.name: first}),
        "end": json.dumps({known.name: terminal + 1}),
        "columns": ",".join((*COLUMNS, LOG_HASH, STREAM_BYTES)),
    }
    return live(around.spark, around.url, destination, options)


def _compare(
    known: ChannelKnown, kept: SurveyedDestination, first: int, terminal: int, messages: int, found_hash: str
) -> None:
    found, reasons = hash_replicas(known.servers, kept.number, entry(first), entry(terminal + 1), timeout_s=TIMEOUT_S)
    if not found:
        told = ", ".join(f"{name} ({reason})" for name, reason in sorted(reasons.items()))
        raise Unavailable(
            f"no Message Manager of {known.name} could hash what it keeps of {kept.name}: {told}; try again"
        )
    for name, said in sorted(found.items()):
        if (said.messages, hash_text(said.hash)) != (messages, found_hash):
            raise Unavailable(
                f"{name} keeps {said.messages} messages of {kept.name} with hash {hash_text(said.hash)}, and "
                f"{messages} with hash {found_hash} were read; nothing was consolidated, run it again"
            )


def _publish(around: Surroundings, state: DataFrame, to: str) -> None:
    rows = state.select(*(name for name in SENT if name != "destination"))
    rows.write.format("alphorn").option("url", around.url).option("destination", to).mode("append").save()
