"""What a Message Manager tells Client Managers so that messages wait: full destinations, and its own disk.

Destinations are the primary's to judge, and only while it is primary; every replica speaks for its own disk.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from alphorn.message_manager.effects import Effect
from alphorn.message_manager.engine import Engine
from alphorn.message_manager.fullness import DiskGauge, Fullness, Space, Waiting
from alphorn.model.commands import AnyCommand
from alphorn.model.frame_kinds import Told
from alphorn.model.link import Full, Stored


class FlowControl:
    """One replica's."""

    __slots__ = ("_disk", "_fullness", "_log", "_name", "_tell", "waiting")

    def __init__(self, name: str, tell: Callable[[int, Told], None], log: Callable[[str, str, str], None]) -> None:
        """`tell` says something on a link; `log` takes level, event and details."""
        self._name = name
        self._tell = tell
        self._log = log
        self._disk = DiskGauge()
        self._fullness: Fullness | None = None  # while this replica is primary
        self.waiting = Waiting()

    @property
    def is_disk_full(self) -> bool:
        """Whether this replica's disk has no room for messages."""
        return bool(self._disk.reason)

    def on_link(self, number: int) -> None:
        """A Client Manager connected."""
        if self._disk.reason:
            self._tell(number, Stored(self._disk.reason))

    def on_introduced(self, number: int) -> None:
        """A Client Manager has said who it is: it hears of all destinations that are full."""
        reasons = self._fullness.reasons if self._fullness else {}
        self._tell(number, Full(list(reasons.items()), is_whole=True))

    def begin(self, engine: Engine) -> None:
        """This replica is primary; who waits it is told anew."""
        self._fullness = Fullness(engine)
        self.waiting = Waiting()

    def end(self) -> None:
        """It is not any more."""
        self._fullness = None

    def on_applied(self, commands: Sequence[AnyCommand], effects: Sequence[Effect], links: Iterable[int]) -> None:
        """The engine has applied commands: what became full by that, or free, is told on these links."""
        if self._fullness is None:
            return
        self._fullness.on_applied(commands, effects)
        if changes := self._fullness.take_changes():
            for number in links:
                self._tell(number, Full(changes))

    def measure(self, space: Space, links: Iterable[int]) -> None:
        """The disk was measured: what is news about it is told on these links."""
        if self._disk.measure(self._name, space):
            reason = self._disk.reason
            for number in links:
                self._tell(number, Stored(reason))
            self._log("warning" if reason else "info", "disk", f"blocked={reason!r}")

    def describe_node(self) -> dict[str, Any]:
        """How full this replica's disk is, and why it takes no messages, if so."""
        space = self._disk.space
        return {"store_bytes": space.used, "store_bytes_max": space.limit, "blocked": self._disk.reason}

    def describe_destination(self, number: int) -> dict[str, Any]:
        """Why a destination takes no messages at the moment, if so, and how many producers wait for it."""
        reason = self._disk.reason or (self._fullness.reasons.get(number, "") if self._fullness else "")
        return {"blocked": reason, "blocked_producers": self.waiting.count(number)}
