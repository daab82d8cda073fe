"""The state of a cluster in pages, from all channels, while primaries change."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from alphorn.client_manager.desk import KnownNode
from alphorn.client_manager.machine import Linked, ServersStand, Told
from alphorn.client_manager.picturing import PATIENCE_S, Part, merge_status
from alphorn.model import link
from alphorn.model.conversation import Failed, Goodbye, Ping, Pong, Status, StatusAnswer, place_of
from alphorn.model.status_pages import StatusPages
from tests.client_manager.managing import Managing
from tests.client_manager.test_moving import Two


def described(
    frame: link.Describe, channel: str, numbers: list[int], *, name: str = "mm1", role: str = "primary", epoch: int = 1
) -> link.Described:
    """As a Message Manager answers that has destinations of these numbers."""
    node = {"name": name, "role": role, "channel": channel, "epoch": epoch, "applied": 9}
    state: dict[str, Any] = {"node": node} if frame.after < 0 else {}
    if role == "backup":
        return link.Described(frame.request, msgspec.json.encode(state) if state else b"")
    if state:
        about = {"name": channel, "sequence": 10, "destinations": len(numbers)}
        state |= {"channel": about, "client_managers": [], "readers": [], "moves": []}
    left = [number for number in numbers if number > frame.after]
    page = left[: frame.maximum]
    state["destinations"] = [{"name": f"queue:{channel}.{number}", "channel": channel} for number in page]
    return link.Described(frame.request, msgspec.json.encode(state), page[-1] if len(left) > len(page) else 0)


class Asking:
    """A client that asks for page after page, and two primaries with destinations of these numbers."""

    def __init__(self, two: Two, *numbers: list[int]) -> None:
        self.two = two
        self.numbers = numbers
        self.questions: list[tuple[int, link.Describe]] = []

    def answer(self) -> None:
        """The primaries answer what they were asked."""
        asked, self.two.asked = self.two.asked, []
        for channel, frame in asked:
            if isinstance(frame, link.Describe):
                self.questions.append((channel, frame))
                answer = described(frame, ("one", "two")[channel], self.numbers[channel], name="ab"[channel])
                self.two.tell(channel, answer)

    def pages(self) -> Iterator[StatusAnswer]:
        cursor = 0
        while True:
            self.two.say(Status(4, cursor))
            self.answer()
            [page] = self.two.take(StatusAnswer)
            assert page.request == 4
            yield page
            cursor = page.cursor
            if not cursor:
                return


def names(pages: list[StatusAnswer]) -> list[list[str]]:
    return [[row["name"] for row in msgspec.json.decode(page.data)["destinations"]] for page in pages]


@pytest.fixture(autouse=True)
def page_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages are of six destinations, and a first one of three of each of two channels."""
    monkeypatch.setattr(link, "PAGE_ROWS", 6)


@pytest.fixture
def two() -> Two:
    return Two()


def test_a_small_cluster_is_one_page_and_one_question_to_each(two: Two) -> None:
    asking = Asking(two, [1, 2, 3], [5])
    pages = list(asking.pages())
    assert names(pages) == [["queue:one.1", "queue:one.2", "queue:one.3", "queue:two.5"]]
    assert [channel for channel, _ in asking.questions] == [0, 1]
    assert [channel["name"] for channel in msgspec.json.decode(pages[0].data)["channels"]] == ["one", "two"]


def test_the_destinations_of_many_channels_come_one_after_the_other_and_all_else_once(two: Two) -> None:
    asking = Asking(two, [1, 3, 5, 7, 9, 11, 13, 15, 17, 19], [2, 4, 6, 8])
    found = StatusPages()
    pages = []
    for page in asking.pages():
        pages.append(page)
        found.add(page)
    assert [len(page) for page in names(pages)] == [3, 6, 1, 4]
    one = [f"queue:one.{number}" for number in range(1, 20, 2)]
    assert [row["name"] for row in found.status["destinations"]] == one + [f"queue:two.{n}" for n in (2, 4, 6, 8)]
    assert [node["channel"] for node in found.status["nodes"]] == ["one", "two", ""]
    assert [msgspec.json.decode(page.data).keys() for page in pages[1:]] == [{"destinations"}] * 3
    assert all(frame.maximum <= 6 for _, frame in asking.questions)


def test_later_pages_are_asked_of_the_primary_that_there_is_then(two: Two) -> None:
    pages = Asking(two, [1, 2, 3, 4], []).pages()
    next(pages)
    two.receive(Linked(0, "c", True))
    two.receive(Told(0, "c", link.Role("c", 2, True)))
    assert names(list(pages)) == [["queue:one.4"], []]


def test_a_page_that_a_primary_left_unanswered_is_asked_of_the_next_one(two: Two) -> None:
    asking = Asking(two, [1, 2, 3, 4], [])
    cursor = next(asking.pages()).cursor
    two.say(Status(5, cursor))
    [(_, unanswered)] = [asked for asked in two.asked if isinstance(asked[1], link.Describe)]
    two.asked.clear()
    two.receive(Linked(0, "c", True))
    two.receive(Told(0, "c", link.Role("c", 2, True)))
    assert two.take(StatusAnswer) + two.take(Failed) == []
    asking.answer()
    assert names(two.take(StatusAnswer)) == [["queue:one.4"]]
    assert isinstance(unanswered, link.Describe)
    two.tell(0, described(unanswered, "one", [1, 2, 3, 4]))
    assert two.take(StatusAnswer) == [], "the one before answers after all"


@pytest.mark.parametrize("how", ["gone before", "gone meanwhile", "demoted meanwhile"])
def test_a_channel_that_lost_its_primary_in_the_middle_is_one_clear_sentence(two: Two, how: str) -> None:
    asking = Asking(two, [1, 2, 3, 4], [5])
    cursor = next(asking.pages()).cursor
    if how == "gone before":
        two.receive(Linked(0, "a", False))
    two.say(Status(5, cursor))
    asked = [frame for _, frame in two.asked if isinstance(frame, link.Describe)]
    assert len(asked) == (0 if how == "gone before" else 1)
    if how == "gone meanwhile":
        two.receive(Linked(0, "a", False))
    if how == "demoted meanwhile":
        two.tell(0, described(asked[0], "one", [], role="backup"))
    [failed] = two.take(Failed)
    assert (failed.request, failed.error) == (5, "Unavailable")
    assert failed.reason == "channel one lost its primary while its destinations were being listed; ask for them again"
    assert two.take(StatusAnswer) == []


def test_a_channel_without_a_primary_is_left_out_when_its_turn_comes(two: Two) -> None:
    pages = Asking(two, [1, 2, 3, 4], [5]).pages()
    next(pages)
    two.receive(Linked(1, "b", False))
    assert names(list(pages)) == [["queue:one.4"], []]


def test_an_answer_for_a_client_that_is_gone_is_dropped(two: Two) -> None:
    asking = Asking(two, [1, 2, 3, 4], [])
    cursor = next(asking.pages()).cursor
    two.say(Status(5, cursor))
    two.manager._desk.connections.clear()
    asking.answer()
    assert two.take(StatusAnswer) + two.take(Failed) == []


@pytest.mark.parametrize("cursor", [-1, place_of(1, 0), place_of(7, 3), 1 << 62])
def test_a_cursor_that_makes_no_sense_ends_that_client_only(cursor: int) -> None:
    managing = Managing()
    stranger, client = managing.connect(), managing.connect()
    stranger.say(Status(4, cursor))
    [goodbye] = stranger.take(Goodbye)
    assert (goodbye.error, str(cursor) in goodbye.reason) == ("PeerViolation", True)
    client.say(Ping())
    assert client.take(Pong)


def test_a_cursor_behind_everything_is_an_empty_last_page(two: Two) -> None:
    two.say(Status(4, place_of(1, 1 << 30)))
    Asking(two, [1], [2]).answer()
    [page] = two.take(StatusAnswer)
    assert (names([page]), page.cursor) == ([[]], 0)


def test_where_two_believe_that_they_are_primary_the_newer_one_is_believed() -> None:
    asked = link.Describe(1, 6)
    parts = []
    for name, epoch in (("mm1", 2), ("mm2", 1)):
        answer = described(asked, "one", [1, 2], name=name, epoch=epoch)
        parts.append(Part(0, name, msgspec.json.decode(answer.data), 2 * epoch))
    status, cursor = merge_status(parts, ("one",))
    assert [row["name"] for row in status["destinations"]] == ["queue:one.1", "queue:one.2"]
    assert cursor == place_of(0, 4)
    assert [node["name"] for node in status["nodes"]] == ["mm1", "mm2"]


def test_nodes_of_the_cluster_file_that_nobody_spoke_of_are_unreachable() -> None:
    answer = described(link.Describe(1, 6), "one", [1], name="mm1")
    state = msgspec.json.decode(answer.data)
    state["witnesses"] = [{"name": "w1", "kind": "witness", "role": "witness", "pid": 7, "channel": ""}]
    known = [
        KnownNode("mm1", "message_manager", "host:1", "one"),
        KnownNode("mm2", "message_manager", "host:2", "one"),
        KnownNode("w1", "witness", "host:3"),
        KnownNode("w2", "witness", "host:4"),
    ]
    status, _ = merge_status([Part(0, "mm1", state, 0)], ("one",), known)
    roles = {node["name"]: node["role"] for node in status["nodes"]}
    assert roles == {"mm1": "primary", "w1": "witness", "mm2": "unreachable", "w2": "unreachable"}
    [absent] = [node for node in status["nodes"] if node["name"] == "mm2"]
    assert (absent["kind"], absent["channel"], absent["address"]) == ("message_manager", "one", "host:2")
    assert (absent["pid"], absent["lag"]) == (None, None), "nobody can tell"


def test_the_client_manager_that_answers_is_not_unreachable_though_no_primary_speaks_of_it() -> None:
    known = [KnownNode(name, "client_manager", "host:1") for name in ("cm1", "cm2")]
    own = {"name": "cm1", "kind": "client_manager", "pid": 7, "role": ""}
    status, _ = merge_status([], ("one",), known, own)
    assert [(node["name"], node["pid"], node["role"]) for node in status["nodes"]] == [
        ("cm1", 7, ""),
        ("cm2", None, "unreachable"),
    ]


SERVERS = (KnownNode("ms1", "message_server", "host:5"), KnownNode("ms2", "message_server", "host:6"))


class Looking:
    """A client of a cluster with message servers that has asked for the state, and the primary has answered."""

    def __init__(self) -> None:
        self.managing = Managing(nodes=SERVERS, channel_names=("one",))
        self.client = self.managing.connect()
        self.client.say(Status(4))
        [(_, frame)] = [asked for asked in self.managing.asked if isinstance(asked[1], link.Describe)]
        self.managing.tell(described(frame, "one", [1]))
        [self.request] = self.managing.servers_asked

    def seen(self) -> dict[str, str]:
        """The roles of the nodes in the answer, if there is one."""
        answers = [msgspec.json.decode(answer.data) for answer in self.client.take(StatusAnswer)]
        return {node["name"]: node["role"] for answer in answers for node in answer["nodes"]}


def test_message_servers_and_programs_are_told_of_as_they_stand() -> None:
    looking = Looking()
    assert looking.seen() == {}, "message servers are asked too"
    rows = [{"name": "ms2", "kind": "message_server", "role": "active"}, {"name": "worker", "role": ""}]
    looking.managing.receive(ServersStand(looking.request, rows))
    assert looking.seen() == {"mm1": "primary", "cm1": "", "ms1": "unreachable", "ms2": "active", "worker": ""}


def test_message_servers_that_say_nothing_keep_nobody_waiting() -> None:
    looking = Looking()
    looking.managing.manager.on_time(PATIENCE_S)
    looking.managing.turn()
    assert looking.seen() == {"mm1": "primary", "cm1": "", "ms1": "unreachable", "ms2": "unreachable"}
    looking.managing.receive(ServersStand(looking.request, []))
    assert looking.seen() == {}, "too late"


def test_without_message_servers_nobody_asks_for_them() -> None:
    managing = Managing()
    managing.connect().say(Status(4))
    assert managing.servers_asked == []


def test_one_that_says_nothing_for_too_long_is_not_waited_for(two: Two) -> None:
    two.say(Status(4))
    [(channel, frame)] = [asked for asked in two.asked if isinstance(asked[1], link.Describe) and asked[0] == 1]
    two.tell(channel, described(frame, "two", [5], name="b"))
    assert two.take(StatusAnswer) == []
    assert two.manager.next_deadline() == PATIENCE_S
    two.pass_time(PATIENCE_S)
    [page] = two.take(StatusAnswer)
    assert names([page]) == [["queue:two.5"]]
    assert two.manager.next_deadline() > PATIENCE_S
    [late] = [asked for asked in two.asked if isinstance(asked[1], link.Describe) and asked[0] == 0]
    two.tell(0, described(late[1], "one", [1], name="a"))
    assert two.take(StatusAnswer) == []


def test_a_primary_that_says_nothing_to_a_later_page_is_one_that_is_lost(two: Two) -> None:
    asking = Asking(two, [1, 2, 3, 4, 5], [])
    cursor = next(asking.pages()).cursor
    two.say(Status(5, cursor))
    two.pass_time(PATIENCE_S)
    [failed] = two.take(Failed)
    assert (failed.request, failed.error) == (5, "Unavailable")
