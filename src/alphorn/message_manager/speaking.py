"""What a replica says by itself, primary or not: its log lines, testimony of audited destinations, and news."""

from collections.abc import Sequence

from alphorn.message_manager.effects import Effect
from alphorn.message_manager.engine import Engine
from alphorn.message_manager.machine import Committed, Happen
from alphorn.message_manager.news import News
from alphorn.message_manager.orders import Orders
from alphorn.message_manager.own_log import OwnLog
from alphorn.message_manager.status import About
from alphorn.message_manager.testimony import Testimony
from alphorn.model.commands import Entry


class Speaking:
    """Of one replica."""

    __slots__ = ("_own_log", "_testimony", "news")

    def __init__(self, about: About) -> None:
        self._own_log, self._testimony = OwnLog(), Testimony(about)
        self.news = News(about)

    @property
    def is_waiting(self) -> bool:
        """Whether there is anything to put into the log."""
        return self._own_log.is_waiting or self._testimony.is_waiting

    def add(self, run: bytes, lines: list[str]) -> None:
        """Log lines of this run of the node."""
        self._own_log.add(run, lines)

    def hear(
        self, engine: Engine, epoch: int, item: Committed, entry: Entry, effects: Sequence[Effect], now: float
    ) -> None:
        """An entry was applied."""
        self._testimony.hear(engine, epoch, entry, effects)
        self.news.on_effects(engine, item.epoch, effects, now)

    def order(self, engine: Engine, orders: Orders, wall_ms: int) -> None:
        """Puts what waits into the log."""
        for speaker in (self._own_log, self._testimony):
            if speaker.is_waiting:
                for command in speaker.commands(engine.numbers, wall_ms):
                    orders.say(command)

    def take(self) -> list[Happen]:
        """News."""
        return [Happen(event) for event in self.news.take()]
