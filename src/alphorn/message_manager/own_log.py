"""A Message Manager's own log lines on their way to the `_LOG` topic: they wait until that exists."""

from alphorn.model.commands import AnyCommand
from alphorn.model.destinations import Destination
from alphorn.model.log_lines import LOG_TOPIC, LogLines


class OwnLog:
    """Lines of this run that are not in the log yet."""

    __slots__ = ("_has_asked", "_lines")

    def __init__(self) -> None:
        self._lines: LogLines | None = None
        self._has_asked = False

    def add(self, run: bytes, lines: list[str]) -> None:
        """More lines."""
        if self._lines is None:
            self._lines = LogLines(run)
        self._lines.add(lines)

    @property
    def is_waiting(self) -> bool:
        """Whether lines wait."""
        return self._lines is not None and self._lines.is_waiting

    def commands(self, numbers: dict[Destination, int], now_ms: int) -> list[AnyCommand]:
        """What to order: the lines, or once the topic for them."""
        if self._lines is None:
            return []
        number = numbers.get(LOG_TOPIC)
        if number is not None:
            return [self._lines.publish(number, now_ms)]
        has_asked, self._has_asked = self._has_asked, True
        return [] if has_asked else [LogLines.create()]
