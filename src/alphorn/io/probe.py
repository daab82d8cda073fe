"""Asks a cluster at its native door whether it serves: every Client Manager answers, every channel has a primary."""

import asyncio
from typing import Any

from alphorn.doors import native
from alphorn.io.cluster_file import ClusterFile
from alphorn.model.conversation import (
    FRAME_BYTES_MAX,
    AnyServerFrame,
    Close,
    Failed,
    Goodbye,
    Hello,
    Status,
    StatusAnswer,
    Welcome,
)
from alphorn.model.errors import PeerViolation, Unavailable
from alphorn.model.frame_kinds import ClientFrame
from alphorn.model.status_pages import StatusPages

ANSWER_S = 2.0  # how long one question may take
BETWEEN_S = 0.05  # two rounds of questions


async def status_of(address: str, *, answer_s: float = ANSWER_S, destinations_max: int | None = None) -> dict[str, Any]:
    """The cluster's state, as the Client Manager at this address gives it; raises `Unavailable` with the reason.

    It has all destinations, or the first `destinations_max`.
    """
    host, _, port = address.rpartition(":")
    pages = StatusPages(destinations_max)
    try:
        async with asyncio.timeout(answer_s) as deadline:
            reader, writer = await asyncio.open_connection(host, int(port))
            try:
                await _expect(reader, writer, Hello(native.VERSION), Welcome)
                while not pages.is_complete:
                    pages.add(await _expect(reader, writer, Status(1, pages.cursor), StatusAnswer))
                    deadline.reschedule(asyncio.get_running_loop().time() + answer_s)
                writer.write(native.encode(Close()))
                return pages.status
            finally:
                writer.close()
    except TimeoutError:
        raise Unavailable(f"{address} does not answer") from None
    except (OSError, asyncio.IncompleteReadError):
        raise Unavailable(f"nobody serves clients at {address}") from None
    except PeerViolation as error:
        raise Unavailable(f"what answers at {address} is no Client Manager: {error}") from None


async def missing_of(file: ClusterFile, *, whole: bool = False) -> str:
    """What the cluster still needs in order to serve; empty when it serves.

    With `whole` every Message Manager must be linked too, so that any one may be lost.
    """
    wanted = {channel.name for channel in file.channels if not channel.removed}
    servers = {node.name for node in file.nodes if node.kind == "message_manager"}
    for node in file.client_managers:
        try:
            status = await status_of(node.clients, destinations_max=0)
        except Unavailable as error:
            return f"{node.name}: {error}"
        primaries = [n for n in status["nodes"] if n["kind"] == "message_manager" and n["role"] == "primary"]
        if len(primaries) < len(wanted):
            lacking = wanted - {str(n["channel"]) for n in primaries}
            return f"{node.name} knows no primary of {', '.join(sorted(lacking))}"
        if whole and (away := servers - {n["name"] for n in status["nodes"] if n["role"] in ("primary", "backup")}):
            return f"{node.name} has no link to {', '.join(sorted(away))}"
    return ""


async def until_serving(file: ClusterFile, *, deadline_s: float, whole: bool = False) -> None:
    """Waits until the cluster serves; raises `Unavailable` that says what it lacks."""
    missing = "nothing answers"
    try:
        async with asyncio.timeout(deadline_s):
            while missing := await missing_of(file, whole=whole):  # noqa: ASYNC110 - other processes have no event
                await asyncio.sleep(BETWEEN_S)
    except TimeoutError:
        raise Unavailable(
            f"the cluster does not serve after {deadline_s:.0f} s: {missing}; its nodes' logs are in {file.directory}"
        ) from None


async def _expect(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, said: ClientFrame, kind: type[AnyServerFrame]
) -> AnyServerFrame:
    writer.write(native.encode(said))
    size = int.from_bytes(await reader.readexactly(native.LENGTH_BYTES), "big")
    if size > FRAME_BYTES_MAX:
        raise PeerViolation(f"it announces {size} bytes")
    frame = native.decode_server(await reader.readexactly(size))
    if isinstance(frame, Failed | Goodbye):
        raise Unavailable(frame.reason)
    if not isinstance(frame, kind):
        raise PeerViolation(f"it answers {type(said).__name__} with {type(frame).__name__}")
    return frame
