"""One message's trip from program to program, step by step, as docs/architecture.md tells it.

The cluster is simulated: S1 is primary, S2 its backup, W3 a witness, M1 a Client Manager; C1 sends and C2 receives.
A step is a frame on its way (`C1 says Publish to M1`) or a room that is entered (`M1 enters publishing.on_publish`).
Every frame and every fsync takes as long as every other, so the transcript has one order.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from alphorn.bus.config import Budget, GroupConfig, MemberConfig
from alphorn.bus.frames import decode_all
from alphorn.bus.sender import Sender
from alphorn.client.inbox import AckMode, Inbox
from alphorn.client_manager.cache import ReceiveCache
from alphorn.client_manager.consuming import Consuming
from alphorn.client_manager.core import ClientManager
from alphorn.client_manager.directory import Directory
from alphorn.client_manager.publishing import Publishing
from alphorn.doors import native
from alphorn.message_manager.core import MessageManager
from alphorn.message_manager.dispatch import Dispatcher
from alphorn.message_manager.engine import Engine
from alphorn.message_manager.queue import Queue
from alphorn.model import link
from alphorn.model.conversation import Delivered, Publish
from alphorn.testing.cluster_plan import ClientPlan, ClusterPlan, LimitsPlan
from alphorn.testing.node import SimulatedNode
from alphorn.testing.plan import SERVER, WITNESS
from alphorn.testing.programs import Reading, SimulatedClient
from alphorn.testing.simulated_cluster import SimulatedCluster
from alphorn.testing.watch import Troubles

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
QUEUE = "queue:orders"
ON_THE_WIRE = {"Data", "CommitSubmit", "Commit"}  # of the bus; test_trip.py has the others

# Whose code runs, and the doors of the rooms that a message or word of it passes.
ACTORS: tuple[tuple[type, str, Callable[[Any], str]], ...] = (
    (ClientManager, "receive", lambda machine: machine._desk.settings.name),
    (MessageManager, "receive", lambda machine: machine._about.name),
    (Sender, "order", lambda sender: sender._station.name),
    (SimulatedClient, "_on_frame", lambda client: client.name),
)
DOORS: tuple[tuple[type, str], ...] = (
    (Publishing, "on_publish"),
    (Directory, "at"),
    (Consuming, "on_acknowledge"),
    (Sender, "order"),
    (Engine, "apply"),
    (Queue, "store"),
    (Queue, "remove"),
    (Dispatcher, "on_effects"),
    (Consuming, "on_deliver"),
    (ReceiveCache, "find"),
    (Inbox, "on_delivered"),
)

THERE_AND_BACK = [
    # 1. The library packs the batch and says it at the native door.
    "C1 says Publish to M1",
    # 2. The Client Manager checks it; what its clients wanted within the turn is one entry.
    "M1 enters publishing.on_publish",
    "M1 enters directory.at",
    "M1 enters sender.order",
    # 3. The bus makes it durable and gives it a number.
    "M1 multicasts Data",
    "S1 multicasts CommitSubmit",
    "S1 multicasts Commit",
    # 4. The engine applies it; the queue has an interval more.
    "S1 enters engine.apply",
    "S1 enters queue.store",
    # 5. The dispatcher gives it to a consumer, by reference.
    "S1 enters dispatch.on_effects",
    "S1 says Deliver to M1",
    # 6. The Client Manager heard the same transmission: the destination is still there, and the body in the cache.
    "M1 enters directory.at",
    "M1 enters consuming.on_deliver",
    "M1 enters cache.find",
    # 7. Both clients hear of it.
    "M1 says Confirmed to C1",
    "M1 says Delivered to C2",
    "C2 enters inbox.on_delivered",
    # 8. The acknowledgement goes the same way.
    "C2 says Acknowledge to M1",
    "M1 enters consuming.on_acknowledge",
    "M1 enters sender.order",
    "M1 multicasts Data",
    "S1 multicasts CommitSubmit",
    "S1 multicasts Commit",
    "S1 enters engine.apply",
    "S1 enters queue.remove",
    "S1 enters dispatch.on_effects",
    "M1 says Done to C2",
]


class Trip:
    """A cluster through which one message goes, when all is quiet, and everything that is seen of that."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: list[str] = []
        self.frames: list[Any] = []  # said on streams
        self._acting: list[str] = []
        for room, door in DOORS:
            monkeypatch.setattr(room, door, self._noting(room, door))
        for machine, door, name in ACTORS:
            monkeypatch.setattr(machine, door, self._acting_as(machine, door, name))
        cluster = SimulatedCluster(plan(), is_tracing=True, is_even=True)
        simulation = cluster.simulation
        for client in cluster.clients:
            client.is_calm = True
        simulation.found()
        for client in cluster.clients:
            client.start()
        simulation.run_until(3.0)
        assert not cluster.find_unfinished()
        simulation.watch.said.append(self._on_said)
        simulation.watch.sent.append(self._on_sent)
        self.steps.clear()
        assert cluster.clients[0].send_last()
        simulation.run_until(3.5)

    def of(self, *names: str) -> list[str]:
        """The steps of some, in order."""
        return [step for step in self.steps if step.split()[0] in names]

    def _on_said(self, source: str, target: str, data: bytes | None) -> None:
        assert data is not None
        body = data[native.LENGTH_BYTES :]
        decoders: dict[str, Callable[[bytes], Any]] = {"C": native.decode_client, "S": link.decode_told}
        decode = decoders.get(source[0], native.decode_server if target.startswith("C") else link.decode_asked)
        frame = decode(body)
        self.frames.append(frame)
        self.steps.append(f"{source} says {type(frame).__name__} to {target}")

    def _on_sent(self, node: SimulatedNode, to: str, data: bytes, troubles: Troubles) -> None:
        names = [frame.name for frame in decode_all(data)]
        self.steps += [f"{node.name} multicasts {name}" for name in names if name in ON_THE_WIRE]

    def _noting(self, room: type, door: str) -> Callable[..., Any]:
        method = getattr(room, door)
        name = f"{room.__module__.rpartition('.')[2]}.{door}"

        def enter(this: Any, *arguments: Any, **options: Any) -> Any:
            self.steps.append(f"{self._acting[-1]} enters {name}")
            return method(this, *arguments, **options)

        return enter

    def _acting_as(self, machine: type, door: str, name: Callable[[Any], str]) -> Callable[..., Any]:
        method = getattr(machine, door)

        def act(this: Any, *arguments: Any, **options: Any) -> Any:
            self._acting.append(name(this))
            try:
                return method(this, *arguments, **options)
            finally:
                self._acting.pop()

        return act


def plan() -> ClusterPlan:
    """One of each, and nothing goes wrong."""
    roles = {"S1": SERVER, "S2": SERVER, "W3": WITNESS}
    members = tuple(
        MemberConfig(number=number, name=name, address=name, roles=roles[name], rank=number)
        for number, name in enumerate(roles, 1)
    )
    reading = Reading(destination=QUEUE, mode=AckMode.AUTO, prefetch=10)
    return ClusterPlan(
        seed=1,
        config=GroupConfig(group=7, members=members),
        budget=Budget(),
        client_managers=1,
        clients=(
            ClientPlan(name="C1", client_id="", home=0, targets=(QUEUE,), readings=()),
            ClientPlan(name="C2", client_id="", home=0, targets=(), readings=(reading,)),
        ),
        limits=LimitsPlan(max_lengths={}, session_bytes_max=1 << 20, consumer_bytes_max=1 << 20),
        faults=(),
        pace_s=1.0,
        safety_s=1.0,
        liveness_s=1.0,
        turn_s=0.0,
        install_s_max=0.0,
    )


@pytest.mark.requirement("CM-1", "CM-8", "MM-1")
def test_one_message_makes_the_trip_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Trip(monkeypatch).of("C1", "C2", "M1", "S1") == THERE_AND_BACK


@pytest.mark.requirement("HA-1", "HA-3")
def test_a_backup_does_the_same_from_the_same_transmission_and_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Trip(monkeypatch).of("S2") == [
        "S2 enters engine.apply",
        "S2 enters queue.store",
        "S2 enters engine.apply",
        "S2 enters queue.remove",
    ]


def test_the_batch_that_reaches_the_consumer_is_the_one_that_the_producer_packed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    frames = Trip(monkeypatch).frames
    (packed,) = [bytes(frame.blob) for frame in frames if isinstance(frame, Publish)]
    (unpacked,) = [bytes(frame.blob) for frame in frames if isinstance(frame, Delivered)]
    assert unpacked == packed


def test_the_page_names_frames_and_rooms_in_the_order_of_the_trip() -> None:
    section = PAGE.read_text().partition("## The trip of one message\n\n")[2].partition("\n\n")[0]  # the numbered steps
    named = re.findall(r"`(?:\w+/)?(\w+)(?:\.py)?`", section)
    assert {"Publish", "publishing", "engine", "dispatch", "cache", "Delivered", "Acknowledge"} <= set(named)
    rest = iter(THERE_AND_BACK)
    for name in named:  # each is looked for after the one before it
        assert any(re.search(rf"\b{name}\b", step) for step in rest), name
