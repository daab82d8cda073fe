"""Many destinations on real nodes: checkpoints taken in slices while messages come and go, and lists in pages."""

import shutil
from typing import Any, cast

import pytest

import alphorn
import alphorn.testing
from alphorn.model.link import PAGE_ROWS
from tests.semantics.waiting import until

pytestmark = pytest.mark.processes

DEADLINE_S = 120
DESTINATIONS = 500
INTERVAL = 64


def depths(running: alphorn.testing.Cluster) -> dict[str, int]:
    found = running.status()["destinations"]
    return {each["name"]: each["depth"] for each in found if each["name"].startswith("queue:many.")}


def bus_of(running: alphorn.testing.Cluster, name: str) -> Any:
    """What a node knows of its log and its checkpoints, which are written beside the traffic."""
    return cast(Any, running.describe(name))[name]["bus"]


def consume(session: alphorn.Session, names: list[str]) -> None:
    for name in names:
        with session.consumer(name) as consumer:
            message = consumer.receive(DEADLINE_S)
            assert message is not None
            assert message.body == name


@pytest.mark.requirement("HA-12", "HA-13")
def test_a_backup_that_begins_with_a_checkpoint_taken_in_slices_has_everything():
    names = [f"queue:many.{number}" for number in range(DESTINATIONS)]
    early, late = names[: 2 * INTERVAL], names[-20:]
    with alphorn.testing.cluster(checkpoint_interval=INTERVAL) as running, running.connect() as connection:
        session = connection.session()
        producer = session.producer()
        for name in names:
            producer.send(name, destination=name)
        producer.flush(DEADLINE_S)
        primary = running.primary()
        [backup] = [name for name in running.message_managers if name != primary]
        until(lambda: bus_of(running, primary)["checkpoints"], lambda taken: taken["slices"] > taken["taken"] > 0)
        running.kill(backup)
        shutil.rmtree(running.directory / backup / "log")
        consume(session, early)  # more than one checkpoint's worth, so that the log is collected
        until(lambda: bus_of(running, primary)["store"]["first"] > 1)
        running.restart(backup)
        running.wait_in_sync()
        until(lambda: bus_of(running, backup)["store"]["checkpoint"] > 0)
        running.wait_in_sync()
        running.kill(primary)
        consume(session, late)
        expected = dict.fromkeys(names, 1) | dict.fromkeys([*early, *late], 0)
        until(lambda: depths(running), lambda found: found == expected)


def test_more_destinations_than_a_page_has_are_listed_whole_from_all_channels_and_after_a_takeover():
    names = [f"queue:many.{number}" for number in range(PAGE_ROWS + 200)]
    with alphorn.testing.cluster(channels=2) as running, running.connect() as connection:
        session = connection.session()
        producer = session.producer()
        for name in names:
            producer.send(name, destination=name)
        producer.flush(DEADLINE_S)
        every = {f"channel-{number}" for number in (1, 2)}
        listed = until(connection.destinations.list, lambda found: {row["channel"] for row in found} == every)
        mine = [row for row in listed if row["name"] in set(names)]
        assert sorted(row["name"] for row in mine) == sorted(names)
        assert [row["channel"] for row in mine] == sorted(row["channel"] for row in mine)
        until(lambda: depths(running), lambda found: found == dict.fromkeys(names, 1))
        state = connection.status(destinations_max=10)
        assert len(state["destinations"]) == 10
        assert sum(channel["destinations"] for channel in state["channels"]) == len(listed)
        primary = running.primary("channel-2")
        running.wait_in_sync()
        running.kill(primary)
        consume(session, [next(row["name"] for row in mine if row["channel"] == "channel-2")])
        until(lambda: [row["name"] for row in connection.destinations.list()] == [row["name"] for row in listed])
