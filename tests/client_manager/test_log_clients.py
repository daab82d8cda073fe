"""Clients that stage, publish what is staged, and read the log."""

import msgspec
import pytest

from alphorn.client_manager.machine import Window
from alphorn.model import commands, link
from alphorn.model.commands import key_of
from alphorn.model.conversation import Done, Failed, place_of
from alphorn.model.log_conversation import (
    ChannelKnown,
    Channels,
    ChannelsAnswer,
    DropStaged,
    NoteReader,
    PublishStaged,
    Stage,
)
from tests.client_manager.managing import Managing, batch

KEY = key_of(b"w" * 16, 3)


def staged(request: int = 7, **changes: object) -> Stage:
    blob = memoryview(msgspec.msgpack.encode([["a"], ["b"]]))
    plain = Stage(request, place_of(0, 5), KEY, 1, 2, 0, 1_000, blob, "w", 4, 3, 99, 0)
    return msgspec.structs.replace(plain, **changes)


def test_channels_are_named_with_who_serves_them() -> None:
    servers = (("main", (("mm1", "10.0.0.1:7720"), ("mm2", "10.0.0.2:7720"))),)
    managing = Managing(servers=servers)  # type: ignore[arg-type]
    client = managing.connect()
    number = batch(managing, "a")
    client.say(Channels(3))
    [answer] = client.take(ChannelsAnswer)
    assert answer == ChannelsAnswer(3, [ChannelKnown("main", number, list(servers[0][1]))])


def test_a_staged_batch_is_answered_when_the_primary_has_it() -> None:
    managing = Managing()
    client = managing.connect()
    client.say(staged())
    [command] = managing.entries[-1].commands
    assert isinstance(command, commands.Stage)
    assert (command.destination, command.producer, command.count, command.writer) == (5, KEY, 2, "w")
    assert (command.batch, command.partition, command.attempt, command.part) == (4, 3, 99, 0)
    assert client.take(Done) == []
    managing.answer()
    assert client.take(Done) == [Done(7)]


def test_a_refusal_is_passed_on() -> None:
    managing = Managing()
    client = managing.connect()
    client.say(PublishStaged(8, 0, "w", 4, [(3, 99, 1, 2)], [5]))
    assert managing.entries[-1].commands == [commands.PublishStaged("w", 4, [(3, 99, 1, 2)], [5])]
    managing.answer(error="Unavailable", reason="it is not staged")
    assert client.take(Failed) == [Failed(8, "Unavailable", "it is not staged")]


def test_a_staged_batch_is_postponed_while_a_disk_of_its_channel_is_full() -> None:
    managing = Managing()
    client = managing.connect()
    ordered = len(managing.entries)
    managing.tell(link.Stored("the store of mm1 is full"), "mm1")
    client.say(staged())
    assert client.take(Failed) == [Failed(7, "Postponed", "the store of mm1 is full")]
    client.say(DropStaged(8, 0, "w", 3), PublishStaged(9, 0, "w", 4, [(3, 99, 1, 2)]))
    kinds = [type(command) for entry in managing.entries[ordered:] for command in entry.commands]
    assert kinds == [commands.DropStaged, commands.PublishStaged], "they bring nothing, and may make room"
    managing.tell(link.Stored(""), "mm1")
    client.say(staged())
    assert isinstance(managing.entries[-1].commands[-1], commands.Stage)


def test_a_staged_batch_is_postponed_while_too_much_waits_for_the_bus() -> None:
    managing = Managing(channel_bytes_max=4000)
    client = managing.connect()
    managing.receive(Window(0, False))
    blob = memoryview(msgspec.msgpack.encode([["a" * 1000]]))
    client.say(*(staged(request, count=1, blob=blob, part=request) for request in range(1, 10)))
    refused = client.take(Failed)
    assert [failed.request for failed in refused] == [5, 6, 7, 8, 9]
    assert {failed.error for failed in refused} == {"Postponed"}
    assert managing.manager._desk.channels[0].unordered_bytes < 6000
    managing.receive(Window(0, True))
    client.say(staged(20))
    assert client.take(Failed) == []


def test_everything_is_ordered_again_for_a_new_primary() -> None:
    managing = Managing()
    client = managing.connect()
    client.say(staged(), DropStaged(8, 0, "w", 3), NoteReader(9, 0, "r", [5], 12))
    managing.link_up("mm2", is_primary=True, epoch=2)
    kinds = [type(command) for command in managing.entries[-1].commands]
    assert kinds == [commands.Stage, commands.DropStaged, commands.NoteReader]


@pytest.mark.parametrize(
    "wrong",
    [
        staged(producer=b"short"),
        staged(counter=0),
        staged(count=3),
        staged(blob=memoryview(b"\x92\xc1\xc1")),
        staged(blob=memoryview(b"\x92" + b"\x91" * 850 + b"\x01\x91\x01")),
        staged(writer="w" * (5 << 20)),
        staged(place=place_of(9, 1)),
        PublishStaged(8, 1, "w", 4, []),
        PublishStaged(8, 0, "w", 4, [(0, 0, 1 << 40, 0)]),
        PublishStaged(8, 0, "w", 4, [(0, 0, -1, 0)]),
        PublishStaged(8, 0, "w", 4, [(3, 99, 1, 2), (3, 98, 1, 2)]),
        PublishStaged(8, 0, "w", 4, [], [5] * (commands.STAGED_PARTS_MAX + 1)),
        NoteReader(9, -1, "r", [], 1),
    ],
)
def test_what_no_library_sends_ends_the_connection(wrong: Stage | PublishStaged | NoteReader) -> None:
    managing = Managing()
    client = managing.connect()
    client.say(wrong)
    assert client.stream in managing.hung
