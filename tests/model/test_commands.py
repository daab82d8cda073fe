from random import Random

import msgspec
import pytest

from alphorn.model.commands import (
    Acknowledge,
    AnyCommand,
    Arrive,
    Carried,
    CreateDestination,
    DeleteDestination,
    Entry,
    Expect,
    Forget,
    Move,
    MoveStage,
    Publish,
    Purge,
    Redrive,
    Release,
    Retire,
    Return,
    SetPolicy,
    Settle,
    Subscribe,
    Tick,
    TransactionCommit,
    TransactionDecide,
    TransactionFinish,
    TransactionPrepare,
    TransactionSettle,
    Unsubscribe,
    after_group,
    connection_of,
    decode_entry,
    decode_heeded,
    encode_entry,
    key_of,
    number_of,
)
from alphorn.model.destinations import Destination, DestinationKind, Policy
from alphorn.model.errors import PeerViolation

KEY = key_of(bytes(range(16)), 5)
COMMANDS: list[AnyCommand] = [
    Publish(1, KEY, 9, 2, 0, 1234, memoryview(b"\x92\x91\x01\x91\x02")),
    Acknowledge(1, 0, KEY, [1, 5]),
    Return(1, 2, KEY, [1, 5], 100, True),
    CreateDestination(Destination(DestinationKind.QUEUE, "orders"), Policy(ttl=2.0), bytes(16)),
    DeleteDestination(1),
    SetPolicy(1, Policy(max_length=5, overflow="reject")),
    Subscribe(1, "name", "client", KEY, "n > 1", True, False, b"", -1, 5),
    Unsubscribe(1, 2),
    Forget(bytes(16)),
    Tick(1_700_000_000_000, [(1, 2, [3, 4])], [(1, 2, [5, 6])]),
    Redrive(1, [1, 2]),
    Purge(1),
    TransactionCommit(KEY, 3, 2),
    TransactionPrepare(KEY, 3, [0, 2], 1),
    TransactionDecide(KEY, 3, [0, 2], True),
    TransactionFinish(KEY, 3, False),
    TransactionSettle(KEY, 3),
    Release(1, 900),
    Move(1, MoveStage.BEGUN, 2, 3),
    Expect(Destination(DestinationKind.TOPIC, "prices"), Policy(), 0, 7, [(True, "client", "name")]),
    Carried(1, KEY, 9, 2, 0, 1234, memoryview(b"\x92\x91\x01\x91\x02"), position=17),
    Arrive(1, b"attempt", 0, [b"record"], True),
    Settle(1),
    Retire(bytes(16), 9, [2, 4]),
]


def test_a_key_holds_its_connection_and_number() -> None:
    assert (connection_of(KEY), number_of(KEY), len(KEY)) == (bytes(range(16)), 5, 20)


def test_entries_come_back_as_they_were() -> None:
    entry = Entry(COMMANDS, list(range(len(COMMANDS))))
    assert decode_entry(encode_entry(entry)) == entry


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (COMMANDS[1], "929195020100c414000102030405060708090a0b0c0d0e0f0000000592010590"),
        (COMMANDS[9], "9291940acf0000018bcfe56800919301029203049193010292050690"),
        (COMMANDS[11], "9291920c0190"),
        (COMMANDS[12], "92919414c414000102030405060708090a0b0c0d0e0f00000005030290"),
        (COMMANDS[13], "92919515c414000102030405060708090a0b0c0d0e0f00000005039200020190"),
    ],
)
def test_commands_have_the_bytes_they_always_had(command: AnyCommand, expected: str) -> None:
    assert encode_entry(Entry([command])).hex() == expected


def test_the_time_as_it_stands_in_older_logs_names_nothing_that_consumers_have() -> None:
    assert decode_entry(bytes.fromhex("9291920acf0000018bcfe5680090")).commands == [Tick(1_700_000_000_000)]
    older = decode_entry(bytes.fromhex("9291930acf0000018bcfe568009193010292030490")).commands
    assert older == [Tick(1_700_000_000_000, [(1, 2, [3, 4])])], "what was with consumers died then"


def test_only_what_a_primary_wants_as_that_says_in_which_epoch() -> None:
    forget = Forget(bytes(range(16)))
    data = encode_entry(Entry([forget], [0], (5 << 16) | 2))
    assert data.hex() == "93919209c410000102030405060708090a0b0c0d0e0f9100ce00050002"
    assert decode_entry(data) == Entry([forget], [0], (5 << 16) | 2)


@pytest.mark.parametrize(("wanted_in", "is_done"), [(0, True), (4, False), (5, True), (6, False)])
def test_what_a_primary_wants_is_done_in_its_own_epoch_only(wanted_in: int, is_done: bool) -> None:
    entry = Entry([Tick(1_000)], [7], wanted_in)
    assert decode_heeded(encode_entry(entry), 5) == (entry if is_done else Entry([]))


def test_every_beginning_of_an_entry_is_refused() -> None:
    data = encode_entry(Entry(COMMANDS))
    for length in range(len(data)):
        with pytest.raises(PeerViolation):
            decode_entry(data[:length])


def test_changed_bytes_are_an_entry_or_refused_and_nothing_else() -> None:
    random = Random(7)
    data = encode_entry(Entry(COMMANDS))
    for _ in range(3_000):
        changed = bytearray(data)
        changed[random.randrange(len(changed))] = random.randrange(256)
        try:
            assert isinstance(decode_entry(bytes(changed)), Entry)
        except PeerViolation:
            continue


def test_a_blob_is_a_view_into_the_payload() -> None:
    payload = encode_entry(Entry(COMMANDS[:1]))
    command = decode_entry(payload).commands[0]
    assert isinstance(command, Publish)
    assert isinstance(command.blob, memoryview)
    assert command.blob.obj is payload
    assert msgspec.msgpack.decode(command.blob) == [[1], [2]]


@pytest.mark.parametrize(("count", "expected"), [(0, 2), (2, 4), (3, 5), (4, 5), (-1, 5), (-2, 5)])
def test_a_transaction_has_the_commands_behind_it_or_all_of_them_where_it_says_nonsense(
    count: int, expected: int
) -> None:
    entry = Entry([Purge(1), TransactionCommit(KEY, 1, count), Purge(1), Purge(1), Purge(1)])
    assert after_group(entry, 1) == expected
    assert after_group(entry, 0) == 1
