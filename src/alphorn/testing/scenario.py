"""Scenarios as text: commands, dashes, and the transcript they must produce (scenario_text.py).

Links take exactly one millisecond and disks a tenth, so a transcript reads like a diagram. The commands are methods of
`Scenario` and `ScenarioFaults`; docs/simulation.md describes them. Time is in milliseconds since the block began. The
checkers of simulations watch every scenario too.
"""

import re

from alphorn.bus.machine import ChangeInterval, ChangeVoters, Goodbye
from alphorn.model.errors import Misuse
from alphorn.testing.checkers import CheckerSet
from alphorn.testing.checkers.facts import Facts
from alphorn.testing.node import SimulatedNode
from alphorn.testing.scenario_faults import Command, ScenarioFaults
from alphorn.testing.scenario_group import Settings, read_settings
from alphorn.testing.scenario_text import Block, read_duration
from alphorn.testing.simulator import Simulation
from alphorn.testing.surroundings import MachineFactory
from alphorn.testing.transcript import Transcript
from alphorn.testing.workload import Workload

LINK_S = 0.001
QUIET_S = 0.25
QUIET_S_MAX = 30.0
STEP_S = 0.01


def run_scenario(blocks: list[Block], *, machine: MachineFactory | None = None) -> list[Block]:
    """The same blocks with the transcripts that come out. Raises `Violation` where a promise is broken."""
    scenario = Scenario(machine)
    printed = [Block(block.comments, block.commands, scenario.run(block.commands)) for block in blocks]
    scenario.finish()
    return printed


class Scenario:
    """Carries out commands against one simulated group."""

    def __init__(self, machine: MachineFactory | None = None) -> None:
        self._machine = machine
        self._commands: dict[str, Command] = {
            "group": self._group,
            "send": self._send,
            "run": self._run,
            "voters": self._voters,
            "interval": self._interval,
            "join": self._join,
            "leave": self._leave,
            "watch": self._watch,
            "show": self._show,
            "disk": self._disk,
            "order": self._order,
        }
        self._simulation: Simulation | None = None
        self._transcript: Transcript | None = None
        self._checkers: CheckerSet | None = None

    def run(self, commands: list[str]) -> list[str]:
        """Carries out one block; gives its transcript, or `ok`."""
        if self._transcript is not None:
            self._transcript.begin()
        for line in commands:
            verb, *words = line.split()
            command = self._commands.get(verb)
            if command is None:
                raise Misuse(f"there is no command {verb!r}; the commands are {', '.join(sorted(self._commands))}")
            command(words)
        lines = self._transcript.take() if self._transcript is not None else []
        return lines or ["ok"]

    def finish(self) -> None:
        """The checks that need the whole log."""
        if self._checkers is not None:
            self._checkers.finish()

    @property
    def simulation(self) -> Simulation:
        """The group; raises `Misuse` before the command `group`."""
        if self._simulation is None:
            raise Misuse("a scenario begins with the command group")
        return self._simulation

    @property
    def transcript(self) -> Transcript:
        """What is said; raises `Misuse` before the command `group`."""
        if self._transcript is None:
            raise Misuse("a scenario begins with the command group")
        return self._transcript

    # --- the group and time ---

    def _group(self, words: list[str]) -> None:
        self.finish()
        settings: Settings = read_settings(words)
        self._simulation = simulation = Simulation(
            1,
            settings.config,
            timing=settings.timing,
            budget=settings.budget,
            machine=self._machine,
            delay_min=LINK_S,
            delay_mean=0.0,
            sync_mean_s=0.0,
            keeps=settings.keeps,
            is_tracing=True,
            is_shuffled=False,
        )
        for name in settings.clients:
            simulation.add_client(name)
        for node in simulation.nodes:
            node.disk.slow_chance = 0.0
        self._workload = Workload(simulation, think_s=1.0, size_max=1, outstanding_max=1 << 20)
        self._checkers = CheckerSet(Facts(simulation), self._workload)
        self._transcript = Transcript(simulation)
        self._faults = ScenarioFaults(simulation, self._transcript)
        self._commands |= self._faults.commands()
        simulation.found()
        self._wait_until_founded()
        self._run_until_quiet()
        self._transcript.take()
        self._transcript.begin()

    def _wait_until_founded(self) -> None:
        simulation = self.simulation
        while not all(node.is_synchronised for node in simulation.nodes):
            if simulation.now > QUIET_S_MAX:
                waiting = ", ".join(node.name for node in simulation.nodes if not node.is_synchronised)
                raise Misuse(f"the group does not get together: {waiting} cannot follow the log; check the roles")
            simulation.run_until(simulation.now + STEP_S)

    def _run(self, words: list[str]) -> None:
        """run 500ms, run until-quiet: lets time pass."""
        if words == ["until-quiet"]:
            self._run_until_quiet()
        else:
            self.simulation.run_until(self.simulation.now + read_duration(words[0]))

    def _run_until_quiet(self) -> None:
        simulation, told = self.simulation, self.transcript
        end = simulation.now + QUIET_S_MAX
        told.spoken_at = simulation.now
        while simulation.now - told.spoken_at < QUIET_S:
            if simulation.now > end:
                told.say("still busy")
                return
            simulation.run_until(simulation.now + STEP_S)

    # --- what members are asked to do ---

    def _send(self, words: list[str]) -> None:
        """send M a big*5000 n1..n9: orders batches; big*5000 is one of 5000 bytes, n1..n9 are nine."""
        node = self._faults.node(words[0])
        for word in words[1:]:
            for name, size in _read_batches(word):
                self.transcript.call(name, len(self._workload.batches) + 1)
                self._workload.order_payload(node, name.encode().ljust(size, b"."))

    def _voters(self, words: list[str]) -> None:
        """voters S add W: asks the sequencer S."""
        sequencer, change, name = words
        self._faults.node(sequencer).feed(ChangeVoters(self._faults.node(name).me.number, change == "add"))

    def _interval(self, words: list[str]) -> None:
        """interval S 8 [100]: asks the sequencer for a checkpoint interval, and a lifetime."""
        sequencer, interval, *lifetime = words
        self._faults.node(sequencer).feed(ChangeInterval(int(interval), int(lifetime[0]) if lifetime else 0))

    def _join(self, words: list[str]) -> None:
        for name in words:
            self.simulation.add_client(name).disk.slow_chance = 0.0
            self._faults.node(name).start()

    def _leave(self, words: list[str]) -> None:
        for name in words:
            self._faults.node(name).feed(Goodbye())

    # --- what is printed ---

    def _watch(self, words: list[str]) -> None:
        """watch Commit deliver: prints only these; without words, all but what is hidden by default."""
        self.transcript.watch(words)

    def _show(self, words: list[str]) -> None:
        """show A,B epoch ledger.committed: facts of `describe()`; members that agree share a line."""
        names, *facts = words
        nodes = self._nodes(names)
        if not facts:
            for node in nodes:
                for key, value in _described(node).items():
                    self.transcript.say(f"{node.name}.{key}: {_plain(value)}")
            return
        groups: dict[str, list[str]] = {}
        for node in nodes:
            groups.setdefault(" ".join(f"{fact}={_plain(_fact(node, fact))}" for fact in facts), []).append(node.name)
        for text, members in groups.items():
            self.transcript.say(f"{','.join(members)}: {text}")

    def _disk(self, words: list[str]) -> None:
        """disk A B: what is durable there; members with the same records share a line."""
        groups: dict[str, list[str]] = {}
        for name in words:
            node = self._faults.node(name)
            groups.setdefault(self.transcript.describe_disk(node.disk.durable), []).append(name)
        for text, members in groups.items():
            self.transcript.say(f"{','.join(members)}: {text}")

    def _order(self, words: list[str]) -> None:
        """order [M N]: who was given what, in order; members with the same order share a line."""
        self.transcript.show_order(words)

    def _nodes(self, names: str) -> list[SimulatedNode]:
        return self.simulation.nodes if names == "*" else [self._faults.node(name) for name in names.split(",")]


def _read_batches(word: str) -> list[tuple[str, int]]:
    """Names and sizes."""
    if spread := re.fullmatch(r"([a-z]+)(\d+)\.\.\1(\d+)", word):
        return [(f"{spread[1]}{number}", 0) for number in range(int(spread[2]), int(spread[3]) + 1)]
    name, _, size = word.partition("*")
    return [(name, int(size or 0))]


def _described(node: SimulatedNode) -> dict[str, object]:
    return {"process": "down"} if node.machine is None else node.machine.describe()


def _fact(node: SimulatedNode, path: str) -> object:
    """ledger.committed: one figure of a member's description."""
    found: object = _described(node)
    if node.machine is None:
        return "down"
    for word in path.split("."):
        key: str | int = int(word) if word.isdecimal() else word  # members are listed by number
        if not isinstance(found, dict) or key not in found:
            raise Misuse(f"{node.name} has no fact {path!r}; show {node.name} prints what there is")
        found = found[key]
    return found


def _plain(value: object) -> str:
    if isinstance(value, dict):
        return " ".join(f"{key}={_plain(inner)}" for key, inner in value.items())
    if isinstance(value, list):
        return ",".join(str(inner) for inner in value) or "none"
    return {True: "yes", False: "no"}.get(value, str(value)) if isinstance(value, bool) else str(value)
