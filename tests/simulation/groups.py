"""Groups for tests of the simulator itself, run with a machine of a few lines."""

from functools import partial

import msgspec

from alphorn.bus.config import GroupConfig, MemberConfig
from alphorn.testing.plan import SERVER, WITNESS, Plan, make_plan
from alphorn.testing.run import Result, Run
from alphorn.testing.surroundings import MachineFactory
from alphorn.testing.timeline import Timeline
from tests.simulation.fixed_sequencer import FixedSequencer

GENTLE = ("loss", "duplication", "delay", "bit-flip", "clog", "pause", "slow-node", "slow-disk")


def make_group(*names: str, witnesses: tuple[str, ...] = (), copies: int = 2) -> GroupConfig:
    """Servers with every role, and witnesses."""
    members = [
        MemberConfig(number=place, name=name, address=name, roles=SERVER if name in names else WITNESS, rank=place)
        for place, name in enumerate(names + witnesses, 1)
    ]
    return GroupConfig(group=7, members=tuple(members), copies=copies)


def gentle_plan(seed: int, faults: tuple[str, ...] = GENTLE) -> Plan:
    """A plan that the fixed sequencer survives: nobody dies."""
    plan = make_plan(seed)
    return msgspec.structs.replace(plan, config=make_group("S1", "S2", "S3"), faults=faults, safety_s=5.0, clients=2)


def fixed_sequencer(*mistakes: str) -> MachineFactory:
    """The small machine, with these mistakes."""
    return partial(FixedSequencer, faults=frozenset(mistakes))


def run_gently(seed: int, *mistakes: str, timeline: Timeline | None = None) -> Result:
    """One seed of the small machine."""
    return Run(gentle_plan(seed), machine=fixed_sequencer(*mistakes), timeline=timeline).finish()
