"""Coming back after a lost stream: what a connection asks for again, and what it does not."""

from alphorn.client.core import Answer, Core
from alphorn.client.inbox import AckMode
from alphorn.doors import native
from alphorn.model.conversation import CloseConsumer, Consume, Done, ServerFrame, Welcome
from alphorn.model.errors import Error


def _hear(core: Core, *frames: ServerFrame) -> None:
    core.receive([memoryview(native.encode(frame))[native.LENGTH_BYTES :] for frame in frames], 0.0)


def _said(core: Core, kind: type) -> list:  # type: ignore[type-arg]
    frames = [native.decode_client(data[native.LENGTH_BYTES :]) for data in core.take_output(0)]
    return [frame for frame in frames if isinstance(frame, kind)]


def _come_back(core: Core) -> None:
    core.on_disconnected("gone")
    core.on_connected(0.0)
    core.take_output(0)
    _hear(core, Welcome(1, b"c" * 16, "cm2", []))


def test_a_consumer_that_was_closed_while_it_came_back_is_not_consumed_again() -> None:
    core = Core()
    core.on_connected(0.0)
    core.take_output(0)
    _hear(core, Welcome(1, b"c" * 16, "cm1", []))
    answers: list[Answer | Error] = []
    inbox = core.open_inbox(core.open_session(AckMode.AUTO), Consume(0, 0, 0, 5, 10), "queue:q", answers.append)
    [consume] = _said(core, Consume)
    _hear(core, Done(consume.request))
    core.close_inbox(inbox, answers.append)
    _come_back(core)
    frames = core.take_output(0)
    kinds = [type(native.decode_client(data[native.LENGTH_BYTES :])) for data in frames]
    assert kinds[-2:] == [Consume, CloseConsumer], "its close was not answered, so it comes back to be closed"
    [close] = [native.decode_client(frames[-1][native.LENGTH_BYTES :])]
    assert isinstance(close, CloseConsumer)
    _hear(core, Done(close.request))
    _come_back(core)
    assert _said(core, Consume) == []
    assert len(answers) == 2
