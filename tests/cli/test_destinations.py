"""`alphorn destinations`, and patterns for `receive` and `tail`, against a real cluster."""

import json

import pytest

import alphorn
import alphorn.testing
from tests.cli.commands import run

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def url():
    with alphorn.testing.cluster(backups=0) as cluster:
        yield cluster.url


@pytest.fixture
def ask(url, capsys):
    """Runs a command at the cluster; gives its exit code, what it printed, and its complaint."""

    def ask(*arguments: str) -> tuple[int, str, str]:
        code = run(*arguments, "--url", url)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return ask


def names(printed: str) -> list[str]:
    return [row["name"] for row in json.loads(printed)]


def test_destinations_are_created_with_a_policy_shown_and_deleted(ask):
    policy = ["--policy", "delivery_limit=3", "--policy", "dead_letter=bad", "--policy", "exclusive=true"]
    assert ask("destinations", "create", "queue:made", *policy) == (0, "", "")
    code, printed, _ = ask("destinations", "show", "made", "--json")
    assert code == 0
    assert json.loads(printed)["policy"] == {"delivery_limit": 3, "dead_letter": "bad", "exclusive": True}
    assert "policy: delivery_limit  3" in ask("destinations", "show", "queue:made")[1]
    assert ask("destinations", "delete", "made") == (0, "", "")
    for action in ("create", "delete"):
        code, printed, _ = ask("destinations", action, "made", "--json")
        assert (code, json.loads(printed)) == (0, {"destination": "queue:made"})
    code, _, complaint = ask("destinations", "show", "made")
    assert (code, "there is no queue:made" in complaint) == (1, True)


def test_a_queue_is_purged_and_stays(ask):
    for _ in range(2):
        assert ask("send", "full", "x", "--count", "3")[0] == 0
        assert ask("destinations", "purge", "full") == (0, "queue:full: 3 messages were let go of\n", "")
    code, printed, _ = ask("destinations", "purge", "full", "--json")
    assert (code, json.loads(printed)) == (0, {"destination": "queue:full", "messages": 0})
    assert json.loads(ask("destinations", "show", "full", "--json")[1])["depth"] == 0
    code, _, complaint = ask("destinations", "purge", "topic:full")
    assert (code, complaint.count("\n")) == (1, 1)


def test_a_policy_is_replaced_as_a_whole(ask):
    assert ask("destinations", "create", "changed", "--policy", "delivery_limit=3")[0] == 0
    assert ask("destinations", "policy", "changed", "--policy", "ttl=5") == (0, "", "")
    assert json.loads(ask("destinations", "show", "changed", "--json")[1])["policy"] == {"ttl": 5.0}
    code, printed, _ = ask("destinations", "policy", "changed", "--none", "--json")
    assert (code, json.loads(printed)) == (0, {"destination": "queue:changed"})
    assert json.loads(ask("destinations", "show", "changed", "--json")[1])["policy"] == {}
    for wrong in ((), ("--none", "--policy", "ttl=5")):
        code, _, complaint = ask("destinations", "policy", "changed", *wrong)
        assert (code, "give one of them" in complaint) == (1, True)


def bury(url: str, *bodies: str) -> None:
    """Lets messages die in queue:deadly."""
    with alphorn.connect(url) as connection:
        session = connection.session(ack="individual")
        connection.session().producer("queue:deadly").send_many(bodies, wait=True)
        consumer = session.consumer("queue:deadly")
        for _ in bodies:
            message = consumer.receive(20)
            assert message is not None
            message.reject(requeue=False)


def test_dead_messages_are_listed_sent_back_and_let_go_of(ask, url):
    bury(url, "one", "two")
    code, printed, _ = ask("dlq", "list", "--json", "--count", "1")
    assert code == 0
    (dead,) = map(json.loads, printed.splitlines())
    assert (dead["destination"], dead["reason"], dead["deliveries"]) == ("queue:deadly", "rejected", 1)
    assert dead["queue"].startswith("queue:_DMQ@")
    code, printed, _ = ask("dlq", "list")
    assert (code, printed.count("queue:deadly  rejected")) == (0, 2)
    assert ask("dlq", "redrive") == (0, f"{dead['queue']}: 2 messages were sent back where they died\n", "")
    assert ask("receive", "deadly", "--count", "2")[:2] == (0, "one\ntwo\n")
    bury(url, "three")
    code, printed, _ = ask("dlq", "purge", "queue:_DMQ", "--json")
    told = {"queues": [dead["queue"]], "messages": 1, "counts": {dead["queue"]: 1}}
    assert (code, json.loads(printed)) == (0, told), "every channel has a part of it"
    assert ask("dlq", "purge", dead["queue"]) == (0, f"{dead['queue']}: 0 messages were let go of\n", "")
    assert ask("dlq", "list") == (0, "dead messages: none\n\n", "")


def test_only_queues_for_dead_messages_are_purged(ask):
    ask("destinations", "create", "live", "--policy", "dead_letter=cemetery")
    ask("send", "live", "hello")
    code, _, complaint = ask("dlq", "purge", "live")
    assert (code, "queue:live is no dead letter queue" in complaint) == (1, True)
    ask("destinations", "create", "cemetery")
    assert ask("dlq", "purge", "cemetery")[0] == 0
    assert ask("receive", "live")[1] == "hello\n"


def test_destinations_are_listed_by_pattern_and_those_of_the_system_when_asked_for(ask):
    for name in ("topic:list.b", "queue:list.a", "queue:other"):
        assert ask("destinations", "create", name)[0] == 0
    assert names(ask("destinations", "list", "list.*", "--json")[1]) == ["queue:list.a", "topic:list.b"]
    assert names(ask("destinations", "list", "regex:topic:list[.].", "--json")[1]) == ["topic:list.b"]
    everything = names(ask("destinations", "list", "--json")[1])
    assert {"queue:list.a", "topic:list.b", "queue:other"} <= set(everything)
    assert not [name for name in everything if ":_" in name]
    assert "topic:_LOG" in names(ask("destinations", "list", "_*", "--json")[1])
    assert "topic:list.b" in ask("destinations", "list")[1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("destinations", "create", "queue:x", "--policy", "delivery_limit"), "has no name or no value"),
        (("destinations", "create", "queue:x", "--policy", "colour=red"), "a policy has no colour"),
        (("destinations", "create", "queue:x", "--policy", "ttl=soon"), "does not fit: ttl is 'soon', not a number"),
        (("destinations", "policy", "queue:x", "--policy", "groups=maybe"), "groups is 'maybe', not true or false"),
        (("destinations", "create", "queue:_mine"), "belong to the system"),
        (("destinations", "delete", "queue:never.there"), "there is no queue:never.there"),
        (("destinations", "list", "regex:("), "is not taken"),
        (("receive", "regex:("), "is not taken"),
        (("tail", "glob:queue:a*"), "is no topic"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(ask, arguments, words):
    code, printed, complaint = ask(*arguments)
    assert (code, printed) == (1, "")
    assert words in complaint
    assert len(complaint.strip().splitlines()) == 1


def test_a_policy_takes_what_its_option_takes_however_it_looks(ask):
    policy = ("dead_letter=7", "exclusive=True", "ttl=1e3", "delivery_limit=5")
    options = [word for each in policy for word in ("--policy", each)]
    assert ask("destinations", "create", "queue:taken", *options)[0] == 0
    shown = json.loads(ask("destinations", "show", "queue:taken", "--json")[1])
    assert shown["policy"] == {"dead_letter": "7", "exclusive": True, "ttl": 1000.0, "delivery_limit": 5}


@pytest.mark.requirement("WLD-1", "WLD-2")
def test_messages_are_received_by_pattern(ask):
    for name in ("queue:take.a", "queue:take.b"):
        assert ask("send", name, f"to {name}")[0] == 0
    code, printed, _ = ask("receive", "glob:take.*", "--count", "2", "--json")
    assert code == 0
    lines = [json.loads(line) for line in printed.splitlines()]
    assert sorted((line["destination"], line["body"]) for line in lines) == [
        ("queue:take.a", "to queue:take.a"),
        ("queue:take.b", "to queue:take.b"),
    ]
    code, _, complaint = ask("receive", "regex:take[.].", "--timeout", "0.1")
    assert (code, "0 of 1 messages came from regex:take[.]." in complaint) == (1, True)


def test_topics_are_followed_by_pattern(ask, url):
    ask("destinations", "create", "topic:follow.a", "--policy", "retain=3600")
    ask("send", "topic:follow.a", "retained")
    code, printed, _ = ask("tail", "glob:follow.*", "--start", "earliest", "--count", "1")
    assert (code, printed) == (0, "retained\n")
