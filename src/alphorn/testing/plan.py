"""What one seed stands for: the shape of the group, its settings, the faults enabled and how long they last."""

from random import Random

import msgspec

from alphorn.bus.config import Budget, GroupConfig, MemberConfig, Role, Timing
from alphorn.testing.faults import FAULTS
from alphorn.testing.schedule import Streams

SERVER = Role.SEQUENCER | Role.DATA | Role.COMMIT | Role.CHECKPOINT
WITNESS = Role.COMMIT
SHAPES = ((2, 1), (3, 0), (3, 0), (3, 2), (4, 1), (5, 0))  # servers and witnesses
FAULT_CLASSES_MIN = 10
LIFETIMES = (0, 0, 32, 128)
DATAGRAM_BYTES = 1200
DATAGRAMS_BYTES = (500, DATAGRAM_BYTES, 4000)  # where interfaces differ
CALM_START_S = 1.0


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is drawn before a run begins."""

    seed: int
    config: GroupConfig
    timing: Timing
    budget: Budget
    clients: int
    faults: tuple[str, ...]
    pace_s: float  # mean time between two faults
    safety_s: float  # how long faults last
    liveness_s: float  # within which everything must work again
    think_s: float
    size_max: int
    outstanding_max: int
    turn_s: float
    keeps: int  # delivered batches that the upper layers need on, at most
    install_s_max: float  # longest time an upper layer takes over a checkpoint
    checkpoint_s_max: float  # longest time until one is written
    datagrams: tuple[int, ...]  # the largest of each member

    def describe(self) -> str:
        """One line for people."""
        names = ",".join(member.name for member in self.config.members)
        config = self.config
        return (
            f"seed {self.seed}: {names} and {self.clients} clients, copies {config.copies}/{config.copies_min}, "
            f"report {config.report_quorum}, interval {config.checkpoint_interval}, lifetime {config.lifetime}, "
            f"{self.safety_s:.0f} s of {' '.join(self.faults)}"
        )


def make_plan(seed: int) -> Plan:
    """Draws the plan of a seed."""
    stream = Streams(seed).plan
    servers, witnesses = stream.choice(SHAPES)
    config = draw_config(stream, servers, witnesses)
    if config.lifetime and seed % 2:
        config = _without_checkpoints(config)
    names = list(FAULTS)
    count = stream.randint(FAULT_CLASSES_MIN, len(names))
    return Plan(
        seed=seed,
        config=config,
        timing=Timing(report_delay_s=0.01 if seed % 2 else 0.0),
        budget=Budget(
            datagram_bytes=DATAGRAM_BYTES,
            window_bytes=stream.choice((16_000, 64_000)),
            window_batches=stream.choice((4, 64)),
            held_bytes_max=stream.choice((1 << 18, 1 << 20)),
            open_numbers_max=stream.choice((16, 256)),
            nack_numbers_max=stream.choice((8, 64)),
            repair_bytes_per_s=1 << 20,
            range_bytes=stream.choice((4_000, 64_000)),
            chunk_bytes=stream.choice((500, 4_000)),
            batch_bytes_max=16_000,
            departed_senders_max=1 if seed % 3 == 0 else 4096,
        ),
        clients=stream.randint(1, 2),
        faults=tuple(sorted(stream.sample(names, count))),
        pace_s=stream.choice((0.2, 0.5, 1.0)),
        safety_s=stream.uniform(8.0, 16.0),
        liveness_s=30.0,
        think_s=stream.choice((0.2, 0.6)),
        size_max=stream.choice((300, 3_000, 8_000)),
        outstanding_max=stream.choice((2, 8, 64)),
        turn_s=stream.choice((0.0, 0.0001, 0.0003, 0.001)),
        keeps=stream.choice((0, 8, 60)),
        install_s_max=stream.choice((0.0, 0.5, 3.0)),
        checkpoint_s_max=stream.choice((0.0, 0.3, 2.0)),
        datagrams=draw_datagrams(stream),
    )


def _without_checkpoints(config: GroupConfig) -> GroupConfig:
    """The same group, in which entries are collected by age alone."""
    members = [msgspec.structs.replace(member, roles=member.roles & ~Role.CHECKPOINT) for member in config.members]
    return msgspec.structs.replace(config, members=tuple(members))


def draw_datagrams(stream: Random) -> tuple[int, ...]:
    """How large the datagrams of members are: in some groups the same for all of them."""
    if stream.random() < 0.4:
        return (DATAGRAM_BYTES,)
    return tuple(stream.choice(DATAGRAMS_BYTES) for _ in range(5))


def draw_config(stream: Random, servers: int, witnesses: int) -> GroupConfig:
    """A group of so many servers and witnesses."""
    roles = [SERVER] * servers + [WITNESS] * witnesses
    copies = stream.choice((1, 2, 2, 2, min(3, servers)))
    return GroupConfig(
        group=7,
        members=tuple(
            MemberConfig(
                number=place + 1,
                name=f"{'S' if role is SERVER else 'W'}{place + 1}",
                address=f"{'S' if role is SERVER else 'W'}{place + 1}",
                roles=role,
                rank=place,
                tag="server" if role is SERVER else "witness",
            )
            for place, role in enumerate(roles)
        ),
        copies=copies,
        copies_min=stream.randint(1, copies),
        report_quorum=stream.randint(1, min(2, servers)),
        stable_before_submit=stream.random() < 0.3,
        checkpoint_interval=stream.choice((16, 64, 200)),
        lowest_rank_first=stream.random() < 0.8,
        lifetime=stream.choice(LIFETIMES),
    )
