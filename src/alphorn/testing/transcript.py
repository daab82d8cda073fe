"""What a scenario prints: one line per thing said, delivered or decided, in milliseconds since its block began.

Heartbeats, status, writes, and traces that repeat a frame are hidden unless `watch` names them. Members that do the
same at the same moment share a line. Batches are called by their text.
"""

from collections import deque
from collections.abc import Iterable

import msgspec

from alphorn.bus.entries import describe_epoch
from alphorn.bus.frames import Body, Commit, CommitSubmit, Data, DataReport, Fetch, Range, decode_all
from alphorn.bus.machine import Deliver, Output, Persist
from alphorn.bus.storage import Meta
from alphorn.testing.disk import DiskState
from alphorn.testing.frame_text import describe_body, describe_range, describe_writes, short_id
from alphorn.testing.node import SimulatedNode
from alphorn.testing.simulator import Simulation
from alphorn.testing.timeline import describe_output
from alphorn.testing.watch import Troubles

PERIODIC = frozenset({"heartbeat", "status"})
HIDDEN = PERIODIC | {"write", "durable", "query", "fetching", "repairing", "promising", "propose"}
_TRACES = {"fetch": "fetching", "repair": "repairing", "promise": "promising"}  # they announce a frame of that name
SAID_MAX = 256
ENTRIES_MAX = 12
_decode_meta = msgspec.msgpack.Decoder(Meta).decode


class _Line(msgspec.Struct):
    """One line; `event` is empty for what a command prints."""

    at_ms: int
    names: list[str]
    event: str
    details: str

    def __str__(self) -> str:
        if not self.event:
            return self.details
        return f"t={self.at_ms:<4d} {','.join(self.names):<5s} {self.event:<18s} {self.details}".rstrip()


class Transcript:
    """Collects lines. `spoken_at` is when anything but a periodic frame happened last."""

    __slots__ = (
        "_began_at",
        "_delivered",
        "_handles",
        "_lines",
        "_names",
        "_said",
        "_shown",
        "_simulation",
        "spoken_at",
    )

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._began_at = 0.0
        self._lines: list[_Line] = []
        self._names: dict[bytes, str] = {}  # by id and by text
        self._handles: dict[int, str] = {}
        self._delivered: dict[str, list[str]] = {}
        self._said: dict[str, deque[tuple[str, bytes]]] = {}  # by member: to whom, and what
        self._shown: frozenset[str] = frozenset()
        self.spoken_at = 0.0
        watch = simulation.watch
        watch.sent.append(self._on_sent)
        watch.persisted.append(lambda node, persist: self._on_write(node, "write", persist))
        watch.durable.append(lambda node, persist: self._on_write(node, "durable", persist))
        watch.delivered.append(self._on_delivered)
        watch.started.append(self._on_started)
        watch.ended.append(lambda node, reason: self._note(node, "end", reason))
        watch.ordered.append(self._on_ordered)
        watch.refused.append(self._on_refused)
        watch.checkpoint.append(lambda node, number: self._note(node, "kept", f"checkpoint {number}"))
        watch.installed.append(self._on_installed)
        watch.other.append(self._on_other)

    def begin(self) -> None:
        """A new block: time begins anew."""
        self._began_at = self._simulation.now

    def take(self) -> list[str]:
        """The lines so far."""
        lines, self._lines = self._lines, []
        return [str(line) for line in lines]

    def watch(self, names: Iterable[str]) -> None:
        """From now on only these are printed, frames by their name; none means the usual."""
        self._shown = frozenset(_event_of(name) for name in names)

    def call(self, name: str, handle: int) -> None:
        """From now on a batch that begins with this text is called so, and so is its handle."""
        self._names[name.encode()] = self._handles[handle] = name

    def say(self, text: str) -> None:
        """A line of its own."""
        self._lines.append(_Line(0, [], "", text))

    def show_order(self, names: Iterable[str]) -> None:
        """Who was given what, in order, since its last start."""
        chosen = list(names) or [node.name for node in self._simulation.nodes]
        groups: dict[str, list[str]] = {}
        for name in chosen:
            groups.setdefault(" ".join(self._delivered.get(name, [])) or "nothing", []).append(name)
        for order, members in groups.items():
            self.say(f"{','.join(members)}: {order}")

    def describe_disk(self, state: DiskState) -> str:
        """The records of a disk."""
        promised = "nothing" if state.meta is None else describe_epoch(_decode_meta(state.meta).promised)
        numbers = describe_range(min(state.assignments), max(state.assignments)) if state.assignments else "none"
        checkpoint = "none" if state.checkpoint is None else str(state.checkpoint.sequence)
        first, last = state.bounds
        outside = [number for number in sorted(state.entries) if number < first or first > last]
        retained = f"; retained {self._describe_entries(state, outside)}" if outside else ""
        entries = self._describe_entries(state, sorted(set(state.entries).difference(outside)))
        return f"promised {promised}; numbers {numbers}; entries {entries}{retained}; checkpoint {checkpoint}"

    def _describe_entries(self, state: DiskState, numbers: list[int]) -> str:
        """Each by its name, or many in short."""
        if len(numbers) > ENTRIES_MAX:
            return f"{len(numbers)} from {numbers[0]} to {numbers[-1]}"
        entries = []
        for sequence in numbers:
            assignment = state.assignments.get(sequence)
            name = self._name(assignment.id) if assignment is not None else state.entries[sequence].decode().strip(".")
            entries.append(f"{sequence}={name}{' (damaged)' if ('entry', sequence, 0) in state.damaged else ''}")
        return " ".join(entries) or "none"

    def find_said(self, name: str, frame: str, numbers: list[int]) -> tuple[str, bytes] | None:
        """The newest frame of this kind that a member sent, and where to."""
        for to, data in reversed(self._said.get(name, ())):
            if frame in frame_names(data) and all(frame_has_number(data, number) for number in numbers):
                return to, data
        return None

    def note_replay(self, node: SimulatedNode, to: str, data: bytes) -> None:
        """An old datagram is about to arrive once more."""
        for frame in decode_all(data):
            said = f"[{describe_epoch(frame.epoch)}] {_event_of(frame.name)} {self._describe_body(frame.body)}"
            self._note(node, "replay", f"{said} -> {to.removeprefix('*')}")

    def _note(self, node: SimulatedNode, event: str, details: str) -> None:
        if event not in PERIODIC:
            self.spoken_at = self._simulation.now
        if event not in self._shown if self._shown else event in HIDDEN:
            return
        at_ms = round((self._simulation.now - self._began_at) * 1000)
        for line in reversed(self._lines):
            if line.at_ms != at_ms or node.name in line.names or not line.event:
                break  # a member's own lines stay in their order
            if (line.event, line.details) == (event, details):
                line.names.append(node.name)
                return
        self._lines.append(_Line(at_ms, [node.name], event, details))

    def _on_sent(self, node: SimulatedNode, to: str, data: bytes, troubles: Troubles) -> None:
        self._said.setdefault(node.name, deque(maxlen=SAID_MAX)).append((to, data))
        for frame in decode_all(data):
            if type(frame.body) is Data and frame.body.offset == 0:
                self._remember(frame.body)
            said = self._describe_body(frame.body)
            self._note(node, _event_of(frame.name), f"{said} -> {to.removeprefix('*')}{self._describe(troubles)}")

    def _describe_body(self, body: Data | Body) -> str:
        """A frame's body in words; of a batch, what the log needs to know of it."""
        if type(body) is not Data:
            return describe_body(body, self._name)
        place = f" {body.fragment + 1}/{body.fragments}" if body.fragments > 1 else ""
        number = f" as {body.sequence}" if body.sequence else ""
        return f"{self._name(body.id)}{place}{number} timestamp={body.timestamp}"

    def _describe(self, troubles: Troubles) -> str:
        """What became of a frame on its way, and to whom."""
        reached: dict[str, list[str]] = {}
        for target, what in troubles:
            reached.setdefault(what, []).append(self._simulation.nodes[target].name)
        return "".join(f" ({what} at {','.join(names)})" for what, names in reached.items())

    def _remember(self, data: Data) -> None:
        """The first fragment tells a batch's name: its text up to the dots that fill it."""
        text = bytes(data.payload).rstrip(b".")
        self._names.setdefault(data.id, self._names.get(text, short_id(data.id)))

    def _name(self, batch: bytes) -> str:
        return self._names.get(batch) or short_id(batch)

    def _on_write(self, node: SimulatedNode, event: str, persist: Persist) -> None:
        self._note(node, event, describe_writes(persist.writes, self._name))

    def _on_delivered(self, node: SimulatedNode, output: Deliver) -> None:
        text = bytes(output.payload).rstrip(b".")
        name = self._names.get(text) or short_id(output.assignment.id)
        self._names[output.assignment.id] = name
        self._delivered.setdefault(node.name, []).append(f"{output.sequence}={name}")
        self._note(node, "deliver", f"{output.sequence}={name}")

    def _on_ordered(self, node: SimulatedNode, handle: int, number: int) -> None:
        self._note(node, "ordered", f"{number}={self._handles[handle]}")

    def _on_refused(self, node: SimulatedNode, handle: int, why: str, is_unknown: bool) -> None:
        self._note(node, "unknown" if is_unknown else "refused", f"{self._handles[handle]}: {why}")

    def _on_installed(self, node: SimulatedNode, number: int) -> None:
        self._delivered.setdefault(node.name, []).append(f"..{number}")
        self._note(node, "install", f"checkpoint {number}")

    def _on_started(self, node: SimulatedNode) -> None:
        self._delivered[node.name] = []
        self._note(node, "start", f"run {node.run}")

    def _on_other(self, node: SimulatedNode, output: Output) -> None:
        text = describe_output(output)
        if text:
            event, _, details = text.partition(" ")
            self._note(node, _TRACES.get(event, event), details.strip())


def frame_names(data: bytes) -> list[str]:
    """The names of the frames in a datagram."""
    return [frame.name for frame in decode_all(data)]


def frame_has_number(data: bytes, number: int) -> bool:
    """Whether a frame of this datagram speaks of this number."""
    return any(_has_number(frame.body, number) for frame in decode_all(data))


def _has_number(body: object, number: int) -> bool:
    match body:
        case Data():
            return body.sequence == number
        case Commit():
            return body.first <= number < body.first + len(body.assignments)
        case CommitSubmit():
            return body.previous < number <= body.previous + len(body.assignments)
        case Range():
            return body.first <= number < body.first + len(body.entries)
        case Fetch():
            return any(first <= number <= last for first, last in body.sequences)
        case DataReport():
            return False
    return any(getattr(body, field, None) == number for field in ("committed", "stored", "accepted", "previous"))


def _event_of(name: str) -> str:
    """CommitSubmit as commit-submit; words of happenings stay as they are."""
    return "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name).strip().replace(" ", "-")
