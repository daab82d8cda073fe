"""Load that is spread is shared: each node has its part of the work, and nobody waits for another's."""

import signal

import pytest

import alphorn
import alphorn.testing
from alphorn.testing.clusters import Cluster
from alphorn.testing.spreading import spread
from tests.semantics.waiting import until

pytestmark = pytest.mark.processes

WAIT_S = 60.0  # only a cluster that hangs meets it
MESSAGES = 400  # many beside the ten entries a second of a primary's clock, also where one of them stands still
CHANNELS = ("channel-1", "channel-2")


def applied(running: Cluster) -> dict[str, int]:
    """Log entries that the primary of each channel has applied: one for each message that is waited for."""

    def look() -> dict[str, int]:
        nodes = running.status()["nodes"]
        return {str(node["channel"]): int(node["applied"]) for node in nodes if node.get("role") == "primary"}

    return until(look, lambda found: set(found) == set(CHANNELS))


def send(running: Cluster, names: list[str]) -> dict[str, int]:
    """Sends one message after the other; gives the entries that this cost each channel."""
    before = applied(running)
    with running.connect() as connection:
        producers = [connection.session().producer(name) for name in names]
        for number in range(MESSAGES):
            producers[number % len(producers)].send(number, wait=True)
    after = applied(running)
    return {channel: after[channel] - before[channel] for channel in CHANNELS}


def at(running: Cluster, name: str) -> str:
    """The address of one Client Manager alone."""
    [address] = [node["address"] for node in running.status()["nodes"] if node["name"] == name]
    return f"alphorn://{address}"


@pytest.mark.requirement("HA-22")
def test_destinations_on_two_channels_halve_the_work_of_the_busiest_primary():
    """Entries are counted, not seconds, because all nodes share the cores of one machine here.

    A primary's clock adds ten entries a second to each channel, so a slow machine counts some more on both.
    """
    with alphorn.testing.cluster(channels=2) as running:
        here = spread("queue:here", 3, 2)
        together = send(running, [here[0], here[2]])
        apart = send(running, spread("queue:there", 2, 2))
    assert together["channel-1"] >= MESSAGES
    clock = together["channel-2"]
    assert together["channel-1"] - clock >= MESSAGES * 0.9
    assert max(apart.values()) - min(apart.values()) <= MESSAGES * 0.2
    assert sum(apart.values()) >= MESSAGES


@pytest.mark.requirement("HA-22")
def test_clients_of_other_channels_and_client_managers_go_on_while_some_stand_still():
    """Goal: independent clients run in parallel. Method: everybody that only the others need is frozen meanwhile."""
    mine, others = spread("queue:parallel", 2, 2)
    with (
        alphorn.testing.cluster(channels=2, client_managers=3) as running,
        alphorn.connect(at(running, "cm1")) as connection,
        alphorn.connect(at(running, "cm2")) as other,
        alphorn.connect(at(running, "cm3")) as third,
    ):
        producer, waiting = connection.session().producer(mine), other.session().producer(others)
        consumer = connection.session().consumer(mine)
        for each in (producer, waiting, third.session().producer(mine)):
            each.send("first", wait=True)
        nodes = running.status()["nodes"]
        frozen = [node["name"] for node in nodes if node["channel"] == "channel-2"] + ["cm3"]
        try:
            for name in frozen:
                running.kill(name, signal.SIGSTOP)
            late = waiting.send("late")
            for number in range(MESSAGES):
                producer.send(number, wait=True)
            received = []
            while len(received) < MESSAGES + 2:
                part = consumer.receive_many(MESSAGES, WAIT_S)
                assert part
                received += [message.body for message in part]
            assert received == ["first", "first", *range(MESSAGES)]
            assert not late.is_done
        finally:
            for name in frozen:
                running.kill(name, signal.SIGCONT)
        late.result(WAIT_S)
