"""The cluster hears which producers and sessions a client has closed, now and then and with what else is sent."""

import pytest

from alphorn.client import outboxes
from alphorn.client.flow import SessionState
from alphorn.client.inbox import AckMode
from alphorn.client.outboxes import CLOSED_MAX
from alphorn.client.packing import pack_body
from alphorn.model import conversation as c
from tests.client.test_core import Script, kinds


def send_and_close(script: Script, session: SessionState) -> list[c.Retire]:
    """One message by a producer of its own; gives what was said of closed ones meanwhile."""
    outbox = script.core.open_outbox(session, 7, is_persistent=True)
    outbox.add_plain(pack_body("a"))
    said = script.said()
    script.hear(c.Confirmed(outbox.number, 1))
    script.core.close_outbox(outbox)
    return [frame for frame in said if isinstance(frame, c.Retire)]


def test_the_cluster_is_told_now_and_then_which_of_many_producers_are_still_used() -> None:
    script = Script()
    session = script.core.open_session(AckMode.AUTO)
    staying = script.core.open_outbox(session, 7, is_persistent=True)
    told = [frame for _ in range(3 * CLOSED_MAX) for frame in send_and_close(script, session)]
    assert len(told) == 2, "and the third goes with what is sent next"
    assert [{session.number, staying.number} <= set(frame.used) for frame in told] == [True, True]
    assert all(len(frame.used) == 3 for frame in told), "the one that sent with it is not closed yet"
    assert told[0].through < told[1].through
    assert all(frame.used[-1] < frame.through for frame in told)


def test_nothing_is_said_of_producers_that_never_sent() -> None:
    script = Script()
    session = script.core.open_session(AckMode.AUTO)
    for _ in range(3 * CLOSED_MAX):
        script.core.close_outbox(script.core.open_outbox(session, 7, is_persistent=True))
    assert "Retire" not in kinds(script.said())


def test_transacted_sessions_that_were_closed_count_as_well() -> None:
    script = Script()
    script.said()
    for _ in range(CLOSED_MAX):
        session = script.core.open_session(AckMode.TRANSACTED)
        script.core.close_session(session, script.answers.append)
        *_, closing = script.said()
        assert isinstance(closing, c.CloseSession)
        script.hear(c.Done(closing.request))
    assert kinds(script.said()) == ["Retire"]


def test_of_very_many_producers_in_use_only_the_first_are_named_and_nothing_is_said_of_later_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used_max = 1_000
    monkeypatch.setattr(outboxes, "USED_MAX", used_max)
    script = Script()
    session = script.core.open_session(AckMode.AUTO)
    for _ in range(used_max + 5):
        last = script.core.open_outbox(session, 7, is_persistent=True)
    for _ in range(used_max + 6):
        script.core._outboxes.note_closed()
    *_, frame = script.said()
    assert isinstance(frame, c.Retire)
    assert len(frame.used) == used_max
    assert frame.used[-1] <= frame.through < last.number
