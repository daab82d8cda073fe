"""What a connection that goes on asks for again."""

from alphorn.client.core import Core
from alphorn.client.inbox import AckMode
from alphorn.client.requests import Answer
from alphorn.doors.native import LENGTH_BYTES, VERSION, decode_client, encode
from alphorn.model.conversation import AnyClientFrame, CloseConsumer, Consume, Done, Hello, Resolve, Resolved, Welcome
from alphorn.model.errors import Error
from alphorn.model.frame_kinds import ServerFrame


def hello_of(core: Core) -> Hello:
    core.on_connected(0.0)
    [data] = core.take_output(0)
    frame = decode_client(memoryview(data)[LENGTH_BYTES:])
    assert isinstance(frame, Hello)
    return frame


def hear(core: Core, *frames: ServerFrame) -> None:
    core.receive([memoryview(encode(frame))[LENGTH_BYTES:] for frame in frames], 0.0)


def said(core: Core) -> list[AnyClientFrame]:
    return [decode_client(memoryview(data)[LENGTH_BYTES:]) for data in core.take_output(0)]


def come_back(core: Core) -> None:
    core.on_disconnected("cut off")
    hello_of(core)
    hear(core, Welcome(VERSION, b"c" * 16, "cm2", []))


def find_places(core: Core, place: int) -> None:
    asked = [frame for frame in said(core) if isinstance(frame, Resolve)]
    hear(core, *(Resolved(frame.request, place, frame.destination) for frame in asked))


def test_a_consumer_that_was_closed_while_it_came_back_is_not_consumed_again() -> None:
    core = Core()
    hello_of(core)
    hear(core, Welcome(VERSION, b"c" * 16, "cm1", []))
    answers: list[Answer | Error] = []
    inbox = core.open_inbox(core.open_session(AckMode.AUTO), Consume(0, 0, 0, 5, 10), "queue:q", answers.append)
    [consume] = [frame for frame in said(core) if isinstance(frame, Consume)]
    hear(core, Done(consume.request))
    core.close_inbox(inbox, answers.append)
    come_back(core)
    find_places(core, 5)
    *_, again, close = said(core)
    assert isinstance(again, Consume), "its close was not answered, so it comes back to be closed"
    assert isinstance(close, CloseConsumer)
    hear(core, Done(close.request))
    come_back(core)
    assert [frame for frame in said(core) if isinstance(frame, Consume)] == []
    assert len(answers) == 2
