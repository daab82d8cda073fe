"""Clients that ask for all they can: others are served between what these want."""

from threading import Thread
from typing import Any

import pytest

import alphorn.testing
from alphorn.doors import native
from alphorn.model.conversation import Resolve, Resolved, Status, StatusAnswer
from tests.semantics.raw_client import RawClient
from tests.semantics.waiting import WAIT_S, until

pytestmark = pytest.mark.processes

NAMES = 30_000
LOOKS = 1_000


class Flood:
    """Says very much at once on a connection of its own, and hears what is answered."""

    def __init__(self, client: RawClient, frames: list[Any]) -> None:
        self._client = client
        self._data = b"".join(map(native.encode, frames))
        self.count = len(frames)
        self.answers: list[Any] = []
        self._threads = [Thread(target=client.write, args=(self._data,)), Thread(target=self._hear)]

    def begin(self) -> None:
        self._client.hello()
        for thread in self._threads:
            thread.start()
        until(lambda: self.answers)

    def _hear(self) -> None:
        while len(self.answers) < self.count:
            self.answers.append(self._client.next_frame())

    def end(self) -> None:
        for thread in self._threads:
            thread.join(6 * WAIT_S)
            assert not thread.is_alive(), f"{len(self.answers)} of {self.count} requests were answered"


def test_who_asks_for_very_many_names_keeps_no_message_of_another_waiting_for_all_of_them():
    with alphorn.testing.cluster() as cluster, cluster.connect() as connection, RawClient(cluster.url) as client:
        producer = connection.session().producer("queue:calm")
        producer.send("before", wait=True)
        flood = Flood(client, [Resolve(number, f"queue:{number}") for number in range(1, NAMES + 1)])
        flood.begin()
        for number in range(8):
            producer.send(number, wait=True)
        answered = len(flood.answers)
        flood.end()
        assert answered < NAMES // 2
        assert all(isinstance(answer, Resolved) for answer in flood.answers)


def test_who_looks_over_and_over_keeps_no_look_of_another_waiting_for_all_of_them():
    with alphorn.testing.cluster() as cluster, cluster.connect() as connection, RawClient(cluster.url) as client:
        flood = Flood(client, [Status(number) for number in range(1, LOOKS + 1)])
        flood.begin()
        connection.status()
        answered = len(flood.answers)
        flood.end()
        assert answered < LOOKS // 2
        assert all(isinstance(answer, StatusAnswer) for answer in flood.answers)
