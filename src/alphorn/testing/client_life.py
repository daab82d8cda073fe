"""The life of a simulated client: it connects to any Client Manager, loses its stream, dies, and begins anew.

What its program does is up to others: it sends and receives (programs.py), moves money (transfers.py), or stages
batches (staging.py).
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

from alphorn.client.core import Core
from alphorn.doors import native
from alphorn.testing.model_channels import Tell
from alphorn.testing.node import UNIX_START_S
from alphorn.testing.streams import SimulatedStreams, StreamEnd
from alphorn.testing.watch import Violation

THINK_S = 0.05  # mean time between two steps of a program
RECONNECT_S = (0.02, 0.3)


class Door(Protocol):
    """Somewhere to connect to."""

    @property
    def name(self) -> str:
        """Of the process."""

    @property
    def place(self) -> int:
        """In the network."""

    def accept(self, end: StreamEnd) -> bool:
        """A client connects; False where nobody listens."""


class ClientLife(ABC):
    """One client through all its runs. Its program is in `_begin`, `_act` and `_die`."""

    core: Core
    reconnect_s = RECONNECT_S

    def __init__(
        self,
        name: str,
        *,
        place: int,
        managers: Sequence[Door],
        streams: SimulatedStreams,
        stream: random.Random,
        tell: Tell,
    ) -> None:
        self.name = name
        self.is_calm = False  # begins nothing new
        self.served_by = ""  # whom it is, or was last, connected to
        self._place = place
        self._managers = managers
        self._streams = streams
        self._stream = stream
        self._tell = tell
        self._run = 0
        self._end: StreamEnd | None = None

    def _make_core(self) -> Core:
        return Core()

    @abstractmethod
    def _begin(self) -> None:
        """A new run: nothing is known, and nothing was sent on this connection."""

    @abstractmethod
    def _act(self) -> None:
        """The program does something, or waits."""

    def _die(self) -> None:  # noqa: B027 most have nothing to do then
        """The run is over, whatever it was at."""

    def start(self) -> None:
        """Begins as a new connection."""
        self._run += 1
        self.core = self._make_core()
        self._begin()
        self._connect(self._run)
        self._streams.schedule.after(self._draw_s(), self._step, self._run)

    def crash(self) -> None:
        """Ends without a word, and begins anew."""
        self._tell(self.name, "dies")
        if self._end is not None:
            self._end.close()
        self._end = None
        self._die()
        self.start()

    def _connect(self, run: int) -> None:
        if run == self._run:
            manager = self._stream.choice(self._managers)
            target = (manager.place, manager.name)
            self._streams.connect(
                (self._place, self.name), target, manager.accept, lambda end: self._on_connected(run, manager, end)
            )

    def _on_connected(self, run: int, manager: Door, end: StreamEnd | None) -> None:
        if run != self._run:
            if end is not None:
                end.close()
        elif end is None:
            self._streams.schedule.after(self._stream.uniform(*self.reconnect_s), self._connect, run)
        else:
            self._end, self.served_by = end, manager.name
            end.on_frame = lambda data: self._on_frame(run, end, data)
            end.on_closed = lambda reason: self._leave(run, end, reason)
            self.core.on_connected(self._now)
            self._flush()

    def _leave(self, run: int, end: StreamEnd, reason: str) -> None:
        if run == self._run and end is self._end:
            self._end = None
            self.core.on_disconnected(reason)
            self._tell(self.name, f"is cut off: {reason}")
            self._streams.schedule.after(self._stream.uniform(*self.reconnect_s), self._connect, run)

    def _on_frame(self, run: int, end: StreamEnd, data: bytes) -> None:
        if run != self._run or end is not self._end:
            return
        self.core.receive([memoryview(data)[native.LENGTH_BYTES :]], self._now)
        if self.core.failure is not None:
            raise Violation("clients are served", f"{self.name} was refused: {self.core.failure}")
        if self.core.wants_reconnection:
            end.close()
            self._leave(run, end, "sent away")
        self._flush()

    def _flush(self) -> None:
        if self._end is not None:
            for frame in self.core.take_output(int((UNIX_START_S + self._now) * 1000)):
                self._end.send(bytes(frame))

    @property
    def _now(self) -> float:
        return self._streams.schedule.now

    def _draw_s(self) -> float:
        return self._stream.expovariate(1.0) * THINK_S

    def _step(self, run: int) -> None:
        if run != self._run:
            return
        self.core.on_time(self._now)
        if self._end is not None and self.core.wants_reconnection:
            end = self._end
            end.close()
            self._leave(run, end, "no answer")
        self._act()
        self._flush()
        self._streams.schedule.after(self._draw_s(), self._step, run)
