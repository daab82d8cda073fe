"""A Client Manager and the engines of three channels: every name is at one place, whoever was closed or moved when."""

import msgspec
import pytest

from alphorn.client_manager.core import ClientManager
from alphorn.client_manager.desk import Settings
from alphorn.client_manager.directory import Directory
from alphorn.client_manager.machine import Ask, Committed, Linked, Opened, Order, Reply, Said, Told
from alphorn.doors.native import VERSION
from alphorn.message_manager.answers import answers_to
from alphorn.message_manager.engine import Engine
from alphorn.message_manager.questions import answer_question, refusal
from alphorn.model import link
from alphorn.model.commands import Entry, Expect, Move, MoveStage, decode_entry
from alphorn.model.conversation import (
    Administer,
    AnyClientFrame,
    Done,
    Failed,
    Hello,
    OpenSession,
    Resolve,
    Resolved,
    ServerFrame,
    parts_of,
    place_of,
)
from alphorn.model.destinations import Destination, DestinationKind, Policy, parse_destination, temporary_prefix
from alphorn.model.errors import Error
from alphorn.model.ids import IdSource
from tests.client_manager.proving import DRAFT

CHANNELS = 3
NAMES = ("one", "two", "three")
DRAWN = Directory(CHANNELS, NAMES)


def drawing(channel: int, prefix: str = "q") -> Destination:
    """A queue whose name draws this channel."""
    names = (Destination(DestinationKind.QUEUE, f"{prefix}{number}") for number in range(100))
    return next(name for name in names if DRAWN.lots(name)[0] == channel)


class Cluster:
    """Engines that have what was ordered at once, and Client Managers that come new."""

    def __init__(self) -> None:
        self.engines = [Engine() for _ in range(CHANNELS)]
        self.heard: list[ServerFrame] = []
        self.asked = 0
        self.renew()

    def renew(self) -> None:
        """A Client Manager that knows nothing yet."""
        ids = IdSource(b"\x7f\x00\x00\x01", 7700, unix_s=1_800_000_000.0)
        settings = Settings(name="cm1", channels=CHANNELS, channel_names=NAMES)
        origins = [bytes([number]) * 10 for number in range(CHANNELS)]
        self.manager = ClientManager(settings, ids, origins=origins, signet=DRAFT)
        for channel in range(CHANNELS):
            self.receive(Linked(channel, "mm", True))
            self.receive(Told(channel, "mm", link.Role("mm", 1, True)))
        self.receive(Opened(1))
        self.say(Hello(VERSION))
        self.say(OpenSession(1))

    def receive(self, item: object) -> None:
        self.manager.receive(item, 0.0)  # type: ignore[arg-type]
        while outputs := self.manager.take_outputs():
            for output in outputs:
                match output:
                    case Order(channel, handle, payload):
                        self.order(channel, handle, payload)
                    case Ask(channel, _, question):
                        self.ask(channel, question)
                    case Reply(_, frame):
                        self.heard.append(frame)

    def order(self, channel: int, handle: int, payload: bytes) -> None:
        engine, entry = self.engines[channel], decode_entry(payload)
        effects = engine.apply(engine.sequence + 1, entry)
        self.manager.receive(Committed(channel, engine.sequence, handle, payload), 0.0)
        for _, told in answers_to(engine, entry, effects):
            self.asked += 1
            self.manager.receive(Told(channel, "mm", told), 0.0)

    def ask(self, channel: int, question: link.Asked) -> None:
        if not isinstance(question, link.Locate | link.Name):
            return
        self.asked += 1
        try:
            [told] = answer_question(self.engines[channel], question, lambda sequence: None)
        except Error as error:
            told = refusal(self.engines[channel], question, error)
        self.manager.receive(Told(channel, "mm", told), 0.0)  # type: ignore[arg-type]

    def say(self, frame: AnyClientFrame) -> list[ServerFrame]:
        self.heard.clear()
        self.receive(Said(1, frame))
        return [frame for frame in self.heard if isinstance(frame, Resolved | Failed | Done)]

    def resolve(self, name: Destination, **policy: object) -> int:
        """The channel of a destination, new or not."""
        packed = msgspec.msgpack.encode(Policy(**policy)) if policy else b""  # type: ignore[arg-type]
        [found] = self.say(Resolve(9, str(name), policy=packed))
        assert isinstance(found, Resolved), found
        return parts_of(found.place)[0]

    def apply(self, channel: int, *commands: object) -> None:
        engine = self.engines[channel]
        engine.apply(engine.sequence + 1, Entry(list(commands)))  # type: ignore[arg-type]

    def close(self, channel: int, stage: MoveStage = MoveStage.CLOSED) -> None:
        self.apply(channel, Move(0, stage, channel))

    def send_off(self, name: Destination, channel: int, to: int) -> None:
        """As if it had moved and were deleted there."""
        number = self.engines[channel].numbers[name]
        self.apply(channel, Move(number, MoveStage.PLANNED, to))
        self.apply(channel, Move(number, MoveStage.BEGUN, to, 99))
        self.apply(channel, Move(number, MoveStage.ENDED, to, 99))

    def places(self, name: Destination) -> list[int]:
        return [channel for channel, engine in enumerate(self.engines) if name in engine.numbers]


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.mark.requirement("CM-19", "TOP-4")
def test_a_name_that_was_new_while_its_channel_was_closed_stays_where_it_is(cluster: Cluster) -> None:
    name = drawing(1)
    cluster.close(1)
    home = cluster.resolve(name)
    assert home != 1
    for stage in (MoveStage.CLOSED, MoveStage.OPENED, MoveStage.CLOSED):
        cluster.close(1, stage)
        cluster.renew()
        assert cluster.resolve(name) == home
    assert cluster.places(name) == [home]


def test_a_name_passes_over_every_closed_channel(cluster: Cluster) -> None:
    name = next(name for name in (drawing(1, prefix) for prefix in "abcdefgh") if DRAWN.lots(name) == [1, 2, 0])
    cluster.close(1)
    cluster.close(2)
    assert cluster.resolve(name) == 0
    cluster.close(1, MoveStage.OPENED)
    cluster.close(2, MoveStage.OPENED)
    cluster.renew()
    assert cluster.resolve(name) == 0


@pytest.mark.parametrize("closed", [[], [2], [1], [1, 2]])
def test_a_name_is_found_anew_where_it_was_deleted_after_a_move(cluster: Cluster, closed: list[int]) -> None:
    name = drawing(1)
    cluster.resolve(name)
    cluster.send_off(name, 1, 2)
    for channel in closed:
        cluster.close(channel)
    cluster.renew()
    home = cluster.resolve(name)
    assert home not in closed
    for channel in closed:
        cluster.close(channel, MoveStage.OPENED)
    cluster.renew()
    assert cluster.resolve(name) == home
    assert cluster.places(name) == [home]
    assert cluster.asked < 20


def test_of_two_channels_that_name_each_other_none_has_it_and_a_new_one_finds_its_place(cluster: Cluster) -> None:
    name = drawing(0)
    cluster.resolve(name)
    cluster.send_off(name, 0, 2)
    cluster.apply(2, Move(0, MoveStage.CLOSED, 2))
    engine = cluster.engines[2]
    engine.moves.elsewhere[name] = (0, 1)
    cluster.renew()
    [found] = cluster.say(Administer(9, "delete", str(name)))
    assert isinstance(found, Failed)
    assert found.error == "InvalidDestination"
    home = cluster.resolve(name)
    cluster.renew()
    assert (cluster.resolve(name), cluster.places(name)) == (home, [home])


@pytest.mark.parametrize("wish", [Resolve(9, ""), Administer(9, "delete", "")])
def test_a_destination_on_its_way_to_where_it_was_before_is_waited_for(
    cluster: Cluster, wish: Resolve | Administer
) -> None:
    """Its home says that it went there, and that channel still says what was true before: that it is at home."""
    name = drawing(0)
    cluster.resolve(name)
    number = cluster.engines[0].numbers[name]
    cluster.engines[2].moves.elsewhere[name] = (0, 1)
    cluster.apply(2, Expect(name, Policy(), 0, number))
    cluster.apply(0, Move(number, MoveStage.PLANNED, 2))
    cluster.apply(0, Move(number, MoveStage.BEGUN, 2, 1))
    cluster.renew()
    assert cluster.say(msgspec.structs.replace(wish, destination=str(name))) == []
    assert cluster.places(name) == []


def test_temporary_names_pass_over_a_closed_channel_and_are_found_where_they_are(cluster: Cluster) -> None:
    prefix = temporary_prefix(next(iter(cluster.manager._desk.by_connection)))
    name = drawing(1, prefix)
    cluster.close(1)
    [found] = cluster.say(Resolve(9, str(name), is_temporary=True))
    assert isinstance(found, Resolved)
    home = parts_of(found.place)[0]
    assert (home != 1, cluster.engines[1].moves.elsewhere) == (True, {}), "nothing is left of it when it ends"
    for stage in (MoveStage.CLOSED, MoveStage.OPENED):
        cluster.close(1, stage)
        cluster.renew()
        assert cluster.resolve(name) == home
    ended = drawing(1, temporary_prefix(bytes(16)))
    [failed] = cluster.say(Resolve(9, str(ended)))
    assert isinstance(failed, Failed)
    assert "has ended with its connection" in failed.reason


def test_a_name_that_ends_with_a_channel_s_is_there(cluster: Cluster) -> None:
    for channel, name in enumerate(NAMES):
        assert cluster.resolve(parse_destination(f"queue:orders@{name}")) == channel
    others = [parse_destination(f"queue:{name}") for name in ("orders@four", "@two", "orders")]
    assert [DRAWN.unpinned(other.name) for other in others] == [other.name for other in others]


def test_of_a_place_of_the_system_the_name_says_on_which_channel_it_is(cluster: Cluster) -> None:
    """A client names a place that it learned from another Client Manager."""
    first = cluster.resolve(parse_destination("queue:_DMQ"))
    assert cluster.resolve(parse_destination("queue:_DMQ@three")) == 2
    place = place_of(2, cluster.engines[2].numbers[parse_destination("queue:_DMQ")])
    cluster.renew()
    cluster.manager._administration._finding.find(place, lambda listed: None)
    cluster.receive(Opened(2))
    assert cluster.manager._desk.directory.at(place) is not None
    assert cluster.resolve(parse_destination("queue:_DMQ")) == first == 0


@pytest.mark.requirement("DMQ-2")
@pytest.mark.parametrize("how", ["create", "policy"])
def test_a_dead_letter_queue_is_made_beside_its_destination(cluster: Cluster, how: str) -> None:
    dead, name = drawing(2, "dead"), drawing(1)
    packed = msgspec.msgpack.encode(Policy(dead_letter=dead.name))
    if how == "policy":
        cluster.resolve(name)
    [done] = cluster.say(Administer(9, how, str(name), packed))
    assert not isinstance(done, Failed)
    cluster.renew()
    assert (cluster.resolve(dead), cluster.places(dead)) == (1, [1])
    assert cluster.resolve(name, dead_letter=dead.name) == 1, "who asks for the same again is content"


@pytest.mark.requirement("DMQ-2")
def test_a_dead_letter_queue_of_another_channel_has_a_part_beside_each_destination(cluster: Cluster) -> None:
    dead = drawing(0, "dead")
    cluster.resolve(dead)
    for channel in range(CHANNELS):
        name = drawing(channel)
        assert cluster.resolve(name, dead_letter=dead.name) == channel
        engine = cluster.engines[channel]
        part = dead.name if channel == 0 else f"{dead.name}@{NAMES[channel]}"
        assert engine.destinations[engine.numbers[name]].policy.dead_letter == part
        assert cluster.places(Destination(DestinationKind.QUEUE, part)) == [channel]
        cluster.renew()
        assert cluster.resolve(name, dead_letter=dead.name) == channel
    assert cluster.places(dead) == [0]


def test_a_dead_letter_queue_that_can_be_nowhere_is_refused(cluster: Cluster) -> None:
    dead, name = drawing(0, "dead"), drawing(1)
    cluster.resolve(dead)
    cluster.resolve(name)
    cluster.close(1)
    [found] = cluster.say(Administer(9, "policy", str(name), msgspec.msgpack.encode(Policy(dead_letter=dead.name))))
    assert isinstance(found, Failed)
    assert found.reason == f"queue:{dead.name}@two, for its dead messages, is on another channel; " + (
        "move it back, or name another queue"
    )
