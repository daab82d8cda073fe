"""A whole group in one thread: real endpoints, one virtual clock, and a network that loses only what a test says.

Links take a millisecond and disks a tenth, nothing is random but what the machines draw from one seed; so a test reads
like a story and runs the same each time. Every frame sent is kept in `sent`.
"""

import random
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import msgspec

from alphorn.bus.config import Budget, GroupConfig, MemberConfig, Role, Timing
from alphorn.bus.endpoint import Endpoint
from alphorn.bus.entries import digest_of
from alphorn.bus.frames import Body, Data, Frame, decode_all
from alphorn.bus.machine import (
    CONTROL_GROUP,
    DATA_GROUP,
    CheckpointInstalled,
    CheckpointWritten,
    Deliver,
    Durable,
    Input,
    InstallCheckpoint,
    Order,
    Ordered,
    Output,
    Persist,
    PutChunk,
    Received,
    Retain,
    SealCheckpoint,
    Send,
    TakeCheckpoint,
)
from alphorn.bus.storage import CheckpointInfo
from alphorn.model.ranges import RangeSet
from alphorn.testing.disk import SimulatedDisk
from alphorn.testing.schedule import Schedule

LINK_S = 0.001
UNIX_START_S = 1_750_000_000.0
SERVER = Role.SEQUENCER | Role.DATA | Role.COMMIT | Role.CHECKPOINT
UPPER_LAYER = -1  # token of writes that no endpoint waits for

T = TypeVar("T", bound=Output)
B = TypeVar("B", bound=Data | Body)


def make_config(servers: int = 3, witnesses: int = 0, **settings: object) -> GroupConfig:
    """Servers S1, S2, … with every role, then witnesses W1, …; numbers and ranks go up in that order."""
    names = [f"S{place}" for place in range(1, servers + 1)] + [f"W{place}" for place in range(1, witnesses + 1)]
    members = tuple(
        MemberConfig(
            number=place,
            name=name,
            address=name,
            roles=SERVER if name.startswith("S") else Role.COMMIT,
            rank=place,
            tag="store" if name.startswith("S") else "witness",
        )
        for place, name in enumerate(names, 1)
    )
    return GroupConfig(group=7, members=members, **{"copies": min(2, servers)} | settings)  # type: ignore[arg-type]


def without_checkpoints(config: GroupConfig) -> GroupConfig:
    """The same group, in which nobody makes any."""
    members = [msgspec.structs.replace(member, roles=member.roles & ~Role.CHECKPOINT) for member in config.members]
    return msgspec.structs.replace(config, members=tuple(members))


class Hop(NamedTuple):
    """One frame on its way to one member."""

    source: str
    target: str
    frame: Frame

    @property
    def name(self) -> str:
        return self.frame.name

    @property
    def body(self) -> Data | Body:
        return self.frame.body


class Sent(NamedTuple):
    """One frame as its speaker sent it: to a member, or to one of the group's addresses."""

    at: float
    source: str
    to: str
    frame: Frame
    size: int

    @property
    def name(self) -> str:
        return self.frame.name


class Node:
    """One member: its endpoint while it runs, its disk, and everything it told its upper layer in this run."""

    def __init__(self, group: "Group", me: MemberConfig, index: int) -> None:
        self.group, self.me, self.index, self.name = group, me, index, me.name
        self.disk = SimulatedDisk(
            group.schedule, random.Random(index), on_durable=self._on_durable, on_error=self._fail, sync_mean_s=0.0
        )
        self.disk.slow_chance = 0.0
        self.endpoint: Endpoint | None = None
        self.outputs: list[Output] = []
        self.state: list[bytes] = []  # the upper layer's: every batch, in order
        self.history: list[int] = []  # the numbers it was given in this run
        self.needed = RangeSet()  # what the upper layer needs on of what it was given
        self.installs_at_once = True  # otherwise a test says when, by `installed`
        self.run = 0

    def start(self, *, founding: bool, clock_s: float = 0.0, **options: bool) -> None:
        group = self.group
        assert self.endpoint is None
        self.run += 1
        self.outputs, self.state, self.history = [], [], []
        self.endpoint = Endpoint(
            config=group.config,
            me=self.me,
            storage=self.disk,
            host=bytes((10, 0, 0, self.index)),
            port=7000 + self.index,
            unix_s=UNIX_START_S + group.now + clock_s,
            founding=founding,
            random=random.Random(f"{group.seed}/{self.name}/{self.run}"),
            timing=group.timing,
            budget=group.budget,
            now=group.now,
            **{"reads": self.me.roles != Role.COMMIT} | options,
        )
        self._settle()

    def crash(self) -> None:
        """Ends the process; what no fsync confirmed is gone."""
        assert self.endpoint is not None
        self.endpoint = None
        self.disk.crash(keeps_prefix=False, tears=False)

    def feed(self, item: Input) -> None:
        if self.endpoint is not None:
            self.endpoint.receive(item, self.group.now)
            self._settle()

    def of(self, kind: type[T]) -> list[T]:
        """What it told its upper layer, of one kind."""
        return [output for output in self.outputs if isinstance(output, kind)]

    @property
    def running(self) -> Endpoint:
        assert self.endpoint is not None, f"{self.name} is down"
        return self.endpoint

    def describe(self, *path: str) -> object:
        """One place of the printable state."""
        value: object = self.running.describe()
        for key in path:
            assert isinstance(value, dict)
            value = value[key]
        return value

    def _settle(self) -> None:
        endpoint = self.running
        for output in endpoint.take_outputs():
            self._perform(output)
        self.group.schedule.at(endpoint.next_deadline(), self._tick, endpoint)

    def _tick(self, endpoint: Endpoint) -> None:
        if endpoint is self.endpoint and endpoint.next_deadline() <= self.group.now:
            endpoint.on_time(self.group.now)
            self._settle()

    def _perform(self, output: Output) -> None:
        match output:
            case Send():
                self.group.carry(self, output)
            case Persist():
                self.disk.persist(output)
            case Deliver():
                self.state.append(bytes(output.payload))
                self.history.append(output.sequence)
                self.outputs.append(output)
            case TakeCheckpoint():
                self.outputs.append(output)
                self._take_checkpoint(output)
            case InstallCheckpoint():
                self.outputs.append(output)
                self._install(output.sequence)
            case _:
                self.outputs.append(output)

    def _take_checkpoint(self, output: TakeCheckpoint) -> None:
        data = b"\n".join(self.state)
        step = self.group.budget.chunk_bytes
        pieces = [data[start : start + step] for start in range(0, len(data), step)]
        chunks = [PutChunk(output.sequence, place, piece) for place, piece in enumerate(pieces)]
        seal = SealCheckpoint(output.sequence, output.epoch, len(data), len(pieces), digest_of(data), output.state)
        self.disk.persist(Persist(UPPER_LAYER, [*chunks, seal, Retain(output.sequence, self.needed)]))

    def _install(self, sequence: int) -> None:
        info = self.disk.checkpoint()
        assert isinstance(info, CheckpointInfo)
        assert info.sequence == sequence
        chunks = [self.disk.checkpoint_chunk(sequence, place) for place in range(info.chunks)]
        whole = b"".join(chunk for chunk in chunks if isinstance(chunk, bytes))
        self.state = whole.split(b"\n") if whole else []
        if self.installs_at_once:
            self.group.schedule.after(0.0, self.installed, sequence)

    def installed(self, sequence: int) -> None:
        """The upper layer has the checkpoint and all it needs."""
        self.disk.persist(Persist(UPPER_LAYER, [Retain(sequence, self.needed)]))
        self.feed(CheckpointInstalled(sequence))

    def _on_durable(self, done: list[Persist]) -> None:
        tokens = [persist.token for persist in done if persist.token != UPPER_LAYER]
        if tokens:
            self.feed(Durable(tokens[-1]))
        for persist in done:
            sealed = [write for write in persist.writes if isinstance(write, SealCheckpoint)]
            if persist.token == UPPER_LAYER and sealed:
                self.feed(CheckpointWritten(sealed[-1].sequence))

    def _fail(self, reason: str) -> None:
        raise AssertionError(f"the disk of {self.name} failed: {reason}")


class Group:
    """The members of one group and the network between them."""

    def __init__(
        self,
        config: GroupConfig | None = None,
        *,
        timing: Timing | None = None,
        budget: Budget | None = None,
        seed: int = 1,
    ) -> None:
        self.config = config or make_config()
        self.timing = timing or Timing()
        self.budget = budget or Budget(datagram_bytes=1200)
        self.seed = seed
        self.schedule = Schedule(None)
        self.nodes: dict[str, Node] = {}
        self.sent: list[Sent] = []
        self._rules: list[Callable[[Hop], bool]] = []
        self._handle = 0
        for member in self.config.members:
            self.add(member)

    @property
    def now(self) -> float:
        return self.schedule.now

    def __getitem__(self, name: str) -> Node:
        return self.nodes[name]

    def add(self, me: MemberConfig) -> Node:
        node = self.nodes[me.name] = Node(self, me, len(self.nodes) + 1)
        return node

    def found(self, *names: str) -> "Group":
        """Starts these configured members (all, if none is named) for the first time, and waits for a primary."""
        for name in names or [member.name for member in self.config.members]:
            self[name].start(founding=True)
        self.run_until(lambda: self.primary is not None)
        self.run(0.5)
        return self

    def client(self, name: str, **options: bool) -> Node:
        """Starts a member that is not configured, and waits until it is in the group."""
        node = self.add(MemberConfig(number=0, name=name, address=name, roles=Role.NONE, tag="client"))
        node.start(founding=False, **options)
        return node

    def restart(self, name: str, **options: bool) -> Node:
        """Starts a member again on what its disk holds."""
        node = self[name]
        if node.endpoint is not None:
            node.crash()
        node.start(founding=False, **options)
        return node

    @property
    def primary(self) -> Node | None:
        """The member that acts as sequencer of the highest epoch."""
        active = [node for node in self.nodes.values() if node.endpoint and node.describe("sequencer_role", "active")]
        return max(active, key=lambda node: int(str(node.describe("sequencer_role", "counter")))) if active else None

    @property
    def leader(self) -> Node:
        """The primary, which there must be."""
        primary = self.primary
        assert primary is not None
        return primary

    def order(self, name: str, *payloads: bytes) -> list[int]:
        """Orders batches at a member; gives their handles."""
        handles = []
        for payload in payloads:
            self._handle += 1
            handles.append(self._handle)
            self[name].feed(Order(payload, self._handle))
        return handles

    def order_and_wait(self, name: str, *payloads: bytes) -> list[int]:
        """Orders batches and runs until they are committed; gives their numbers."""
        handles = self.order(name, *payloads)
        node = self[name]
        self.run_until(lambda: {output.handle for output in node.of(Ordered)} >= set(handles))
        numbers = {output.handle: output.sequence for output in node.of(Ordered)}
        return [numbers[handle] for handle in handles]

    def run(self, seconds: float) -> None:
        self.schedule.run_until(self.now + seconds)

    def run_until(self, is_done: Callable[[], bool], *, limit_s: float = 20.0) -> None:
        """Runs until the condition holds; it must within the limit of virtual time."""
        end = self.now + limit_s
        while not is_done():
            following = self.schedule.next_time()
            assert following is not None
            assert following <= end, f"after {limit_s} virtual seconds still not so"
            self.schedule.run_until(following)

    def drop(self, rule: Callable[[Hop], bool]) -> Callable[[], None]:
        """Loses every frame the rule says; gives what ends the loss."""
        self._rules.append(rule)
        return lambda: self._rules.remove(rule)

    def cut(self, *names: str) -> Callable[[], None]:
        """Separates these members from all others, both ways; gives what heals it."""
        return self.drop(lambda hop: (hop.source in names) != (hop.target in names))

    def frames(self, kind: type[B], *, source: str = "", since: float = 0.0) -> list[B]:
        """The bodies of one kind that were sent."""
        return [
            sent.frame.body
            for sent in self.sent
            if isinstance(sent.frame.body, kind) and source in ("", sent.source) and sent.at >= since
        ]

    def carry(self, node: Node, output: Send) -> None:
        data = b"".join(output.parts)
        (frame,) = decode_all(data)
        self.sent.append(Sent(self.now, node.name, output.to, frame, len(data)))
        is_group = output.to in (DATA_GROUP, CONTROL_GROUP)
        assert not is_group or len(data) <= self.budget.datagram_bytes, "a frame to the group fits one datagram"
        for target in list(self.nodes.values()) if is_group else [self.nodes[output.to]]:
            if target is not node and not any(rule(Hop(node.name, target.name, frame)) for rule in self._rules):
                self.schedule.after(LINK_S, target.feed, Received(data))


def logs_agree(group: Group, *names: str) -> bool:
    """Whether these members delivered the same batches, each once, in the same order."""
    states = [group[name].state for name in names]
    return all(state == states[0] for state in states)
