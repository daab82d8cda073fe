"""Fetches log entries from Message Managers over a link: for a new backup, and for whoever reads the log in bulk."""

import asyncio
import struct
from collections.abc import AsyncIterator, Sequence

from alphorn.io.cluster_file import NodeTable
from alphorn.model import link
from alphorn.model.errors import PeerViolation, Unavailable

ASK_MAX = 256  # entries asked for at a time
PATIENCE_S = 10.0

_LENGTH = struct.Struct(">I")


async def fetch_entries(servers: Sequence[NodeTable], sequences: Sequence[int]) -> AsyncIterator[tuple[int, bytes]]:
    """Gives these entries, in any order, from whichever server has them.

    Raises `Unavailable` that names the first entry no server gave.
    """
    wanted = dict.fromkeys(sequences)
    for server in servers:
        if not wanted:
            break
        try:
            async for sequence, payload in _fetch_from(server, list(wanted)):
                if sequence in wanted:
                    del wanted[sequence]
                    yield sequence, payload
        except (OSError, TimeoutError, PeerViolation, asyncio.IncompleteReadError):
            continue
    if wanted:
        names = ", ".join(server.name for server in servers) or "no other Message Manager"
        raise Unavailable(f"log entry {min(wanted)} and {len(wanted) - 1} more are not to be had from {names}")


async def _fetch_from(server: NodeTable, sequences: list[int]) -> AsyncIterator[tuple[int, bytes]]:
    host, _, port = server.link.rpartition(":")
    reader, writer = await asyncio.wait_for(asyncio.open_connection(host, int(port)), PATIENCE_S)
    try:
        request = 0
        while sequences:
            request += 1
            asked = sequences[:ASK_MAX]
            writer.write(link.encode(link.Fetch(request, asked)))
            await writer.drain()
            answer = await _answer(reader, request)
            if not answer.entries:
                sequences = sequences[len(asked) :]  # it has none of these
                continue
            given = {sequence for sequence, _ in answer.entries}
            places = [place for place, sequence in enumerate(asked, 1) if sequence in given]
            if not places:
                raise PeerViolation(f"{server.name} gave entry {min(given)}, which nobody asked it for")
            for sequence, payload in answer.entries:
                yield sequence, bytes(payload)
            sequences = sequences[places[-1] :]
    finally:
        writer.close()


async def _answer(reader: asyncio.StreamReader, request: int) -> link.Entries:
    while True:
        (length,) = _LENGTH.unpack(await asyncio.wait_for(reader.readexactly(_LENGTH.size), PATIENCE_S))
        if length > link.FRAME_BYTES_MAX:
            raise PeerViolation(f"a frame of {length} bytes was announced on a link")
        frame = link.decode_told(await asyncio.wait_for(reader.readexactly(length), PATIENCE_S))
        if isinstance(frame, link.Entries) and frame.request == request:
            return frame
