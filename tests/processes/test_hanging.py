"""A Client Manager that hangs while its client waits for an answer: what was asked is done once, by another one."""

import signal

import pytest

import alphorn.client.silence
import alphorn.testing
from alphorn.client_manager.hanging import HUNG_S
from tests.semantics.waiting import WAIT_S

pytestmark = pytest.mark.processes


@pytest.mark.requirement("CM-6", "API-10", "API-11")
def test_a_client_manager_that_wakes_up_does_not_purge_what_was_confirmed_since_its_client_left(monkeypatch):
    monkeypatch.setattr(alphorn.client.silence, "DEAD_AFTER_S", HUNG_S + 2.0)  # what the test waits for
    with alphorn.testing.cluster(client_managers=2) as cluster:
        first, _ = cluster.url.removeprefix("alphorn://").split(",")
        with alphorn.connect(f"alphorn://{first}") as connection:
            producer = connection.session().producer("queue:q")
            producer.send_many(range(3)).result(WAIT_S)
            cluster.kill("cm1", signal.SIGSTOP)
            assert connection.destinations.purge("queue:q") == 3, "by the other one, when this one has been silent long"
            producer.send_many(["confirmed"] * 5).result(WAIT_S)
            cluster.kill("cm1", signal.SIGCONT)
            with alphorn.connect(f"alphorn://{first}", connect_timeout=WAIT_S) as other:
                # It is welcome after all that lay in the streams before, and what it sends comes after that.
                other.session().producer("queue:q").send("last", wait=True)
                assert [message.body for message in other.session().browser("queue:q")] == ["confirmed"] * 5 + ["last"]
