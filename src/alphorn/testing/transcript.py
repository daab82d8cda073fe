"""What a scenario prints: one line per thing said, delivered or decided, in milliseconds since its block began.

Periodic frames are hidden unless `watch` names them. Batches are called by their text.
"""

from collections.abc import Iterable

from alphorn.bus.frames import (
    Commit,
    CommitSubmit,
    Data,
    DataReport,
    Fetch,
    Range,
    decode_all,
)
from alphorn.bus.machine import Deliver, Output
from alphorn.testing.frame_text import describe_body, short_id
from alphorn.testing.node import SimulatedNode
from alphorn.testing.simulator import Simulation
from alphorn.testing.timeline import describe_output
from alphorn.testing.watch import Troubles

PERIODIC = frozenset({"Heartbeat", "Status"})
NAME_BYTES_MAX = 32


class Transcript:
    """Collects lines. `spoken_at` is when anything but a periodic frame happened last."""

    __slots__ = ("_began_at", "_delivered", "_lines", "_names", "_simulation", "shown", "spoken_at")

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._began_at = 0.0
        self._lines: list[str] = []
        self._names: dict[bytes, str] = {}  # by id and by text
        self._delivered: dict[str, list[str]] = {}
        self.shown: frozenset[str] = frozenset()
        self.spoken_at = 0.0
        watch = simulation.watch
        watch.sent.append(self._on_sent)
        watch.delivered.append(self._on_delivered)
        watch.started.append(self._on_started)
        watch.ended.append(lambda node, reason: self._line(node, "end", reason))
        watch.ordered.append(lambda node, handle, number: self._line(node, "ordered", f"#{handle} as {number}"))
        watch.refused.append(
            lambda node, handle, why, is_unknown: self._line(node, "unknown" if is_unknown else "refused", why)
        )
        watch.checkpoint.append(lambda node, number: self._line(node, "kept", f"checkpoint {number}"))
        watch.installed.append(lambda node, number: self._line(node, "install", f"checkpoint {number}"))
        watch.other.append(self._on_other)

    def begin(self) -> None:
        """A new block: time begins anew."""
        self._began_at = self._simulation.now

    def take(self) -> list[str]:
        """The lines so far."""
        lines, self._lines = self._lines, []
        return lines

    def call(self, name: str) -> None:
        """From now on a batch that begins with this text is called so."""
        self._names[name.encode()] = name

    def say(self, text: str) -> None:
        """A line of its own."""
        self._lines.append(text)

    def show(self, name: str, described: object) -> None:
        """A machine's description, one line per part."""
        if isinstance(described, dict):
            for key, value in described.items():
                self._lines.append(f"{name}.{key}: {_plain(value)}")
        else:
            self._lines.append(f"{name}: {_plain(described)}")

    def show_order(self, names: Iterable[str]) -> None:
        """Who was given what, in order."""
        chosen = list(names) or [node.name for node in self._simulation.nodes]
        groups: dict[str, list[str]] = {}
        for name in chosen:
            groups.setdefault(" ".join(self._delivered.get(name, [])) or "nothing", []).append(name)
        for order, members in groups.items():
            self._lines.append(f"{','.join(members)}: {order}")

    def _line(self, node: SimulatedNode, event: str, details: str) -> None:
        self.spoken_at = self._simulation.now
        at_ms = round((self._simulation.now - self._began_at) * 1000)
        self._lines.append(f"t={at_ms:<4d} {node.name:<3s} {event:<10s} {details}".rstrip())

    def _on_sent(self, node: SimulatedNode, to: str, data: bytes, troubles: Troubles) -> None:
        for frame in decode_all(data):
            is_shown = frame.name in self.shown or (not self.shown and frame.name not in PERIODIC)
            if frame.name not in PERIODIC:
                self.spoken_at = self._simulation.now
            if type(frame.body) is Data and frame.body.offset == 0:
                self._remember(frame.body)
            if is_shown:
                bad = "".join(f" ({what} at {self._simulation.nodes[at].name})" for at, what in troubles)
                said = describe_body(frame.body, self._name)
                self._line(node, _event_of(frame.name), f"{said} -> {to.removeprefix('*')}{bad}")

    def _remember(self, data: Data) -> None:
        """The first fragment tells a batch's name: its text up to the dots that fill it."""
        text = bytes(data.payload).rstrip(b".")
        self._names.setdefault(data.id, self._names.get(text, short_id(data.id)))

    def _name(self, batch: bytes) -> str:
        return self._names.get(batch) or short_id(batch)

    def _on_delivered(self, node: SimulatedNode, output: Deliver) -> None:
        text = bytes(output.payload).rstrip(b".")
        name = self._names.get(text) or short_id(output.assignment.id)
        self._names[output.assignment.id] = name
        self._delivered.setdefault(node.name, []).append(f"{output.sequence}={name}")
        self._line(node, "deliver", f"{output.sequence}={name}")

    def _on_started(self, node: SimulatedNode) -> None:
        self._delivered[node.name] = []
        self._line(node, "start", f"run {node.run}")

    def _on_other(self, node: SimulatedNode, output: Output) -> None:
        text = describe_output(output)
        if text:
            event, _, details = text.partition(" ")
            self._line(node, event, details.strip())


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
    return "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name).strip().replace(" ", "-")


def _plain(value: object) -> str:
    if isinstance(value, dict):
        return " ".join(f"{key}={_plain(inner)}" for key, inner in value.items())
    return str(value)
