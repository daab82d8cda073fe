"""A member's word to its sequencer: what is durable, under the epoch it follows, and nothing in doubtful moments."""

import pytest

from alphorn.bus.acknowledge import Acknowledger
from alphorn.bus.catch_up import CatchUp
from alphorn.bus.commit_server import CommitServer
from alphorn.bus.data_server import DataServer
from alphorn.bus.follower import Follower
from alphorn.bus.frames import CommitAcknowledge, CommitSubmit
from alphorn.bus.group_state import GroupState
from alphorn.bus.nack import Requests
from alphorn.bus.receiver import Receiver
from alphorn.bus.repair import Repairer
from alphorn.bus.sender import Sender
from alphorn.bus.synchroniser import Synchroniser
from tests.bus.stations import EPOCH, NEXT_EPOCH, Bench, numbered


class Acknowledging:
    """Server 2 of three follows sequencer 1; batches 1 and 2 are numbers 1 and 2, durable here."""

    def __init__(self) -> None:
        self.bench = Bench(number=2)
        station = self.bench.station
        station.epoch = station.durable_epoch = EPOCH
        requests, repairer = Requests(station), Repairer(station, 0.0)
        self.follower = Follower(station, durable=0, now=0.0)
        commit_server = CommitServer(station, self.follower, is_returning=False, now=0.0)
        data_server = DataServer(station, requests, stored=0)
        receiver = Receiver(station, self.follower, requests, repairer, delivered=0)
        self.synchroniser = Synchroniser(
            station,
            follower=self.follower,
            receiver=receiver,
            sender=Sender(station),
            data=data_server,
            commit=commit_server,
            catch_up=CatchUp(station, self.follower, receiver, data_server.holes),
            on_whole=lambda batch, whole, sequence, now: None,
        )
        self.acknowledger = Acknowledger(station, commit_server, data_server, self.synchroniser)
        self.follower.on_appended = lambda first: data_server.on_appended(first, 1.0)
        self.bench.hold(1, 2)
        self.submit(0, 1, 2)
        self.bench.settle()

    def submit(self, previous: int, *counters: int, committed: int = 0, epoch: int = EPOCH) -> None:
        assignments = [numbered(counter, epoch) for counter in counters]
        body = CommitSubmit(previous, self.bench.ledger.epoch_at(previous) or 0, committed, assignments)
        self.follower.on_submit(self.bench.frame(epoch & 0xFFFF, body, epoch), body, 1.0)

    def words(self) -> list[tuple[str, CommitAcknowledge]]:
        self.acknowledger.flush()
        return self.bench.sent(CommitAcknowledge)


def state_through(sequence: int) -> GroupState:
    """The group's state after so many batches, as a checkpoint brings it."""
    other = Bench(number=3)
    other.fold(*[numbered(counter) for counter in range(1, sequence + 1)])
    return other.ledger.state


@pytest.mark.requirement("BUS-14")
def test_what_is_durable_is_said_once_to_the_sequencer() -> None:
    acknowledging = Acknowledging()
    assert acknowledging.words() == [("S1", CommitAcknowledge(2, 2))]
    assert acknowledging.words() == []


def test_what_may_have_been_lost_is_said_again() -> None:
    acknowledging = Acknowledging()
    acknowledging.words()
    acknowledging.acknowledger.repeat()
    assert acknowledging.words() == [("S1", CommitAcknowledge(2, 2))]


def test_nothing_is_said_while_nobody_is_sequencer() -> None:
    acknowledging = Acknowledging()
    acknowledging.bench.station.sequencer = 0
    assert acknowledging.words() == []


def test_nothing_is_said_under_an_epoch_whose_fence_is_not_durable() -> None:
    acknowledging = Acknowledging()
    acknowledging.words()
    acknowledging.submit(0, epoch=NEXT_EPOCH)
    acknowledging.submit(2, 3, epoch=NEXT_EPOCH)
    token, _ = acknowledging.bench.hand_over()
    assert acknowledging.acknowledger.acknowledged() == (0, 0)
    assert acknowledging.words() == []
    acknowledging.bench.station.journal.on_durable(token)
    assert acknowledging.acknowledger.acknowledged()[0] == 3


@pytest.mark.requirement("CKP-5")
def test_nothing_is_said_while_a_checkpoint_replaces_the_ledger() -> None:
    # Goal: a crash must not leave a disk that lacks what was acknowledged. Method: the sequencer confirms everything
    # the checkpoint covers before the replacement is durable.
    acknowledging = Acknowledging()
    acknowledging.words()
    acknowledging.synchroniser.go_on_from(state_through(9))
    acknowledging.submit(9, committed=9)
    assert acknowledging.bench.ledger.confirmed == 9
    token, _ = acknowledging.bench.hand_over()
    assert acknowledging.acknowledger.acknowledged() == (0, 0)
    assert acknowledging.words() == []
    acknowledging.bench.station.journal.on_durable(token)
    assert acknowledging.words() == [("S1", CommitAcknowledge(9, 9))]


def test_of_two_replacements_the_last_must_be_durable() -> None:
    acknowledging = Acknowledging()
    acknowledging.words()
    acknowledging.synchroniser.go_on_from(state_through(9))
    first, _ = acknowledging.bench.hand_over()
    acknowledging.synchroniser.go_on_from(state_through(20))
    acknowledging.submit(20, committed=20)
    second, _ = acknowledging.bench.hand_over()
    acknowledging.bench.station.journal.on_durable(first)
    assert acknowledging.words() == []
    acknowledging.bench.station.journal.on_durable(second)
    assert acknowledging.words() == [("S1", CommitAcknowledge(20, 20))]
