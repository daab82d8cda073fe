"""Entries of the log that are fetched over links, from whichever Message Manager has them."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack

import pytest

from alphorn.io.cluster_file import NodeTable
from alphorn.model import link
from alphorn.model.errors import Unavailable
from alphorn.node.fetching import ASK_MAX, fetch_entries

Give = Callable[[list[int]], list[tuple[int, bytes]]]


def entry(sequence: int) -> tuple[int, bytes]:
    return sequence, b"entry %d" % sequence


def fetch(wanted: list[int], *servers: Give) -> dict[int, bytes]:
    """What Message Managers give that answer a question for entries so."""

    async def serve(give: Give, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while length := await reader.read(4):
            asked = link.decode_asked(await reader.readexactly(int.from_bytes(length, "big")))
            assert isinstance(asked, link.Fetch)
            assert len(asked.sequences) <= ASK_MAX
            writer.write(link.encode(link.Entries(asked.request, give(asked.sequences))))
            await writer.drain()
        writer.close()
        await writer.wait_closed()

    async def listen(opened: AsyncExitStack, number: int, give: Give) -> NodeTable:
        serving: list[asyncio.Task[None]] = []

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            serving.append(asyncio.create_task(serve(give, reader, writer)))

        async def end() -> None:
            await asyncio.gather(*serving)

        opened.push_async_callback(end)
        server = await opened.enter_async_context(await asyncio.start_server(accept, "127.0.0.1", 0))
        port = server.sockets[0].getsockname()[1]
        return NodeTable(name=f"mm{number}", kind="message_manager", link=f"127.0.0.1:{port}")

    async def run() -> dict[int, bytes]:
        async with AsyncExitStack() as opened:
            nodes = [await listen(opened, number, give) for number, give in enumerate(servers, 1)]
            return {sequence: payload async for sequence, payload in fetch_entries(nodes, wanted)}

    return asyncio.run(run())


def test_entries_come_in_as_many_answers_as_their_server_likes() -> None:
    wanted = list(range(1, 2 * ASK_MAX, 2))
    assert fetch(wanted, lambda asked: list(map(entry, asked[:7]))) == dict(map(entry, wanted))


def test_what_one_server_does_not_have_is_asked_of_the_next() -> None:
    found = fetch([1, 2, 3, 4], lambda asked: [entry(n) for n in asked if n % 2], lambda asked: list(map(entry, asked)))
    assert found == dict(map(entry, (1, 2, 3, 4)))


def test_a_server_that_gives_what_nobody_asked_for_is_passed_over() -> None:
    found = fetch([1, 2], lambda asked: [entry(9)], lambda asked: list(map(entry, asked)))
    assert found == dict(map(entry, (1, 2)))


def test_what_no_server_has_is_named() -> None:
    with pytest.raises(Unavailable, match="log entry 2 and 1 more are not to be had from mm1"):
        fetch([1, 2, 3], lambda asked: [entry(1)] if 1 in asked else [])
