"""Connections prove themselves on a real cluster, whichever nodes are dead by then; strangers who know an id do not."""

import queue
import secrets
from collections.abc import Iterator

import pytest

import alphorn
import alphorn.testing
from alphorn.doors import native
from alphorn.model.conversation import Goodbye, Hello, Welcome
from alphorn.testing.clusters import Cluster
from tests.semantics.raw_client import RawClient
from tests.semantics.waiting import WAIT_S, until

pytestmark = pytest.mark.processes

INTERVAL = 8  # log entries between checkpoints


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with alphorn.testing.cluster(client_managers=2) as running:
        yield running


def doors(cluster: Cluster) -> list[str]:
    """Where each Client Manager is reached, the first one first."""
    return [f"alphorn://{address}" for address in cluster.url.removeprefix("alphorn://").split(",")]


def welcome_of(door: str, **hello: object) -> Welcome:
    """What a Client Manager says to this."""
    with RawClient(door) as raw:
        return raw.hello(**hello)


def is_refused(door: str, connection: bytes, secret: bytes) -> bool:
    """Whether who says that a connection is its own is sent away."""
    with RawClient(door) as raw:
        raw.say(Hello(native.VERSION, connection=connection, resumption=9, secret=secret))
        answer = raw.next_frame()
        return isinstance(answer, Goodbye) and answer.error == "AccessDenied" and raw.next_frame() is None


@pytest.mark.requirement("API-18")
def test_a_connection_goes_on_at_another_client_manager_when_the_one_that_gave_its_secret_is_dead(cluster):
    first, second = doors(cluster)
    welcome = welcome_of(first)
    events: queue.Queue[str] = queue.Queue()
    with alphorn.connect(first, on_event=lambda name, detail: events.put(name)) as connection:
        session = connection.session()
        consumer = session.consumer("queue:q")
        session.producer("queue:q").send_many(range(5)).result(WAIT_S)
        assert consumer.receive(timeout=WAIT_S).body == 0
        cluster.kill("cm1")
        assert [consumer.receive(timeout=WAIT_S).body for _ in range(4)] == [1, 2, 3, 4]
        session.producer("queue:q").send("last", wait=True)
        assert consumer.receive(timeout=WAIT_S).body == "last"
    assert [events.get(timeout=WAIT_S) for _ in range(3)] == ["connected", "disconnected", "resumed"]
    again = welcome_of(second, connection=welcome.connection, resumption=1, secret=welcome.secret)
    assert (again.server, again.connection, again.secret) == ("cm2", welcome.connection, welcome.secret)
    assert is_refused(second, welcome.connection, secrets.token_bytes(32))


@pytest.mark.requirement("API-18")
def test_a_stranger_who_reads_the_id_off_a_message_is_refused_and_the_older_stream_goes_on(cluster):
    events: list[str] = []
    with cluster.connect(on_event=lambda name, detail: events.append(name)) as connection:
        session = connection.session()
        consumer = session.consumer("queue:q")
        session.producer("queue:q").send("seen", wait=True)
        stolen = bytes.fromhex(consumer.receive(timeout=WAIT_S).id.removeprefix("ID:")[:32])
        assert stolen.hex() == connection.id
        for door in doors(cluster):
            for secret in (b"", secrets.token_bytes(32), welcome_of(door).secret):
                assert is_refused(door, stolen, secret)
        session.producer("queue:q").send("undisturbed", wait=True)
        assert consumer.receive(timeout=WAIT_S).body == "undisturbed"
        assert events == ["connected"]


@pytest.mark.requirement("API-18")
def test_after_all_nodes_have_died_at_once_secrets_prove_what_they_proved_before():
    with alphorn.testing.cluster(client_managers=2, checkpoint_interval=INTERVAL) as cluster:
        first, second = doors(cluster)
        welcome = welcome_of(first)
        with cluster.connect() as connection:
            producer = connection.session().producer("queue:q")
            for number in range(3 * INTERVAL):  # the entry with the signet is behind a checkpoint by then
                producer.send(number, wait=True)
        cluster.kill_together(list(cluster.nodes))
        cluster.start_together(list(cluster.nodes))
        cluster.wait()
        again = welcome_of(second, connection=welcome.connection, resumption=1, secret=welcome.secret)
        assert (again.connection, again.secret) == (welcome.connection, welcome.secret)
        assert is_refused(first, welcome.connection, secrets.token_bytes(32))
        logs = until(
            lambda: [path.read_text() for path in cluster.directory.glob("*/log.jsonl")],
            lambda texts: any("resumption_refused" in text for text in texts),
        )
        assert not any(welcome.secret.hex() in text or repr(welcome.secret) in text for text in logs)
