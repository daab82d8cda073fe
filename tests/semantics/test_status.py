"""What `connection.status()` tells of clients and of what they hold."""

import pytest

from tests.semantics.waiting import send, take, until

MANY = 30  # connections: more than other tests have left behind a moment ago


def row_of(connection, name):
    return next((row for row in connection.status()["destinations"] if row["name"] == name), None)


def test_what_a_consumer_holds_is_told_beside_the_depth(connection, queue):
    with connection.session(ack="individual") as session:
        send(session, queue, range(5))
        consumer = session.consumer(queue, prefetch=3)
        messages = take(consumer, 3)
        until(lambda: row_of(connection, queue), lambda row: (row["depth"], row["held"]) == (5, 3))
        for message in messages:
            message.acknowledge()
        until(lambda: row_of(connection, queue), lambda row: (row["depth"], row["held"]) == (2, 2))
    until(lambda: row_of(connection, queue), lambda row: (row["depth"], row["held"]) == (2, 0))


@pytest.mark.cluster_only
@pytest.mark.parametrize("name", ["cm1", "cm2"])
def test_each_client_manager_tells_how_many_connections_it_has(cluster, connect, connection, name):
    url = cluster.url.partition("://")[2].split(",")[int(name[-1]) - 1]

    def connections():
        return next(node["connections"] for node in connection.status()["nodes"] if node["name"] == name)

    others = [connect(f"alphorn://{url}") for _ in range(MANY)]
    until(connections, lambda count: count >= MANY)
    for other in others:
        other.close()
    until(connections, lambda count: count < MANY)
