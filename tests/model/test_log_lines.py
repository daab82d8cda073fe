"""Log lines on their way to the `_LOG` topic."""

import msgspec

from alphorn.model.commands import CONNECTION_BYTES, connection_of
from alphorn.model.ids import make_origin
from alphorn.model.log_lines import WAITING_MAX, LogLines

RUN = make_origin(b"\x7f\x00\x00\x01", 7720, 5)


def test_all_that_waits_is_one_batch_and_counters_go_on() -> None:
    lines = LogLines(RUN)
    lines.add(["a", "b"])
    first = lines.publish(3, 1000)
    assert (first.destination, first.counter, first.count, first.timestamp) == (3, 1, 2, 1000)
    assert msgspec.msgpack.decode(first.blob) == [["a"], ["b"]]
    assert not lines.is_waiting
    lines.add(["c"])
    assert (lines.publish(3, 1000).counter, first.producer) == (3, LogLines(RUN).publish(3, 0).producer)


def test_nodes_of_one_machine_that_start_together_are_different_producers_of_no_connection() -> None:
    other = make_origin(b"\x7f\x00\x00\x01", 7721, 5)
    keys = {LogLines(run).publish(1, 0).producer for run in (RUN, other)}
    assert len(keys) == 2
    assert {connection_of(key) for key in keys} == {bytes(CONNECTION_BYTES)}


def test_the_oldest_lines_go_where_too_many_wait() -> None:
    lines = LogLines(RUN)
    lines.add([str(number) for number in range(WAITING_MAX + 5)])
    assert lines.dropped == 5
    assert msgspec.msgpack.decode(lines.publish(1, 0).blob)[0] == ["5"]
