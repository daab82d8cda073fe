"""Dead messages stay on the channel where they die, and `queue:_DMQ` is all of them. `topic:_LOG` is all log lines."""

import asyncio
import json

import pytest

import alphorn
import alphorn.testing
from alphorn.client.staging import ask_channels
from alphorn.testing.clusters import Cluster
from alphorn.testing.spreading import spread
from tests.cli.commands import run as run_command
from tests.semantics.waiting import WAIT_S, Gathered, bodies, is_quiet, send, take, until

pytestmark = [pytest.mark.processes, pytest.mark.requirement("DMQ-1")]

HERE, THERE = spread("queue:deadly", 2, 2)  # on the first channel, and on the second
DEAD, PART = "queue:_DMQ", "queue:_DMQ@channel-2"


@pytest.fixture(scope="module")
def running():
    with alphorn.testing.cluster(client_managers=2, channels=2) as cluster:
        yield cluster


@pytest.fixture
def connection(running):
    with running.connect() as made:
        made.destinations.purge(DEAD)
        for name in (HERE, THERE):
            made.destinations.create(name)
            made.destinations.purge(name)
        yield made


def die(connection, name, *said, **fields):
    """These messages die there, in this order."""
    with connection.session(ack="individual") as session:
        send(session, name, said, **fields)
    bury(connection, name, len(said))


def bury(connection, name, count):
    """So many messages that are there die."""
    with connection.session(ack="individual") as session, session.consumer(name) as consumer:
        for message in take(consumer, count):
            message.reject(requeue=False)


def second_door(running):
    """A connection to the second Client Manager, which tells it of the other."""
    scheme, _, hosts = running.url.partition("://")
    return alphorn.connect(f"{scheme}://{hosts.split(',')[1]}", connect_timeout=WAIT_S)


def depth(connection, name=DEAD):
    return sum(row["depth"] for row in connection.destinations.list() if row["name"] == name)


@pytest.mark.requirement("WKD-1")
@pytest.mark.parametrize("ack", ["auto", "client", "individual", "dups_ok"])
def test_a_consumer_receives_the_dead_messages_of_every_channel_and_consumes_them(connection, ack):
    die(connection, HERE, "a", "b")
    die(connection, THERE, "c", "d")
    with connection.session(ack=ack) as session, session.consumer(DEAD) as consumer:
        taken = take(consumer, 4)
        assert sorted(bodies(taken)) == ["a", "b", "c", "d"]
        assert {(each.body, each.history["destination"], each.destination) for each in taken} == {
            *((body, HERE, DEAD) for body in "ab"),
            *((body, THERE, PART) for body in "cd"),
        }
        if ack == "client":
            taken[-1].acknowledge()
        if ack == "individual":
            for each in taken:
                each.acknowledge()
    until(lambda: depth(connection) == 0)
    assert bodies(connection.session().browser(DEAD)) == []


def test_dead_messages_that_come_again_keep_their_order_in_each_part(connection):
    die(connection, HERE, "a1", "a2", "a3")
    die(connection, THERE, "b1", "b2", "b3")
    with connection.session(ack="client") as session:
        consumer = session.consumer(DEAD)
        first = take(consumer, 6)
        session.recover()
        again = take(consumer, 6)
        for part in "ab":
            assert [body for body in bodies(first) if body[0] == part] == [f"{part}{number}" for number in (1, 2, 3)]
            assert [body for body in bodies(again) if body[0] == part] == [f"{part}{number}" for number in (1, 2, 3)]
        assert {each.delivery_count for each in again} == {2}
        again[-1].acknowledge()
        assert is_quiet(consumer)


def test_a_consumer_with_a_selector_takes_from_every_channel_what_it_selects(connection):
    for name in (HERE, THERE):
        die(connection, name, "small", properties={"size": 1})
        die(connection, name, "large", properties={"size": 9})
    with connection.session() as session:
        assert bodies(session.browser(DEAD, "size > 5")) == ["large", "large"]
        consumer = session.consumer(DEAD, selector="size > 5")
        assert bodies(take(consumer, 2)) == ["large", "large"]
        assert is_quiet(consumer)
    assert bodies(connection.session().browser(DEAD)) == ["small", "small"]


def test_a_transaction_takes_dead_messages_of_two_channels_or_none(connection):
    die(connection, HERE, "a")
    die(connection, THERE, "b")
    with connection.session(transacted=True) as session:
        consumer, producer = session.consumer(DEAD), session.producer("queue:second life")
        assert sorted(bodies(take(consumer, 2))) == ["a", "b"]
        session.rollback()
        for message in take(consumer, 2):
            assert message.delivery_count == 2
            producer.send(message.body)
        session.commit()
        assert is_quiet(consumer)
    until(lambda: depth(connection) == 0)
    assert sorted(bodies(take(connection.session().consumer("queue:second life"), 2))) == ["a", "b"]


def test_a_listener_hears_of_the_dead_messages_of_every_channel(connection):
    heard = Gathered()
    with connection.session() as session:
        session.consumer(DEAD).listen(heard)
        die(connection, THERE, "b")
        die(connection, HERE, "a")
        assert sorted(bodies(heard.until(2))) == ["a", "b"]


def test_one_channel_is_named_by_what_follows_the_at(connection):
    die(connection, HERE, "a")
    die(connection, THERE, "b")
    with connection.session() as session:
        for part, body in ((f"{DEAD}@channel-1", "a"), (PART, "b")):
            assert bodies(session.browser(part)) == [body]
            with session.consumer(part) as consumer:
                assert bodies(take(consumer, 1)) == [body]
                assert is_quiet(consumer)


@pytest.mark.requirement("DMQ-3", "WKD-1")
def test_a_browser_shows_the_dead_messages_of_every_channel_and_leaves_them(connection):
    die(connection, HERE, "a")
    browser = connection.session().browser(DEAD)
    assert [(each.destination, each.body) for each in browser] == [(DEAD, "a")]
    die(connection, THERE, "b")
    for _ in range(2):
        found = [(each.destination, each.body, each.history["destination"]) for each in browser]
        assert found == [(DEAD, "a", HERE), (PART, "b", THERE)]


@pytest.mark.requirement("DMQ-3")
def test_dead_messages_of_every_channel_are_sent_back_and_let_go_of_by_one_call_that_counts_them(connection):
    die(connection, HERE, "a1", "a2")
    die(connection, THERE, "b1")
    assert connection.destinations.redrive(DEAD) == 3
    with connection.session() as session:
        assert bodies(take(session.consumer(HERE), 2)) == ["a1", "a2"]
        assert bodies(take(session.consumer(THERE), 1)) == ["b1"]
    die(connection, HERE, "a3")
    die(connection, THERE, "b2", "b3")
    assert connection.destinations.redrive(PART) == 2
    assert connection.destinations.purge(DEAD) == 1
    assert connection.destinations.purge(DEAD) == 0


@pytest.mark.requirement("DMQ-3")
def test_dead_messages_whose_queue_is_gone_stay_and_those_of_other_channels_are_sent_back(connection):
    die(connection, HERE, "a")
    die(connection, THERE, "b")
    connection.destinations.delete(THERE)
    with pytest.raises(alphorn.InvalidDestination, match=f"{PART}: 0 of 1 .*; 1 of other channels went back$"):
        connection.destinations.redrive(DEAD)
    assert bodies(connection.session().browser(DEAD)) == ["b"]
    assert bodies(take(connection.session().consumer(HERE), 1)) == ["a"]


def test_the_same_holds_with_asyncio(running: Cluster, connection) -> None:
    die(connection, HERE, "a")

    async def use() -> None:
        async with alphorn.aio.connect(running.url) as other:
            session = other.session(ack="individual")
            browser = await session.browser(DEAD)
            assert [message.body async for message in browser] == ["a"]
            consumer = await session.consumer(DEAD)
            first = await consumer.receive(timeout=WAIT_S)
            assert first is not None
            await asyncio.to_thread(die, connection, THERE, "b")
            second = await consumer.receive(timeout=WAIT_S)
            assert second is not None
            assert [(each.destination, each.body) for each in (first, second)] == [(DEAD, "a"), (PART, "b")]
            assert [message.body async for message in browser] == ["a", "b"]
            await consumer.close()
            assert await other.destinations.redrive(DEAD) == 2
            assert await other.destinations.purge(DEAD) == 0

    asyncio.run(use())


def test_commands_take_the_dead_messages_of_every_channel_by_one_name(running: Cluster, connection, capsys) -> None:
    def ask(*arguments: str) -> str:
        assert run_command(*arguments, "--url", running.url) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    die(connection, HERE, "a")
    die(connection, THERE, "b", "c")
    assert ask("browse", DEAD) == "a\nb\nc\n"
    assert json.loads(ask("destinations", "show", DEAD, "--json"))["depth"] == 3
    listed = [json.loads(line) for line in ask("dlq", "list", DEAD, "--json").splitlines()]
    assert [row["destination"] for row in listed] == [HERE, THERE, THERE]
    counts = {f"{DEAD}@channel-1": 1, PART: 2}
    told = json.loads(ask("dlq", "redrive", DEAD, "--json"))
    assert (told["messages"], told["counts"]) == (3, counts)
    bury(connection, HERE, 1)
    bury(connection, THERE, 2)
    assert sorted(ask("receive", DEAD, "--count", "3").split()) == ["a", "b", "c"]
    die(connection, HERE, "d")
    die(connection, THERE, "e", "f")
    told = json.loads(ask("dlq", "purge", DEAD, "--json"))
    assert (told["messages"], told["counts"]) == (3, counts)


def test_a_consumer_goes_on_with_every_channel_when_its_client_manager_and_a_primary_die():
    with alphorn.testing.cluster(client_managers=2, channels=2) as running, second_door(running) as connection:
        for name in (HERE, THERE):
            connection.destinations.create(name)
        with connection.session(ack="individual") as session:
            consumer = session.consumer(DEAD)
            die(connection, HERE, "a")
            first = consumer.receive(WAIT_S)
            assert first is not None
            running.wait_in_sync()
            running.kill("cm2")  # the other one votes
            running.kill(running.primary("channel-2"))
            die(connection, THERE, "b")
            second = consumer.receive(WAIT_S)
            assert second is not None
            first.acknowledge()
            second.acknowledge()
            assert (first.body, second.body, second.destination) == ("a", "b", PART)
        until(lambda: depth(connection) == 0)


def test_what_died_before_a_move_stays_and_what_dies_after_it_is_found_as_well(connection):
    die(connection, HERE, "before")
    connection.destinations.move(HERE, "channel-2")
    die(connection, HERE, "after")
    try:
        assert bodies(connection.session().browser(DEAD)) == ["before", "after"]
        with connection.session() as session:
            assert sorted(bodies(take(session.consumer(DEAD), 2))) == ["after", "before"]
    finally:
        connection.destinations.move(HERE, "channel-1")


@pytest.mark.requirement("LOG-2", "WKD-1")
def test_a_consumer_of_log_lines_receives_those_of_the_nodes_of_every_channel(running: Cluster, connection) -> None:
    names = {node["name"] for node in running.status()["nodes"] if node["kind"].endswith("_manager")}
    [serving] = [known.servers for known in ask_channels(connection) if known.name == "channel-2"]
    assert {name for name, _ in serving} < names
    with connection.session() as session:
        consumer = session.consumer("topic:_LOG", start="earliest")
        heard: set[str] = set()
        while heard < names:
            message = consumer.receive(WAIT_S)
            assert message is not None, f"only {sorted(heard)} of {sorted(names)} were heard"
            heard.add(json.loads(message.body)["node"])


@pytest.mark.requirement("DMQ-2", "WLD-1")
def test_the_parts_of_a_dead_letter_queue_of_ones_own_are_received_by_a_pattern_and_each_alone_by_its_name(connection):
    for name in (HERE, THERE):
        connection.destinations.policy(name, dead_letter="broken")
    own = [row["policy"]["dead_letter"] for row in connection.destinations.list() if row["name"] in (HERE, THERE)]
    assert sorted(own) == ["broken", "broken@channel-2"]
    with connection.session() as session:
        consumer = session.consumer(alphorn.regex(r"queue:broken(@.+)?"))
        die(connection, HERE, "a")
        die(connection, THERE, "b")
        taken = take(consumer, 2)
        assert {(each.body, each.destination) for each in taken} == {
            ("a", "queue:broken"),
            ("b", "queue:broken@channel-2"),
        }
    die(connection, THERE, "c")
    with connection.session() as session:
        assert is_quiet(session.consumer("queue:broken"))
        assert bodies(take(session.consumer("queue:broken@channel-2"), 1)) == ["c"]
    for name in (HERE, THERE):
        connection.destinations.policy(name)
