"""The Client Manager as coordinator: what it orders in which channel, when, and what its client hears."""

import msgspec
import pytest

from alphorn.client_manager.core import ClientManager
from alphorn.client_manager.desk import Settings
from alphorn.client_manager.machine import Ask, Closed, Committed, Linked, Opened, Order, Reply, Said, Told
from alphorn.client_manager.transactions import DONE, PREPARE_S, STEPS
from alphorn.doors.native import VERSION
from alphorn.message_manager.transaction_state import Outcome
from alphorn.model import frame_kinds, link
from alphorn.model.commands import (
    Acknowledge,
    AnyCommand,
    Entry,
    Return,
    TransactionCommit,
    TransactionDecide,
    TransactionFinish,
    TransactionPrepare,
    TransactionSettle,
    decode_entry,
    encode_entry,
    key_of,
)
from alphorn.model.commands import Publish as Published
from alphorn.model.conversation import (
    AnyClientFrame,
    CommitTransaction,
    Consume,
    Done,
    Failed,
    Hello,
    OpenSession,
    Publish,
    Welcome,
    place_of,
)
from alphorn.model.destinations import Policy, parse_destination
from alphorn.model.frame_kinds import ServerFrame
from alphorn.model.ids import IdSource
from tests.client_manager.proving import DRAFT, SIGNET, secret_of

CHANNELS = 3
SESSION, CONSUMER = 1, 5
BLOB = memoryview(msgspec.msgpack.encode([["x"]]))


class Coordinating:
    """A Client Manager of three channels with one client, and logs that take everything at once."""

    def __init__(self, **settings: bool) -> None:
        ids = IdSource(b"\x7f\x00\x00\x01", 7700, unix_s=1_800_000_000.0)
        made = Settings(name="cm1", channels=CHANNELS, **settings)
        self.manager = ClientManager(made, ids, origins=[b"o" * 10] * CHANNELS, signet=DRAFT)
        self.steps: list[str] = []
        self.manager.watch_steps(self.steps.append)
        self.sequences = [0] * CHANNELS
        self.asked: list[frame_kinds.Asked] = []
        self.said: list[ServerFrame] = []
        self.entries: list[tuple[int, Entry]] = []
        self.now = 0.0
        self.stream = 0
        for channel in range(CHANNELS):
            self.receive(Linked(channel, f"mm{channel}", True))
            self.be_primary(channel, f"mm{channel}", 1)
        [(_, entry)] = self.entries
        self.receive(Told(0, "mm0", link.Answered(entry.requests[0], signet=SIGNET)))
        self.entries.clear()
        self.id = b""
        self.connect()

    def be_primary(self, channel: int, name: str, epoch: int) -> None:
        self.receive(Told(channel, name, link.Role(name, epoch, True)))

    def connect(self) -> None:
        self.stream += 1
        self.receive(Opened(self.stream))
        self.say(Hello(VERSION, connection=self.id, secret=secret_of(self.id)))
        [welcome] = [frame for frame in self.said if isinstance(frame, Welcome)]
        self.id = welcome.connection
        self.said.clear()
        self.say(OpenSession(SESSION))

    def receive(self, item: object) -> None:
        self.manager.receive(item, self.now)  # type: ignore[arg-type]
        self.turn()

    def turn(self) -> None:
        for output in self.manager.take_outputs():
            match output:
                case Order(channel, handle, payload):
                    self.entries.append((channel, decode_entry(payload)))
                    self.sequences[channel] += 1
                    self.manager.receive(Committed(channel, self.sequences[channel], handle, payload), self.now)
                case Reply(_, frame):
                    self.said.append(frame)
                case Ask(_, _, asked):
                    self.asked.append(asked)

    def say(self, frame: AnyClientFrame) -> None:
        self.receive(Said(self.stream, frame))

    def consume(self, channel: int, *held: int) -> None:
        """A consumer of a queue that everybody knows, with what it holds."""
        place = place_of(channel, 9)
        self.manager._desk.directory.learn(place, parse_destination(f"queue:q{channel}"), Policy())
        self.say(Consume(1, SESSION, CONSUMER + channel, place, 10, held=list(held)))
        self.entries.clear()
        self.said.clear()

    def commit(self, *sent: int, consumed: tuple[int, ...] = (), counter: int = 1) -> None:
        publishes = [Publish(SESSION, 3, place_of(channel, 9), 1, 1, 0, 0, BLOB) for channel in sent]
        taken = [(CONSUMER + channel, place_of(channel, 9), [1, 2]) for channel in consumed]
        self.say(CommitTransaction(7, SESSION, counter, publishes, taken))

    def ordered(self) -> dict[int, list[AnyCommand]]:
        """What was ordered since the last look, by channel."""
        found: dict[int, list[AnyCommand]] = {}
        for channel, entry in self.entries:
            found.setdefault(channel, []).extend(entry.commands)
        self._requests = {
            (channel, type(command)): request
            for channel, entry in self.entries
            for command, request in zip(entry.commands, entry.requests or [0] * len(entry.commands), strict=True)
        }
        self.entries.clear()
        return found

    def answer(self, kind: type, *channels: int, number: int = 0, error: str = "", reason: str = "") -> None:
        for channel in channels:
            answer = link.Answered(self._requests[channel, kind], number, error, reason)
            self.receive(Told(channel, f"mm{channel}", answer))

    def heard(self) -> list[ServerFrame]:
        said, self.said = self.said, []
        return said


def kinds(commands: list[AnyCommand]) -> list[type]:
    return [type(command) for command in commands]


@pytest.fixture
def coordinating() -> Coordinating:
    return Coordinating()


def prepared(coordinating: Coordinating, *channels: int) -> None:
    coordinating.ordered()
    coordinating.answer(TransactionPrepare, *channels)


def test_a_home_channel_that_has_decided_answers_as_both_rooms_understand() -> None:
    assert DONE == Outcome.DONE


@pytest.mark.requirement("TX-5")
def test_one_channel_gets_one_entry_with_everything(coordinating: Coordinating) -> None:
    coordinating.consume(1, 1, 4)
    coordinating.commit(1, 1, consumed=(1,))
    session, consumer = key_of(coordinating.id, SESSION), key_of(coordinating.id, CONSUMER + 1)
    [(channel, [first, *members])] = coordinating.ordered().items()
    assert (channel, first) == (1, TransactionCommit(session, 1, 3))
    assert members[0] == Acknowledge(9, 0, consumer, [1, 2])
    assert kinds(members[1:]) == [Published, Published]
    assert coordinating.heard() == []
    coordinating.answer(TransactionCommit, 1)
    assert coordinating.heard() == [Done(7)]
    assert coordinating.steps == ["asked", "answered"]


@pytest.mark.parametrize("is_there", [True, False])
def test_a_new_primary_is_asked_again_for_a_transaction_of_one_channel_as_long_as_its_client_is_there(
    coordinating: Coordinating, *, is_there: bool
) -> None:
    """Who is gone asks elsewhere, and this Client Manager may be late by more than the log remembers."""
    coordinating.commit(1)
    assert kinds(coordinating.ordered()[1]) == [TransactionCommit, Published]
    if not is_there:
        coordinating.receive(Closed(coordinating.stream, "gone"))
    coordinating.receive(Linked(1, "other", True))
    coordinating.be_primary(1, "other", 2)
    assert (1 in coordinating.ordered()) == is_there
    assert len(coordinating.manager._transactions._open) == is_there


@pytest.mark.requirement("TX-6", "TX-9", "TX-10", "TX-11", "CM-25")
def test_several_channels_prepare_then_home_decides_then_all_finish_then_the_client_hears(
    coordinating: Coordinating,
) -> None:
    coordinating.commit(0, 1, 2)
    ordered = coordinating.ordered()
    assert {channel: kinds(commands) for channel, commands in ordered.items()} == {
        channel: [TransactionPrepare, Published] for channel in range(CHANNELS)
    }
    coordinating.answer(TransactionPrepare, 2, 0)
    assert coordinating.entries == []
    coordinating.answer(TransactionPrepare, 1)
    session = key_of(coordinating.id, SESSION)
    assert coordinating.ordered() == {0: [TransactionDecide(session, 1, [0, 1, 2], True)]}
    coordinating.answer(TransactionDecide, 0, number=DONE)
    assert coordinating.ordered() == {channel: [TransactionFinish(session, 1, True)] for channel in (1, 2)}
    coordinating.answer(TransactionFinish, 2)
    assert coordinating.heard() == []
    coordinating.answer(TransactionFinish, 1)
    assert coordinating.heard() == [Done(7)]
    assert coordinating.ordered() == {0: [TransactionSettle(session, 1)]}
    assert set(coordinating.steps) == set(STEPS) - {"answered"}


@pytest.mark.requirement("TX-12", "TX-13")
def test_one_channel_that_cannot_rolls_all_of_them_back(coordinating: Coordinating) -> None:
    coordinating.consume(0, 1, 4)
    coordinating.commit(1, consumed=(0,))
    coordinating.ordered()
    coordinating.answer(TransactionPrepare, 1, error="TransactionRolledBack", reason="queue:x is full")
    session = key_of(coordinating.id, SESSION)
    assert coordinating.ordered() == {0: [TransactionDecide(session, 1, [0, 1], False)]}
    coordinating.answer(TransactionDecide, 0, number=int(Outcome.ROLLED_BACK))
    assert coordinating.heard() == [Failed(7, "TransactionRolledBack", "queue:x is full")]
    assert coordinating.ordered() == {channel: [TransactionFinish(session, 1, False)] for channel in (0, 1)}
    coordinating.answer(TransactionFinish, 0, number=1)
    [back] = coordinating.ordered()[0]
    assert isinstance(back, Return)
    assert (back.positions, back.is_unseen) == ([1, 2], True)  # the log has counted it already


def test_what_one_channel_refused_comes_back_counted(coordinating: Coordinating) -> None:
    coordinating.consume(1, 1, 4)
    coordinating.commit(consumed=(1,))
    coordinating.ordered()
    coordinating.answer(TransactionCommit, 1, error="TransactionRolledBack", reason="gone")
    [back] = coordinating.ordered()[1]
    assert isinstance(back, Return)
    assert (back.positions, back.is_unseen) == ([1, 2], False)
    assert coordinating.heard() == [Failed(7, "TransactionRolledBack", "gone")]


@pytest.mark.requirement("TX-12")
def test_a_channel_that_is_not_ready_in_time_has_failed(coordinating: Coordinating) -> None:
    coordinating.commit(0, 1)
    prepared(coordinating, 0)
    assert coordinating.manager.next_deadline() == PREPARE_S
    coordinating.manager.on_time(PREPARE_S)
    coordinating.turn()
    [decision] = coordinating.ordered()[0]
    assert isinstance(decision, TransactionDecide)
    assert not decision.is_commit


def test_what_stands_in_the_log_is_done_whatever_was_wanted(coordinating: Coordinating) -> None:
    coordinating.commit(0, 1)
    prepared(coordinating, 0, 1)
    coordinating.ordered()
    coordinating.answer(TransactionDecide, 0, number=int(Outcome.ROLLED_BACK), reason="it was not decided in time")
    assert coordinating.heard() == [Failed(7, "TransactionRolledBack", "it was not decided in time")]
    [finish] = coordinating.ordered()[1]
    assert finish == TransactionFinish(key_of(coordinating.id, SESSION), 1, False)


def test_a_consumer_that_holds_nothing_lets_home_decide_because_it_may_have_been_done_before(
    coordinating: Coordinating,
) -> None:
    coordinating.commit(0, consumed=(2,))
    session = key_of(coordinating.id, SESSION)
    assert coordinating.ordered() == {0: [TransactionDecide(session, 1, [0, 2], False)]}
    coordinating.answer(TransactionDecide, 0, number=DONE)
    coordinating.ordered()
    coordinating.answer(TransactionFinish, 2)
    assert coordinating.heard() == [Done(7)]


def test_a_new_primary_is_asked_again_for_the_whole_step(coordinating: Coordinating) -> None:
    coordinating.commit(0, 1)
    coordinating.ordered()
    coordinating.receive(Linked(1, "other", True))
    coordinating.be_primary(1, "other", 2)
    assert {channel: kinds(commands) for channel, commands in coordinating.ordered().items()} == {
        1: [TransactionPrepare, Published]
    }


@pytest.mark.requirement("HA-20")
def test_what_a_message_manager_waits_for_is_brought_to_its_end_by_whoever_is_asked(coordinating: Coordinating) -> None:
    session = key_of(bytes(16), 3)
    doubt = link.InDoubt(session, 4, [0, 2])
    for _ in range(2):
        coordinating.receive(Told(2, "mm2", doubt))
    assert coordinating.ordered() == {0: [TransactionDecide(session, 4, [0, 2], False)]}
    coordinating.answer(TransactionDecide, 0, number=DONE)
    assert coordinating.ordered() == {2: [TransactionFinish(session, 4, True)]}
    coordinating.answer(TransactionFinish, 2)
    assert coordinating.ordered() == {0: [TransactionSettle(session, 4)]}
    assert coordinating.heard() == []


def test_what_has_begun_goes_on_without_its_client(coordinating: Coordinating) -> None:
    coordinating.commit(0, 1)
    coordinating.receive(Closed(coordinating.stream, "gone"))
    prepared(coordinating, 0, 1)
    assert kinds(coordinating.ordered()[0]) == [TransactionDecide]


def test_nothing_joins_the_acknowledgements_of_a_transaction(coordinating: Coordinating) -> None:
    channel = coordinating.manager._desk.channels[0]
    consumer = key_of(coordinating.id, CONSUMER)
    member = Acknowledge(9, 0, consumer, [1, 2])
    channel.request(TransactionCommit(consumer, 1, 1), lambda answer: None, members=[member])
    assert not channel.join(Acknowledge(9, 0, consumer, [3, 4]))
    assert member.positions == [1, 2]


@pytest.mark.requirement("TX-6", "TX-8")
def test_all_channels_can_be_asked_to_prepare() -> None:
    coordinating = Coordinating(prepares_all=True)
    coordinating.commit(0, 1)
    ordered = coordinating.ordered()
    assert ordered[2] == [TransactionPrepare(key_of(coordinating.id, SESSION), 1, [0, 1, 2], 0)]


def test_an_entry_is_not_larger_than_the_bus_takes(coordinating: Coordinating) -> None:
    large = memoryview(msgspec.msgpack.encode([[bytes(400 << 10)]]))
    coordinating.manager._desk.directory.learn(place_of(0, 9), parse_destination("queue:q"), Policy())
    plain = Publish(SESSION, 3, place_of(0, 9), 1, 1, 0, 0, large)
    frame = CommitTransaction(7, SESSION, 1, [Publish(SESSION, 4, place_of(0, 9), 1, 1, 0, 0, large)], [])
    for said in (plain, frame):
        coordinating.manager.receive(Said(coordinating.stream, said), 0.0)
    coordinating.turn()
    assert [kinds(entry.commands) for _, entry in coordinating.entries] == [[Published], [TransactionCommit, Published]]
    assert all(len(encode_entry(entry)) < 600 << 10 for _, entry in coordinating.entries)
