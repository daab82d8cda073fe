"""Late copies: rare words are repeated as often as others, and a start is followed by words of earlier runs."""

import msgspec
import pytest

from alphorn.bus.frames import Join, decode_all
from alphorn.testing.late_copies import REMEMBERED, repeat_at_start
from alphorn.testing.plan import make_plan
from alphorn.testing.run import Run
from tests.simulation.groups import make_group


@pytest.fixture
def run() -> Run:
    """Three servers that have just founded their group."""
    plan = msgspec.structs.replace(make_plan(1), config=make_group("A", "B", "C"), clients=0)
    run = Run(plan)
    run.simulation.found()
    run.simulation.run_until(2.0)
    return run


def test_a_word_that_was_said_once_is_repeated_about_as_often_as_others(run: Run) -> None:
    drawn = [data for _ in range(200) for _, data in run.nemesis.late.draw(run.nemesis, None)]
    joins = [data for data in drawn if isinstance(decode_all(data)[0].body, Join)]
    assert len(joins) > len(drawn) / 50


def test_no_more_than_a_few_datagrams_of_a_kind_are_remembered(run: Run) -> None:
    run.simulation.run_until(4.0)
    assert max(len(said) for said in run.nemesis.late._said.values()) == REMEMBERED


def test_a_member_that_starts_again_hears_or_is_heard_by_what_was_said_to_or_by_an_earlier_run(run: Run) -> None:
    node = run.simulation.nodes[0]
    told: list[str] = []
    run.simulation.watch.fault.append(lambda fault, details: told.append(fault))
    node.end("crash")
    node.start_again()
    repeat_at_start(run.nemesis, node)
    assert told == ["late-copy"]
    run.simulation.run_until(6.0)
    assert all(other.is_synchronised for other in run.simulation.nodes)
