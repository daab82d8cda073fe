"""How a connection tells that it goes on."""

import pytest

from alphorn.client.core import Core
from alphorn.doors.native import LENGTH_BYTES, decode_client, encode
from alphorn.model.conversation import Hello, Welcome


def hello_of(core: Core) -> Hello:
    core.on_connected(0.0)
    [data] = core.take_output(0)
    frame = decode_client(memoryview(data)[LENGTH_BYTES:])
    assert isinstance(frame, Hello)
    return frame


@pytest.mark.requirement("API-10")
def test_a_connection_says_how_often_it_has_gone_on_so_that_nobody_speaks_for_an_earlier_stream() -> None:
    core = Core()
    assert (hello_of(core).connection, hello_of(core).resumption) == (b"", 0)
    core.receive([memoryview(encode(Welcome(1, b"c" * 16, "cm1", [])))[LENGTH_BYTES:]], 0.0)
    for count in (1, 2):
        core.on_disconnected("cut off")
        hello = hello_of(core)
        assert (hello.connection, hello.resumption) == (b"c" * 16, count)
