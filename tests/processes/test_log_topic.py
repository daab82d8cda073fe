"""What nodes log is in their files and on the `_LOG` topic, for any client."""

import json

import pytest

import alphorn
import alphorn.testing
from tests.semantics.waiting import WAIT_S


@pytest.mark.requirement("LOG-1", "LOG-2", "WKD-1")
def test_log_lines_of_every_node_are_in_its_file_and_on_the_log_topic() -> None:
    with alphorn.testing.cluster() as cluster, alphorn.connect(cluster.url) as connection:
        consumer = connection.session().consumer("topic:_LOG", start="earliest")
        seen: set[str] = set()
        while seen < {"cm1", "mm1", "mm2"}:
            message = consumer.receive(timeout=WAIT_S)
            assert message is not None, f"only {sorted(seen)} were heard"
            line = json.loads(message.body)
            assert {"time", "level", "node", "event"} <= set(line)
            seen.add(line["node"])
        for name in seen:
            first = (cluster.directory / name / "log.jsonl").read_text().splitlines()[0]
            assert json.loads(first)["node"] == name
