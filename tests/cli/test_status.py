"""What `alphorn status` and `alphorn destinations list` show to people, on terminals of any width and without one."""

import json
import re
from typing import Any

import pytest

from alphorn.cli import status, tables, talking
from alphorn.cli.status import add_rates
from alphorn.model.errors import InvalidDestination
from alphorn.model.status_pages import client_manager_row
from tests.cli.commands import run
from tests.cli.fake_cluster import FakeCluster


def node(name: str, role: str = "backup", **fields: object) -> dict[str, object]:
    """A Message Manager, with more fields than anybody wants to read."""
    found: dict[str, object] = {
        "name": name,
        "kind": "message_manager",
        "pid": 4711,
        "address": "127.0.0.1:7740",
        "channel": "channel-1",
        "role": role,
        "rank": 1,
        "epoch": 3,
        "lag": 387_000,
        "applied": 22,
        "read": 0,
        "store_bytes": 16_384,
        "store_bytes_max": 68_719_476_736,
        "blocked": "",
    }
    return found | fields


def destination(name: str = "queue:orders", **fields: object) -> dict[str, object]:
    found: dict[str, object] = {
        "name": name,
        "channel": "channel-1",
        "depth": 12_345,
        "held": 17,
        "consumers": 2,
        "subscriptions": 0,
        "messages": 99_999,
        "policy": {},
        "blocked": "",
        "blocked_producers": 0,
    }
    return found | fields


CHANNEL = {
    "name": "channel-1",
    "primary": "mm1",
    "epoch": 3,
    "sequence": 1234,
    "destinations": 1,
    "closed": False,
}


@pytest.fixture
def cluster(monkeypatch):
    fake = FakeCluster([])
    fake.state = {
        "nodes": [node("mm1", "primary"), node("mm2")],
        "channels": [CHANNEL],
        "destinations": [destination()],
        "readers": [],
    }
    monkeypatch.setattr(talking, "connect", fake.connect)
    return fake


@pytest.fixture
def show(cluster, capsys, monkeypatch):
    """Runs `alphorn status` on a terminal of some width, or without one; gives the lines."""

    def show(width: int = 0, **state: Any) -> list[str]:
        cluster.state |= state
        monkeypatch.setattr(tables, "is_limited", lambda: width > 0)
        monkeypatch.setenv("COLUMNS", str(width or 10))
        assert run("status") == 0
        return str(capsys.readouterr().out).splitlines()

    return show


@pytest.mark.parametrize("width", [0, 80, 120])
def test_a_table_has_its_own_columns_and_a_line_for_each_row(show, width):
    lines = show(width)
    assert lines[:4] == [
        "nodes",
        "name  role     channel        lag  clients   store  address          pid",
        "mm1   primary  channel-1  387,000           16 KiB  127.0.0.1:7740  4711",
        "mm2   backup   channel-1  387,000           16 KiB  127.0.0.1:7740  4711",
    ]
    assert "name       primary  epoch  sequence  copies  copies_wanted  destinations  closed" in lines
    assert "queue:orders  channel-1  12,345    17          2              0" in lines
    assert "readers: none" in lines
    assert not any("99,999" in line or "store_bytes" in line for line in lines)


@pytest.mark.parametrize("width", [1, 40, 64])
def test_where_a_table_does_not_fit_each_row_is_a_block_and_nothing_is_cropped(show, width):
    lines = show(width)
    assert lines[:8] == [
        "nodes",
        "name: mm1",
        "role: primary",
        "channel: channel-1",
        "lag: 387,000",
        "store: 16 KiB",
        "address: 127.0.0.1:7740",
        "pid: 4711",
    ]
    assert "name: mm2" in lines
    assert ("depth: 12,345" in lines) is (width < 50)


def test_columns_stand_closer_before_a_table_is_given_up(show):
    assert "mm2  backup  channel-1 387,000         16 KiB 127.0.0.1:7740 4711" in show(65)


def test_what_nobody_can_tell_of_a_node_is_left_blank(show):
    away = node("mm1", "unreachable", pid=None, epoch=None, lag=None, store_bytes=None)
    lines = show(120, nodes=[away, node("mm2")])
    assert lines[1].split() == [name for name in tables.COLUMNS["nodes"] if name != "queued"]
    assert lines[2].split() == ["mm1", "unreachable", "channel-1", "127.0.0.1:7740"]
    assert lines[1].rindex("pid") + 3 == lines[3].rindex("4711") + 4
    assert "role: unreachable" in show(40)


def test_a_node_that_is_away_is_red(show, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    away = [node("mm1", "unreachable", pid=None, epoch=None, lag=None)]
    for width in (40, 120):
        assert any(re.search(r"\x1b\[31munreachable\x1b", line) for line in show(width, nodes=away))


@pytest.mark.parametrize("width", [0, 40, 80])
def test_why_something_is_blocked_stands_below_in_whole(show, width):
    disk = "the disk of mm1 is full with 68719476736 bytes; it waits for consumers, or for a larger store_bytes_max"
    full = destination(blocked="queue:orders is full with 5 messages; it waits for consumers", blocked_producers=1)
    lines = show(width, nodes=[node("mm1", blocked=disk)], destinations=[full])
    assert f"mm1 is blocked: {disk}" in lines
    assert (
        "queue:orders is blocked: queue:orders is full with 5 messages; it waits for consumers; 1 producer waits"
        in lines
    )


def test_what_is_blocked_for_one_reason_is_told_once(show):
    rows = [destination(f"queue:q{number}", blocked="the disk is full", blocked_producers=number) for number in (1, 2)]
    assert "queue:q1 and 1 other are blocked: the disk is full; 3 producers wait" in show(destinations=rows)


def test_a_client_manager_tells_its_clients_and_who_has_no_role_what_it_is(show):
    rows = [client_manager_row("cm1", 815, "127.0.0.1:7700", 1_234), node("mm1", "primary", lag=0)]
    lines = show(80, nodes=rows)
    assert lines[2] == "cm1   client manager                    1,234          127.0.0.1:7700   815"
    assert lines[3] == "mm1   primary         channel-1    0           16 KiB  127.0.0.1:7740  4711"


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1_023, "1023 B"),
        (1_024, "1.0 KiB"),
        (53_248, "52 KiB"),
        (3 << 29, "1.5 GiB"),
        (1 << 60, "1048576 TiB"),
    ],
)
def test_a_store_is_told_in_the_unit_that_fits(show, size, text):
    assert f"store: {text}" in show(40, nodes=[node("mm1", store_bytes=size)])


def test_a_cluster_of_usual_addresses_and_pids_is_a_table_on_eighty_columns(show):
    rows = [node("mm1", "primary", lag=0, pid=4_194_304, address="10.0.0.11:7740"), node("mm2", "unreachable", lag=12)]
    rows.append(client_manager_row("cm1", 4_194_303, "10.0.0.11:7700", 12))
    assert show(80, nodes=rows)[1].split() == [name for name in tables.COLUMNS["nodes"] if name != "queued"]


def test_destinations_stand_in_the_order_of_their_names(show):
    lines = show(destinations=[destination("topic:a"), destination("queue:b"), destination("queue:a")])
    assert [line.split()[0] for line in lines if line.startswith(("queue:", "topic:"))] == [
        "queue:a",
        "queue:b",
        "topic:a",
    ]


@pytest.mark.parametrize(("copies", "said"), [(2, 0), (1, 1)])
def test_a_channel_with_fewer_copies_than_are_wanted_is_named(show, copies, said):
    lines = show(channels=[CHANNEL | {"copies": copies, "copies_wanted": 2}])
    sentence = "channel-1 has 1 copy of what is committed, and 2 are wanted; see to its backups"
    assert lines.count(sentence) == said


def test_destinations_are_moved_before_everybodys_eyes(show):
    assert not any(line == "moves" for line in show())
    lines = show(moves=[{"name": "queue:a", "from": "channel-1", "to": "channel-2", "stage": "copying"}])
    assert "queue:a  channel-1  channel-2  copying" in lines


@pytest.mark.parametrize(("there", "line"), [(1_000, ""), (101_234, "and 100,234 more: alphorn destinations list")])
def test_of_many_destinations_the_status_shows_the_first_and_says_how_many_more(cluster, show, there, line):
    rows = [{"name": f"queue:q{number}"} for number in range(1_000)]
    channels = [{"name": "channel-1", "destinations": there - 1}, {"name": "channel-2", "destinations": 1}]
    printed = show(nodes=[], channels=channels, destinations=rows)
    assert ("status", 1_000) in cluster.log
    assert [text for text in printed if "more" in text] == [line] * bool(line)
    assert run("status", "--json") == 0
    assert ("status", None) in cluster.log


def test_nodes_stand_in_the_order_of_their_names_whoever_was_heard_first(show):
    lines = show(nodes=[node(name) for name in ("mm10", "cm2", "mm9", "cm1", "mm1")])
    assert [line.split()[0] for line in lines[2:7]] == ["cm1", "cm2", "mm1", "mm9", "mm10"]


def test_rates_come_from_two_looks() -> None:
    queue = destination("queue:q", messages=100, depth=10)
    before = [queue, destination("topic:t", messages=5), destination("queue:p")]
    rows = [
        destination("queue:q", messages=150, depth=40),
        destination("topic:t", messages=6),
        destination("queue:p", messages=3),  # deleted and made anew
        destination("queue:new"),
    ]
    add_rates(before, rows, 2.0)
    assert [(row.get("in_per_s"), row.get("out_per_s")) for row in rows] == [
        (25.0, 10.0),
        (0.5, None),
        (None, None),
        (None, None),
    ]


def test_rates_are_shown_where_they_are_asked_for(cluster, capsys, monkeypatch):
    waited: list[float] = []
    monkeypatch.setattr(status.time, "sleep", waited.append)
    monkeypatch.setattr(status.time, "monotonic", iter([1.0, 3.0]).__next__)
    looks = iter([12_345, 12_365])
    monkeypatch.setattr(
        cluster, "status", lambda **_: {"lost": [], "destinations": [destination(messages=next(looks))]}
    )
    assert run("status", "--rates", "2") == 0
    assert waited == [2.0]
    printed = capsys.readouterr().out
    assert "subscriptions  in_per_s  out_per_s" in printed
    assert re.search(r"queue:orders +channel-1 .* 10\.0 +10\.0", printed)


LOST = {"nodes": [node("mm1", "primary"), node("mm3", "unreachable", channel="channel-2")]}


def test_a_channel_without_a_primary_is_named(show):
    assert "no primary" not in "".join(show())
    assert show(**LOST)[-1] == "channel-2 has no primary now, and its destinations are not known"


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        ("destinations list", "queue:orders"),
        ("destinations list --json", '"queue:orders"'),
        ("dlq list", "dead messages: none"),
        ("dlq list --json", ""),
        ("dlq redrive", ""),
        ("dlq redrive --json", ""),
    ],
)
def test_what_is_told_without_a_channel_that_cannot_be_asked_is_no_success(cluster, capsys, arguments, printed):
    cluster.state |= LOST
    assert run(*arguments.split()) == 1
    captured = capsys.readouterr()
    assert printed in captured.out
    assert "there are no dead messages" not in captured.out
    assert captured.out.count("this is not all") == ("--json" in arguments)
    assert captured.err == "alphorn: this is not all: channel-2 has no primary now; try again soon\n"


def test_the_dead_messages_of_the_other_channels_are_sent_back_where_one_cannot_be_asked(cluster, capsys):
    cluster.destinations = cluster
    cluster.redrive = lambda name: cluster.log.append(name) or 7
    cluster.state |= LOST | {"destinations": [destination("queue:_DMQ")]}
    assert run("dlq", "redrive") == 1
    assert "queue:_DMQ@channel-1" in cluster.log
    captured = capsys.readouterr()
    assert captured.out == "queue:_DMQ@channel-1: 7 messages were sent back where they died\n"
    assert "this is not all" in captured.err


def test_the_dead_messages_of_the_other_channels_are_sent_back_where_those_of_one_cannot_be(cluster, capsys):
    def redrive(name: str) -> int:
        if name.endswith("@channel-1"):
            raise InvalidDestination("0 messages went back, and 2 stay in queue:_DMQ")
        return 3

    cluster.destinations = cluster
    cluster.redrive = redrive
    rows = [destination("queue:_DMQ", channel=channel) for channel in ("channel-1", "channel-2")]
    cluster.state |= {"destinations": rows}
    assert run("dlq", "redrive", "--json") == 1
    told, error = map(json.loads, capsys.readouterr().out.splitlines())
    assert told == {"queues": ["queue:_DMQ@channel-2"], "messages": 3, "counts": {"queue:_DMQ@channel-2": 3}}
    assert error == {"error": "InvalidDestination", "reason": "0 messages went back, and 2 stay in queue:_DMQ"}


@pytest.mark.requirement("DMQ-1")
@pytest.mark.parametrize("name", ["queue:_DMQ", "_DMQ"])
def test_the_dead_messages_of_all_channels_are_let_go_of_by_the_one_name(cluster, capsys, name):
    counts = {"queue:_DMQ@channel-1": 2, "queue:_DMQ@channel-2": 3}
    cluster.destinations = cluster
    cluster.purge = counts.__getitem__
    cluster.state |= {
        "destinations": [destination("queue:_DMQ", channel=channel) for channel in ("channel-1", "channel-2")]
    }
    assert run("dlq", "purge", name, "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"queues": list(counts), "messages": 5, "counts": counts}
    assert run("dlq", "purge", f"{name}@channel-2", "--json") == 0
    assert json.loads(capsys.readouterr().out)["counts"] == {"queue:_DMQ@channel-2": 3}


def test_what_belongs_to_the_system_is_shown_as_one_with_the_figures_of_all_channels(cluster, capsys):
    rows = [destination("queue:_DMQ", channel=channel, depth=depth) for channel, depth in (("one", 2), ("two", 3))]
    cluster.state |= {"destinations": rows}
    assert run("destinations", "show", "queue:_DMQ", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["depth"], shown["consumers"], shown["channel"]) == (5, 4, "one, two")
    assert run("destinations", "show", "queue:_DMQ@two", "--json") == 0
    assert json.loads(capsys.readouterr().out)["depth"] == 3


def test_what_belongs_to_the_system_is_not_shown_where_a_channel_cannot_be_asked(cluster, capsys):
    cluster.state |= LOST | {"destinations": [destination("queue:_DMQ")]}
    assert run("destinations", "show", "queue:_DMQ") == 1
    assert "what there is of queue:_DMQ cannot be told: channel-2 has no primary now" in capsys.readouterr().err
    assert run("destinations", "show", "queue:_DMQ@channel-1") == 0


@pytest.mark.parametrize("action", ["list", "redrive", "purge"])
def test_a_queue_is_not_said_to_be_for_no_dead_messages_while_a_channel_cannot_be_asked(cluster, capsys, action):
    cluster.state |= LOST
    assert run("dlq", action, "cemetery") == 1
    sentence = "what queue:cemetery is for cannot be told: channel-2 has no primary now; try again soon"
    assert capsys.readouterr().err == f"alphorn: {sentence}\n"
