"""Messages whose time is over before the program was handed them go back; what it has it received in time."""

import pytest

from alphorn.client.inbox import AckMode
from alphorn.model import conversation as c
from alphorn.model.joining import JOINED_FROM
from tests.client.test_core import Script, bodies, delivered
from tests.client.test_patterns import Patterns


def returned(script: Script) -> list[tuple[list[int], bool]]:
    return [(frame.positions, frame.is_unseen) for frame in script.said() if isinstance(frame, c.Return)]


@pytest.mark.parametrize(
    ("handed", "lapsed", "unseen", "left"),
    [
        (0, [1, 9], [1, 9], []),
        (2, [1, 9], [3, 9], []),
        (2, [1, 2], [], [3, 4, 5, 6, 7, 8, 9]),
        (2, [4, 4, 7, 8], [4, 4, 7, 8], [3, 5, 6, 9]),
        (5, [6, 6], [6, 6], [7, 8, 9]),
        (0, [20, 30], [], [1, 2, 3, 4, 5, 6, 7, 8, 9]),
    ],
)
def test_what_the_program_was_not_handed_goes_back_unseen(
    handed: int, lapsed: list[int], unseen: list[int], left: list[int]
) -> None:
    script = Script()
    inbox = script.consumer(AckMode.INDIVIDUAL)
    script.said()
    script.hear(delivered(inbox, 1, 5), delivered(inbox, 6, 4))
    first = inbox.take(handed)
    script.hear(c.Lapsed(inbox.number, lapsed))
    assert returned(script) == ([(unseen, True)] if unseen else [])
    rest = inbox.take(100)
    assert [message.body for message in rest] == left
    for message in [*first, *rest]:
        message.acknowledge()
    assert (len(inbox.held), inbox._prefetched_bytes) == (0, 0)


def test_what_is_in_hand_is_acknowledged_by_going_on() -> None:
    script = Script()
    inbox = script.consumer(AckMode.AUTO)
    script.said()
    script.hear(delivered(inbox, 1, 3))
    assert bodies(inbox, 1) == [1]
    script.hear(c.Lapsed(inbox.number, [1, 2]))
    assert returned(script) == [([2, 2], True)]
    assert bodies(inbox, 1) == [3]
    assert bodies(inbox, 1) == []
    assert [frame.positions for frame in script.said() if isinstance(frame, c.Acknowledge)] == [[1, 1, 3, 3]]


def test_what_comes_after_that_is_handed_out() -> None:
    script = Script()
    inbox = script.consumer(AckMode.INDIVIDUAL)
    script.said()
    script.hear(delivered(inbox, 1, 2), c.Lapsed(inbox.number, [1, 2]))
    script.hear(delivered(inbox, 3, 1, delivery_count=2))
    assert bodies(inbox) == [3]


def test_word_of_a_consumer_that_is_gone_or_recovers_is_passed_over() -> None:
    script = Script()
    inbox = script.consumer(AckMode.CLIENT)
    script.said()
    script.hear(delivered(inbox, 1, 2))
    inbox.recover()
    script.hear(c.Lapsed(inbox.number, [1, 2]), c.Lapsed(99, [1, 2]))
    assert returned(script) == []


def test_of_a_pattern_goes_back_what_its_program_was_not_handed() -> None:
    script = Patterns()
    script.begin()
    one, two = script.join(JOINED_FROM, "queue:one"), script.join(JOINED_FROM + 1, "queue:two")
    script.said()
    script.hear(delivered(one, 1, 4), delivered(two, 11, 2))
    assert bodies(script.box, 1) == [1]
    script.hear(c.Lapsed(one.number, [1, 2]), c.Lapsed(two.number, [11, 12]))
    assert returned(script) == [([2, 2], True), ([11, 12], True)]
    assert bodies(script.box, 9) == [3, 4]
    assert bodies(script.box, 9) == []
