"""Groups in which several unlikely things meet: a late datagram, a loss one way only, a disk that is slow or spoilt."""

import pytest

from alphorn.bus.config import Budget
from alphorn.bus.frames import Absent, CommitAcknowledge, Data, Fetch, Join, Promise, Welcome, encode
from alphorn.bus.machine import Ordered, Received
from tests.bus.group import Group, Node, logs_agree, make_config


def acknowledgements(group: Group, *names: str) -> int:
    return sum(len(group.frames(CommitAcknowledge, source=name)) for name in names)


def is_ordered(node: Node, handle: int) -> bool:
    return any(output.handle == handle for output in node.of(Ordered))


@pytest.mark.requirement("BUS-12", "HA-2")
def test_a_server_that_does_not_know_the_candidates_epoch_denies_it_nothing() -> None:
    """Denied to the candidate and stored for the sequencer before, a number would be committed with two meanings."""
    group = Group(make_config(3, 2)).found()
    client = group.client("C")
    group.run(0.5)
    assert group.leader.name == "S1"
    group.order_and_wait("C", b"before")
    group.run(0.2)
    # The witnesses accept the number; the batch and the number miss S2 and S3.
    ends = group.drop(lambda hop: hop.source in ("C", "S1") and hop.target in ("S2", "S3"))
    seen = acknowledgements(group, "W1", "W2")
    (handle,) = group.order("C", b"between")
    group.run_until(lambda: acknowledgements(group, "W1", "W2") >= seen + 2)
    group.run(0.0015)
    ends()
    began = group.now
    # S1 is away for a moment. S2 stands, and S3 hears none of its words but the question for the batch.
    flap = group.cut("S1", "C")
    silence = group.drop(lambda hop: (hop.source, hop.target) == ("S2", "S3") and not isinstance(hop.body, Fetch))
    group.run_until(lambda: bool(group.frames(Fetch, source="S2", since=began)))
    group.run(0.005)
    assert not group.frames(Absent, source="S3", since=began)
    parted = group.cut("S1", "S3", "C")
    flap()
    group.run(0.3)
    silence()
    parted()
    group.run(5)
    assert is_ordered(client, handle)
    assert logs_agree(group, "S1", "S2", "S3", "C")
    assert b"between" in group["S2"].state


@pytest.mark.requirement("BUS-22")
def test_a_server_with_larger_datagrams_than_the_sender_answers_with_the_whole_batch() -> None:
    group = Group(make_config(2, 1), budget=Budget(datagram_bytes=8900)).found()
    group.budget = Budget(datagram_bytes=1400)
    group.client("C")
    group.run(0.5)
    group.budget = Budget(datagram_bytes=8900)
    group.drop(
        lambda hop: hop.source == "C" and hop.target == "S2" and isinstance(hop.body, Data) and hop.body.fragment >= 8
    )
    group.order("C", bytes(12_000))
    group.run(5)
    assert bytes(12_000) in group["S2"].state


@pytest.mark.requirement("HA-2")
def test_a_candidate_that_gave_up_looking_for_a_batch_asks_for_another_epoch() -> None:
    """The one before was announced: nobody promises it again, and it would be asked for for ever."""
    group = Group(make_config(2, 1)).found()
    group.client("C")
    group.run(0.5)
    group.order_and_wait("C", b"one")
    group.drop(lambda hop: (hop.source, hop.target) == ("S2", "S1"))
    group.run(1.0)  # S1 goes on as the only copy, by a recorded decision
    group.order_and_wait("C", b"two")
    group.run(0.1)
    group.drop(lambda hop: hop.target == "S2" and isinstance(hop.body, Data))
    group.order("C", b"three")
    ledger = group["S2"].running._station.ledger
    group.run_until(lambda: any(not a.system for a in ledger.slice(ledger.committed, ledger.last)))
    group["S1"].crash()
    group._rules.clear()
    crashed = group.now
    heal = group.cut("C")  # the sender has the batch, and is away for longer than the candidate looks for it
    group.run(4.0)
    heal()
    group["S1"].disk.damage(("assignment", ledger.last, 0))
    group.restart("S1")
    group.run(10)
    assert group.leader.name == "S2"
    assert b"three" in group["S2"].state
    assert all(promise.is_granted for promise in group.frames(Promise, source="W1", since=crashed))


@pytest.mark.requirement("HA-12", "HA-13")
def test_a_server_that_is_late_with_its_checkpoint_keeps_its_vote_when_it_starts_again() -> None:
    """Others had theirs, so its log begins behind its own: it needs one of theirs, and has lost nothing it voted on."""
    group = Group(make_config(3, checkpoint_interval=20)).found()
    group.client("C")
    group.run(0.5)
    group.order_and_wait("C", *(b"a%d" % number for number in range(30)))
    group.run(1)
    late = group["S3"]
    late._take_checkpoint = lambda output: None  # type: ignore[method-assign]
    group.order_and_wait("C", *(b"b%d" % number for number in range(30)))
    group.run(1)
    begins, _ = late.disk.assignment_bounds()
    checkpoint = late.disk.checkpoint()
    assert getattr(checkpoint, "sequence", begins) < begins - 1
    late.crash()
    group["S1"].crash()
    group.restart("S3")
    group.run(10)
    assert group.primary is not None
    assert late.describe("commit_server", "may_vote")
    group.order_and_wait("C", b"after")


@pytest.mark.requirement("HA-18")
def test_a_late_copy_of_an_earlier_runs_word_takes_no_vote_away() -> None:
    group = Group(make_config(2, 1)).found()
    client = group.client("C")
    group.run(0.5)
    old = next(sent.frame for sent in group.sent if sent.source == "S2" and isinstance(sent.frame.body, Join))
    group.restart("S2")
    group.run(2)
    group["W1"].crash()
    group.run(0.1)
    data = encode(group=old.group, epoch=old.epoch, number=old.number, origin=old.origin, body=old.body)
    group["S1"].feed(Received(b"".join(data)))
    (handle,) = group.order("C", b"one")
    group.run(5)
    assert is_ordered(client, handle)
    assert group.leader.describe("state", "voters") == [1, 2, 3]


@pytest.mark.requirement("HA-18")
def test_a_late_copy_of_an_earlier_runs_word_takes_no_vote_away_while_its_member_is_down() -> None:
    group = Group(make_config(3)).found()
    group.run(0.5)
    old = next(sent.frame for sent in group.sent if sent.source == "S3" and isinstance(sent.frame.body, Join))
    group.restart("S3")
    group.run(1)
    group["S3"].crash()
    group.run(1)
    data = encode(group=old.group, epoch=old.epoch, number=old.number, origin=old.origin, body=old.body)
    for _ in range(2):
        group["S1"].feed(Received(b"".join(data)))
        group.run(0.2)
    assert group.leader.describe("state", "voters") == [1, 2, 3]


@pytest.mark.requirement("HA-18")
def test_a_late_welcome_to_an_earlier_run_gives_no_vote_to_one_whose_disk_nobody_has_looked_at() -> None:
    group = Group(make_config(2, 1)).found()
    group.client("C")
    group.run(0.5)
    image = group["S2"].disk.durable.copy()
    old = next(
        sent.frame for sent in group.sent
        if sent.to == "S2" and isinstance(sent.frame.body, Welcome) and sent.frame.body.number == 2
    )  # fmt: skip
    group.order_and_wait("C", b"one")
    group["S2"].crash()
    group["S2"].disk.restore(image)
    group.cut("S2")
    group.restart("S2")
    group.run(0.02)
    data = encode(group=old.group, epoch=old.epoch, number=old.number, origin=old.origin, body=old.body)
    group["S2"].feed(Received(b"".join(data)))
    group.run(0.1)
    assert not group["S2"].describe("commit_server", "may_vote")
