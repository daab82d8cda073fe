"""The link of a Client Manager to a Message Manager."""

import asyncio
from unittest.mock import Mock

from alphorn.client_manager.machine import Linked, Told
from alphorn.model import link
from alphorn.node.links import Link


def test_what_is_said_in_answer_to_the_first_frame_of_a_link_reaches_the_message_manager() -> None:
    """The first frame may be read in the same turn of the event loop in which the connection is made."""

    async def run() -> None:
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

    asyncio.run(run())
