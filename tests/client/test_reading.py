"""Reading a large body: a few pieces ahead, in order, and checked at the end."""

import pytest
import xxhash

from alphorn.client.reading import AHEAD, NEAR_S, Reading
from alphorn.model import conversation as c
from alphorn.model.errors import Corruption, PeerViolation, Unavailable
from alphorn.model.messages import Streamed
from tests.client.test_core import Script

SENDER = b"s" * 20
PIECES = [bytes([65 + number]) * (number + 1) for number in range(10)]


def reading_of(script: Script, pieces: list[bytes], *, digest: bytes = b"") -> Reading:
    data = b"".join(pieces)
    streamed = Streamed(len(pieces), len(data), digest or xxhash.xxh3_128_digest(data))
    return Reading(script.core, streamed, place=7, producer=SENDER, counter=30, sequence=12)


def asked(script: Script) -> list[c.ReadFragment]:
    return [frame for frame in script.said() if isinstance(frame, c.ReadFragment)]


def answer(script: Script, question: c.ReadFragment) -> None:
    script.hear(c.FragmentRead(question.request, memoryview(PIECES[question.index])))


def far(script: Script, reading: Reading) -> None:
    """Takes the first piece, which took long."""
    reading.ask()
    (first,) = asked(script)
    script.now += 2 * NEAR_S
    answer(script, first)
    assert reading.take() == PIECES[0]


@pytest.mark.requirement("VLM-4", "VLM-5")
def test_pieces_are_asked_for_ahead_and_taken_in_order() -> None:
    script = Script()
    reading = reading_of(script, PIECES)
    far(script, reading)
    questions = asked(script)
    assert [(frame.index, frame.producer, frame.counter, frame.sequence) for frame in questions] == [
        (index, SENDER, 30, 12) for index in range(1, 1 + AHEAD)
    ]
    for question in reversed(questions):
        answer(script, question)
    taken = [PIECES[0]]
    while not reading.is_over:
        if not reading.is_ready:
            for question in asked(script):
                answer(script, question)
        taken.append(reading.take())
    assert taken == PIECES
    assert reading.take() == b""


@pytest.mark.parametrize(("took_s", "under_way"), [(NEAR_S / 2, [1, 1, 1, 1]), (2 * NEAR_S, [4, 4, 4, 4])])
def test_more_are_asked_for_ahead_where_the_way_is_long(took_s: float, under_way: list[int]) -> None:
    script = Script()
    reading = reading_of(script, PIECES)
    reading.ask()
    questions = asked(script)
    counts = []
    for _ in under_way:
        script.now += took_s
        answer(script, questions.pop(0))
        reading.take()
        questions += asked(script)
        counts.append(len(questions))
    assert counts == under_way


def test_a_reconnection_asks_again_for_what_was_not_answered() -> None:
    script = Script()
    reading = reading_of(script, PIECES)
    far(script, reading)
    first, *rest = asked(script)
    answer(script, first)
    script.cut()
    assert [frame.index for frame in asked(script)] == [frame.index for frame in rest]


def test_a_body_that_is_not_what_was_sent_is_noticed_at_its_end() -> None:
    script = Script()
    reading = reading_of(script, PIECES[:2], digest=bytes(16))
    far(script, reading)
    for question in asked(script):
        answer(script, question)
    with pytest.raises(Corruption):
        reading.take()
    with pytest.raises(Corruption):
        reading.take()


def test_a_body_that_is_gone_is_said_so() -> None:
    script = Script()
    reading = reading_of(script, PIECES)
    reading.ask()
    script.hear(c.Failed(asked(script)[0].request, "Unavailable", "not kept any more"))
    assert reading.is_ready
    with pytest.raises(Unavailable, match="not kept"):
        reading.take()


def test_an_answer_of_another_kind_is_refused() -> None:
    script = Script()
    reading = reading_of(script, PIECES)
    reading.ask()
    script.hear(c.Done(asked(script)[0].request))
    with pytest.raises(PeerViolation):
        reading.take()


def test_a_closed_reading_keeps_nothing() -> None:
    script = Script()
    reading = reading_of(script, PIECES)
    far(script, reading)
    first, second, *_ = asked(script)
    answer(script, first)
    reading.close()
    answer(script, second)
    assert (reading.take(), reading._pieces) == (b"", {})


def test_an_empty_body_is_over_at_once() -> None:
    reading = reading_of(Script(), [])
    assert reading.is_ready
    assert reading.take() == b""
