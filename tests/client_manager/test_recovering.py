"""Everything that a consumer has comes back and is given out again, and nothing newer overtakes it."""

from alphorn.model import commands, link
from alphorn.model.conversation import CloseConsumer, Delivered, Done, Failed, Recover
from tests.client_manager.managing import Client, Managing, attached, batch, consuming

QUEUE = 5


def holding(managing: Managing, client: Client) -> bytes:
    """A consumer that has the messages at positions 1 to 4; gives its key."""
    key = consuming(managing, client)
    sequence = batch(managing, "one", "two", "three", "four")
    managing.tell(link.Deliver(key, QUEUE, [link.DeliveredRun(sequence, 0, 0, 4, 1, 1)]))
    assert client.take(Delivered)
    managing.entries.clear()
    return key


def paused(managing: Managing) -> link.Pause:
    """The one wish for a pause."""
    [pause] = [frame for _, frame in managing.asked if isinstance(frame, link.Pause)]
    managing.asked.clear()
    return pause


def test_everything_comes_back_once_the_primary_has_paused_the_consumer() -> None:
    managing = Managing()
    client = managing.connect()
    key = holding(managing, client)
    client.say(Recover(9, 1, [1, 2], [3, 4]))
    pause = paused(managing)
    assert pause.consumer == key
    assert managing.entries == []
    managing.commits = False
    managing.tell(link.Answered(pause.request))
    assert managing.entries[-1].commands == [
        commands.Return(QUEUE, 0, key, [1, 2]),
        commands.Return(QUEUE, 0, key, [3, 4], is_unseen=True),
    ]
    assert client.heard() == []
    managing.commit()
    assert client.take(Done) == [Done(9)]
    [attach] = attached(managing)
    assert (attach.consumer, attach.held, attach.prefetch) == (key, [], 100)


def test_what_was_on_its_way_is_kept_from_the_client_and_comes_back_unseen() -> None:
    managing = Managing()
    client = managing.connect()
    key = holding(managing, client)
    client.say(Recover(9, 1, [1, 4], []))
    sequence = batch(managing, "five", counter=5)
    managing.tell(link.Deliver(key, QUEUE, [link.DeliveredRun(sequence, 0, 0, 1, 5, 1)]))
    assert client.heard() == []
    managing.tell(link.Answered(paused(managing).request))
    assert managing.entries[-1].commands[-1] == commands.Return(QUEUE, 0, key, [5, 5], is_unseen=True)


def test_what_still_waits_for_its_batch_comes_back_unseen() -> None:
    managing = Managing()
    client = managing.connect()
    key = holding(managing, client)
    managing.tell(link.Deliver(key, QUEUE, [link.DeliveredRun(managing.sequence + 50, 0, 0, 1, 5, 1)]))
    client.say(Recover(9, 1, [1, 4], []))
    managing.tell(link.Answered(paused(managing).request))
    assert managing.entries[-1].commands[-1] == commands.Return(QUEUE, 0, key, [5, 5], is_unseen=True)


def test_with_another_primary_the_consumer_attaches_paused_and_goes_on_recovering() -> None:
    managing = Managing()
    client = managing.connect()
    key = holding(managing, client)
    client.say(Recover(9, 1, [1, 4], []))
    managing.commits = False
    managing.link_up("mm2", is_primary=True, epoch=2)
    [attach] = attached(managing)
    assert (attach.consumer, attach.prefetch) == (key, 0)
    assert managing.entries[-1].commands == [commands.Return(QUEUE, 0, key, [1, 4])]
    managing.commit()
    assert client.take(Done) == [Done(9)]
    assert [again.prefetch for again in attached(managing)] == [100]


def test_a_consumer_that_closes_while_it_recovers_gives_back_what_its_program_saw() -> None:
    managing = Managing()
    client = managing.connect()
    holding(managing, client)
    client.say(Recover(9, 1, [1, 2], [3, 4]))
    pause = paused(managing)
    client.say(CloseConsumer(10, 1))
    [detach] = [frame for _, frame in managing.asked if isinstance(frame, link.Detach)]
    assert detach.held == [1, 2]
    managing.tell(link.Answered(pause.request))
    assert managing.entries == []


def test_a_consumer_cannot_recover_what_it_does_not_hold() -> None:
    managing = Managing()
    client = managing.connect()
    holding(managing, client)
    client.say(Recover(9, 1, [1, 5], []))
    [failed] = client.take(Failed)
    assert (failed.request, failed.error) == (9, "Misuse")
    client.say(Recover(10, 7, [], []))
    assert client.take(Failed)[0].error == "Misuse"


def test_a_consumer_that_recovers_twice_at_once_is_refused_the_second_time() -> None:
    managing = Managing()
    client = managing.connect()
    holding(managing, client)
    client.say(Recover(9, 1, [1, 2], [3, 4]), Recover(10, 1, [], []))
    assert [(frame.request, frame.error) for frame in client.take(Failed)] == [(10, "Misuse")]


def test_what_comes_back_in_very_many_parts_is_several_commands() -> None:
    managing = Managing()
    client = managing.connect()
    held = [number for first in range(0, 120_000, 2) for number in (first, first)]
    key = consuming(managing, client, held=held)
    managing.entries.clear()
    client.say(Recover(9, 1, held, []))
    managing.tell(link.Answered(paused(managing).request))
    returns = [command for entry in managing.entries for command in entry.commands]
    assert [type(command) for command in returns] == [commands.Return] * 3
    assert [position for command in returns for position in command.positions] == held  # type: ignore[union-attr]
    assert (key, client.take(Done)) == (returns[0].consumer, [Done(9)])  # type: ignore[union-attr]
