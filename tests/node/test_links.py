"""The link of a Client Manager to a Message Manager."""

import asyncio
import contextlib
from unittest.mock import Mock

import alphorn.aio
from alphorn.client_manager.machine import Linked, Told
from alphorn.io.cluster_file import read_cluster_file
from alphorn.io.local_cluster import FILE_NAME
from alphorn.model import link
from alphorn.node import message_manager
from alphorn.node.links import Link
from tests.io.loops import run
from tests.node.serving import server


def test_what_is_said_in_answer_to_the_first_frame_of_a_link_reaches_the_message_manager() -> None:
    """The first frame may be read in the same turn of the event loop in which the connection is made."""

    async def test() -> None:
        owner, transport = Mock(), Mock()
        keeper = Link(owner, 0, "mm1", "h:2")
        answer = link.Describe(1, 10)

        def receive(item: object) -> None:
            heard.append(item)
            if isinstance(item, Told):
                keeper.send(answer)
                keeper.flush()

        heard: list[object] = []
        owner.receive = receive
        stream = keeper._maker(asyncio.get_running_loop().create_future())()
        stream.connection_made(transport)
        role = link.encode(link.Role("mm1", 1, True))
        buffer = stream.get_buffer(-1)
        buffer[: len(role)] = role
        stream.buffer_updated(len(role))
        assert [type(item) for item in heard] == [Linked, Told]
        transport.writelines.assert_called_once()

    run(test)


def test_whoever_connects_to_a_message_manager_and_says_nothing_is_hung_up_and_links_stay(tmp_path, monkeypatch):
    monkeypatch.setattr(message_manager, "INTRODUCE_S", 0.3)

    async def test() -> None:
        async with server(tmp_path, client_managers=1, backups=0, channels=1) as url:
            file = read_cluster_file(tmp_path / FILE_NAME)
            [manager] = file.message_managers(file.channels[0].name)
            host, _, port = manager.link.rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"\x00\x00")  # the beginning of a frame that never comes
            with contextlib.suppress(ConnectionResetError):
                await reader.read()  # to the end, which comes by itself
            writer.close()
            async with alphorn.aio.connect(url) as connection:
                producer = await (await connection.session()).producer("queue:q")
                await producer.send("still", wait=True)

    run(test)
