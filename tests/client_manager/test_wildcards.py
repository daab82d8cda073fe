"""Consumers of patterns: what joins, what the primary hears of it, and what survives."""

from collections.abc import Iterator

import pytest

from alphorn.client_manager import wildcards
from alphorn.client_manager.catalogue import Catalogue
from alphorn.model import commands, link
from alphorn.model.conversation import (
    Acknowledge,
    ClosePattern,
    CloseSession,
    Consume,
    ConsumePattern,
    ConsumerClosed,
    Delivered,
    Done,
    Failed,
    Joined,
    Resolve,
    Resolved,
    place_of,
)
from alphorn.model.destinations import Destination, DestinationKind, parse_destination
from alphorn.model.joining import JOINED_FROM, number_for
from alphorn.model.patterns import subscription_for
from tests.client_manager.managing import Client, Managing, attached, batch, bodies_of

WATCH = 7


class Watching(Managing):
    """A Client Manager whose primary has these destinations, numbered from 1 on."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.numbers = dict(enumerate(map(parse_destination, names), 1))
        self.advertised_turn = 0

    def list_all(self) -> None:
        """The primary answers a request to be watched."""
        [watch] = self.take_asked(link.Watch)
        made = list(self.numbers.items())
        for start in range(0, max(1, len(made)), 2):
            self.tell(link.Advertised(self.advertised_turn, made[start : start + 2]))
        self.tell(link.Answered(watch.request))

    def make(self, number: int, name: str) -> None:
        self.numbers[number] = parse_destination(name)
        self.advertised_turn += 1
        self.tell(link.Advertised(self.advertised_turn, [(number, self.numbers[number])]))

    def unmake(self, number: int) -> None:
        del self.numbers[number]
        self.advertised_turn += 1
        self.tell(link.Advertised(self.advertised_turn, [], [number]))

    def take_asked(self, kind: type) -> list:  # type: ignore[type-arg]
        found = [frame for _, frame in self.asked if isinstance(frame, kind)]
        self.asked = [(name, frame) for name, frame in self.asked if not isinstance(frame, kind)]
        return found

    def accept(self) -> list[link.Attach]:
        """The primary lets everybody in who wants to subscribe or attach."""
        found = []
        for entry in self.entries:
            for command, request in zip(entry.commands, entry.requests or [0] * len(entry.commands), strict=True):
                if isinstance(command, commands.Subscribe) and request:
                    self.tell(link.Answered(request, 100 + command.destination))
        self.entries.clear()
        for attach in self.take_asked(link.Attach):
            found.append(attach)
            self.tell(link.Answered(attach.request))
        return found

    def noted(self) -> list[int]:
        return [frame.turn for frame in self.take_asked(link.Noted)]


def wish(client: Client, pattern: str, watch: int = WATCH, **options: object) -> None:
    client.requests += 1
    client.say(ConsumePattern(client.requests, 1, watch, pattern, 100, **options))  # type: ignore[arg-type]


def joined(client: Client) -> dict[str, int]:
    return {frame.destination: frame.consumer for frame in client.take(Joined)}


@pytest.mark.requirement("WLD-1", "WLD-3")
def test_every_destination_that_matches_joins_and_then_the_client_hears_that_all_have() -> None:
    managing = Watching("queue:a.1", "queue:b.1", "queue:a.2")
    client = managing.connect()
    wish(client, "glob:a.*", selector="x = 1")
    assert client.take(Done) == [], "nothing is known yet"
    managing.list_all()
    found = joined(client)
    assert sorted(found) == ["queue:a.1", "queue:a.2"]
    assert client.take(Done) == [], "nobody receives yet"
    attachments = managing.accept()
    assert [(a.destination, a.selector, a.prefetch) for a in attachments] == [(1, "x = 1", 100), (3, "x = 1", 100)]
    assert [commands.number_of(a.consumer) for a in attachments] == list(found.values())
    assert client.take(Done) == [Done(client.requests)]


@pytest.mark.requirement("WLD-3")
def test_topics_that_match_get_ordinary_subscriptions() -> None:
    managing = Watching("topic:a")
    client = managing.connect(client_id="me")
    wish(client, "regex:topic:a|b", start=0, no_local=True)
    managing.list_all()
    [subscribe] = managing.entries[-1].commands
    assert isinstance(subscribe, commands.Subscribe)
    assert (subscribe.destination, subscribe.name, subscribe.start, subscribe.no_local) == (1, "", 0, client.id)
    [attach] = managing.accept()
    assert (attach.destination, attach.subscription) == (1, 101)


def test_a_named_subscription_has_one_of_its_own_for_each_topic() -> None:
    managing = Watching("topic:a", "queue:a")
    client = managing.connect(client_id="me")
    wish(client, "glob:*", subscription="books", is_durable=True)
    managing.list_all()
    [claim] = managing.take_asked(link.Claim)
    assert claim.subscribe.name == subscription_for("books", Destination(DestinationKind.TOPIC, "a"))
    assert claim.subscribe.is_durable
    [attach] = managing.take_asked(link.Attach)
    assert attach.destination == 2, "a queue has no subscriptions"


@pytest.mark.requirement("WLD-4")
def test_a_topic_that_comes_later_joins_and_is_noted_once_its_consumer_receives() -> None:
    managing = Watching("topic:other")
    client = managing.connect()
    wish(client, "glob:a.*")
    managing.list_all()
    assert managing.noted() == [0]
    managing.make(9, "topic:a.new")
    number = number_for(WATCH, place_of(0, 9), ())
    assert client.take(Joined) == [Joined(WATCH, number, place_of(0, 9), "topic:a.new", is_new=True)]
    [subscribe] = managing.entries[-1].commands
    assert isinstance(subscribe, commands.Subscribe)
    assert subscribe.start == 0, "all that it ever has is new"
    assert managing.noted() == []
    managing.accept()
    assert managing.noted() == [1]


def test_what_matches_nothing_is_noted_at_once() -> None:
    managing = Watching()
    client = managing.connect()
    wish(client, "glob:a.*")
    managing.list_all()
    managing.noted()
    managing.make(9, "topic:b.new")
    assert managing.noted() == [1]
    assert client.take(Joined) == []


@pytest.mark.parametrize("how", ["closes the pattern", "closes the session", "is cut off"])
def test_nobody_waits_for_a_consumer_whose_client_is_gone(how: str) -> None:
    managing = Watching()
    other, client = managing.connect(), managing.connect()
    wish(other, "glob:b.*")
    managing.list_all()
    wish(client, "glob:a.*")
    managing.noted()
    managing.make(9, "topic:a.new")
    assert managing.noted() == []
    match how:
        case "closes the pattern":
            client.say(ClosePattern(50, WATCH))
            managing.accept()
        case "closes the session":
            client.say(CloseSession(50, 1))
            managing.accept()
        case _:
            client.close()
    assert managing.noted() == [1]


def test_a_member_receives_and_acknowledges_like_any_consumer() -> None:
    managing = Watching("queue:q")
    managing.numbers = {5: parse_destination("queue:q")}
    client = managing.connect()
    wish(client, "glob:q")
    managing.list_all()
    number = joined(client)["queue:q"]
    [attach] = managing.accept()
    sequence = batch(managing, "a", "b")
    managing.tell(link.Deliver(attach.consumer, 5, [link.DeliveredRun(sequence, 0, 0, 2, 10, 1)]))
    [delivered] = client.take(Delivered)
    assert (delivered.consumer, bodies_of(delivered)) == (number, ["a", "b"])
    client.say(Acknowledge(60, number, [10, 11]))
    assert Done(60) in client.take(Done)


def test_a_destination_that_is_deleted_leaves_and_joins_anew_when_it_is_created_again() -> None:
    managing = Watching("queue:a")
    client = managing.connect()
    wish(client, "glob:a")
    managing.list_all()
    first = joined(client)["queue:a"]
    [attach] = managing.accept()
    managing.tell(link.Detached(attach.consumer, "InvalidDestination", "gone"))
    managing.unmake(1)
    assert client.take(ConsumerClosed) == [ConsumerClosed(first, "InvalidDestination", "gone")]
    managing.make(2, "queue:a")
    assert joined(client)["queue:a"] != first


def test_a_member_that_is_refused_is_closed_and_the_client_hears_why() -> None:
    managing = Watching("topic:a")
    client = managing.connect()
    wish(client, "glob:a")
    managing.list_all()
    number = joined(client)["topic:a"]
    managing.answer(error="InvalidSelector", reason="no")
    assert client.take(ConsumerClosed) == [ConsumerClosed(number, "InvalidSelector", "no")]
    assert client.take(Done) == [Done(client.requests)]


def test_a_pattern_that_is_closed_before_it_began_answers_both_requests() -> None:
    managing = Watching("topic:a")
    client = managing.connect()
    wish(client, "glob:a")
    begun = client.requests
    client.say(ClosePattern(90, WATCH))
    assert client.take(Done) == [Done(begun), Done(90)]


@pytest.mark.requirement("WLD-2")
@pytest.mark.parametrize("pattern", ["regex:(", "glob:", "topic:a", "regex:" + "a" * 1001])
def test_what_is_no_pattern_is_refused_and_harms_nobody(pattern: str) -> None:
    managing = Watching()
    client = managing.connect()
    wish(client, pattern)
    [failed] = client.take(Failed)
    assert failed.error == "InvalidDestination"
    assert managing.hung == {}
    assert managing.take_asked(link.Watch) == []
    wish(client, "glob:a")
    assert client.take(Failed) == [], "its number is free"


def test_a_pattern_that_is_open_already_is_a_violation() -> None:
    managing = Watching()
    client = managing.connect()
    wish(client, "glob:a")
    wish(client, "glob:a")
    assert client.stream in managing.hung


def test_closing_ends_all_members_and_the_last_pattern_ends_the_watch() -> None:
    managing = Watching("queue:a", "queue:b")
    client = managing.connect()
    wish(client, "glob:?")
    managing.list_all()
    numbers = sorted(joined(client).values())
    managing.accept()
    client.take(Done)
    client.say(ClosePattern(50, WATCH, {numbers[0]: []}))
    detaching = managing.take_asked(link.Detach)
    assert sorted(commands.number_of(frame.consumer) for frame in detaching) == numbers
    assert client.take(Done) == []
    for frame in detaching:
        managing.tell(link.Answered(frame.request))
    assert client.take(Done) == [Done(50)]
    assert [watch.is_on for watch in managing.take_asked(link.Watch)] == [False]
    managing.make(9, "topic:c")
    assert client.take(Joined) == []
    assert managing.manager.describe()["wildcards"] == {"patterns": 0, "destinations": 0}


def test_closing_a_pattern_that_is_not_known_here_ends_the_members_that_are_named() -> None:
    managing = Watching("queue:a")
    client = managing.connect()
    place = client.resolve("queue:a", 1)
    client.say(Consume(9, 1, 1 << 31, place, 10))
    managing.accept()
    client.take(Done)
    client.say(ClosePattern(50, WATCH, {1 << 31: []}))
    [frame] = managing.take_asked(link.Detach)
    managing.tell(link.Answered(frame.request))
    assert client.take(Done) == [Done(50)]


@pytest.mark.requirement("API-10", "API-12", "WLD-4")
def test_after_a_reconnection_only_what_the_client_has_not_joins() -> None:
    managing = Watching("queue:a.1", "queue:a.2")
    client = managing.connect()
    wish(client, "glob:a.*", joined=[place_of(0, 1)])
    managing.list_all()
    assert list(joined(client)) == ["queue:a.2"]


@pytest.mark.requirement("API-10", "WLD-4")
def test_what_another_client_manager_had_begun_goes_on_under_the_same_number() -> None:
    numbers = []
    for names in (("topic:a", "topic:b"), ("topic:0", "topic:b", "topic:a")):
        managing = Watching(*names)
        managing.numbers = {ord(name[-1]): parse_destination(name) for name in names}
        client = managing.connect(connection=b"c" * 16)
        wish(client, "glob:*")
        managing.list_all()
        numbers.append(joined(client))
    assert numbers[0].items() <= numbers[1].items()


def test_a_number_that_is_taken_is_not_given_twice() -> None:
    first = number_for(WATCH, 1, ())
    assert JOINED_FROM <= first <= commands.NUMBER_MAX
    second = number_for(WATCH, 1, {first})
    assert second != first
    assert JOINED_FROM <= number_for(WATCH, 1, {first, second}) <= commands.NUMBER_MAX


@pytest.mark.requirement("WLD-4", "HA-20")
def test_a_new_primary_is_watched_and_what_came_or_went_meanwhile_is_found_out() -> None:
    managing = Watching("queue:a.1", "topic:a.2")
    client = managing.connect()
    wish(client, "glob:a.*")
    managing.list_all()
    managing.accept()
    client.heard()
    managing.noted()
    managing.link_down("mm1")
    del managing.numbers[1]
    managing.numbers[3] = parse_destination("topic:a.3")
    managing.link_up("mm2", is_primary=True, epoch=2)
    asked = [type(frame) for name, frame in managing.asked if name == "mm2"]
    assert asked.index(link.Watch) < asked.index(link.Settled)
    [watch] = managing.take_asked(link.Watch)
    managing.asked.clear()
    managing.tell(link.Advertised(0, list(managing.numbers.items())), "mm2")
    managing.tell(link.Answered(watch.request), "mm2")
    assert [frame.destination for frame in client.take(Joined)] == ["topic:a.3"]
    assert managing.noted() == []
    [request] = [number for number in managing.entries[-1].requests if number]
    managing.tell(link.Answered(request, 103), "mm2")
    [attach] = attached(managing)
    managing.tell(link.Answered(attach.request), "mm2")
    assert managing.noted() == [0]
    assert managing.manager.describe()["wildcards"] == {"patterns": 1, "destinations": 2}


@pytest.mark.requirement("WLD-4", "HA-20")
def test_what_had_joined_and_not_begun_at_a_change_of_primary_begins_before_the_new_one_hears_that_all_is_noted() -> (
    None
):
    managing = Watching()
    client = managing.connect()
    wish(client, "glob:a.*")
    managing.list_all()
    managing.noted()
    managing.make(9, "topic:a.new")
    managing.link_down("mm1")
    managing.link_up("mm2", is_primary=True, epoch=2)
    [watch] = managing.take_asked(link.Watch)
    managing.tell(link.Advertised(0, list(managing.numbers.items())), "mm2")
    managing.tell(link.Answered(watch.request), "mm2")
    assert managing.noted() == [], "its subscription is not there yet"
    [request] = [number for number in managing.entries[-1].requests if number]
    managing.tell(link.Answered(request, 109), "mm2")
    [attach] = attached(managing)
    managing.tell(link.Answered(attach.request), "mm2")
    assert managing.noted() == [0]


def test_a_pattern_of_a_time_without_a_primary_begins_with_the_next_one() -> None:
    managing = Watching("queue:a")
    client = managing.connect()
    managing.link_down("mm1")
    wish(client, "glob:a")
    assert managing.take_asked(link.Watch) == []
    managing.link_up("mm1", is_primary=True, epoch=2)
    managing.list_all()
    assert list(joined(client)) == ["queue:a"]


def test_many_names_are_compared_in_several_turns_and_what_comes_meanwhile_is_not_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wildcards, "PAGE_NAMES", 3)
    managing = Watching(*(f"queue:a{number}" for number in range(10)))
    client = managing.connect()
    wish(client, "glob:*")
    managing.list_all()
    assert len(client.take(Joined)) == 3
    assert managing.manager.next_deadline() == 0.0
    managing.make(50, "queue:a")  # before those that were compared
    found = joined(client)
    while managing.manager.next_deadline() == 0.0:
        managing.manager.on_time(0.0)
        managing.turn()
    found |= joined(client)
    assert sorted(found) == ["queue:a", *(f"queue:a{number}" for number in range(3, 10))]


class Unwalked(dict[int, int]):
    """What has joined, which may be looked up and not gone through."""

    def __iter__(self) -> Iterator[int]:
        raise AssertionError("what joins must not cost by the number of those that have joined")

    values = items = __iter__  # type: ignore[assignment]


@pytest.mark.requirement("WLD-4")
def test_what_joins_costs_nothing_by_the_number_of_those_that_have_joined() -> None:
    managing = Watching("queue:a.1")
    client = managing.connect()
    wish(client, "glob:a.*")
    managing.list_all()
    [watch] = managing.manager._wildcards._watches.values()
    watch.joined = Unwalked(watch.joined)
    managing.tell(link.Advertised(1, [(7, parse_destination("queue:a.7"))]))
    assert list(joined(client)) == ["queue:a.1", "queue:a.7"]


def test_what_is_advertised_is_not_to_be_had_before_its_creator_is_answered() -> None:
    managing = Watching()
    client = managing.connect()
    wish(client, "glob:a")
    managing.list_all()
    managing.make(9, "topic:a")
    client.say(Resolve(60, "topic:a"))
    assert client.take(Resolved) == []
    assert isinstance(managing.entries[-1].commands[-1], commands.CreateDestination), "the primary decides when"


def test_the_catalogue_gives_names_in_order_and_in_pages() -> None:
    catalogue = Catalogue()
    for place, name in enumerate(["c", "a", "b", "d"], 1):
        assert catalogue.add(place, Destination(DestinationKind.QUEUE, name))
    assert not catalogue.add(1, Destination(DestinationKind.QUEUE, "c"))
    assert catalogue.page(None, None, 3) == [("a", 2), ("b", 3), ("c", 1)]
    assert catalogue.page(None, ("c", 1), 3) == [("d", 4)]
    assert catalogue.page(("b", "c"), None, 9) == [("b", 3), ("c", 1)]
    for number in range(300):
        catalogue.add(100 + number, Destination(DestinationKind.QUEUE, f"e{number:03}"))
    assert str(catalogue.remove(100)) == "queue:e000"
    assert catalogue.remove(100) is None
    assert catalogue.page(("e", "e9"), None, 2) == [("e001", 101), ("e002", 102)]
    assert len(catalogue) == 303


def test_whoever_wishes_for_a_whole_is_not_answered_by_what_is_advertised_to_others() -> None:
    managing = Watching("queue:a.1")
    client = managing.connect()
    wish(client, "glob:a.*")
    wish(client, "glob:queue:_DMQ", WATCH + 1)
    [create] = managing.entries[-1].requests
    managing.list_all()
    assert list(joined(client)) == ["queue:a.1"]
    managing.accept()
    assert client.take(Done) == [Done(client.requests - 1)]
    managing.tell(link.Answered(create, 5))
    assert list(joined(client)) == ["queue:_DMQ"]
    managing.accept()
    assert client.take(Done) == [Done(client.requests)]
