"""A Client Manager stands still with a command in its hand, until its clients have gone on elsewhere, and wakes."""

import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

import alphorn
import alphorn.testing
from alphorn.io.crash_points import PURGE_HANDED
from alphorn.testing.clusters import Cluster
from tests.semantics.waiting import WAIT_S, bodies, send, take

pytestmark = pytest.mark.processes

ELSEWHERE_S = 4 * WAIT_S  # until a client leaves one who says nothing, and has its answer from another


def serving(running: Cluster) -> list[str]:
    """The Client Managers that have a client."""
    described: dict[str, Any] = {name: running.describe(name)[name] for name in running.client_managers}
    return [name for name, each in described.items() if each["client_manager"]["connections"]]


def door_of(running: Cluster, name: str) -> str:
    hosts = running.url.partition("://")[2].split(",")
    return f"alphorn://{hosts[running.client_managers.index(name)]}"


def stand_still(running: Cluster, act: Callable[[], object]) -> str:
    """The only client does something, and its Client Manager stops when it has handed that to its member of the group.

    Gives its name when the client has gone on elsewhere and has its answer.
    """
    [struck] = serving(running)
    running.die_at(struck, PURGE_HANDED)
    acting = threading.Thread(target=act)
    acting.start()
    acting.join(ELSEWHERE_S)
    assert not acting.is_alive()
    return struck


@pytest.mark.parametrize("together", [False, True], ids=["apart", "together"])
@pytest.mark.requirement("API-10", "CM-6")
def test_what_a_client_manager_had_in_hand_when_it_was_given_up_is_not_done_when_it_wakes(together):
    with (
        alphorn.testing.cluster(client_managers=2, backups=1, together=together) as running,
        running.connect() as connection,
    ):
        session = connection.session()
        send(session, "queue:q", ["old"])
        struck = stand_still(running, lambda: connection.destinations.purge("queue:q"))
        send(session, "queue:q", ["new"])
        running.kill(struck, signal.SIGCONT)
        with alphorn.connect(door_of(running, struck), connect_timeout=WAIT_S) as other:
            passing = other.session()
            send(passing, "queue:passing", range(20))  # behind whatever it had in hand
            assert bodies(take(passing.consumer("queue:passing"), 20)) == list(range(20))
            assert bodies(passing.browser("queue:q")) == ["new"]
        assert bodies(take(session.consumer("queue:q"), 1)) == ["new"]
