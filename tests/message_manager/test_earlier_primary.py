"""What a primary wanted comes into the log when another one has begun: nothing of it is done.

The earlier one knows neither what its successor has given out nor who has come back. Its commands rest on that.
"""

import pytest

from alphorn.message_manager.absent import HOLD_S
from alphorn.message_manager.machine import Demoted, LinkClosed, Logged, Order, Promoted
from alphorn.model import link
from alphorn.model.commands import (
    Acknowledge,
    AnyCommand,
    Entry,
    Forget,
    Publish,
    Return,
    Tick,
    decode_entry,
    key_of,
)
from alphorn.model.messages import Flag
from tests.client_manager.managing import encode
from tests.message_manager.test_core import CONNECTION, CONSUMER, FIRST, ME, QUEUE, SECOND, Serving

EARLIER, NOW = 1, 2


@pytest.fixture
def serving() -> Serving:
    """The primary of epoch 2, whose consumer has message 1, the only one; its time is over at 2000."""
    serving = Serving()
    blob = memoryview(encode([["body", None, 4, 2_000]]))
    serving.apply(Publish(QUEUE, key_of(CONNECTION, 7), 1, 1, int(Flag.EXPIRATION), 1000, blob))
    serving.receive(Demoted(NOW))
    serving.receive(Promoted(NOW, ME, (FIRST,)))
    serving.introduce(1, FIRST, CONNECTION)
    serving.attach(1)
    serving.ask(1, link.Settled())
    assert serving.delivered(1) == [(1, 1)]
    return serving


def come(serving: Serving, *commands: AnyCommand, epoch: int) -> None:
    """The log has what a primary of this epoch wanted."""
    serving.commit(Entry(list(commands), [], epoch), SECOND)


def pending(serving: Serving) -> list[tuple[int, int]]:
    return list(serving.manager.engine.destinations[QUEUE].backlogs()[0][1].pending)


@pytest.mark.parametrize(("epoch", "left"), [(EARLIER, [(1, 1)]), (NOW, [])])
def test_only_the_primarys_own_word_of_the_time_ends_what_a_consumer_has(
    serving: Serving, epoch: int, left: list[tuple[int, int]]
) -> None:
    come(serving, Tick(2_500), epoch=epoch)
    assert pending(serving) == left
    assert serving.manager.engine.now_ms == (2_500 if epoch == NOW else 0)


@pytest.mark.parametrize(("epoch", "again"), [(EARLIER, []), (NOW, [(1, 2)])])
def test_only_the_primarys_own_return_takes_a_message_from_its_consumer(
    serving: Serving, epoch: int, again: list[tuple[int, int]]
) -> None:
    come(serving, Return(QUEUE, 0, CONSUMER, [1, 1], delay_ms=0), epoch=epoch)
    assert serving.delivered(1) == again


@pytest.mark.parametrize(("epoch", "known"), [(EARLIER, {CONNECTION}), (NOW, set())])
def test_only_the_primarys_own_word_makes_a_connection_forgotten(
    serving: Serving, epoch: int, known: set[bytes]
) -> None:
    come(serving, Forget(CONNECTION), epoch=epoch)
    assert serving.manager.engine.connections() == known


def test_what_anybody_may_want_is_done_in_every_epoch(serving: Serving) -> None:
    come(serving, Acknowledge(QUEUE, 0, CONSUMER, [1, 1]), epoch=0)
    assert pending(serving) == []


def test_a_primary_says_in_which_epoch_it_wants_something_and_log_lines_are_for_all() -> None:
    serving = Serving()
    serving.introduce(1, FIRST, CONNECTION)
    serving.attach(1)
    serving.publish(1)
    serving.receive(LinkClosed(1))
    serving.now += HOLD_S
    serving.manager.on_time(serving.now)
    serving.manager.receive(Logged(b"run", ["a line"]), serving.now)
    outputs = serving.manager.take_outputs()
    entries = [decode_entry(output.payload) for output in outputs if isinstance(output, Order)]
    assert [(type(entry.commands[0]).__name__, entry.epoch) for entry in entries] == [
        ("CreateDestination", 0),
        ("Return", 1),
    ]


def test_what_was_wanted_in_the_turn_in_which_an_epoch_ended_is_not_wanted_in_the_next() -> None:
    serving = Serving()
    serving.introduce(1, FIRST, CONNECTION)
    serving.attach(1)
    serving.publish(1)
    serving.receive(LinkClosed(1))
    serving.now += HOLD_S
    serving.manager.on_time(serving.now)
    serving.manager.receive(Promoted(NOW, ME, ()), serving.now)
    assert not [output for output in serving.manager.take_outputs() if isinstance(output, Order)]
