"""Readers of the log, over real sockets: whoever helps is asked, and nothing is taken on trust."""

from collections.abc import Iterator

import msgspec
import pytest

from alphorn.client.log_reader import LogReader, LostMessages, entry
from alphorn.model import frame_kinds, log_link
from alphorn.model.errors import Corruption, Unavailable
from tests.client.replicas import Log, Replica

PATIENCE_S = 30.0


class Group:
    """A primary, two backups, and a reader."""

    def __init__(self) -> None:
        self.log = Log()
        for number in range(20):
            self.log.publish(f"a{number}", f"b{number}")
        names = ("primary", "first", "second")
        self.primary, self.first, self.second = (
            Replica(self.log, name, is_primary=name == "primary") for name in names
        )
        self.all = [self.primary, self.first, self.second]
        self.readers: list[LogReader] = []

    def reader(self, *, timeout_s: float = PATIENCE_S, **options) -> LogReader:
        servers = [(replica.name, replica.address) for replica in self.all]
        made = LogReader("main", servers, timeout_s=timeout_s, **options)
        self.readers.append(made)
        return made

    def read(self, reader: LogReader, first: int = 1, *, bytes_max: int = 1) -> list[str]:
        end = entry(len(self.log.entries) + 1)
        return [body for group in reader.scan([1], entry(first), end, bytes_max=bytes_max) for body in bodies(group)]


def bodies(group: list[log_link.ScannedBatch]) -> list[str]:
    return [message[0] for batch in group for message in msgspec.msgpack.decode(batch.blob)]


EVERYTHING = [f"{letter}{number}" for number in range(20) for letter in "ab"]


@pytest.fixture
def group() -> Iterator[Group]:
    made = Group()
    yield made
    for reader in made.readers:
        reader.close()
    for replica in made.all:
        replica.close()


def test_everything_is_read_in_order_from_a_backup(group: Group) -> None:
    assert group.read(group.reader()) == EVERYTHING
    assert group.primary.asked == []


def test_backups_alone_are_asked_where_that_is_wanted(group: Group) -> None:
    group.first.change = group.second.change = lambda told: None
    with pytest.raises(Unavailable, match=r"no backup of channel main .* primary \(is the primary\).*readFrom=any"):
        group.read(group.reader(read_from="backup", timeout_s=1.0))  # time to hear who is the primary
    assert group.primary.asked == []


def test_the_primary_alone_is_asked_where_that_is_wanted(group: Group) -> None:
    assert group.read(group.reader(read_from="primary")) == EVERYTHING
    assert group.first.asked == group.second.asked == []


def test_a_primary_helps_where_no_backup_does(group: Group) -> None:
    group.first.change = group.second.change = lambda told: None
    assert group.read(group.reader()) == EVERYTHING


def test_reading_goes_on_elsewhere_when_a_connection_is_lost(group: Group) -> None:
    reader = group.reader()
    found: list[str] = []
    for batches in reader.scan([1], entry(1), entry(22), bytes_max=1):
        found += bodies(batches)
        group.first.cut()
    assert found == EVERYTHING


def test_one_that_says_nothing_is_left_for_another(group: Group) -> None:
    group.first.is_silent = True
    assert group.read(group.reader(timeout_s=2.0), bytes_max=1 << 20) == EVERYTHING


def test_one_that_is_behind_is_left_for_another(group: Group) -> None:
    group.log.publish("new")
    group.second.apply()
    assert group.read(group.reader()) == [*EVERYTHING, "new"]
    surveyed = group.reader().survey(["topic:t"], applied=len(group.log.entries))
    assert surveyed.applied == len(group.log.entries)


def test_bytes_that_changed_on_the_way_are_read_elsewhere(group: Group) -> None:
    def damage(told: frame_kinds.Told) -> frame_kinds.Told:
        if isinstance(told, log_link.Scanned) and told.batches:
            first = msgspec.structs.replace(told.batches[0], digest=told.batches[0].digest ^ 1)
            return msgspec.structs.replace(told, batches=[first, *told.batches[1:]])
        return told

    group.first.change = damage
    assert group.read(group.reader()) == EVERYTHING
    assert group.second.asked


@pytest.mark.parametrize("wrong", ["twice", "elsewhere"])
def test_messages_that_cannot_be_there_are_refused(group: Group, wrong: str) -> None:
    def mistake(told: frame_kinds.Told) -> frame_kinds.Told:
        assert isinstance(told, log_link.Scanned)
        one = told.batches[0]
        other = one if wrong == "twice" else msgspec.structs.replace(one, arrival=told.next[0] + 5)
        return msgspec.structs.replace(told, batches=[*told.batches, other])

    for replica in group.all:
        replica.change = mistake
    with pytest.raises(Corruption, match="out of order"):
        group.read(group.reader(), bytes_max=1 << 20)


def test_what_is_kept_no_more_is_said_exactly(group: Group) -> None:
    def outgrow(told: frame_kinds.Told) -> frame_kinds.Told:
        return msgspec.structs.replace(told, kept_from=7)

    for replica in group.all:
        replica.change = outgrow
    with pytest.raises(LostMessages, match="log entries 3 to 6,"):
        group.read(group.reader(), 3)
    assert len(group.read(group.reader(requires_all=False), 3)) == 38
    assert len(group.read(group.reader(), 7)) == 30
    with pytest.raises(LostMessages, match="log entries 3 to 6,"):
        list(group.reader().scan([1], entry(3), entry(22), missed_before=6))
    known = group.reader().scan([1], entry(3), entry(22), missed_before=7)
    assert sum(len(bodies(batches)) for batches in known) == 38, "what was known to be missing is no loss"


def test_a_reader_has_a_deadline(group: Group) -> None:
    reader = group.reader(timeout_s=0.2)
    for replica in group.all:
        replica.close()
    group.all.clear()
    with pytest.raises(Unavailable, match=r"no Message Manager of channel main .* within 0.2 s: first \("):
        reader.survey(["topic:t"])


def test_amounts_add_up(group: Group) -> None:
    measured = list(group.reader().measure([1], entry(1), entry(22), messages_step=10))
    assert [amount.messages for amount in measured] == [10, 10, 10, 10]
    assert measured[-1].end == entry(22)


def test_a_time_is_found(group: Group) -> None:
    reader = group.reader()
    assert (reader.search([1], 1_000), reader.search([1], 1_001)) == (2, 22)
