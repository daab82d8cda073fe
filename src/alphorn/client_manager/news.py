"""What a Client Manager tells the cluster of: channels that have another primary, or none any more."""

import math

from alphorn.client_manager.desk import Desk
from alphorn.client_manager.machine import Happen
from alphorn.model.events import Event

LOST_S = 5.0  # without a primary until a channel is lost: a takeover is shorter


class News:
    """Of one Client Manager."""

    __slots__ = ("_desk", "_led", "_lost")

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._led: dict[int, int] = {}  # the newest epoch of each channel
        self._lost: dict[int, tuple[float, int]] = {}  # without a primary: when that is news, and what was heard before

    def on_primary(self, number: int) -> None:
        """A primary has said that it is: where there was another before, that is news."""
        channel = self._desk.channels[number]
        self._lost.pop(number, None)
        before, self._led[number] = self._led.get(number, 0), channel.epoch
        if 0 < before < channel.epoch:
            self._happen("primary_changed", number, channel.primary)

    def on_primary_gone(self, number: int) -> None:
        """The primary serves no more, or cannot be reached."""
        if self._led.get(number):
            self._lost.setdefault(number, (self._desk.now + LOST_S, self._desk.channels[number].heard))

    def next_deadline(self) -> float:
        """When a channel may be lost."""
        return min((at for at, _ in self._lost.values()), default=math.inf)

    def on_time(self, now: float) -> None:
        """Tells of channels that are lost. One whose log goes on has a primary, which cannot be reached from here."""
        for number in [number for number, (at, _) in self._lost.items() if at <= now]:
            heard, before = self._desk.channels[number].heard, self._lost[number][1]
            if heard > before:
                self._lost[number] = now + LOST_S, heard
            else:
                self._lost[number] = math.inf, heard
                self._happen("channel_lost", number, self._desk.settings.name)

    def _happen(self, kind: str, number: int, node: str) -> None:
        desk = self._desk
        name = desk.settings.channel_names[number] if desk.settings.channel_names else f"channel-{number + 1}"
        desk.outbox.append(Happen(Event(kind=kind, node=node, channel=name, epoch=self._led[number])))
