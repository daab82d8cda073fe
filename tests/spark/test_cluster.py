"""What a driver asks a real cluster, without Spark."""

from functools import partial

import msgspec
import pytest

from alphorn.client.log_reader import LogReader
from alphorn.model.errors import Misuse, Unavailable
from alphorn.model.log_conversation import ChannelKnown
from alphorn.spark import cluster as spark_cluster
from alphorn.spark.cluster import ClusterView
from alphorn.spark.jobs.consolidate import Checkpoint, Checkpoints
from alphorn.spark.jobs.consolidating import run_consolidate
from alphorn.spark.jobs.runners import Surroundings
from alphorn.spark.offsets import channels_of
from alphorn.spark.options import EARLIEST, LATEST, Bound, source_options
from alphorn.spark.planning import end_of, reach, slices, start_of


@pytest.fixture
def view(cluster, topic):
    """Of the test's own topic."""
    made = ClusterView(source_options({"url": cluster.url, "destination": topic, "timeout": "30"}))
    yield made
    made.close()


def options_of(view, **changes):
    return source_options({"destination": "topic:unused", **changes})


def test_nothing_new_is_no_progress(view, send, topic):
    options = options_of(view)
    send(topic, "a")
    start = start_of(view, EARLIEST)
    reached = reach(view, options, start, view.resolve(LATEST), is_limited=False)
    assert reached != start
    send("queue:somebody-elses", *range(20))  # the logs grow, and nothing of it is read here
    view.note(view.channels(), "reader", reached)
    for is_limited in (False, True):
        assert reach(view, options, reached, view.resolve(LATEST), is_limited=is_limited) == reached


def test_the_newest_entry_is_known_to_a_client_manager_that_was_just_started(cluster, view, send, topic):
    send(topic, "a", "b")
    before = view.resolve(LATEST)
    [name] = cluster.client_managers
    cluster.kill(name)
    cluster.restart(name)
    after = view.resolve(LATEST)
    assert all(after[channel] >= number for channel, number in before.items())
    [found] = slices(view, options_of(view), start_of(view, EARLIEST), end_of(view, LATEST))
    assert list(found.destinations.values()) == [topic]


def test_earliest_is_where_each_destination_begins(cluster, connection, send):
    names = [f"topic:floors.{letter}" for letter in "abcdef"]
    for name in names:
        connection.destinations.create(name)
    for name in names:
        send(name, "kept by nobody")
        connection.destinations.policy(name, retain=3600)
        send(name, "first", "second")
    view = ClusterView(source_options({"url": cluster.url, "destination": "glob:topic:floors.*", "timeout": "30"}))
    try:
        start, end = start_of(view, EARLIEST), end_of(view, LATEST)
        assert len(start) == len(names), "one number for each channel, and a floor for every other destination"
        found = slices(view, options_of(view), start, end)  # does not think that anything is lost
        assert {name for slice_ in found for name in slice_.destinations.values()} == set(names)
        assert channels_of(start).keys() == view.channels().keys()
    finally:
        view.close()


def test_patterns_are_those_of_consumers(cluster, connection):
    for name in ("pattern.a", "pattern.b", "pattern-c"):
        connection.destinations.create(f"topic:{name}", retain=3600)
    connection.destinations.create("queue:pattern.a")

    def found(text):
        view = ClusterView(source_options({"url": cluster.url, "destination": text, "timeout": "30"}))
        try:
            return {it.name for of in view.destinations(view.channels()).values() for it in of.values()}
        finally:
            view.close()

    assert found("glob:topic:pattern.*") == {"topic:pattern.a", "topic:pattern.b"}
    assert found("glob:pattern.?") == {"topic:pattern.a", "topic:pattern.b", "queue:pattern.a"}
    assert found("regex:topic:pattern[.-](a|c)") == {"topic:pattern.a", "topic:pattern-c"}
    assert "topic:_LOG" not in found("glob:topic:*")
    assert found("glob:topic:_L*") <= {"topic:_LOG"}


def test_a_channel_that_was_removed_is_not_asked(view, monkeypatch):
    before = view.channels()

    def with_removed(*arguments: object, **named: object) -> list[ChannelKnown]:
        first, *others = before.values()
        return [first, ChannelKnown("removed", 0, []), *others]

    monkeypatch.setattr(spark_cluster, "ask_channels", with_removed)
    assert list(view.channels()) == list(before)
    assert list(view.resolve(LATEST)) == list(before)
    assert [view._numbers[name] for name in before] == [0, 2], "the others keep their numbers"


def test_a_destination_that_is_new_is_not_passed_over_where_a_replica_lags(cluster, connection, send, monkeypatch):
    """A Message Manager that lags is asked by way of a Client Manager that was just started."""
    connection.destinations.create("topic:lagging.old", retain=3600)
    view = ClusterView(source_options({"url": cluster.url, "destination": "glob:topic:lagging.*", "timeout": "30"}))
    try:
        start = start_of(view, EARLIEST)
        survey = LogReader.survey
        before = {name: survey(view._readers[name], [], ["topic:lagging."]) for name in view.channels()}
        connection.destinations.create("topic:lagging.new", retain=3600)
        send("topic:lagging.new", "a")
        end = view.resolve(LATEST)

        def lagging(reader, names, prefixes=(), *, applied=0):
            older = before[reader.channel]
            return older if applied <= older.applied else survey(reader, names, prefixes, applied=applied)

        ask = spark_cluster.ask_channels
        deaf = lambda *given, **named: [msgspec.structs.replace(it, heard=0) for it in ask(*given, **named)]  # noqa: E731
        monkeypatch.setattr(LogReader, "survey", lagging)
        monkeypatch.setattr(spark_cluster, "ask_channels", deaf)
        found = slices(view, options_of(view), start, end)
        assert "topic:lagging.new" in [name for slice_ in found for name in slice_.destinations.values()]
        assert reach(view, options_of(view), start, end, is_limited=True) == end
    finally:
        view.close()


def test_destinations_that_are_made_while_a_stream_begins_are_read_whole(cluster, connection, send, monkeypatch):
    view = ClusterView(source_options({"url": cluster.url, "destination": "glob:topic:meanwhile.*", "timeout": "30"}))
    names = [f"topic:meanwhile.{letter}" for letter in "abcdef"]  # some on each channel
    survey, asked = LogReader.survey, []

    def meanwhile(reader, names_asked, prefixes=(), **named):
        found = survey(reader, names_asked, prefixes, **named)
        asked.append(reader.channel)
        if len(asked) == len(view.channels()):
            for name in names:
                connection.destinations.create(name, retain=3600)
                send(name, "a")
        return found

    monkeypatch.setattr(LogReader, "survey", meanwhile)
    try:
        start = view.resolve(EARLIEST)
        found = slices(view, options_of(view), start, end_of(view, LATEST))
        assert {name for slice_ in found for name in slice_.destinations.values()} == set(names)
    finally:
        view.close()


def test_a_driver_follows_message_managers_to_other_addresses(view, monkeypatch, send, topic):
    elsewhere = [msgspec.structs.replace(it, servers=[("gone", "127.0.0.1:1")]) for it in view.channels().values()]
    view.close()
    with monkeypatch.context() as before:
        before.setattr(spark_cluster, "ask_channels", lambda *given, **named: elsewhere)
        view.channels()
    send(topic, "a")
    assert slices(view, options_of(view), start_of(view, EARLIEST), end_of(view, LATEST))


def test_numbers_are_for_channels_that_are_there(view):
    with pytest.raises(Misuse, match="the cluster has no channel 'nowhere'; it has channel-1, channel-2"):
        view.resolve(Bound("numbers", numbers={"nowhere": 3}))
    [first, second] = view.channels()
    start = start_of(view, Bound("numbers", numbers={first: 3}))
    assert start[first] == 3
    assert start[second] >= 1
    before = end_of(view, LATEST)
    capped = end_of(view, Bound("numbers", numbers={first: 1 << 50}))
    after = end_of(view, LATEST)
    assert all(before[channel] <= capped[channel] <= after[channel] for channel in (first, second))


@pytest.mark.parametrize("kind", ["queue", "topic"])
def test_what_came_from_another_channel_is_not_read_again_in_silence(cluster, connection, send, kind):
    name = f"{kind}:traveller"
    connection.destinations.create(name, **({"retain": 3600} if kind == "topic" else {}))
    send(name, "a", "b")
    view = ClusterView(source_options({"url": cluster.url, "destination": name, "timeout": "30"}))
    lenient = {"url": cluster.url, "destination": name, "timeout": "30", "failOnDataLoss": "false"}
    careless = ClusterView(source_options(lenient))
    try:
        channels = view.channels()
        [home] = [channel for channel, found in view.destinations(channels).items() if found]
        [other] = set(channels) - {home}
        read = reach(view, options_of(view), start_of(view, EARLIEST), view.resolve(LATEST), is_limited=False)
        connection.destinations.move(name, other)
        latest = view.resolve(LATEST)
        with pytest.raises(Unavailable, match=f"came from another one {name} with log entry"):
            reach(view, options_of(view), read, latest, is_limited=False)
        with pytest.raises(Unavailable, match="begin there with a new checkpoint"):
            slices(view, options_of(view), read, latest)
        assert slices(careless, options_of(view, failOnDataLoss="false"), read, latest), "read again, as was asked for"
        [came] = view.destinations(channels)[other].values()
        for check in (view.check_archived, partial(view.resolve_behind, EARLIEST)):
            with pytest.raises(Unavailable, match=f"{name} is archived from the channel where it was before"):
                check({(name, home): 5})
        view.check_archived({(name, home): 5, (name, other): came.came_at})
        careless.check_archived({(name, home): 5})
        almost = {**read, other: came.came_at}
        with pytest.raises(Unavailable, match=f"came from another one {name} with log entry {came.came_at}"):
            reach(view, options_of(view), almost, latest, is_limited=False)
        for bound in (EARLIEST, Bound("numbers", numbers={other: came.came_at})):
            anew = start_of(view, bound)
            assert len(slices(view, options_of(view), anew, end_of(view, LATEST))) == 1, "a new stream begins there"
            end = reach(view, options_of(view, maxMessagesPerTrigger="1"), anew, latest, is_limited=True)
            assert channels_of(end)[other] > came.came_at
            assert reach(view, options_of(view), end, latest, is_limited=False) == end
        assert reach(view, options_of(view), latest, view.resolve(LATEST), is_limited=False) == latest
    finally:
        view.close()
        careless.close()


def test_what_was_consolidated_is_not_continued_on_another_channel(cluster, connection, send, tmp_path):
    name = "topic:emigrant"
    connection.destinations.create(name, retain=3600)
    send(name, "a", key="k")
    view = ClusterView(source_options({"url": cluster.url, "destination": name, "timeout": "30"}))
    try:
        channels = view.channels()
        [home] = [channel for channel, found in view.destinations(channels).items() if found]
    finally:
        view.close()
    made = Checkpoint(destination=name, channel=home, terminal=1, messages=0, keys=0, hash="")
    manifest = Checkpoints(tmp_path, name).folder / "through=1" / "checkpoint.json"
    manifest.parent.mkdir(parents=True)
    manifest.write_bytes(msgspec.json.encode(made))
    around = Surroundings(None, cluster.url, None, print)  # it is refused before anything is read
    [other] = set(channels) - {home}
    for channel in (other, home):
        connection.destinations.move(name, channel)
        with pytest.raises(Misuse, match=f"moved since, now to {channel}, .*; consolidate it into a new folder"):
            run_consolidate(around, tmp_path, name)
