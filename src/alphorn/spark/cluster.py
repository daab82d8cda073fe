"""The cluster as a driver sees it: its channels, the destinations that are read, and what is there to read.

It holds connections, so it is made where it is used and never sent to another process.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

import msgspec

from alphorn.client.blocking.connection import Connection, connect
from alphorn.client.log_reader import Amount, LogReader, entry
from alphorn.client.staging import ask_channels, note_reader
from alphorn.model.destinations import DestinationKind, parse_destination
from alphorn.model.errors import InvalidDestination, Misuse, Unavailable
from alphorn.model.globs import Glob
from alphorn.model.log_conversation import ChannelKnown
from alphorn.model.log_link import Place, Surveyed, SurveyedDestination
from alphorn.model.patterns import compile_expression, is_pattern, parse_pattern
from alphorn.spark.offsets import FIRST, Offset, canonical, floors_of, gaps_of, with_floors
from alphorn.spark.options import EARLIEST, Bound, SourceOptions

Result = TypeVar("Result")
_NOWHERE: Offset = {}


class ClusterView:
    """What a reader's driver asks the cluster. Every call has the deadline of the option `timeout`."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._connection: Connection | None = None
        self._readers: dict[str, LogReader] = {}
        self._servers: dict[str, list[tuple[str, str]]] = {}  # whom these readers ask: a stream outlives many of them
        self._numbers: dict[str, int] = {}  # of channels, by name
        self._is_meant = matcher(options.destinations)

    def close(self) -> None:
        """Ends its connections."""
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()
        self._servers.clear()
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.close()

    def channels(self) -> dict[str, ChannelKnown]:
        """All channels, by name, in the order of their numbers, but for those that were removed: nobody serves them."""
        found = self._with_connection(lambda it: ask_channels(it, timeout_s=self._options.timeout_s))
        self._numbers = {known.name: number for number, known in enumerate(found) if known.servers}
        served = {known.name: known for known in found if known.servers}
        for name, known in served.items():
            if self._servers.get(name) != known.servers:
                if name in self._readers:
                    self._readers[name].close()
                self._servers[name], self._readers[name] = known.servers, self.reader(known)
        return served

    def reader(self, known: ChannelKnown) -> LogReader:
        """A reader of one channel, by these options."""
        options = self._options
        return LogReader(
            known.name,
            known.servers,
            read_from=options.read_from,
            timeout_s=options.timeout_s,
            requires_all=options.fail_on_data_loss,
        )

    def destinations(
        self, channels: Mapping[str, ChannelKnown], end: Mapping[str, int] = _NOWHERE
    ) -> dict[str, dict[int, SurveyedDestination]]:
        """Of each channel the destinations that are read, by number; all of them that were there before `end`.

        Raises `InvalidDestination` for a name that nothing has, and `Misuse` for a topic that keeps nothing.
        """
        found = self._survey(channels, end)
        return {name: {it.number: it for it in surveyed.destinations} for name, surveyed in found.items()}

    def _survey(self, channels: Mapping[str, ChannelKnown], end: Mapping[str, int] = _NOWHERE) -> dict[str, Surveyed]:
        """The same, and what it is the state of.

        Whoever is asked must have applied all before `end`: one that lags does not know a destination that is new
        there, and its messages would be passed over in silence.
        """
        exact = [name for name in self._options.destinations if not is_pattern(name)]
        patterns = [name for name in self._options.destinations if is_pattern(name)]
        prefixes = [prefix for name in patterns for prefix in _prefixes_of(name)]
        made: dict[str, Surveyed] = {}
        missing = set(exact)
        for name, known in channels.items():
            applied = max(known.heard, end.get(name, FIRST) - 1)
            surveyed = self._readers[name].survey(exact, prefixes, applied=applied)
            found = [it for it in surveyed.destinations if self._is_meant(it.name)]
            missing -= {it.name for it in found}
            for it in found:
                if it.name in exact and not it.is_kept:
                    raise Misuse(
                        f"{it.name} keeps nothing for readers; give it a policy with retain, as in "
                        f'connection.destinations.policy("{it.name}", retain=86400)'
                    )
            kept = [it for it in found if it.is_kept]
            made[name] = msgspec.structs.replace(surveyed, destinations=kept)
        if missing:
            raise InvalidDestination(f"there is no {min(missing)}; create it, or send to it first")
        return made

    def resolve(self, bound: Bound, end: Mapping[str, int] = _NOWHERE) -> Offset:
        """Where reading begins or ends, as an offset; found by those that have applied all before `end`."""
        channels = self.channels()
        if bound.kind == "latest":
            return self._latest(channels)
        if bound.kind == "numbers":
            unknown = sorted(set(bound.numbers) - set(channels))
            if unknown:
                raise Misuse(f"the cluster has no channel {unknown[0]!r}; it has {', '.join(sorted(channels))}")
            return canonical(dict(bound.numbers))
        made: Offset = {}
        for name, surveyed in self._survey(channels, end).items():
            starts = {it.number: self._start_of(bound, name, it) for it in surveyed.destinations}
            gaps = {it.number: it.kept_from for it in surveyed.destinations}
            made.update(_begin(name, surveyed, starts, gaps))
        return canonical(made)

    def resolve_behind(self, bound: Bound, marks: Mapping[tuple[str, str], int]) -> Offset:
        """Where the log is read behind an archive, which has of destinations (name, channel) all through these entries.

        What has no mark is read from its earliest message, or from the numbers of the bound. Raises `Unavailable` for
        what was archived, and came from another channel since.
        """
        self.check_archived(marks)
        channels = self.channels()
        made: Offset = {}
        for name, surveyed in self._survey(channels).items():
            starts, gaps = {}, {}
            for it in surveyed.destinations:
                if (it.name, name) in marks or name in bound.numbers:
                    starts[it.number] = max(marks.get((it.name, name), 0) + 1, bound.numbers.get(name, FIRST))
                else:
                    starts[it.number] = self._start_of(EARLIEST, name, it)
                    gaps[it.number] = it.kept_from
            made.update(_begin(name, surveyed, starts, gaps))
        return self.with_arrivals(canonical(made))

    def check_archived(self, marks: Mapping[tuple[str, str], int]) -> None:
        """Raises `Unavailable` for what an archive has of another channel: what came along would be read twice."""
        for (destination, channel), came_at in self.arrivals(marks).items():
            if self._options.fail_on_data_loss:
                raise Unavailable(
                    f"{destination} is archived from the channel where it was before it came to {channel} with log "
                    f"entry {came_at}, and what is in both would be read twice; read tier archive or tier live alone, "
                    "or read it twice (failOnDataLoss=false)"
                )

    def arrivals(self, marks: Mapping[tuple[str, str], int]) -> dict[tuple[str, str], int]:
        """What came to a channel later than it was archived through these marks: (name, channel) → the entry."""
        archived = {destination for destination, _ in marks}
        return {
            (it.name, channel): it.came_at
            for channel, found in self.destinations(self.channels()).items()
            for it in found.values()
            if it.name in archived and marks.get((it.name, channel), 0) < it.came_at
        }

    def with_arrivals(self, start: Offset) -> Offset:
        """The same start, with floors where a destination came from another channel with the first entry to be read.

        So it is told from the offset of one who has come as far as that entry, and has read the destination before it.
        """
        made = dict(start)
        for name, found in self.destinations(self.channels()).items():
            first = start.get(name, FIRST)
            if any(it.came_at == first for it in found.values()):
                floors = floors_of(start, name)
                made.update(
                    with_floors(name, first - 1, {number: max(first, floors.get(number, 0)) for number in found})
                )
        return canonical(made)

    def _latest(self, channels: Mapping[str, ChannelKnown]) -> Offset:
        """A Client Manager that was just started has heard nothing yet, so Message Managers are asked too."""
        applied = {name: self._readers[name].survey([], applied=known.heard) for name, known in channels.items()}
        return canonical({name: surveyed.applied + 1 for name, surveyed in applied.items()})

    def _start_of(self, bound: Bound, channel: str, destination: SurveyedDestination) -> int:
        if bound.kind == "time":
            return self._readers[channel].search([destination.number], bound.time_ms)
        is_queue = parse_destination(destination.name).kind is DestinationKind.QUEUE
        return destination.first if is_queue else max(destination.first, destination.kept_from)

    def check_kept(
        self, start: Offset, channel: str, found: Mapping[int, SurveyedDestination], first: int, end: int
    ) -> None:
        """Raises `Unavailable` that names every range that should be there and is kept no more.

        What came from another channel would be read again: with the entry that brought it all that it keeps arrived.
        Only who begins with that very entry has a floor there (`with_arrivals`).
        """
        floors, gaps = floors_of(start, channel), gaps_of(start, channel)
        came, lost = [], []
        for number, it in found.items():
            begin = max(first, floors.get(number, 0))
            whole = max(begin, gaps.get(number, 0))
            if begin < min(it.came_at + (number not in floors), end):
                came.append(f"{it.name} with log entry {it.came_at}")
            elif whole < min(it.kept_from, end):
                lost.append(f"{it.name} what arrived with log entries {whole} to {min(it.kept_from, end) - 1}")
        if not self._options.fail_on_data_loss:
            return
        if came:
            raise Unavailable(
                f"to channel {channel} came from another one {', '.join(came)}, and what was read there would be read "
                "again; begin there with a new checkpoint, or read it again (failOnDataLoss=false)"
            )
        if lost:
            raise Unavailable(
                f"channel {channel} keeps no more of {', of '.join(lost)}; let it retain more, or go on without "
                "(failOnDataLoss=false)"
            )

    def amounts(
        self,
        channel: str,
        floors: Mapping[int, int],
        gaps: Mapping[int, int],
        first: Place,
        end: Place,
        *,
        messages_step: int,
        bytes_step: int,
    ) -> Iterator[Amount]:
        """How much is there, of destinations that come with their floors."""
        for piece_first, piece_end, numbers in pieces(floors, first, end):
            yield from self._readers[channel].measure(
                numbers,
                piece_first,
                piece_end,
                messages_step=messages_step,
                bytes_step=bytes_step,
                missed_before=max(gaps.get(number, 0) for number in numbers),
            )

    def note(self, channels: Mapping[str, ChannelKnown], name: str, offset: Offset) -> None:
        """Tells the cluster how far a named reader has come."""
        found = self.destinations(channels)
        for channel in channels:
            place, numbers, sequence = self._numbers[channel], list(found[channel]), offset.get(channel, FIRST)
            self._with_connection(
                lambda it, place=place, numbers=numbers, sequence=sequence: note_reader(  # type: ignore[misc]
                    it, place, name, numbers, sequence
                )
            )

    def _with_connection(self, use: Callable[[Connection], Result]) -> Result:
        """Does something with the connection; one that was given up is made again, once."""
        if self._connection is not None:
            try:
                return use(self._connection)
            except Unavailable:
                connection, self._connection = self._connection, None
                connection.close()
        timeout_s = self._options.timeout_s
        self._connection = connect(self._options.url, connect_timeout=timeout_s, reconnect_timeout=timeout_s)
        return use(self._connection)


def _begin(channel: str, surveyed: Surveyed, starts: Mapping[int, int], gaps: Mapping[int, int]) -> Offset:
    """A channel's part of a start, where its destinations begin there; what was made since the survey is read whole."""
    return with_floors(channel, max(FIRST, min([surveyed.applied + 1, *starts.values()])), starts, gaps)


def pieces(floors: Mapping[int, int], first: Place, end: Place) -> list[tuple[Place, Place, list[int]]]:
    """Cuts a range where a destination begins to be read: first, end, and which destinations are."""
    cuts = sorted({first, *(entry(floor) for floor in floors.values() if first < entry(floor) < end)})
    made = []
    for place, start in enumerate(cuts):
        stop = cuts[place + 1] if place + 1 < len(cuts) else end
        numbers = sorted(number for number, floor in floors.items() if entry(floor) <= start)
        if numbers:
            made.append((start, stop, numbers))
    return made


def _prefixes_of(name: str) -> list[str]:
    """How all names begin that a pattern can match, one for each kind of destination."""
    pattern = parse_pattern(name)
    start = Glob(pattern.text).prefix if pattern.syntax == "glob" else ""
    kinds = [pattern.kind] if pattern.kind is not None else list(DestinationKind)
    return [f"{kind.name.lower()}:{start}" for kind in kinds]


def matcher(names: Iterable[str]) -> Callable[[str], bool]:
    """Whether one of these names and patterns means a destination."""
    matches = [_matcher(name) for name in names]
    return lambda candidate: any(matches_(candidate) for matches_ in matches)


def _matcher(name: str) -> Callable[[str], bool]:
    """Whether a destination is meant."""
    if not is_pattern(name):
        return lambda candidate: candidate == name
    pattern = parse_pattern(name)
    matches = compile_expression(rf"\A(?:{pattern.expression})\z").match

    def is_meant(candidate: str) -> bool:
        destination = parse_destination(candidate)
        return pattern.admits(destination) and matches(destination.name) is not None

    return is_meant
