"""What a replica tells the cluster of: events that its log or its node makes, whoever else notices them.

What is in the log has the name of its place there, so replicas name it alike and it is told once. A replica that starts
hears the log's past again; so it tells of what is in the log only once it has followed closely, or as primary.
"""

import math
from collections.abc import Sequence

from alphorn.message_manager.effects import Created, Deleted, Effect, Landed
from alphorn.message_manager.engine import Engine
from alphorn.message_manager.status import About
from alphorn.model.events import Event

LAGGING_S = 5.0  # so long a backup may lose the log before that is news: a takeover is shorter
BURST = 1_000  # events of the log that may be told at once,
PER_S = 100.0  # and in each second after that: who creates more is not listened to any more closely


class News:
    """Of one replica. `take` gives what is to be told."""

    __slots__ = (
        "_about",
        "_allowance",
        "_count",
        "_events",
        "_filled_at",
        "_has_followed",
        "_has_lagged",
        "_is_disk_full",
        "_is_primary",
        "_lags_at",
        "omitted",
    )

    def __init__(self, about: About) -> None:
        self._about = about
        self._events: list[Event] = []
        self._count = 0  # of what this run tells of itself
        self._has_followed = False
        self._has_lagged = True  # so that its first closeness is news
        self._lags_at = math.inf  # when that becomes news
        self._is_primary = False
        self._is_disk_full = False
        self._allowance, self._filled_at = float(BURST), 0.0
        self.omitted = 0  # events of the log that were too many

    def take(self) -> list[Event]:
        """What is to be told since the last call."""
        events, self._events = self._events, []
        return events

    def on_primary(self, epoch: int, name: str, *, is_self: bool) -> None:
        """The channel has another primary."""
        self._is_primary = is_self
        if name and (self._has_followed or is_self):
            self._events.append(Event(kind="primary_changed", node=name, channel=self._about.channel, epoch=epoch))

    def on_following(self, now: float, *, is_synchronised: bool) -> None:
        """Whether this replica follows the log closely."""
        self._has_followed = self._has_followed or is_synchronised
        self._lags_at = math.inf if is_synchronised else now + LAGGING_S
        if is_synchronised and self._has_lagged:
            self._has_lagged = False
            if not self._is_primary:
                self._tell_of_itself("backup_synchronised")

    def next_deadline(self) -> float:
        """When something may be due."""
        return self._lags_at

    def on_time(self, now: float) -> None:
        """Tells of what has lasted."""
        if now >= self._lags_at:
            self._lags_at, self._has_lagged = math.inf, True
            if not self._is_primary:
                self._tell_of_itself("backup_lagging")

    def on_disk(self, *, is_full: bool) -> None:
        """Whether this replica's disk has room for messages."""
        if is_full is not self._is_disk_full:
            self._is_disk_full = is_full
            self._tell_of_itself("disk_low" if is_full else "disk_ok")

    def on_effects(self, engine: Engine, epoch: int, effects: Sequence[Effect], now: float) -> None:
        """An entry that got its number in this epoch was applied. What is temporary is its owner's affair alone."""
        for effect in effects:
            match effect:
                case Created() if effect.is_new and not effect.is_temporary:
                    self._tell_of_log("destination_created", engine.sequence, epoch, str(effect.destination), now)
                case Deleted() if not effect.is_temporary:
                    self._tell_of_log("destination_deleted", engine.sequence, epoch, str(effect.destination), now)
                case Landed():
                    name = str(engine.destinations[effect.number].destination)
                    self._tell_of_log("destination_moved", engine.sequence, epoch, name, now)

    def _tell_of_log(self, kind: str, sequence: int, epoch: int, destination: str, now: float) -> None:
        if not (self._has_followed or self._is_primary):
            return
        self._allowance = min(BURST, self._allowance + PER_S * (now - self._filled_at))
        self._filled_at = now
        if self._allowance < 1.0:
            self.omitted += 1
            return
        self._allowance -= 1.0
        about = self._about
        self._events.append(
            Event(
                kind=kind,
                node=about.name,
                channel=about.channel,
                epoch=epoch,
                number=sequence,
                details={"destination": destination},
            )
        )

    def _tell_of_itself(self, kind: str) -> None:
        about = self._about
        self._count += 1
        self._events.append(Event(kind=kind, node=about.name, channel=about.channel, number=self._count, run=about.run))
