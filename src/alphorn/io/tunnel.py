"""A stream of frames inside a WebSocket, with the face of a plain one: for Client Managers and asyncio clients."""

import asyncio
from typing import Any

from alphorn.doors.tunnel import Tunnel, TunnelState
from alphorn.io.streams import FrameStream
from alphorn.model.errors import PeerViolation


class TunnelStream(FrameStream):
    """One connection. It is open for its owner once hands are shaken; what is sent before waits for that."""

    def __init__(self, tunnel: Tunnel, **choices: Any) -> None:
        super().__init__(**choices)
        self._tunnel = tunnel

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Asyncio calls it."""
        on_open, self._on_open = self._on_open, lambda stream: None
        super().connection_made(transport)
        self._on_open = on_open
        self._write_output()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Asyncio calls it: where the next bytes of the network go."""
        return memoryview(self._shared)

    def buffer_updated(self, nbytes: int) -> None:
        """Asyncio calls it: so many bytes came."""
        was_open = self._tunnel.state is TunnelState.OPEN
        try:
            pieces = self._tunnel.receive(bytes(memoryview(self._shared)[:nbytes]))
        except PeerViolation as error:
            self.close(str(error))
            return
        if not was_open and self._tunnel.state is TunnelState.OPEN:
            self._on_open(self)
            self.flush()
        self._write_output()
        for piece in pieces:
            self._feed(memoryview(piece))
        self._end_if_closed()

    def _feed(self, piece: memoryview) -> None:
        """Cuts frames out of the stream, as if the network had brought it so."""
        while piece and self.is_open:
            room = super().get_buffer(-1)
            count = min(len(room), len(piece))
            room[:count] = piece[:count]
            super().buffer_updated(count)
            piece = piece[count:]

    def _hand_over(self, view: memoryview, *, is_busy: bool) -> None:
        super()._hand_over(view, is_busy=is_busy)
        self._end_if_closed()

    def _end_if_closed(self) -> None:
        """The other end has said goodbye; before that it may have said what the owner is still to get."""
        if self._tunnel.state is TunnelState.CLOSED and not self._is_behind:
            self.close(self._tunnel.reason)

    def flush(self) -> None:
        """Writes what was queued, in one message."""
        if self._waiting and self.is_open and self._tunnel.state is TunnelState.OPEN:
            data = b"".join(self._waiting)
            self._waiting.clear()
            self._transport.write(self._tunnel.wrap(data))

    def close(self, reason: str) -> None:
        """Sends what is queued, says goodbye and closes; `on_closed` gets the reason."""
        if self.is_open:
            self.flush()
            self._tunnel.close(reason)
            self._write_output()
            super().close(reason)

    def _write_output(self) -> None:
        output = self._tunnel.take_output()
        if output and self.is_open:
            self._transport.write(output)
