"""Which clients are heard: those who have asked for very much are read again when some of it is done.

What a client says while it is not heard stays in its own stream, in its order, and nobody waits for it. That concerns

- a connection that has much asked for without an answer: no look, no name and no stage of one client waits for more of
  another's than that. While a channel has no primary nobody answers, and to wait takes nobody's time;
- where much waits for its place in a log, those who have more than their share of it there. Messages are postponed
  before (flow.py); all else that clients say is bounded by this alone, so that there is room for others' messages;
- everybody, where very much waits for destinations on their way to another channel: nobody can tell whose it is.

Who was not heard for so long that it may have gone on elsewhere is not heard any more (hanging.py).
"""

from collections.abc import Callable

from alphorn.client_manager.connection import Connection
from alphorn.client_manager.desk import Desk
from alphorn.client_manager.hanging import HUNG_S
from alphorn.client_manager.machine import Heed
from alphorn.client_manager.moving import Moving

MOVING_FACTOR = 4  # times what a channel may hold, of what waits for destinations on their way


class Heeding:
    """Who is not heard at the moment."""

    __slots__ = ("_desk", "_limit", "_moving", "_moving_limit", "_send_back", "_unheard")

    def __init__(self, desk: Desk, moving: Moving, send_back: Callable[[int, str], None]) -> None:
        self._desk = desk
        self._moving = moving
        self._limit = desk.settings.channel_bytes_max * 3 // 4
        self._moving_limit = MOVING_FACTOR * desk.settings.channel_bytes_max
        self._send_back = send_back
        self._unheard: dict[int, float] = {}  # by stream: since when

    def regulate(self) -> None:
        """The end of a turn: says of whom something has changed."""
        desk = self._desk
        if not desk.busy and not self._unheard and not self._is_crowded:
            return
        for connection in [each for each in desk.busy if self._goes_on(each)]:
            del desk.busy[connection]
        busy = {connection.stream for connection in desk.busy} if self._is_answered else set()
        unheard = busy | self._greedy()
        for stream in sorted(unheard - self._unheard.keys()):
            self._unheard[stream] = desk.now
            desk.outbox.append(Heed(stream, False))
        for stream in sorted(self._unheard.keys() - unheard):
            self._hear_again(stream, self._unheard.pop(stream))

    def _hear_again(self, stream: int, since: float) -> None:
        if stream in self._desk.connections and self._desk.now - since >= HUNG_S:
            self._send_back(stream, "this Client Manager could not hear it for long; come back")
        else:
            self._desk.outbox.append(Heed(stream, True))

    def _goes_on(self, connection: Connection) -> bool:
        settings = self._desk.settings
        is_idle = 2 * connection.load <= settings.load_max and 4 * connection.asked_bytes <= settings.requests_bytes_max
        return is_idle or not self._desk.is_there(connection)

    def is_heard(self, stream: int) -> bool:
        """Whether more of what a client says is taken in now, in the middle of a turn."""
        connection = self._desk.connections.get(stream)
        return connection is None or connection not in self._desk.busy or not self._is_answered

    @property
    def _is_answered(self) -> bool:
        return all(self._desk.channels[number].primary for number in self._desk.used)

    @property
    def _is_crowded(self) -> bool:
        waiting = max([channel.unordered_bytes for channel in self._desk.channels])
        return waiting >= self._limit or self._moving.waiting_bytes >= self._moving_limit

    def _greedy(self) -> set[int]:
        desk = self._desk
        if self._moving.waiting_bytes >= self._moving_limit:
            return set(desk.connections)
        greedy = {whose for channel in desk.channels for whose in channel.greedy(self._limit)}
        return {desk.by_connection[whose].stream for whose in greedy if whose in desk.by_connection}

    def describe(self) -> dict[str, object]:
        """For people."""
        return {"unheard": len(self._unheard)}
