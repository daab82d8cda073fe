"""The group has given up this node's member, and what that had in hand is never ordered.

Goal: nothing is done late for a client, which has asked elsewhere since, and nothing is lost that nobody else asks for.
Method: a channel, or a Client Manager driven by hand, is told so of its entries; what it orders then is looked at.
"""

import pytest

from alphorn.client_manager.channel import Channel
from alphorn.client_manager.machine import Lost
from alphorn.model import commands
from alphorn.model.commands import NOBODY, AnyCommand, decode_entry, key_of
from alphorn.model.conversation import Administer, Done, Goodbye
from alphorn.model.link import Answered
from alphorn.model.messages import Flag
from alphorn.model.moving_conversation import Drain
from tests.client_manager.managing import Client, Managing

CLIENT = b"c" * commands.CONNECTION_BYTES
GIVEN_UP = "the group has given this member up"


def taken(channel: Channel) -> list[AnyCommand]:
    return [command for _, payload in channel.take_entries(0.0) for command in decode_entry(payload).commands]


def acknowledge(position: int) -> commands.Acknowledge:
    return commands.Acknowledge(5, 0, key_of(CLIENT, 1), [position, position])


def publish(connection: bytes, counter: int, flags: int = 0) -> commands.Publish:
    return commands.Publish(5, key_of(connection, 1), counter, 1, flags, 0, memoryview(b"x"))


def fragment() -> commands.Fragment:
    return commands.Fragment(5, key_of(CLIENT, 1), 1, 0, memoryview(b"x"))


def retire(number: int) -> commands.Retire:
    return commands.Retire(CLIENT, number, [])


def move(number: int) -> commands.Move:
    return commands.Move(number, commands.MoveStage.ENDED, 1, 2)


def forsake(channel: Channel, *handles: int) -> None:
    for handle in handles:
        channel.forsake(handle, GIVEN_UP)


def test_nothing_that_a_client_wanted_is_ordered_whether_it_had_left_or_waited() -> None:
    """It is under way, in the next entry, in a line behind that, and in bulk."""
    channel = Channel(cache_bytes=0, entry_work=1, under_way_max=1)
    for command in (retire(1), retire(2), retire(3), fragment(), publish(CLIENT, 1, Flag.STREAM), acknowledge(4)):
        channel.want(command)
    assert taken(channel) == [retire(1), fragment(), publish(CLIENT, 1, Flag.STREAM)]
    forsake(channel, 1, 2, 3)
    assert taken(channel) == []
    channel.want(retire(9))
    assert taken(channel) == [retire(9)], "it goes on"


def test_what_is_wanted_here_itself_is_ordered_again_in_its_order() -> None:
    channel = Channel(cache_bytes=0, entry_work=1, under_way_max=1)
    said, heard = [publish(NOBODY, counter) for counter in (1, 2, 3)], list[int]()
    for counter, command in enumerate(said, 1):
        channel.want(acknowledge(counter))
        channel.want(command, lambda counter=counter: heard.append(counter))  # type: ignore[misc]
    for handle in (1, 2):
        assert len(taken(channel)) == 1
        if handle == 1:
            channel.committed(handle, 7)
    forsake(channel, 2)
    channel.want(publish(NOBODY, 4))
    again = []
    for handle in (3, 4, 5, 6):
        again += taken(channel)
        channel.committed(handle, handle + 7)
    assert again == [*said, publish(NOBODY, 4)]
    assert heard == [1, 2, 3]


def test_the_end_of_a_connection_and_steps_of_transactions_over_several_channels_are_said_again() -> None:
    channel = Channel(cache_bytes=0)
    ends = [commands.Forget(CLIENT), commands.TransactionSettle(key_of(CLIENT, 1), 3)]
    for command in ends:
        channel.want(command)
    taken(channel)
    forsake(channel, 1)
    assert taken(channel) == ends


@pytest.mark.parametrize("has_left", [True, False])
def test_a_transaction_of_one_channel_is_left_to_its_client(has_left: bool) -> None:
    """However long nothing was heard here: the log may not know any more that its client had it done elsewhere."""
    channel, told = Channel(cache_bytes=0, entry_work=1, under_way_max=1), list[object]()
    if not has_left:
        channel.want(retire(1))
    members = [publish(CLIENT, 1)]
    channel.request(commands.TransactionCommit(key_of(CLIENT, 1), 1, 1), told.append, members=members)
    assert len(taken(channel)) == (2 if has_left else 1)
    forsake(channel, 1)
    assert told == [Answered(1, 0, "Unavailable", GIVEN_UP)]
    assert taken(channel) == []


def test_what_a_client_asked_is_lost_or_refused_and_what_is_asked_here_itself_is_asked_once_more() -> None:
    channel, told = Channel(cache_bytes=0), list[object]()
    channel.request(move(1), told.append, whose=CLIENT)
    channel.request(move(2), told.append, whose=CLIENT, lost=lambda: told.append("lost"))
    channel.request(move(3), told.append)
    taken(channel)
    channel.repeat_requests()  # a change of primary is noticed first
    forsake(channel, 1)
    assert told == [Answered(1, 0, "Unavailable", GIVEN_UP), "lost"]
    assert taken(channel) == [move(3)]
    channel.answered(Answered(3, 8))
    assert told[2:] == [Answered(3, 8)]


def test_an_end_of_all_that_was_wanted_before_is_told_though_much_of_that_is_over() -> None:
    channel, told = Channel(cache_bytes=0, entry_work=1, under_way_max=1), list[str]()
    for position in (1, 2):
        channel.want(acknowledge(position))
    channel.want_last(commands.Acknowledge(5, 0, b"", []), lambda: told.append("all"))
    taken(channel)
    forsake(channel, 1)
    for handle in (2, 3):
        taken(channel)
        channel.committed(handle, handle)
    assert told == ["all"]


@pytest.fixture
def managing() -> Managing:
    made = Managing()
    made.commits = False
    return made


def given_up(managing: Managing) -> None:
    waiting, managing.waiting = managing.waiting, []
    for order in waiting:
        managing.manager.receive(Lost(0, order.handle, GIVEN_UP, is_given_up=True), managing.now)
    managing.turn()


def purges(managing: Managing) -> int:
    return sum(isinstance(command, commands.Purge) for entry in managing.entries for command in entry.commands)


def asked(managing: Managing, client: Client) -> None:
    managing.commits = True
    client.resolve()
    managing.commits = False
    client.say(Administer(70, "purge", "queue:q", b""))


@pytest.mark.requirement("API-10", "CM-6")
def test_who_is_still_there_comes_back_and_asks_again(managing: Managing) -> None:
    client = managing.connect()
    asked(managing, client)
    given_up(managing)
    [goodbye] = client.take(Goodbye)
    assert (goodbye.error, purges(managing)) == ("Unavailable", 1)
    client = managing.connect(connection=client.id, resumption=1)
    asked(managing, client)
    managing.answer(number=3)
    assert [(done.request, done.number) for done in client.take(Done)] == [(70, 3)]


@pytest.mark.requirement("API-10", "CM-6")
def test_what_was_asked_by_one_who_is_gone_is_not_asked_of_the_next_primary_either(managing: Managing) -> None:
    client = managing.connect()
    asked(managing, client)
    client.close()
    given_up(managing)
    managing.link_down("mm1")
    managing.link_up("mm2", is_primary=True, epoch=2)
    assert purges(managing) == 1


def test_nor_is_a_channel_drained_or_opened_once_more_for_one_who_is_gone() -> None:
    managing = Managing(channels=2, channel_names=("main", "other"))
    client = managing.connect()
    client.say(Drain(70, "main", is_over=True))
    client.close()
    managing.link_down("mm1")
    managing.link_up("mm2", is_primary=True, epoch=2)
    moves = [command for entry in managing.entries for command in entry.commands if isinstance(command, commands.Move)]
    assert len(moves) == 1
