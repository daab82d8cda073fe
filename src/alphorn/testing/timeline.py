"""The timeline of a run: one readable line per event, with a column per node that shows how it is.

     1.204310  ..*x.z..  S3  commit 41..43 → group (lost at C1)

Columns: `.` up, `s` up and not synchronised, `z` paused, `x` down, `*` the node of this line. Frames are decoded only
when a line is printed, so keeping a timeline costs little.
"""

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial

from alphorn.bus.machine import (
    Deliver,
    MemberChanged,
    Output,
    Persist,
    PrimaryChanged,
    SynchronisedChanged,
    Trace,
    WindowChanged,
)
from alphorn.testing.frame_text import describe_frames, describe_writes
from alphorn.testing.node import NodeState, SimulatedNode
from alphorn.testing.said_text import describe_said
from alphorn.testing.simulator import Simulation
from alphorn.testing.watch import Troubles

_Line = tuple[float, str, str, Callable[[], str]]


class Timeline:
    """Remembers the last `keep` events of a run; None keeps all."""

    __slots__ = ("_lines", "_simulation")

    def __init__(self, keep: int | None = None) -> None:
        self._lines: deque[_Line] = deque(maxlen=keep)
        self._simulation: Simulation | None = None

    def attach(self, simulation: Simulation) -> None:
        """Begins to watch."""
        self._simulation = simulation
        watch = simulation.watch
        watch.started.append(lambda node: self._note(node, partial("start    run {}".format, node.run)))
        watch.ended.append(lambda node, reason: self._note(node, lambda: f"end      {reason}"))
        watch.input.append(lambda node, event, text: self._note(node, lambda: f"{event:8s} {text}"))
        watch.sent.append(self._on_sent)
        watch.persisted.append(self._on_persisted)
        watch.durable.append(self._on_durable)
        watch.delivered.append(self._on_delivered)
        watch.ordered.append(lambda node, handle, number: self._note(node, lambda: f"ordered  #{handle} as {number}"))
        watch.refused.append(self._on_refused)
        watch.checkpoint.append(lambda node, number: self._note(node, lambda: f"kept     checkpoint {number}"))
        watch.installed.append(lambda node, number: self._note(node, lambda: f"install  checkpoint {number}"))
        watch.other.append(self._on_other)
        watch.said.append(self._on_said)
        watch.told.append(self._on_told)
        watch.fault.append(self._on_fault)

    def note(self, now: float, name: str, text: str) -> None:
        """A line of a run without simulated members."""
        self._lines.append((now, "", name, lambda: text))

    def lines(self, last: int | None = None) -> Iterator[str]:
        """The lines, or only the last ones."""
        width = max((len(name) for _, _, name, _ in self._lines), default=2)
        skip = max(0, len(self._lines) - last) if last is not None else 0
        for place, (time, states, name, text) in enumerate(self._lines):
            if place >= skip:
                yield f"{time:10.6f}  {states}  {name:{width}s}  {text()}"

    def _states(self, actor: SimulatedNode | None) -> str:
        assert self._simulation is not None
        return "".join("*" if node is actor else _mark(node) for node in self._simulation.nodes)

    def _note(self, node: SimulatedNode, text: Callable[[], str]) -> None:
        self._lines.append((node.around.schedule.now, self._states(node), node.name, text))

    def _on_sent(self, node: SimulatedNode, to: str, data: bytes, troubles: Troubles) -> None:
        self._note(node, lambda: f"send     {describe_frames(data)} → {to}{self._describe(troubles)}")

    def _describe(self, troubles: Troubles) -> str:
        assert self._simulation is not None
        nodes = self._simulation.nodes
        return "".join(f" ({what} at {nodes[target].name})" for target, what in troubles)

    def _on_persisted(self, node: SimulatedNode, persist: Persist) -> None:
        self._note(node, lambda: f"write    {persist.token}: {describe_writes(persist.writes)}")

    def _on_durable(self, node: SimulatedNode, persist: Persist) -> None:
        self._note(node, lambda: f"durable  {persist.token}")

    def _on_delivered(self, node: SimulatedNode, output: Deliver) -> None:
        size = output.assignment.size
        self._note(node, lambda: f"deliver  {output.sequence} ({size} bytes)")

    def _on_refused(self, node: SimulatedNode, handle: int, reason: str, is_unknown: bool) -> None:
        word = "unknown" if is_unknown else "refused"
        self._note(node, lambda: f"{word}  #{handle}: {reason}")

    def _on_other(self, node: SimulatedNode, output: Output) -> None:
        text = describe_output(output)
        if text:
            self._note(node, lambda: text)

    def _on_said(self, speaker: str, listener: str, data: bytes | None) -> None:
        assert self._simulation is not None
        states = self._states(self._simulation.by_name.get(speaker))
        is_link = speaker in self._simulation.by_name and listener in self._simulation.by_name
        self._lines.append(
            (
                self._simulation.now,
                states,
                speaker,
                lambda: f"say      {describe_said(data, is_link=is_link)} → {listener}",
            )
        )

    def _on_told(self, name: str, details: str) -> None:
        assert self._simulation is not None
        self._lines.append((self._simulation.now, self._states(None), name, lambda: details))

    def _on_fault(self, fault: str, details: str) -> None:
        assert self._simulation is not None
        self._lines.append((self._simulation.now, self._states(None), "--", lambda: f"FAULT    {fault}: {details}"))


def describe_output(output: Output) -> str:
    """Outputs that only tell the upper layer something; nothing for all others."""
    match output:
        case Trace():
            return f"{output.event:8s} {output.details}"
        case MemberChanged():
            return f"member   {output.sequence}: {output.member.name} {output.event}"
        case PrimaryChanged():
            return f"primary  {output.sequence}: member {output.number}{' (self)' if output.is_self else ''}"
        case SynchronisedChanged():
            return "synchronised" if output.is_synchronised else "unsynchronised"
        case WindowChanged():
            return f"window   {'open' if output.is_open else 'closed'}"
    return ""


def _mark(node: SimulatedNode) -> str:
    if node.state is NodeState.DOWN:
        return "x"
    if node.state is NodeState.PAUSED:
        return "z"
    return "." if node.is_synchronised else "s"
