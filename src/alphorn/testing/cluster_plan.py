"""What one seed of a message cluster stands for: its members, its clients and what they want, its faults."""

from collections.abc import Iterable, Mapping
from random import Random

import msgspec

from alphorn.bus.config import CHANNEL_BUDGET, Budget, GroupConfig
from alphorn.client.inbox import AckMode
from alphorn.model.destinations import Policy
from alphorn.testing.faults import FAULTS
from alphorn.testing.plan import DATAGRAM_BYTES, draw_config
from alphorn.testing.programs import Reading
from alphorn.testing.schedule import Streams

SHAPES = ((2, 1), (2, 1), (3, 0))  # Message Managers and witnesses
FAULT_CLASSES_MIN = 8
ACCOUNTS = ("queue:account a", "queue:account b", "queue:account c")  # of tellers (transfers.py)
DESTINATIONS = ("queue:a", "queue:b", "topic:t")  # of clients
ALL_QUEUES = "glob:queue:?"
STAGED_QUEUE = "queue:s"  # what jobs publish to (staging.py)
SECOND_STAGED_QUEUE = "queue:r"  # and this, where there are several channels
STREAM_FAULTS = (
    "break-streams",
    "crash-client-manager",
    "late-client-manager",
    "crash-client",
    "goodbye",
    "slow-client",
)
LEFT_OUT = frozenset({"client"})  # members of the bus come and go with Client Managers
CLUSTER_FAULTS = (*(name for name in FAULTS if name not in LEFT_OUT), *STREAM_FAULTS)
CHANNELS = 2  # where there are several,
CHANNELS_DRAINED = 3  # and where they are drained, now and then
MOVE = "move"  # a destination is moved to another of them
MOVES = 12  # how often that stands among the faults to draw from
DRAIN = "drain"  # a channel is drained, or opened again
NAME = "name"  # a destination that no program uses is wanted or deleted
NAMES = ("queue:n1", "queue:n2", "topic:n3", "queue:n4")
DEAD_LETTER = "dead"
STRANGERS_SHARE = 0.3  # of the runs
RETAIN_S_WHOLE = 1e7  # longer than any run, and than any clock is wrong


class ClientPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One client: what its program sends to and receives from."""

    name: str
    client_id: str
    home: int  # which Client Manager's machine it is on: partitions treat both alike
    targets: tuple[str, ...]
    late: tuple[str, ...] = ()  # what it sends to later on, and nobody had before
    readings: tuple[Reading, ...]


class LimitsPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How little there is room for."""

    max_lengths: dict[str, int]  # destination → messages before its producers wait; others have no limit
    session_bytes_max: int
    consumer_bytes_max: int
    channel_bytes_max: int = 16 << 20
    load_max: int = 1000
    is_tight: bool = False  # each command is an entry of its own, and one is under way: clients take turns all the time


class ClusterPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is drawn before a run begins."""

    seed: int
    config: GroupConfig
    budget: Budget
    client_managers: int
    clients: tuple[ClientPlan, ...]
    limits: LimitsPlan
    faults: tuple[str, ...]
    pace_s: float
    safety_s: float
    liveness_s: float
    turn_s: float
    install_s_max: float
    tellers: int = 0  # clients that move units between accounts, in transactions
    units: int = 0
    jobs: int = 0  # clients that publish in stages
    channels: int = 1  # each has such a group
    leaves_hard: bool = False  # whoever receives from a destination may stop just as it leaves, and the primary ends
    policies: dict[str, Policy] = {}  # of queues whose consumers share by key, or take turns
    retained: dict[str, Policy] = {}  # of queues: what else is decided for them, where they retain anything
    # Some say that others' connections are theirs (strangers.py). The other runs draw what they drew before there were
    # any: their Client Managers know the signet without asking.
    has_strangers: bool = False
    hangs: bool = False  # a Client Manager hangs in the end
    together: bool = False  # Client Managers are in the processes of Message Managers, as far as there are so many

    @property
    def job_targets(self) -> tuple[str, ...]:
        """What jobs publish to: nothing that is limited, because what is staged comes whatever there is room for."""
        queues = (STAGED_QUEUE,) if self.channels == 1 else (STAGED_QUEUE, SECOND_STAGED_QUEUE)
        return tuple(name for name in (*queues, "topic:t") if name not in self.limits.max_lengths)

    @property
    def movable(self) -> tuple[str, ...]:
        """What is moved between channels."""
        names = (*NAMES, f"queue:{DEAD_LETTER}") if NAME in self.faults else ()
        return tuple(dict.fromkeys((*DESTINATIONS, *(self.job_targets if self.jobs else ()), *names)))

    def describe(self) -> str:
        """One line for people."""
        names = ",".join(member.name for member in self.config.members)
        managers = f"{self.client_managers} Client Managers{' beside them' * self.together}"
        return (
            f"seed {self.seed}: a cluster of {names}, {managers} and "
            f"{len(self.clients)} clients, {self.tellers} tellers, {self.jobs} jobs, channels {self.channels}, "
            f"copies {self.config.copies}, interval {self.config.checkpoint_interval}, "
            f"at most {self.limits.max_lengths} messages, {self.safety_s:.0f} s of {' '.join(self.faults)}"
            f"{' leave' * self.leaves_hard}{' strangers' * self.has_strangers}{' hang' * self.hangs}"
        )


def make_cluster_plan(seed: int) -> ClusterPlan:
    """Draws the plan of a seed."""
    stream = Streams(seed).plan
    servers, witnesses = stream.choice(SHAPES)
    managers = stream.randint(2, 3)
    count = stream.randint(FAULT_CLASSES_MIN, len(CLUSTER_FAULTS))
    bank = Random(f"{seed}/bank")
    config = msgspec.structs.replace(
        draw_config(stream, servers, witnesses), checkpoint_interval=stream.choice((8, 32, 100))
    )
    clients = _draw_clients(stream, list(range(managers)))
    clients = _with_patterns(clients, Random(f"{seed}/patterns"))
    shares = Random(f"{seed}/policies")
    policies = _with_delays(_draw_policies(shares), Random(f"{seed}/delays"))
    clients = _with_uneven_room(_with_rivals(clients, policies, shares), policies, shares)
    jobs = Random(f"{seed}/jobs")
    return ClusterPlan(
        seed=seed,
        config=config,
        budget=Budget(
            datagram_bytes=DATAGRAM_BYTES,
            window_bytes=stream.choice((16_000, 64_000)),
            window_batches=stream.choice((2, 8, 64)),
            held_bytes_max=1 << 20,
            repair_bytes_per_s=1 << 20,
            chunk_bytes=stream.choice((500, 4_000)),
            batch_bytes_max=1 << 20,
            departed_senders_max=CHANNEL_BUDGET.departed_senders_max,
        ),
        client_managers=managers,
        clients=_with_staged(clients, jobs, STAGED_QUEUE),
        limits=_draw_limits(stream, Random(f"{seed}/turns")),
        policies=policies,
        retained=_draw_retained(Random(f"{seed}/retained")),
        faults=tuple(sorted(stream.sample(CLUSTER_FAULTS, count))),
        pace_s=stream.choice((0.3, 0.6, 1.0)),
        safety_s=stream.uniform(4.0, 8.0),
        liveness_s=40.0,
        turn_s=stream.choice((0.0, 0.0001, 0.001)),
        install_s_max=stream.choice((0.0, 0.5)),
        tellers=bank.choice((0, 1, 2)),
        units=bank.randint(3, 12),
        jobs=jobs.choice((0, 1, 2)),
        hangs=Random(f"{seed}/hangs").random() < 0.6,
        together=Random(f"{seed}/together").random() < 0.4,
        has_strangers=Random(f"{seed}/has strangers").random() < STRANGERS_SHARE,
    )


def make_channel_plan(seed: int) -> ClusterPlan:
    """Draws the plan of a seed for several channels. Tellers stay away: what they use is on one.

    So does what is together: a process of several members would end by the faults of several groups. So do strangers:
    the first channel alone has the signet.
    """
    plan = make_cluster_plan(seed)
    clients = _with_staged(plan.clients, Random(f"{seed}/second queue"), SECOND_STAGED_QUEUE)
    faults, channels = (*plan.faults, *[MOVE] * MOVES), CHANNELS
    names = Random(f"{seed}/names")
    if names.random() < 0.5:
        faults += (*[DRAIN] * 6, *[NAME] * 8, *[MOVE] * MOVES)
        channels = CHANNELS_DRAINED if names.random() < 0.6 else CHANNELS
    return msgspec.structs.replace(
        plan,
        clients=clients,
        channels=channels,
        faults=faults,
        leaves_hard=Random(f"{seed}/leaving").random() < 0.4,
        liveness_s=60.0,
        tellers=0,
        units=0,
        jobs=max(1, plan.jobs),
        together=False,
        has_strangers=False,
    )


def _draw_clients(stream: Random, homes: list[int]) -> tuple[ClientPlan, ...]:
    """Two queues, a topic with durable subscriptions or a shared one; every destination has a consumer."""
    is_shared = stream.random() < 0.5
    clients = []
    for number in range(stream.randint(2, 4)):
        name = f"C{number + 1}"
        targets = tuple(sorted(stream.sample(DESTINATIONS, stream.randint(1, 2))))
        readings = [_draw_reading(stream, "queue:a" if number == 0 else stream.choice(("queue:a", "queue:b")))]
        if number == 1:
            readings = [_draw_reading(stream, "queue:b")]
        if number == 0 or stream.random() < 0.4:
            readings.append(_draw_reading(stream, "topic:t", subscription="news", is_shared=is_shared))
        clients.append(
            ClientPlan(
                name=name,
                client_id="" if is_shared else name,
                home=stream.choice(homes),
                targets=targets,
                readings=tuple(readings),
            )
        )
    return tuple(clients)


def _with_patterns(clients: tuple[ClientPlan, ...], stream: Random) -> tuple[ClientPlan, ...]:
    """Some clients receive from all queues, or have a subscription to all topics, besides what they want anyway.

    Where one receives from all queues, somebody makes another one later, which nobody receives from by its name.
    """
    found = []
    for client in clients:
        readings = list(client.readings)
        if stream.random() < 0.3:
            readings.append(_draw_reading(stream, ALL_QUEUES))
        if stream.random() < 0.3:
            readings.append(_draw_reading(stream, "glob:topic:*", subscription="all", is_shared=not client.client_id))
        found.append(msgspec.structs.replace(client, readings=tuple(readings)))
    if any(reading.destination == ALL_QUEUES for client in found for reading in client.readings):
        place = stream.randrange(len(found))
        found[place] = msgspec.structs.replace(found[place], late=("queue:z",))
    return tuple(found)


def _with_staged(clients: tuple[ClientPlan, ...], stream: Random, queue: str) -> tuple[ClientPlan, ...]:
    """One client receives what jobs publish to a queue, or several do."""
    first = stream.randrange(len(clients))
    return tuple(
        msgspec.structs.replace(client, readings=(*client.readings, _draw_reading(stream, queue)))
        if place == first or stream.random() < 0.2
        else client
        for place, client in enumerate(clients)
    )


def _draw_limits(stream: Random, turns: Random) -> LimitsPlan:
    """Some destinations are full after a few messages, and some Client Managers take or pass on little at a time."""
    lengths = {name: stream.choice((0, 0, 2, 6)) for name in DESTINATIONS}
    return LimitsPlan(
        max_lengths={name: length for name, length in lengths.items() if length},
        session_bytes_max=stream.choice((60, 1 << 20)),
        consumer_bytes_max=stream.choice((20, 1 << 20)),
        channel_bytes_max=turns.choice((400, 2_000, 16 << 20)),
        load_max=turns.choice((2, 1000)),
        is_tight=turns.random() < 0.5,
    )


def _draw_policies(stream: Random) -> dict[str, Policy]:
    """Some queues give messages of one key to one consumer, some have one consumer at a time, and some both."""
    choices = (None, None, None, Policy(groups=True), Policy(exclusive=True), Policy(groups=True, exclusive=True))
    drawn = {name: stream.choice(choices) for name in DESTINATIONS if name.startswith("queue:")}
    return {name: policy for name, policy in drawn.items() if policy is not None}


def _with_delays(policies: Mapping[str, Policy], stream: Random) -> dict[str, Policy]:
    """In some queues with groups what comes back waits before it is given out again."""
    delays = {name: stream.choice((0.0, 0.2, 0.5)) for name in policies}
    return {
        name: msgspec.structs.replace(policy, redelivery_delay=delays[name]) if policy.groups else policy
        for name, policy in policies.items()
    }


def _draw_retained(stream: Random) -> dict[str, Policy]:
    """Some queues retain messages: all of them, or for a while, or a few."""
    choices = (None, Policy(retain_s=RETAIN_S_WHOLE), Policy(retain_s=1.0), Policy(retain_bytes=200))
    drawn = {name: stream.choice(choices) for name in DESTINATIONS if name.startswith("queue:")}
    return {name: policy for name, policy in drawn.items() if policy is not None}


def _with_rivals(clients: tuple[ClientPlan, ...], queues: Iterable[str], stream: Random) -> tuple[ClientPlan, ...]:
    """Two clients or more receive from these queues."""
    found = list(clients)
    for queue in queues:
        others = [
            place
            for place, client in enumerate(found)
            if all(reading.destination != queue for reading in client.readings)
        ]
        if len(found) - len(others) < 2:
            place = stream.choice(others)
            readings = (*found[place].readings, _draw_reading(stream, queue))
            found[place] = msgspec.structs.replace(found[place], readings=readings)
    return tuple(found)


def _with_uneven_room(
    clients: tuple[ClientPlan, ...], policies: Mapping[str, Policy], stream: Random
) -> tuple[ClientPlan, ...]:
    """Where messages of one key go to one consumer: some take so few that others of the key wait, some have many."""
    queues = {name for name, policy in policies.items() if policy.groups and stream.random() < 0.7}
    found = []
    for client in clients:
        readings = [
            msgspec.structs.replace(each, prefetch=stream.choice((1, 1, 20))) if each.destination in queues else each
            for each in client.readings
        ]
        found.append(msgspec.structs.replace(client, readings=tuple(readings)))
    return tuple(found)


def _draw_reading(stream: Random, destination: str, *, subscription: str = "", is_shared: bool = False) -> Reading:
    modes = (AckMode.AUTO, AckMode.CLIENT, AckMode.INDIVIDUAL)
    return Reading(
        destination=destination,
        mode=stream.choice(modes),
        prefetch=stream.choice((1, 4, 20)),
        subscription=subscription,
        is_shared=is_shared,
    )
