"""The links of a Client Manager: one stream to each Message Manager, opened again whenever it is lost."""

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Protocol

from alphorn.client_manager.machine import Input, Linked, Told
from alphorn.io import local_streams
from alphorn.io.streams import FrameStream
from alphorn.model import link
from alphorn.model.errors import PeerViolation
from alphorn.model.frame_kinds import Asked

RELINK_S = (0.02, 0.5)  # first and longest wait before a lost link is tried again

MakeStream = Callable[..., FrameStream]
Accept = Callable[[MakeStream], FrameStream]

_log = logging.getLogger(__name__)


class Owner(Protocol):
    """Whose links these are."""

    def receive(self, item: Input) -> None:
        """Something happened."""


class Link:
    """The link to one Message Manager, kept up.

    `accept` makes the other end of the link to one that is in this process.
    """

    def __init__(self, owner: Owner, channel: int, name: str, address: str, *, accept: Accept | None = None) -> None:
        self._owner = owner
        self._channel = channel
        self._name = name
        self._address = address
        self._accept = accept
        self._stream: FrameStream | None = None

    def send(self, frame: Asked) -> None:
        """Says something, if the link is there."""
        if self._stream is not None:
            self._stream.send(link.encode(frame))

    def flush(self) -> None:
        """Writes what was said."""
        if self._stream is not None:
            self._stream.flush()

    async def keep(self) -> None:
        """Opens the link, and again whenever it is lost."""
        loop = asyncio.get_running_loop()
        host, _, port = self._address.rpartition(":")
        wait_s, longest_s = RELINK_S
        while True:
            closed: asyncio.Future[str] = loop.create_future()
            try:
                if self._accept is not None:
                    local_streams.connect(self._accept, self._maker(closed))
                else:
                    await loop.create_connection(self._maker(closed), host, int(port))
            except OSError:
                await asyncio.sleep(wait_s * random.uniform(0.5, 1.5))
                wait_s = min(2 * wait_s, longest_s)
                continue
            wait_s = RELINK_S[0]
            reason = await closed
            self._stream = None
            _log.info("event=link_lost to=%s reason=%s", self._name, reason)
            self._owner.receive(Linked(self._channel, self._name, False))

    def _maker(self, closed: "asyncio.Future[str]") -> MakeStream:
        def on_open(stream: FrameStream) -> None:
            # Before the first frame is heard: what is said in answer to it must find the stream.
            self._stream = stream
            self._owner.receive(Linked(self._channel, self._name, True))

        def on_closed(stream: FrameStream, reason: str) -> None:
            if not closed.done():
                closed.set_result(reason)

        return lambda make=FrameStream: make(
            on_frames=self._on_frames, on_closed=on_closed, on_open=on_open, frame_bytes_max=link.FRAME_BYTES_MAX
        )

    def _on_frames(self, stream: FrameStream, frames: list[memoryview]) -> None:
        for frame in frames:
            try:
                told = link.decode_told(frame)
            except PeerViolation as error:
                stream.abort(str(error))
                return
            self._owner.receive(Told(self._channel, self._name, told))
