"""How a connection tells that it goes on."""

import msgspec
import pytest

from alphorn.client.core import Core
from alphorn.client.inbox import AckMode, Inbox
from alphorn.doors.native import LENGTH_BYTES, VERSION, decode_client, encode, encode_parts
from alphorn.model.conversation import (
    Acknowledge,
    AnyClientFrame,
    Consume,
    Delivered,
    Done,
    Hello,
    Resolve,
    Resolved,
    Return,
    Welcome,
)
from alphorn.model.frame_kinds import ServerFrame


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
    core.receive([memoryview(encode(Welcome(VERSION, b"c" * 16, "cm1", [])))[LENGTH_BYTES:]], 0.0)
    for count in (1, 2):
        core.on_disconnected("cut off")
        hello = hello_of(core)
        assert (hello.connection, hello.resumption) == (b"c" * 16, count)


@pytest.mark.requirement("API-18")
def test_a_connection_that_goes_on_says_the_secret_of_its_welcome_and_one_that_begins_says_none() -> None:
    core = Core(client_id="me")
    assert hello_of(core).secret == b""
    for secret in (b"the first", b"another one"):
        hear(core, Welcome(VERSION, CONNECTION, "cm1", [], secret=secret))
        core.on_disconnected("cut off")
        hello = hello_of(core)
        assert (hello.client_id, hello.connection, hello.secret) == ("me", CONNECTION, secret)
        assert secret.decode() not in str(core.describe())


CONNECTION = b"c" * 16


def hear(core: Core, frame: ServerFrame) -> None:
    data = b"".join(encode_parts(frame)) if isinstance(frame, Delivered) else encode(frame)
    core.receive([memoryview(data)[LENGTH_BYTES:]], 0.0)


def say(core: Core) -> list[AnyClientFrame]:
    return [decode_client(memoryview(data)[LENGTH_BYTES:]) for data in core.take_output(0)]


def receiving(mode: AckMode) -> tuple[Core, Inbox]:
    """A connection with a consumer that has received five messages."""
    core = Core()
    core.on_connected(0.0)
    hear(core, Welcome(VERSION, CONNECTION, "cm1", []))
    session = core.open_session(mode)
    inbox = core.open_inbox(session, Consume(0, 0, 0, 5, 100), "queue:q", lambda answer: None)
    [consume] = [frame for frame in say(core) if isinstance(frame, Consume)]
    hear(core, Done(consume.request))
    blob = memoryview(msgspec.msgpack.encode([[number] for number in range(5)]))
    hear(core, Delivered(inbox.number, 1, 1, 7, 0, b"p" * 20, 1, 1000, b"", blob))
    return core, inbox


def come_back(core: Core) -> list[AnyClientFrame]:
    core.on_connected(1.0)
    core.take_output(0)
    hear(core, Welcome(VERSION, CONNECTION, "cm2", []))
    frames = say(core)
    for question in [frame for frame in frames if isinstance(frame, Resolve)]:
        hear(core, Resolved(question.request, 5, question.destination))
    return frames + say(core)


@pytest.mark.requirement("API-11", "API-12")
def test_what_was_acknowledged_while_cut_off_is_claimed_and_acknowledged_after_coming_back() -> None:
    core, inbox = receiving(AckMode.AUTO)
    core.on_disconnected("cut off")
    assert [message.body for message in inbox.take(3)] == [0, 1, 2]
    inbox.finish()
    frames = come_back(core)
    [consume] = [frame for frame in frames if isinstance(frame, Consume)]
    assert consume.held == [1, 5]
    [acknowledge] = [frame for frame in frames if isinstance(frame, Acknowledge)]
    assert acknowledge.positions == [1, 3]
    assert frames.index(consume) < frames.index(acknowledge)


def test_what_was_given_back_while_cut_off_is_claimed_and_returned_after_coming_back() -> None:
    core, inbox = receiving(AckMode.INDIVIDUAL)
    core.on_disconnected("cut off")
    inbox.take(1)[0].reject()
    frames = come_back(core)
    [consume] = [frame for frame in frames if isinstance(frame, Consume)]
    assert consume.held == [1, 5]
    [back] = [frame for frame in frames if isinstance(frame, Return)]
    assert back.positions == [1, 1]
