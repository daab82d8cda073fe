"""Large bodies, on both shells: whatever becomes of one, nothing of it stays behind or is told of the next."""

import io
from collections.abc import Callable
from typing import Any

import pytest

import alphorn
from alphorn.client.outboxes import CLOSED_MAX
from tests.client.broker import Broker
from tests.client.shells import Connect

REFUSED = 1_000


class Source:
    """Gives one piece; then something happens before its end."""

    def __init__(self, then: Callable[[], object]) -> None:
        self._left, self._then = [b"", b"film"], then

    def read(self, size: int) -> bytes:
        if len(self._left) == 1:
            self._then()
        return self._left.pop()


def tear() -> None:
    raise OSError("the film tears")


def core_of(connection: Any) -> Any:
    return getattr(connection, "inner", connection)._line.core


FAILING: dict[str, tuple[Callable[[], Any], type[Exception]]] = {
    "refused": (lambda: io.BytesIO(b"film"), alphorn.AccessDenied),
    "refused_without_a_fragment": (io.BytesIO, alphorn.AccessDenied),
    "torn": (lambda: Source(tear), OSError),
}


@pytest.mark.parametrize("way", FAILING)
def test_streams_that_were_not_taken_leave_nothing_behind_and_the_next_one_is(
    broker: Broker, connect: Connect, way: str
) -> None:
    make, error = FAILING[way]
    with connect(broker.url) as connection:
        producer = connection.session().producer("queue:q")
        if error is alphorn.AccessDenied:
            broker.refusals["queue:q"] = ("AccessDenied", "queue:q is not yours")
        for _ in range(REFUSED):
            with pytest.raises(error):
                producer.send_stream(make())
        core, broker.refusals = core_of(connection), {}
        assert len(core._outboxes._of) == len(core.sessions[1].outboxes) <= 2
        receipt = producer.send_stream(io.BytesIO(b"whole"))
        assert broker.call(lambda: len(broker.counters)) <= 2 * CLOSED_MAX
        assert receipt.result() == connection.session().consumer("queue:q").receive(10).id
        assert len(broker.bodies("queue:q")) == 1


def test_a_stream_that_ends_after_its_producer_was_closed_leaves_nothing_behind(
    broker: Broker, connect: Connect
) -> None:
    with connect(broker.url) as connection:
        producer = connection.session().producer("queue:q")
        assert producer.send_stream(Source(producer.close)).result()
        assert not core_of(connection)._outboxes._of
    assert len(broker.bodies("queue:q")) == 1
