"""Members made of a transport alone, and the frames they say."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from alphorn.bus.frames import Data, Frame, Heartbeat, Parts, decode_all, encode
from alphorn.io.connections import ConnectionSettings
from alphorn.io.multicast import MulticastSettings
from alphorn.io.transport import Transport, TransportSettings
from alphorn.model.ids import make_origin

HOST = "127.0.0.1"


class Speaker:
    """A transport that remembers what it heard."""

    def __init__(self, group: int, number: int, settings: dict[str, Any], multicast: dict[str, Any]) -> None:
        self.group = group
        self.number = number
        self.origin = make_origin(bytes((127, 0, 0, 1)), number, 1)
        self.heard: list[bytes] = []
        self.lists: list[int] = []
        multicast_settings = MulticastSettings(group=group, **({"host": HOST} | multicast))
        self.transport = Transport(TransportSettings(multicast=multicast_settings, **settings), on_frames=self.hear)

    def hear(self, datagrams: list[bytes]) -> None:
        self.lists.append(len(datagrams))
        self.heard.extend(datagrams)

    @property
    def frames(self) -> list[Frame]:
        return [frame for datagram in self.heard for frame in decode_all(datagram)]

    @property
    def sent(self) -> dict[str, Any]:
        return self.counters("datagrams")["sent"]

    def counters(self, part: str) -> dict[str, Any]:
        described: Any = self.transport.describe()[part]
        return described

    def word(self, committed: int = 0) -> Parts:
        """A small frame."""
        body = Heartbeat(committed, 0, 0, 0)
        return encode(group=self.group, epoch=1, number=self.number, origin=self.origin, body=body)

    def bulk(self, size: int) -> Parts:
        """A data frame of `size` bytes altogether."""
        payload = bytes(size - 92)
        body = Data(bytes(16), 0, 0, 0, len(payload), 0, 0, 1, payload)
        return encode(group=self.group, epoch=1, number=self.number, origin=self.origin, body=body)

    def say(self, to: str, *frames: Parts) -> None:
        for parts in frames:
            self.transport.send(to, parts)
        self.transport.flush()


@contextlib.asynccontextmanager
async def speakers(
    group: int,
    count: int,
    *,
    connections: ConnectionSettings | None = None,
    multicast: dict[str, Any] | None = None,
    **settings: Any,
) -> AsyncIterator[list[Speaker]]:
    """Members 1 to `count` of a group on the loopback interface."""
    settings["connections"] = connections or ConnectionSettings()
    made: list[Speaker] = []
    try:
        for number in range(1, count + 1):
            made.append(Speaker(group, number, settings, multicast or {}))
            made[-1].transport.open()
            await made[-1].transport.start(made[-1].origin)
        yield made
    finally:
        for speaker in made:
            await speaker.transport.close()
