"""What a simulation lets others see: one list of callbacks per kind of happening, and the error they raise.

Checkers, the timeline and the workload add themselves to the lists they need; an empty list costs nothing. Callbacks
observe and never change the run, so a run with a timeline is the same run.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from alphorn.bus.machine import Deliver, Output, Persist

if TYPE_CHECKING:
    from alphorn.testing.node import SimulatedNode

NodeCallback = Callable[["SimulatedNode"], None]
Troubles = list[tuple[int, str]]  # target and what the network did to it


class Violation(AssertionError):
    """A promise of the log was broken. `checker` names which."""

    def __init__(self, checker: str, text: str) -> None:
        super().__init__(f"{checker}: {text}")
        self.checker = checker
        self.text = text


class Watch:
    """The callbacks of one simulation."""

    __slots__ = (
        "checkpoint",
        "delivered",
        "durable",
        "ended",
        "fault",
        "input",
        "installed",
        "ordered",
        "other",
        "persisted",
        "refused",
        "said",
        "sent",
        "started",
        "told",
        "turn",
    )

    def __init__(self) -> None:
        self.started: list[NodeCallback] = []
        self.ended: list[Callable[[SimulatedNode, str], None]] = []  # the reason: crash, stopped, left
        self.sent: list[Callable[[SimulatedNode, str, bytes, Troubles], None]] = []  # to, data, what went wrong
        self.turn: list[Callable[[SimulatedNode, list[Output]], None]] = []  # all outputs of a turn, before any is done
        self.input: list[Callable[[SimulatedNode, str, str], None]] = []  # event and details
        self.persisted: list[Callable[[SimulatedNode, Persist], None]] = []
        self.durable: list[Callable[[SimulatedNode, Persist], None]] = []
        self.delivered: list[Callable[[SimulatedNode, Deliver], None]] = []
        self.ordered: list[Callable[[SimulatedNode, int, int], None]] = []  # handle, sequence
        self.refused: list[Callable[[SimulatedNode, int, str, bool], None]] = []  # handle, reason, is_unknown
        self.checkpoint: list[Callable[[SimulatedNode, int], None]] = []  # durable at this number
        self.installed: list[Callable[[SimulatedNode, int], None]] = []
        self.other: list[Callable[[SimulatedNode, Output], None]] = []  # membership, window, traces
        self.said: list[Callable[[str, str, bytes | None], None]] = []  # on a stream: from, to, frame or its end
        self.told: list[Callable[[str, str], None]] = []  # by somebody who is no member: name and details
        self.fault: list[Callable[[str, str], None]] = []  # class and details
