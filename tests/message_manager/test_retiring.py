"""What a client has closed is forgotten while its connection goes on, and what comes of it late is still told apart."""

import pytest

from alphorn.message_manager.effects import Effect
from alphorn.message_manager.engine import Engine
from alphorn.message_manager.transaction_state import BRIEF_MS, FORGOTTEN_MS, Outcome
from alphorn.model.commands import (
    NOBODY,
    NUMBER_MAX,
    USED_MAX,
    Abandon,
    CreateDestination,
    Forget,
    Fragment,
    Retire,
    TransactionCommit,
    TransactionDecide,
    TransactionPrepare,
    TransactionSettle,
    key_of,
)
from alphorn.model.destinations import Destination, DestinationKind, Policy
from tests.message_manager.bench import ALICE, BOB, Bench, arrived, batch, errors
from tests.message_manager.test_moving import CONNECTION, PRODUCER, publish
from tests.message_manager.travel import Side, Travel

PIECE = memoryview(b"piece")


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def queue(bench: Bench) -> int:
    return bench.create("queue:q")


def size(engine: Engine) -> int:
    return sum(map(len, engine.checkpoint()))


def send(bench: Bench, queue: int, number: int, counter: int = 1) -> list[Effect]:
    return bench.apply(batch(queue, ["a"], counter, key=key_of(ALICE, number)))


def test_a_connection_that_opens_and_closes_producers_for_ever_takes_no_more_room(bench: Bench, queue: int) -> None:
    sizes = []
    for number in range(2, 2_000, 2):
        send(bench, queue, number)
        bench.apply(Retire(ALICE, number + 1, [1]))
        bench.acknowledge(queue, 1, number)
        sizes.append(size(bench.engine))
    assert bench.engine.describe()["producers"] == 0
    assert max(sizes[500:]) - sizes[100] <= 16, "larger numbers take a few bytes more"


def test_a_copy_that_comes_late_of_a_closed_producer_is_not_stored_again(bench: Bench, queue: int) -> None:
    send(bench, queue, 5)
    send(bench, queue, 5, counter=2)
    bench.apply(Retire(ALICE, 7, [6]))
    for counter in (1, 2):
        late = send(bench, queue, 5, counter)
        assert (arrived(late), errors(late)) == ([], ["UnknownOutcome"])
    assert bench.engine.describe()["producers"] == 0


def test_a_late_copy_is_told_apart_after_a_restart_and_after_the_connection_has_ended(bench: Bench, queue: int) -> None:
    send(bench, queue, 5)
    bench.apply(Retire(ALICE, 7, []))
    bench.engine = Engine.restore(list(bench.engine.checkpoint()))
    assert errors(send(bench, queue, 5)) == ["UnknownOutcome"]
    bench.apply(Forget(ALICE))
    assert bench.engine.connections() == set()
    assert errors(send(bench, queue, 5)) == ["UnknownOutcome"]
    assert not errors(send(bench, queue, 8)), "the connection has come back"


def test_a_producer_that_is_used_goes_on_whether_or_not_it_has_sent_before(bench: Bench, queue: int) -> None:
    send(bench, queue, 2)
    bench.apply(Retire(ALICE, 9, [2, 4]))
    assert not errors(send(bench, queue, 2)), "it is known what it sent"
    assert arrived(send(bench, queue, 2, counter=2)) == [(queue, 0, 2, 2)]
    assert arrived(send(bench, queue, 4)) == [(queue, 0, 3, 3)]
    assert arrived(send(bench, queue, 10)) == [(queue, 0, 4, 4)]


def test_an_older_word_that_comes_late_changes_nothing(bench: Bench, queue: int) -> None:
    send(bench, queue, 4)
    bench.apply(Retire(ALICE, 9, []))
    before = b"".join(bench.engine.checkpoint())
    bench.apply(Retire(ALICE, 8, [4]), Retire(ALICE, 9, [4]))
    assert b"".join(bench.engine.checkpoint())[20:] == before[20:]
    bench.apply(Forget(ALICE), Retire(ALICE, 9, [4]))
    assert bench.engine.connections() == set(), "nobody would ever forget it again"


def test_a_connection_that_has_closed_all_it_had_is_still_one_to_be_forgotten(bench: Bench, queue: int) -> None:
    send(bench, queue, 4)
    bench.apply(Retire(ALICE, 9, []))
    assert bench.engine.connections() == {ALICE}


@pytest.mark.parametrize(
    "command",
    [
        Retire(b"short", 1, []),
        Retire(NOBODY, 1, []),
        Retire(ALICE, 0, []),
        Retire(ALICE, NUMBER_MAX + 1, []),
        Retire(ALICE, NUMBER_MAX, list(range(USED_MAX + 1))),
    ],
)
def test_a_word_that_cannot_be_right_changes_nothing(bench: Bench, queue: int, command: Retire) -> None:
    send(bench, queue, 1)
    assert errors(bench.apply(command)) == ["PeerViolation"]
    assert bench.engine.describe()["producers"] == 1


def test_a_body_whose_sender_was_closed_is_given_up_and_does_not_begin_again(bench: Bench, queue: int) -> None:
    lane, other = key_of(ALICE, 5), key_of(ALICE, 6)
    bench.apply(Fragment(queue, lane, 1, 0, PIECE), Fragment(queue, other, 1, 0, PIECE))
    bench.apply(Retire(ALICE, 9, [6]))
    assert [each[0] for each in bench.engine.retained()] == [bench.engine.sequence - 1]
    assert errors(bench.apply(Fragment(queue, lane, 1, 0, PIECE))) == ["Unavailable"]
    assert errors(bench.apply(Abandon(lane, 1, queue))) == ["Unavailable"]
    assert not errors(bench.apply(Fragment(queue, other, 2, 1, PIECE)))
    assert bench.engine.describe()["producers"] == 1


def test_a_body_that_comes_late_of_a_connection_that_has_ended_does_not_become_a_message_again(
    bench: Bench, queue: int
) -> None:
    lane = key_of(ALICE, 5)
    bench.apply(Fragment(queue, lane, 1, 0, PIECE))
    bench.apply(Forget(ALICE))
    assert errors(bench.apply(Fragment(queue, lane, 1, 0, PIECE))) == ["Unavailable"]
    assert bench.engine.connections() == set()


def test_a_copy_comes_late_for_a_queue_that_moved_here_and_is_not_stored_again() -> None:
    here, there = Side(1), Side(2)
    here.order(CreateDestination(Destination(DestinationKind.QUEUE, "orders"), Policy()))
    here.order(publish(1, 1))
    target = Travel(here, there, 1).run()
    there.order(Forget(CONNECTION))
    assert errors(there.order(publish(target, 1))) == ["UnknownOutcome"], "the queue alone knew its producer"


@pytest.mark.parametrize("is_on_its_way", [True, False])
def test_producers_of_a_queue_that_moves_are_forgotten_when_their_client_has_closed_them(is_on_its_way: bool) -> None:
    here, there = Side(1), Side(2)
    here.order(CreateDestination(Destination(DestinationKind.QUEUE, "orders"), Policy()))
    here.order(publish(1, 1))
    trip = Travel(here, there, 1)
    steps = trip.steps()
    at = steps.index(trip.begin) + 1 if is_on_its_way else len(steps)
    for step in steps[:at]:
        step()
    here.order(Retire(CONNECTION, 9, []))
    there.order(Retire(CONNECTION, 9, []))
    for step in steps[at:]:
        step()
    table = there.engine.destinations[trip.target].producers
    assert table is not None
    assert table.find(PRODUCER) is None
    assert errors(there.order(publish(trip.target, 1))) == ["UnknownOutcome"]
    there.restart()


def test_a_closed_session_s_transaction_is_known_for_a_while_and_never_done_again(bench: Bench, queue: int) -> None:
    bench.tick(1_000)
    session, late = key_of(ALICE, 5), TransactionCommit(key_of(ALICE, 5), 1, 1)
    assert not errors(bench.apply(late, batch(queue, ["a"])))
    bench.apply(Retire(ALICE, 9, []))
    again = bench.apply(late, batch(queue, ["a"]))
    assert (arrived(again), errors(again)) == ([], []), "it is answered as before"
    bench.tick(1_000 + BRIEF_MS)
    assert session not in dict(bench.engine._state.transactions)
    again = bench.apply(late, batch(queue, ["a"]))
    assert (arrived(again), errors(again)) == ([], ["Misuse"])
    assert errors(bench.apply(TransactionPrepare(session, 1, [0, 1], 1), batch(queue, ["a"]))) == ["Misuse"]


def test_a_closed_session_s_transaction_over_channels_stays_until_it_is_settled(bench: Bench, queue: int) -> None:
    bench.tick(1_000)
    session = key_of(ALICE, 5)
    bench.apply(TransactionPrepare(session, 1, [0, 1], 1), batch(queue, ["a"]))
    bench.apply(Retire(ALICE, 9, []))
    bench.tick(1_000 + FORGOTTEN_MS)
    assert bench.answer(TransactionDecide(session, 1, [0, 1], True)).number == Outcome.DONE
    assert bench.pending(queue) == [(1, 1)]
    bench.tick(2_000 + FORGOTTEN_MS)
    assert session in dict(bench.engine._state.transactions)
    bench.apply(TransactionSettle(session, 1))
    bench.tick(3_000 + FORGOTTEN_MS)
    assert session not in dict(bench.engine._state.transactions)


def test_what_others_have_closed_does_not_concern_a_connection(bench: Bench, queue: int) -> None:
    send(bench, queue, 5)
    bench.apply(Retire(BOB, 9, []))
    assert arrived(send(bench, queue, 5, counter=2)) == [(queue, 0, 2, 2)]
