"""Real processes, killed under load. `alphorn chaos` does the same for longer."""

import asyncio

import pytest

from alphorn.testing.chaos import Chaos, ChaosResult, Fault, kill_primaries

pytestmark = pytest.mark.processes


def disturb(path, *faults: Fault, keeps_log: bool = True) -> ChaosResult:
    async def run() -> ChaosResult:
        chaos = Chaos(path, keeps_log=keeps_log)
        async with chaos.group:
            await chaos.begin()
            for fault in faults:
                await chaos.inject(fault, pause_s=0.5)
            await chaos.finish()
            return chaos.result()

    return asyncio.run(run())


@pytest.mark.requirement("HA-9", "BUS-4")
def test_a_primary_killed_again_and_again_loses_nothing_that_was_ordered(tmp_path):
    result = asyncio.run(kill_primaries(tmp_path, kills=3))

    assert result.faults == []
    assert result.injected == {Fault.KILL_PRIMARY: 3, Fault.KILL_ALL: 1}
    assert len(result.outages_s[Fault.KILL_PRIMARY]) == 3
    assert result.refused == 0


@pytest.mark.requirement("HA-21")
def test_batches_under_way_when_all_servers_vanish_are_ordered_once_they_return(tmp_path):
    result = disturb(tmp_path, Fault.KILL_SERVERS)

    assert result.faults == []
    assert (result.refused, result.unknown) == (0, 0)


def test_a_frozen_primary_is_replaced_and_follows_when_it_thaws(tmp_path):
    result = disturb(tmp_path, Fault.FREEZE_PRIMARY)

    assert result.faults == []


def test_a_primary_that_leaves_in_good_order_hands_over(tmp_path):
    result = disturb(tmp_path, Fault.RESTART_PRIMARY, Fault.RESTART_BACKUP, keeps_log=False)

    assert result.faults == []
