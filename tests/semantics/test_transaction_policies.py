"""Who must have a transaction before it counts: the primary alone, one backup as well, or every backup."""

import threading

import pytest

import alphorn.testing
from alphorn.testing.spreading import spread
from tests.semantics.waiting import WAIT_S, bodies

pytestmark = pytest.mark.processes

AWAY_S = 1.5  # above the time after which a lost backup is not waited for, where that is allowed


def commit_without_a_backup(cluster, *, waits):
    """A transaction while one backup is away, which `waits` for that or must not; gives what came of it."""
    backup = next(name for name in cluster.message_managers if name != cluster.primary())
    cluster.kill(backup)
    done = threading.Event()
    with cluster.connect() as connection:
        session = connection.session(transacted=True)
        session.producer("queue:q").send("x")

        def commit():
            session.commit()
            done.set()

        worker = threading.Thread(target=commit)
        worker.start()
        assert done.wait(AWAY_S if waits else WAIT_S) is not waits
        cluster.restart(backup)
        assert done.wait(WAIT_S)
        worker.join()
        return bodies(connection.session().browser("queue:q"))


@pytest.mark.requirement("TX-14")
@pytest.mark.parametrize(
    ("policy", "backups", "waits"),
    [("optimistic", 1, False), ("optimum", 1, True), ("optimum", 2, False), ("conservative", 2, True)],
)
def test_a_transaction_waits_for_as_many_backups_as_the_policy_says(policy, backups, waits):
    with alphorn.testing.cluster(backups=backups, backup_policy=policy) as cluster:
        with cluster.connect() as connection:
            connection.session().producer("queue:q").close()  # so that it exists
        assert commit_without_a_backup(cluster, waits=waits) == ["x"]


@pytest.mark.requirement("TX-6", "TX-8", "TX-10")
def test_channels_that_are_not_involved_can_be_asked_to_prepare_too():
    with alphorn.testing.cluster(channels=3, backups=0, prepare="all") as cluster, cluster.connect() as connection:
        session = connection.session(transacted=True)
        producer = session.producer()
        queues = spread("queue:q", 2, 3)
        for queue in queues:
            producer.send("x", destination=queue)
        session.commit()
        found = [bodies(connection.session().browser(queue)) for queue in queues]
        assert found == [["x"], ["x"]]
