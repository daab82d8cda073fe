"""What a run of message servers has seen: who began and ended when, what was said and reported, and who has it.

Checkers and the program of each work process stand on it. It looks at what goes into and comes out of machines, and
never at what is inside of them.
"""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import xxhash

from alphorn.message_server import process_machine
from alphorn.model import internal
from alphorn.model.events import MISSED, Event
from alphorn.testing.schedule import Schedule

NEVER = float("inf")
TURN_S = 0.001  # what is told in one turn may have been decided before the last that was heard in it
PRESENCE_KINDS = 3  # of events that servers tell by themselves, each once for every time that a process has come
_MARK = b"said"
_NUMBER_BYTES = 8


class ServerRun:
    """One start of a message server."""

    def __init__(self, name: str, began_at: float) -> None:
        self.name = name
        self.began_at = began_at
        self.is_alive = True
        self.joined: dict[int, ProcessRun] = {}  # connections
        self.welcomed_at: dict[int, float] = {}  # these
        self.views: dict[int, dict[bytes, internal.Row]] = {}  # what each connection was told of who is there
        self.known: dict[str, float] = {}  # names that have joined here → when first
        self.seen: dict[ProcessRun, float] = {}  # when it last had this run, by itself or by the other server
        self.lapsed: dict[ProcessRun, float] = {}  # when it last had lacked this run for long
        self.spoken: dict[ProcessRun, float] = {}  # when it last heard something for all from this run itself
        self.is_synchronised = False
        self.lanes: dict[bytes, int] = {}  # of senders, the last number that it knows of
        self.said_all_at = NEVER  # when it last said to the other one that this was all
        self.finished: dict[bytes, float] = {}  # keys that it was told to be done → when first
        self.granted: dict[tuple[ProcessRun, bytes], float] = {}  # to whom it said yes → when last

    def __repr__(self) -> str:
        return f"{self.name} of {self.began_at:.2f}"


class ProcessRun:
    """One start of a work process."""

    def __init__(self, name: str, run: bytes, now: float) -> None:
        self.name = name
        self.run = run
        self.began_at = now
        self.ended_at = self.leaves_at = NEVER
        self.joined_at = NEVER  # when a server first welcomed it
        self.has_joined: set[str] = set()  # as it sees it
        self.joined: dict[str, ServerRun] = {}  # of these, as they were when they welcomed it
        self.alone: list[list[float]] = [[now, NEVER]]  # spans in which it had no server
        self.heard_at = now
        self.silent_s = 0.0  # the longest time in which it heard of no server
        self.stood: list[tuple[float, float]] = []  # spans in which it was paused
        self.wants: list[tuple[float, frozenset[str]]] = []
        self.missed: list[int] = []
        self.untaken = 0  # things that its program has been handed and has not taken
        self.doubtful = 0  # of these, when it had a new home: they may be counted as missed there

    def __repr__(self) -> str:
        return f"{self.name} of {self.began_at:.2f}"

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended."""
        return self.ended_at == NEVER

    def was_alone(self, start: float, end: float) -> bool:
        """Whether it had no server at any moment from `start` to `end`."""
        return any(first <= end and last >= start for first, last in self.alone)

    def was_alone_throughout(self, start: float, end: float) -> bool:
        """Whether it had no server at all from `start` to `end`."""
        return any(first <= start and last >= end for first, last in self.alone)

    def has_wanted(self, kind: str, since: float) -> bool:
        """Whether it wanted such events from then on, all the time."""
        before = [kinds for at, kinds in self.wants if at <= since][-1:]
        later = [kinds for at, kinds in self.wants if at > since]
        return bool(before) and all(kind in kinds or "*" in kinds for kinds in before + later)

    def may_get(self, kind: str) -> bool:
        """Whether it has ever wanted such events."""
        return any(kind in kinds or "*" in kinds for _, kinds in self.wants)


class Thing:
    """Something for several processes: who has it, and which servers have had it."""

    def __init__(self, at: float) -> None:
        self.at = at
        self.given: dict[ProcessRun, float] = {}
        self.taken: dict[ProcessRun, float] = {}
        self.holders: dict[ServerRun, float] = {}  # that live → since when
        self.heard_by: set[str] = set()  # names of servers that have ever had it
        self.is_lost = False  # every server that had it has ended since it was last told to one

    def hold(self, server: ServerRun, now: float) -> None:
        """A server has it."""
        self.holders.setdefault(server, now)
        self.heard_by.add(server.name)
        self.is_lost = False

    def forget(self, server: ServerRun) -> bool:
        """A server has ended; whether it was the last that had this."""
        if server in self.holders:
            del self.holders[server]
            self.is_lost = not self.holders
        return self.is_lost


class Saying(Thing):
    """What a program said to one process, or to all others."""

    def __init__(self, number: int, sender: ProcessRun, to: str, place: int, at: float, timeout_s: float) -> None:
        super().__init__(at)
        self.number = number
        self.sender = sender
        self.to = to
        self.place = place  # among what its sender said to the same
        self.timeout_s = timeout_s
        self.body = b""
        self.is_left_behind = False  # its sender has gone on to a server that knows nothing of it
        self.frames = 0  # in which it was sent
        self.answered_at = NEVER
        self.error = ""

    def __repr__(self) -> str:
        return f"#{self.number} of {self.sender.name} to {self.to or 'all others'}"

    @property
    def is_for_all(self) -> bool:
        """Whether it is to all others."""
        return self.to == internal.OTHERS

    @property
    def has_left(self) -> bool:
        """Whether any server may have it."""
        return self.frames > 0

    @property
    def is_acknowledged(self) -> bool:
        """Whether its program was told that it is safe."""
        return self.answered_at < NEVER and not self.error


class Occurrence(Thing):
    """Something that happened in the cluster, and who has reported it."""

    def __init__(self, event: Event, at: float) -> None:
        super().__init__(at)
        self.event = event
        self.reporters: dict[ProcessRun, float] = {}

    def __repr__(self) -> str:
        return f"{self.event.kind} {self.event.number}"


class Competition:
    """A function that one process of the cluster runs."""

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.competitors: set[ProcessRun] = set()
        self.runner: ProcessRun | None = None
        self.won_at = 0.0
        self.completed_at = NEVER
        self.known: dict[ServerRun, float] = {}  # servers that know of the runner → since when


class Watch:
    """Called back after the facts are up to date."""

    def __init__(self) -> None:
        self.given: list[Callable[[ProcessRun, Saying, process_machine.Given], None]] = []
        self.answered: list[Callable[[Saying], None]] = []
        self.told: list[Callable[[ProcessRun, Event], None]] = []
        self.missed: list[Callable[[ProcessRun, int], None]] = []
        self.won: list[Callable[[Competition, ProcessRun], None]] = []
        self.welcomed: list[Callable[[ServerRun, int], None]] = []
        self.refused: list[Callable[[ServerRun, ProcessRun, str, str], None]] = []
        self.synchronised: list[Callable[[ServerRun, ServerRun], None]] = []  # who hears it, and from whom
        self.showed: list[Callable[[ServerRun, int], None]] = []
        self.looked: list[Callable[[], None]] = []
        self.finished: list[Callable[[], None]] = []


class Facts:
    """All of it."""

    def __init__(self, schedule: Schedule, names: frozenset[str]) -> None:
        self._schedule = schedule
        self.names = names  # that processes may have
        self.watch = Watch()
        self.servers: dict[str, ServerRun] = {}  # those that live
        self.has_lost = False  # something was with servers that have all ended
        self.things: dict[tuple[bytes, int], Thing] = {}  # by its sender's run and the number in that lane
        self.passed_over: set[tuple[bytes, int]] = set()  # of these, what some server was never told
        self.linked: set[frozenset[str]] = set()
        self.processes: list[ProcessRun] = []
        self.by_run: dict[bytes, ProcessRun] = {}
        self.sayings: list[Saying] = []
        self.places: dict[tuple[ProcessRun, str], int] = {}
        self.occurrences: dict[tuple[object, ...], Occurrence] = {}
        self.competitions: dict[bytes, Competition] = {}

    @property
    def now(self) -> float:
        """Virtual time."""
        return self._schedule.now

    # --- servers ---

    def server_began(self, name: str) -> ServerRun:
        """A message server starts, with nothing."""
        self.servers[name] = server = ServerRun(name, self.now)
        return server

    def server_ended(self, server: ServerRun) -> None:
        """It is gone, and all that it had."""
        server.is_alive = False
        self.servers.pop(server.name, None)
        things: list[Thing] = [*self.sayings, *self.occurrences.values()]
        for thing in things:
            self.has_lost |= thing.forget(server)

    def server_heard(self, server: ServerRun, frame: msgspec.Struct, speaker: ProcessRun | None = None) -> None:
        """A message server has heard this, from a process or from the other server."""
        for thing in self.things_in(frame):
            thing.hold(server, self.now)
            if speaker is not None:
                self._leave_behind(server, speaker)
                server.spoken[speaker] = self.now
        if isinstance(frame, internal.Finish):
            server.finished.setdefault(frame.key, self.now)
        self._note_lanes(server, frame, speaker)

    def _note_lanes(self, server: ServerRun, frame: msgspec.Struct, speaker: ProcessRun | None) -> None:
        """Who goes on in its lane at a server that does not know what came before passes over that."""
        known: list[tuple[bytes, int]] = []
        if isinstance(frame, internal.Hold):
            known = [(frame.run, frame.number)]
        elif isinstance(frame, internal.Lost):
            known = [(record.run, record.last) for record in frame.records]
        elif isinstance(frame, internal.SayAll | internal.Report) and speaker is not None:
            known = [(speaker.run, frame.number)]
            self.things.update((known[0], thing) for thing in self.things_in(frame))
        elif isinstance(frame, internal.Home) and frame.is_here and speaker is not None:
            known = [(speaker.run, frame.first - 1)]
            unknown = range(server.lanes.get(speaker.run, 0) + 1, frame.first)
            self.passed_over.update((speaker.run, number) for number in unknown)
        for run, number in known:
            server.lanes[run] = max(number, server.lanes.get(run, 0))

    def may_count(self, receiver: ProcessRun) -> dict[Thing, int]:
        """What may be counted as missed, wanted or not, as some server does not know what it was; how often each."""
        counts: dict[Thing, int] = {}
        for run, number in self.passed_over:
            thing = self.things.get((run, number))
            if thing is not None and run != receiver.run and receiver not in thing.taken:
                counts[thing] = counts.get(thing, 0) + 1
        return counts

    def _leave_behind(self, server: ServerRun, speaker: ProcessRun) -> None:
        """Who speaks through a server that has started and reached no other one passes over what only others have."""
        if server.began_at == 0.0 or server.is_synchronised:
            return
        for saying in self.sayings:
            if saying.sender is speaker and saying.is_acknowledged and server not in saying.holders:
                saying.is_left_behind |= saying.at < server.began_at

    def server_synchronised(self, server: ServerRun, other: ServerRun) -> None:
        """A message server was told by the other one, of which it knows who it is, that this was all."""
        server.is_synchronised = True
        for callback in self.watch.synchronised:
            callback(server, other)
        for competition in self.competitions.values():
            if other in competition.known:
                competition.known.setdefault(server, self.now)

    def server_told(self, server: ServerRun, connection: int, frame: msgspec.Struct, row: internal.Row | None) -> None:
        """A message server says this to a process, whose row is the one that it joined with."""
        if isinstance(frame, internal.Joined):
            assert row is not None
            process = server.joined[connection] = self.by_run[row.run]
            server.welcomed_at[connection] = self.now
            server.views[connection] = {}
            server.known.setdefault(process.name, self.now)
            for callback in self.watch.welcomed:
                callback(server, connection)
        elif isinstance(frame, internal.Refused) and connection in server.joined:
            for refused in self.watch.refused:
                refused(server, server.joined[connection], frame.error, frame.reason)
        elif isinstance(frame, internal.Claimed) and frame.is_yours and connection in server.joined:
            server.granted[server.joined[connection], frame.key] = self.now
        elif isinstance(frame, internal.Arrived):
            server.views.setdefault(connection, {}).update((row.run, row) for row in frame.rows)
            for callback in self.watch.showed:
                callback(server, connection)
        elif isinstance(frame, internal.Departed):
            for run in frame.runs:
                server.views.setdefault(connection, {}).pop(run, None)

    def server_told_peer(self, server: ServerRun, frame: msgspec.Struct) -> None:
        """A message server says this to the other one."""
        if isinstance(frame, internal.Synchronised):
            server.said_all_at = self.now

    def server_lost(self, server: ServerRun, connection: int) -> None:
        """A connection of a message server is over."""
        server.joined.pop(connection, None)
        server.views.pop(connection, None)

    def look(self, lapse_s: float) -> None:
        """Notes which servers have which processes at this moment."""
        for server in self.servers.values():
            reach = set(server.joined.values())
            for other in self.servers.values():
                if frozenset((server.name, other.name)) in self.linked:
                    reach.update(other.joined.values())
            for process in self.processes:
                if process in reach:
                    server.seen[process] = self.now
                elif self.now - server.seen.get(process, server.began_at) > lapse_s:
                    server.lapsed[process] = self.now
        for callback in self.watch.looked:
            callback()

    # --- work processes ---

    def process_began(self, name: str, run: bytes, wants: frozenset[str]) -> ProcessRun:
        """A work process starts."""
        process = ProcessRun(name, run, self.now)
        process.wants.append((self.now, wants))
        self.processes.append(process)
        self.by_run[run] = process
        return process

    def process_ended(self, process: ProcessRun) -> None:
        """It is gone."""
        process.ended_at = self.now
        process.joined.clear()

    def process_joined(self, process: ProcessRun, server: str) -> None:
        """A server has welcomed it, as it has heard."""
        process.joined_at = min(process.joined_at, self.now)
        process.has_joined.add(server)
        if server in self.servers:
            process.joined[server] = self.servers[server]
        process.alone[-1][1] = min(process.alone[-1][1], self.now)

    def process_left(self, process: ProcessRun, server: str) -> None:
        """It has lost a server, as it has noticed."""
        process.joined.pop(server, None)
        if server in process.has_joined:
            process.has_joined.remove(server)
            if not process.has_joined:
                process.alone.append([self.now, NEVER])

    def process_heard(self, process: ProcessRun) -> None:
        """It has heard of a server."""
        process.silent_s = max(process.silent_s, self.now - process.heard_at)
        process.heard_at = self.now

    def process_sent(self, process: ProcessRun, frame: msgspec.Struct) -> None:
        """It says this to a server."""
        if isinstance(frame, internal.Home) and frame.is_here:
            process.doubtful += process.untaken and process.untaken + sum(process.missed)
        for thing in self.things_in(frame):
            if isinstance(thing, Saying):
                thing.frames += 1

    def wants(self, process: ProcessRun, kinds: frozenset[str]) -> None:
        """It wants other events."""
        process.wants.append((self.now, kinds))

    def count_of_presence(self, process: ProcessRun) -> int:
        """So many events there may be of who came and went, for a process that wants them."""
        return PRESENCE_KINDS * sum(len(each.alone) for each in self.processes) if process.may_get("node_up") else 0

    # --- what is said ---

    def say(self, sender: ProcessRun, to: str, timeout_s: float, size: int) -> Saying:
        """A program says something."""
        place = self.places[sender, to] = self.places.get((sender, to), 0) + 1
        saying = Saying(len(self.sayings), sender, to, place, self.now, timeout_s)
        saying.body = (_MARK + saying.number.to_bytes(_NUMBER_BYTES, "big")).ljust(size, b".")
        self.sayings.append(saying)
        return saying

    def find(self, body: bytes) -> Saying | None:
        """What has this body."""
        number = int.from_bytes(body[len(_MARK) : len(_MARK) + _NUMBER_BYTES], "big")
        if not body.startswith(_MARK) or number >= len(self.sayings):
            return None
        return self.sayings[number]

    def answer(self, saying: Saying, error: str) -> None:
        """Its program hears what became of it."""
        saying.answered_at, saying.error = self.now, error
        for callback in self.watch.answered:
            callback(saying)

    def give(self, receiver: ProcessRun, given: process_machine.Given) -> None:
        """A message is handed to a program."""
        saying = self.find(given.body)
        assert saying is not None, f"nobody has said {given}"
        for callback in self.watch.given:
            callback(receiver, saying, given)
        saying.given[receiver] = self.now
        receiver.untaken += saying.is_for_all

    def take(self, receiver: ProcessRun, given: process_machine.Given | process_machine.Told) -> None:
        """The program has it."""
        if isinstance(given, process_machine.Given):
            saying = self.find(given.body)
            assert saying is not None
            saying.taken[receiver] = self.now
            receiver.untaken -= saying.is_for_all
        elif given.event.kind != MISSED:
            receiver.untaken -= 1

    # --- events ---

    def report(self, process: ProcessRun, event: Event) -> Occurrence:
        """A process tells the cluster of something."""
        occurrence = self.occurrences.setdefault(event.name, Occurrence(event, self.now))
        occurrence.reporters.setdefault(process, self.now)
        return occurrence

    def tell(self, receiver: ProcessRun, event: Event) -> None:
        """An event is handed to a program."""
        if event.kind == MISSED:
            count = event.details["count"]
            assert isinstance(count, int)
            receiver.missed.append(count)
            for missed in self.watch.missed:
                missed(receiver, count)
            return
        receiver.untaken += 1
        for callback in self.watch.told:
            callback(receiver, event)
        if event.name in self.occurrences:
            self.occurrences[event.name].given[receiver] = self.now

    # --- once in the cluster ---

    def compete(self, process: ProcessRun, key: bytes) -> None:
        """A process wants to be the one that runs it."""
        self.competitions.setdefault(key, Competition(key)).competitors.add(process)

    def win(self, process: ProcessRun, key: bytes) -> None:
        """A process is to run it."""
        competition = self.competitions[key]
        for callback in self.watch.won:
            callback(competition, process)
        competition.runner, competition.won_at = process, self.now
        competition.known = dict.fromkeys(process.joined.values(), self.now)

    def complete(self, key: bytes) -> None:
        """Its runner has run it, and says so."""
        self.competitions[key].completed_at = self.now

    # --- frames ---

    def things_in(self, value: Any) -> Iterator[Thing]:
        """All that a frame carries which processes are to have."""
        if isinstance(value, Event):
            occurrence = self.occurrences.get(value.name)
            if occurrence is not None:
                yield occurrence
        elif isinstance(value, bytes):
            if value.startswith(_MARK) and (saying := self.find(value)) is not None:
                yield saying
        elif isinstance(value, msgspec.Struct):
            for field in value.__struct_fields__:
                yield from self.things_in(getattr(value, field))
        elif isinstance(value, list | tuple):
            for each in value:
                yield from self.things_in(each)


def key_of(event: Event) -> bytes:
    """What processes compete for when they are told of an event."""
    return xxhash.xxh3_128(repr(event.name).encode()).digest()
