"""What is drawn before a run of message servers begins."""

import random

import msgspec

SAFETY_S = (8.0, 25.0)
FAULTS = (
    "kill-server",
    "kill-server-at-frame",
    "kill-both-servers",
    "pause-server",
    "cut-servers",
    "cut-one-way",
    "cut-process",
    "break-streams",
    "slow-network",
    "kill-process",
    "kill-process-at-frame",
    "leave",
    "same-name",
    "pause-process",
    "slow-owner",
    "flood",
    "flood-of-events",
)
FAULTS_MIN = 5
NARROW_SHARE = 0.2
CHAPTERS = (
    "away",
    "away-for-long",
    "connections-break",
    "function-taken-over",
    "next-run",
    "no-server",
    "server-dies",
    "servers-in-turn",
)


class ServersPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is drawn before a run begins."""

    seed: int
    servers: int
    nodes: int  # of the cluster file, that are work processes
    programs: int
    faults: tuple[str, ...]
    pace_s: float  # of faults
    think_s: float  # of programs
    occurrence_s: float  # between two things that happen
    safety_s: float
    is_narrow: bool  # servers keep little of what is for all
    chapters: tuple[str, ...]  # what is tried when all is well again, one after the other

    def describe(self) -> str:
        """One line for people."""
        kept = ", little kept" if self.is_narrow else ""
        return (
            f"seed {self.seed}: {self.servers} message servers, {self.nodes} nodes and {self.programs} programs{kept}, "
            f"{self.safety_s:.0f} s of {' '.join(self.faults)}, then {' '.join(self.chapters)}"
        )


def make_servers_plan(seed: int) -> ServersPlan:
    """Draws the plan of a seed."""
    stream = random.Random(f"{seed}/servers")
    processes = stream.randint(3, 6)
    nodes = stream.randint(1, processes - 1)
    return ServersPlan(
        seed=seed,
        servers=1 if stream.random() < 0.1 else 2,
        nodes=nodes,
        programs=processes - nodes,
        faults=tuple(sorted(stream.sample(FAULTS, stream.randint(FAULTS_MIN, len(FAULTS))))),
        pace_s=stream.choice((0.3, 0.8, 2.0)),
        think_s=stream.choice((0.1, 0.3, 1.0)),
        occurrence_s=stream.choice((0.2, 0.7, 2.0)),
        safety_s=stream.uniform(*SAFETY_S),
        is_narrow=stream.random() < NARROW_SHARE,
        chapters=tuple(stream.sample(CHAPTERS, stream.randint(1, 2))),
    )
