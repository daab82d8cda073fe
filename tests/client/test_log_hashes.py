"""Every replica is asked for the hash of what it keeps, over real sockets."""

from collections.abc import Iterator

import msgspec
import pytest

from alphorn.client.log_hashes import LogHash, hash_replicas
from alphorn.client.log_reader import entry
from alphorn.message_manager import reading
from alphorn.model import log_link
from alphorn.model.commands import Entry, Publish
from tests.client.replicas import Log, Replica

PATIENCE_S = 30.0
END = entry(22)


@pytest.fixture
def log() -> Log:
    made = Log()
    for number in range(20):
        made.publish(f"a{number}", f"b{number}")
    return made


@pytest.fixture
def replicas(log: Log) -> Iterator[list[Replica]]:
    made = [Replica(log, "first", is_primary=True), Replica(log, "second")]
    yield made
    for replica in made:
        replica.close()


def ask(replicas: list[Replica]) -> tuple[dict[str, LogHash], dict[str, str]]:
    servers = [(replica.name, replica.address) for replica in replicas]
    return hash_replicas(servers, 1, entry(1), END, timeout_s=PATIENCE_S)


def test_all_replicas_find_the_same_in_as_many_answers_as_it_takes(
    replicas: list[Replica], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, reasons = ask(replicas)
    assert (found["first"], reasons) == (found["second"], {})
    assert found["first"].messages == 40
    monkeypatch.setattr(reading, "HASHED_BYTES_MAX", 1)
    assert ask(replicas) == (found, {})
    assert len(replicas[1].asked) == 1 + 20


def test_a_replica_whose_stored_entry_differs_finds_another_hash(replicas: list[Replica]) -> None:
    other = Log()
    for number in range(20):
        other.publish(f"a{number}", f"b{number}" if number != 13 else "bXX")
    replicas.append(Replica(other, "third"))
    found, reasons = ask(replicas)
    assert reasons == {}
    assert found["third"].messages == found["first"].messages
    assert found["third"].hash != found["first"].hash


def test_a_replica_that_is_behind_says_nothing(log: Log, replicas: list[Replica]) -> None:
    replicas.append(Replica(log, "third", applies=15))
    found, reasons = ask(replicas)
    assert sorted(found) == ["first", "second"]
    assert reasons == {"third": "it has not come to log entry 16, or cannot read what it keeps there"}


def test_one_that_is_gone_and_one_that_says_something_else_are_named(replicas: list[Replica]) -> None:
    replicas[0].change = lambda told: log_link.Searched(told.request, 1, True)  # type: ignore[attr-defined]
    replicas[1].change = lambda told: None
    found, reasons = ask(replicas)
    assert found == {}
    assert reasons["first"] == "it answered with something else"
    assert reasons["second"] == "the Message Manager closed the connection"


def test_producers_and_times_are_in_the_hash_as_bodies_are(log: Log, replicas: list[Replica]) -> None:
    other = Log()
    other.entries[1:] = [_later(one) for one in log.entries[1:]]
    replicas.append(Replica(other, "third"))
    found, _ = ask(replicas)
    assert found["third"].hash != found["first"].hash


def _later(one: Entry) -> Entry:
    [publish] = one.commands
    assert isinstance(publish, Publish)
    return Entry([msgspec.structs.replace(publish, timestamp=publish.timestamp + 1)])
