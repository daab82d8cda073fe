"""One batch's trip through members and roles, step by step, as docs/architecture.md tells it.

The group is the page's: S is sequencer and votes, D and E store, V and W only vote, M sends.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from alphorn.bus.commit_server import CommitServer
from alphorn.bus.data_server import DataServer
from alphorn.bus.follower import Follower
from alphorn.bus.frames import FRAME_NAMES
from alphorn.bus.intake import Intake
from alphorn.bus.receiver import Receiver
from alphorn.bus.sender import Sender
from alphorn.bus.sequencer import Sequencer
from alphorn.testing.scenario import Scenario

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
GROUP = "group sequencer=S data=D,E commit=S,V,W clients=M"
FRAMES = "Data DataReport CommitSubmit CommitAcknowledge Commit"

# The methods by which a batch, or word of it, enters a role.
DOORS: tuple[tuple[type, str], ...] = (
    (Sender, "order"),
    (Intake, "on_data"),
    (DataServer, "on_batch"),
    (Sequencer, "on_report"),
    (Follower, "on_submit"),
    (CommitServer, "on_appended"),
    (DataServer, "on_appended"),
    (Sequencer, "on_acknowledge"),
    (Follower, "on_commit"),
    (Sender, "on_committed"),
    (Receiver, "on_committed"),
)


def walk(*, watching: str) -> list[str]:
    """What is seen while one batch makes its trip: `member event details`, each thing once, without the time."""
    scenario = Scenario()
    scenario.run([GROUP])
    lines = scenario.run([f"watch {watching}", "send M a", "run 20ms"])
    steps = [re.sub(r"^t=\d+ +", "", line) for line in lines]
    return list(dict.fromkeys(" ".join(step.split()) for step in steps))


def page_frames() -> list[str]:
    """The frames that the page's steps name, in their order."""
    section = PAGE.read_text().partition("## The trip of one batch")[2].partition("What can go wrong")[0]
    return [name for name in re.findall(r"\*\*(\w+)\*\*", section) if name in FRAME_NAMES.values()]


@pytest.mark.requirement("BUS-10", "BUS-11", "BUS-13", "BUS-14", "BUS-15", "BUS-18", "BUS-25")
def test_one_batch_makes_the_trip_step_by_step() -> None:
    assert walk(watching=f"{FRAMES} write durable ordered deliver") == [
        # 1. The member sends the batch to the group, with its logical timestamp.
        "M data a timestamp=7 -> data",
        # 2. Data servers report it from memory.
        "D,E data-report a -> S",
        # 3. The sequencer gives it a number and submits that; its own disk works beside it.
        "S commit-submit 8=a after 7@1.1 committed=7 -> control",
        "S write numbers 8=a, meta promised=1.1 incarnation=1",
        "S durable numbers 8=a, meta promised=1.1 incarnation=1",
        # 4. Data servers store the entry, commit servers the number; each acknowledges after its fsync.
        "D,E write numbers 8=a, entry 8, meta promised=1.1 incarnation=1",
        "V,W write numbers 8=a, meta promised=1.1 incarnation=1",
        "D,E durable numbers 8=a, entry 8, meta promised=1.1 incarnation=1",
        "D,E commit-acknowledge accepted=0 stored=8 -> S",
        "V,W durable numbers 8=a, meta promised=1.1 incarnation=1",
        "V,W commit-acknowledge accepted=8 stored=0 -> S",
        # 5. Two copies and a majority: the number is final.
        "S commit through 8: 8=a -> control",
        # 6. Every receiver delivers it, and the sender is told.
        "S deliver 8=a",
        "D,E deliver 8=a",
        "M ordered 8=a",
        "M deliver 8=a",
    ]


def test_the_page_names_the_frames_in_the_order_of_the_wire() -> None:
    frames = {name.lower() for name in FRAMES.split()}
    seen = [step.split()[1].replace("-", "") for step in walk(watching=FRAMES)]
    assert [name.lower() for name in page_frames()] == [name for name in dict.fromkeys(seen) if name in frames]


def test_the_batch_passes_the_roles_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    passed: list[str] = []
    for role, door in DOORS:
        monkeypatch.setattr(role, door, noting(passed, role, door))
    scenario = Scenario()
    scenario.run([GROUP])
    passed.clear()
    scenario.run(["send M a", "run 20ms"])
    way = [
        "M sender.order",
        "D intake.on_data",
        "D data_server.on_batch",
        "S sequencer.on_report",
        "D follower.on_submit",
        "D data_server.on_appended",
        "V follower.on_submit",
        "V commit_server.on_appended",
        "S sequencer.on_acknowledge",
        "S receiver.on_committed",
        "M follower.on_commit",
        "M receiver.on_committed",
        "M sender.on_committed",
    ]
    rest = iter(passed)
    assert [step for step in way if step in rest] == way  # each is looked for after the one before it


def noting(passed: list[str], role: type, door: str) -> Callable[..., Any]:
    """The method, which also notes whose it is each time it is entered."""
    method = getattr(role, door)
    name = f"{role.__module__.rpartition('.')[2]}.{door}"

    def enter(self: Any, *arguments: Any, **options: Any) -> Any:
        passed.append(f"{self._station.name} {name}")
        return method(self, *arguments, **options)

    return enter
