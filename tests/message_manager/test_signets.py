"""The cluster's signet: the first one that the log offers holds for ever, and nobody is shown it."""

import pytest

from alphorn.message_manager.answers import answers_to
from alphorn.message_manager.checkpoint import frame
from alphorn.message_manager.checkpoint_records import End
from alphorn.message_manager.engine import Engine
from alphorn.model import link
from alphorn.model.commands import SIGNET_BYTES, Entry, KeepSignet
from alphorn.model.link import Answered
from alphorn.testing.said_text import describe_said
from tests.message_manager.bench import Bench

FIRST, SECOND = b"1" * SIGNET_BYTES, b"2" * SIGNET_BYTES


def offer(bench: Bench, signet: bytes) -> Answered:
    """A Client Manager's draft, and what that is answered."""
    command = KeepSignet(signet)
    [(_, answered)] = answers_to(bench.engine, Entry([command], [7]), bench.apply(command))
    return answered


@pytest.mark.requirement("API-18")
def test_the_first_signet_holds_and_is_the_answer_to_all_that_are_offered_later() -> None:
    bench = Bench()
    assert offer(bench, FIRST) == Answered(7, signet=FIRST)
    assert offer(bench, SECOND) == Answered(7, signet=FIRST)
    assert bench.engine.signet == FIRST


@pytest.mark.requirement("API-18")
def test_a_checkpoint_holds_the_signet_and_one_without_is_offered_one() -> None:
    bench = Bench()
    bench.engine = Engine.restore(bench.engine.checkpoint())
    assert bench.engine.signet == b""
    offer(bench, FIRST)
    bench.engine = Engine.restore(bench.engine.checkpoint())
    assert offer(bench, SECOND).signet == FIRST


def test_a_checkpoint_of_an_alphorn_that_had_no_signets_is_read() -> None:
    gathered = bytearray()
    frame(gathered, [1, 5, 1_000, 7])  # type: ignore[arg-type]
    frame(gathered, End(1))
    engine = Engine.restore([bytes(gathered)])
    assert (engine.sequence, engine.signet) == (5, b"")


@pytest.mark.parametrize("size", [0, SIGNET_BYTES - 1, SIGNET_BYTES + 1])
def test_what_cannot_be_a_signet_is_none(size: int) -> None:
    bench = Bench()
    assert offer(bench, b"x" * size).error == "PeerViolation"
    assert bench.engine.signet == b""


def test_nobody_is_shown_a_signet() -> None:
    bench = Bench()
    answered = offer(bench, FIRST)
    shown = f"{KeepSignet(FIRST)} {answered!r} {bench.engine.describe()}"
    shown += describe_said(link.encode(answered), is_link=True)
    assert "Answered request=7 signet=…" in shown
    assert not any(part in shown for part in ("111", FIRST.hex()[:12], repr(FIRST)[2:8]))
