"""A peer whose machine is cut off says nothing any more, not even goodbye: its stream ends all the same."""

import asyncio
import socket

import pytest

from alphorn.io.streams import FrameStream
from tests.io.namespaces import inside, ip, needs_namespaces, switch

pytestmark = needs_namespaces

WAIT_S = 60.0  # only what hangs meets it


@pytest.mark.parametrize("is_quiet", [True, False])
@pytest.mark.requirement("CM-7")
def test_a_stream_to_a_machine_that_is_cut_off_ends(is_quiet: bool) -> None:
    """Also where nothing is to be sent, so that nobody would notice by sending."""
    assert "timed out" in asyncio.run(cut_off(is_quiet=is_quiet)).lower()


async def cut_off(*, is_quiet: bool) -> str:
    """Why the stream of one whose machine is cut off has ended."""
    loop = asyncio.get_running_loop()
    opened: asyncio.Future[FrameStream] = loop.create_future()
    closed: asyncio.Future[str] = loop.create_future()

    def accept() -> FrameStream:
        return FrameStream(
            on_open=opened.set_result,
            on_frames=lambda stream, frames: None,
            on_closed=lambda stream, reason: closed.set_result(reason),
            frame_bytes_max=100,
            absent_s=3.0,
        )

    with switch(2) as (here, there):
        with inside(here):
            listening = socket.create_server(("10.77.0.1", 7700))
        server = await loop.create_server(accept, sock=listening)
        with inside(there):
            peer = socket.create_connection(("10.77.0.1", 7700))
        with peer:
            stream = await opened
            ip("-n", there, "link", "set", "eth0", "down")
            if not is_quiet:
                stream.send(b"\x00\x00\x00\x01x")
                stream.flush()
            reason = await asyncio.wait_for(closed, WAIT_S)
        server.close()
    return reason
