"""What a Message Manager tells Client Managers so that messages wait: full destinations, and its own disk.

Destinations are the primary's to judge, and only while it is primary; every replica speaks for its own disk.
"""

from collections.abc import Sequence
from typing import Any

from alphorn.message_manager.effects import Effect
from alphorn.message_manager.engine import Engine
from alphorn.message_manager.fullness import DiskGauge, Fullness, Space, Waiting
from alphorn.message_manager.status import with_flow
from alphorn.model.commands import AnyCommand
from alphorn.model.link import Full, Stored


class FlowControl:
    """One replica's."""

    __slots__ = ("_disk", "_fullness", "_name", "waiting")

    def __init__(self, name: str) -> None:
        self._name = name
        self._disk = DiskGauge()
        self._fullness: Fullness | None = None  # while this replica is primary
        self.waiting = Waiting()

    @property
    def stored(self) -> Stored:
        """Whether this replica's disk has room."""
        return Stored(self._disk.reason)

    @property
    def is_disk_full(self) -> bool:
        """Whether it has none."""
        return bool(self._disk.reason)

    @property
    def full(self) -> Full:
        """All destinations that are full."""
        return Full(list(self._fullness.reasons.items()) if self._fullness else [], is_whole=True)

    def begin(self, engine: Engine) -> None:
        """This replica is primary; who waits it is told anew."""
        self._fullness = Fullness(engine)
        self.waiting = Waiting()

    def end(self) -> None:
        """It is not any more."""
        self._fullness = None

    def on_applied(self, commands: Sequence[AnyCommand], effects: Sequence[Effect]) -> Full | None:
        """The engine has applied commands; what became full by that, or free."""
        if self._fullness is None:
            return None
        self._fullness.on_applied(commands, effects)
        changes = self._fullness.take_changes()
        return Full(changes) if changes else None

    def measure(self, space: Space) -> Stored | None:
        """The disk was measured; what is news about it."""
        return self.stored if self._disk.measure(self._name, space) else None

    def add_to(self, status: dict[str, Any], engine: Engine) -> dict[str, Any]:
        """The status, and what takes no messages at the moment."""
        reasons = self._fullness.reasons if self._fullness else {}
        return with_flow(status, engine, self._disk, reasons, self.waiting.totals())
