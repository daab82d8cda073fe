"""One connection at a time has a client id; a program that is started again goes on where it was killed."""

import subprocess
import sys

import pytest

import alphorn
from tests.semantics.waiting import bodies, send, take

pytestmark = pytest.mark.processes

PROGRAM = """
import sys, alphorn
url, topic = sys.argv[1:]
connection = alphorn.connect(url, client_id=topic)
consumer = connection.session(ack="client").consumer(topic, subscription="news")
print("ready", flush=True)
print(consumer.receive(timeout=30).body, flush=True)
sys.stdin.read()
"""


def test_a_client_id_is_refused_while_another_connection_has_it_and_free_after_that(connect, door, topic):
    first = connect(door, client_id=topic)
    for _ in range(2):
        with pytest.raises(alphorn.Misuse, match=r"client id .* is in use by another connection; close that"):
            connect(client_id=topic)
    consumer = first.session().consumer(topic, subscription="news")
    send(first.session(), topic, ["the first goes on"])
    assert bodies(take(consumer, 1)) == ["the first goes on"]
    first.close()
    connect(client_id=topic).close()


def test_a_program_that_was_killed_takes_its_durable_subscription_over_when_it_starts_again(cluster, connect, topic):
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, cluster.url, topic], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with program:
        assert program.stdout.readline() == "ready\n"
        sender = connect().session()
        send(sender, topic, ["one"])
        assert program.stdout.readline() == "one\n"
        program.kill()
    again = connect(client_id=topic).session(ack="client")
    [message] = take(again.consumer(topic, subscription="news"), 1)
    assert (message.body, message.delivery_count) == ("one", 2)
