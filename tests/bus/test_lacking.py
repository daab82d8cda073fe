"""What only one disk had, and what becomes of a group that lacks it: a clear end, or a sentence on who must help."""

import pytest

from alphorn.bus.machine import Stop
from alphorn.model.errors import Corruption
from tests.bus.group import Group, make_config

WAY_OUT = "no other member keeps the log; put an earlier copy of the whole store in its place, or begin a new log"


def alone(**settings: object) -> Group:
    """The only server of its group, down after three batches."""
    group = Group(make_config(1, **settings)).found()
    group.client("C")
    group.run(0.3)
    group.order_and_wait("C", b"one", b"two", b"three")
    group.run(0.2)
    group["S1"].crash()
    return group


def test_an_only_disk_that_cannot_tell_what_a_number_means_says_so_and_does_not_start() -> None:
    group = alone()
    number = group["C"].history[1]
    group["S1"].disk.damage(("assignment", number, 0))
    with pytest.raises(Corruption, match=f"the meaning of number {number} cannot be read in the store of S1") as told:
        group.restart("S1")
    assert WAY_OUT in str(told.value)


@pytest.mark.parametrize("founding", [False, True])
def test_an_only_disk_that_has_forgotten_its_promises_says_so_and_does_not_start(founding: bool) -> None:
    group = alone()
    group["S1"].disk.damage(("meta", 0, 0))
    with pytest.raises(Corruption, match="the record of promises cannot be read in the store of S1"):
        group["S1"].start(founding=founding)


def test_an_only_disk_whose_checkpoint_cannot_be_read_says_so_and_does_not_start() -> None:
    group = alone(checkpoint_interval=4)
    checkpoint = group["S1"].disk.durable.checkpoint
    assert checkpoint is not None
    group["S1"].disk.damage(("chunk", checkpoint.sequence, 0))
    with pytest.raises(Corruption, match="the checkpoint that the log begins with cannot be read in the store of S1"):
        group.restart("S1")


def test_an_only_disk_that_can_be_read_goes_on() -> None:
    group = alone()
    node = group.restart("S1")
    group.run_until(lambda: node.state == [b"one", b"two", b"three"])
    assert (node.of(Stop), node.running.lacking) == ([], "")


def test_an_only_disk_that_cannot_read_a_final_batch_stops_before_it() -> None:
    group = alone()
    number = group["C"].history[1]
    group["S1"].disk.damage(("entry", number, 0))
    node = group.restart("S1")
    node.running._station.ledger.commit(number)
    group.run(0.1)
    assert node.of(Stop)[0].reason.startswith(f"the batch of number {number} cannot be read in the store of S1, and no")
    assert node.state == [b"one"]


def test_an_only_disk_that_cannot_read_an_open_batch_stops_when_its_sender_did_not_give_it() -> None:
    group = alone()
    number = group["C"].history[2]
    group["S1"].disk.damage(("entry", number, 0))
    node = group.restart("S1")
    assert node.describe("ledger", "committed") < number
    group.run(1.0)
    assert node.of(Stop) == [], "the sender may have it"
    group.run(4.0)
    assert node.of(Stop)[0].reason.startswith(f"the batch of number {number} cannot be read in the store of S1, and no")


def test_a_candidate_says_which_batch_it_lacks_while_nobody_who_answers_has_it() -> None:
    group = Group(make_config(2, 1)).found()
    group.run(0.5)
    group["S2"].crash()
    group.run(1.0)
    group.drop(lambda hop: hop.source == "S1" and hop.name in ("Commit", "Heartbeat"))
    group.order("S1", b"one")
    group.run(0.01)
    (number,) = group["S1"].history
    group["S1"].crash()
    node = group.restart("S2")
    group.run(5.0)
    assert f"S2 would lead 7, but number {number} of the log may be final" in node.running.lacking
    group.restart("S1")
    group.run_until(lambda: node.state == [b"one"])
    assert node.running.lacking == ""


def test_a_member_that_cannot_read_a_number_says_so_while_nobody_tells_it() -> None:
    group = Group(make_config()).found()
    group.run(0.5)
    for name in ("S1", "S2", "S3"):
        group[name].crash()
    _, last = group["S3"].disk.assignment_bounds()
    group["S3"].disk.damage(("assignment", last, 0))
    node = group.restart("S3")
    group.run(2.0)
    assert f"S3 cannot read what number {last} of the log of 7 means" in node.running.lacking
    group.restart("S1")
    group.restart("S2")
    group.run_until(lambda: node.running.lacking == "")
