"""What can be decided with `.option(…)`: read once, checked at once, refused with one sentence.

Every option is a field here with its default and its reason; docs/spark.md lists them for users.
"""

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal, cast

import msgspec

from alphorn.client.log_reader import TIMEOUT_S, ReadFrom
from alphorn.client.url import DEFAULT_URL, parse_url
from alphorn.model.destinations import parse_destination
from alphorn.model.errors import InvalidDestination, Misuse
from alphorn.model.patterns import is_pattern, parse_pattern
from alphorn.spark.schema import COLUMNS, EXTRA_COLUMNS

BYTES_PER_PARTITION = 64 << 20
NUMBER_MAX = (1 << 62) - 1  # what is larger is a mistake, and does not fit frames
SUBSCRIPTION_CHARACTERS_MAX = 255  # what the log remembers a reader by
WRITER_CHARACTERS_MAX = 200  # the log's name of a writer says more than this one
Tier = Literal["auto", "live", "archive"]
_BETWEEN = re.compile(r",\s*(?=(?:queue|topic|glob|regex):)")  # names and expressions may hold commas of their own


class Bound(msgspec.Struct, frozen=True):
    """Where reading begins or ends: one of `earliest`, `latest`, a time, or numbers by channel."""

    kind: str  # "earliest", "latest", "time", "numbers"
    time_ms: int = 0
    numbers: dict[str, int] = {}


EARLIEST, LATEST = Bound("earliest"), Bound("latest")


class SourceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Of a reader."""

    url: str = DEFAULT_URL
    destinations: tuple[str, ...] = ()  # names, and patterns as "glob:topic:orders.*"
    start: Bound | None = None  # None: earliest for a batch, latest for a stream
    end: Bound | None = None
    max_messages: int = 0  # per trigger; 0 is no limit
    max_bytes: int = 0
    min_partitions: int = 1
    max_bytes_per_partition: int = BYTES_PER_PARTITION  # what one task reads
    fail_on_data_loss: bool = True
    read_from: ReadFrom = "any"
    subscription: str = ""  # under which name the progress of a stream is shown
    columns: tuple[str, ...] = COLUMNS
    pushes_filters: bool = False
    timeout_s: float = TIMEOUT_S  # of every question to the cluster
    tier: Tier = "auto"  # auto: the archive, where one is named, and the log behind it
    archive: str = ""  # the archive's folder

    @property
    def reads_archive(self) -> bool:
        """Whether archived messages are read."""
        return self.tier != "live" and bool(self.archive)


class SinkOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Of a writer."""

    url: str = DEFAULT_URL
    destination: str = ""  # for rows without the column `destination`
    writer: str = ""  # of a batch job that may be run again: the name under which it is remembered,
    batch: int = 0  # and which of its batches this is
    timeout_s: float = TIMEOUT_S


_SOURCE_NAMES = {
    name.lower(): name
    for name in (
        "url destination path start end maxMessagesPerTrigger maxBytesPerTrigger minPartitions maxBytesPerPartition "
        "failOnDataLoss readFrom subscription columns pushdown timeout tier archive"
    ).split()
}
_SINK_NAMES = {name: name for name in ("url", "destination", "path", "writer", "batch", "timeout")}
# Spark hands its own options on to writers.
_SPARKS_OWN = frozenset({"checkpointlocation", "querynameoption", "queryname"})


def source_options(options: Mapping[str, str]) -> SourceOptions:
    """Checks a reader's options; raises `Misuse`."""
    given = _known(options, _SOURCE_NAMES, "reading")
    made = SourceOptions(
        url=_url(given),
        destinations=_destinations(_destination(given)),
        start=_bound("start", given["start"]) if "start" in given else None,
        end=_bound("end", given["end"]) if "end" in given else None,
        max_messages=_number(given, "maxMessagesPerTrigger", 0),
        max_bytes=_number(given, "maxBytesPerTrigger", 0),
        min_partitions=_number(given, "minPartitions", 1, least=1),
        max_bytes_per_partition=_number(given, "maxBytesPerPartition", BYTES_PER_PARTITION, least=1),
        fail_on_data_loss=_truth(given, "failOnDataLoss", default=True),
        read_from=_read_from(given.get("readFrom", "any")),
        subscription=_subscription(given.get("subscription", "")),
        columns=_columns(given.get("columns")),
        pushes_filters=_truth(given, "pushdown", default=False),
        timeout_s=_seconds(given),
        tier=_tier(given.get("tier", "auto")),
        archive=given.get("archive", ""),
    )
    _check_tier(made)
    return made


def sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Checks a writer's options; raises `Misuse`."""
    given = _known(options, _SINK_NAMES, "writing")
    destination = _destination(given)
    if destination:
        parse_destination(destination)
    if ("writer" in given) != ("batch" in given):
        raise Misuse(
            "the options writer and batch go together: the name of a job, and the number of what it writes now"
        )
    if len(given.get("writer", "")) > WRITER_CHARACTERS_MAX:
        raise Misuse(f"the option writer is longer than {WRITER_CHARACTERS_MAX} characters; choose a shorter name")
    return SinkOptions(
        url=_url(given),
        destination=destination,
        writer=given.get("writer", ""),
        batch=_number(given, "batch", 0),
        timeout_s=_seconds(given),
    )


def _known(options: Mapping[str, str], names: dict[str, str], doing: str) -> dict[str, str]:
    given: dict[str, str] = {}
    for name, value in options.items():
        known = names.get(name.lower())
        if known is not None:
            given[known] = str(value)
        elif name.lower() not in _SPARKS_OWN:
            allowed = ", ".join(sorted(set(names.values()) - {"path"}))
            raise Misuse(f"alphorn has no option {name!r} for {doing}; it has {allowed}")
    return given


def _url(given: dict[str, str]) -> str:
    url = given.get("url", DEFAULT_URL)
    parse_url(url)
    return url


def _destination(given: dict[str, str]) -> str:
    if "path" in given and "destination" in given:
        raise Misuse("the destination is given twice, as the option destination and as a path; give it once")
    return given.get("destination", given.get("path", "")).strip()


def _destinations(text: str) -> tuple[str, ...]:
    if not text:
        raise Misuse("the option destination is missing; name what to read, as in topic:orders or glob:topic:orders.*")
    names = tuple(part.strip() for part in _BETWEEN.split(text))
    for name in names:
        try:
            parse_pattern(name) if is_pattern(name) else parse_destination(name)
        except InvalidDestination as error:
            raise Misuse(f"the option destination does not fit: {error}") from None
    return names


def _bound(name: str, text: str) -> Bound:
    word = text.strip()
    if word.lower() in ("earliest", "latest"):
        return Bound(word.lower())
    if word.startswith("{"):
        return Bound("numbers", numbers=_numbers(name, word))
    try:
        time = datetime.fromisoformat(word)
    except ValueError:
        raise Misuse(
            f"the option {name} is {text!r}; it is earliest, latest, a time as 2026-07-01T12:00:00+00:00, "
            'or numbers by channel as {"main": 17}'
        ) from None
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return Bound("time", time_ms=int(time.timestamp() * 1000))


def _numbers(name: str, text: str) -> dict[str, int]:
    try:
        found: Any = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(type(it) is int and 0 <= it <= NUMBER_MAX for it in found.values()):
        raise Misuse(f'the option {name} is {text!r}; write numbers by channel, as {{"main": 17}}')
    return cast(dict[str, int], found)


def _number(given: dict[str, str], name: str, default: int, *, least: int = 0) -> int:
    text = given.get(name)
    if text is None:
        return default
    if not (text.strip().isascii() and text.strip().isdigit() and least <= _int(text) <= NUMBER_MAX):
        raise Misuse(f"the option {name} is {text!r}; it is a whole number from {least} to {NUMBER_MAX}")
    return int(text)


def _int(digits: str) -> int:
    """Python reads only so many digits; what is longer is too large in any case."""
    return int(digits) if len(digits) < 30 else NUMBER_MAX + 1


def _truth(given: dict[str, str], name: str, *, default: bool) -> bool:
    text = given.get(name, str(default)).strip().lower()
    if text not in ("true", "false"):
        raise Misuse(f"the option {name} is {given[name]!r}; it is true or false")
    return text == "true"


def _read_from(text: str) -> ReadFrom:
    if text not in ("backup", "any", "primary"):
        raise Misuse(f"the option readFrom is {text!r}; it is backup, any or primary")
    return cast(ReadFrom, text)


def _subscription(name: str) -> str:
    if len(name) > SUBSCRIPTION_CHARACTERS_MAX:
        raise Misuse(
            f"the option subscription is longer than {SUBSCRIPTION_CHARACTERS_MAX} characters; choose a shorter name"
        )
    return name


def _tier(text: str) -> Tier:
    if text not in ("auto", "live", "archive"):
        raise Misuse(f"the option tier is {text!r}; it is auto, live or archive")
    return cast(Tier, text)


def _check_tier(options: SourceOptions) -> None:
    if options.tier == "archive" and not options.archive:
        raise Misuse(
            "the option tier is archive, and nothing says where that is; name its folder in the option archive"
        )
    for name in EXTRA_COLUMNS:
        if options.reads_archive and name in options.columns:
            raise Misuse(f"the column {name} is of what the log gives, and no archive has it; read with tier=live")
    for name, bound, open_ in (("start", options.start, EARLIEST), ("end", options.end, LATEST)):
        is_number = bound is None or bound == open_ or bound.kind == "numbers"
        if options.reads_archive and not is_number:
            raise Misuse(
                f"an archive is read by numbers, so the option {name} is {open_.kind} or numbers by channel there; "
                "choose times with a filter on the column timestamp"
            )


def _columns(text: str | None) -> tuple[str, ...]:
    if text is None:
        return COLUMNS
    names = tuple(part.strip() for part in text.split(","))
    known = COLUMNS + EXTRA_COLUMNS
    unknown = [name for name in names if name not in known]
    if unknown or len(set(names)) != len(names):
        wrong = repr(unknown[0]) if unknown else "a column twice"
        raise Misuse(f"the option columns names {wrong}; choose from {', '.join(known)}, each once")
    return names


def _seconds(given: dict[str, str]) -> float:
    text = given.get("timeout")
    if text is None:
        return TIMEOUT_S
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds <= 86_400:
        raise Misuse(f"the option timeout is {text!r}; it is a number of seconds up to 86400")
    return seconds
