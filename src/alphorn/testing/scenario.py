"""Scenarios as text: commands, dashes, and the transcript they must produce.

A file is a sequence of blocks, separated by empty lines: commands, a line of four dashes, the transcript. Lines that
begin with # explain. Links take exactly one millisecond and disks a tenth, so a transcript reads like a diagram. The
commands are methods of `Scenario`; docs/simulation.md describes them. Time is in milliseconds since the block began.
"""

from collections.abc import Callable

import msgspec

from alphorn.bus.machine import ChangeVoters, Goodbye
from alphorn.model.errors import Misuse
from alphorn.testing.checkers import CheckerSet
from alphorn.testing.checkers.facts import Facts
from alphorn.testing.node import SimulatedNode
from alphorn.testing.scenario_group import Settings, read_settings
from alphorn.testing.simulator import Simulation
from alphorn.testing.surroundings import MachineFactory
from alphorn.testing.transcript import Transcript, frame_has_number, frame_names
from alphorn.testing.workload import Workload

DASHES = "----"
LINK_S = 0.001
QUIET_S = 0.25
QUIET_S_MAX = 30.0
STEP_S = 0.01


class Block(msgspec.Struct):
    """Some commands and what they should print."""

    comments: list[str]
    commands: list[str]
    expected: list[str]


def read_blocks(text: str) -> list[Block]:
    """The blocks of a scenario file; raises `Misuse` for a block without dashes."""
    blocks = []
    for part in text.strip().split("\n\n"):
        lines = part.splitlines()
        comments = [line for line in lines if line.startswith("#")]
        rest = [line for line in lines if not line.startswith("#")]
        if not rest:
            blocks.append(Block(comments, [], []))
            continue
        if DASHES not in rest:
            raise Misuse(
                f"the block that begins with {rest[0]!r} has no line of four dashes; add one after its commands"
            )
        middle = rest.index(DASHES)
        blocks.append(Block(comments, rest[:middle], rest[middle + 1 :]))
    return blocks


def write_blocks(blocks: list[Block]) -> str:
    """The reverse of `read_blocks`."""
    parts = []
    for block in blocks:
        body = [*block.commands, DASHES, *block.expected] if block.commands else []
        parts.append("\n".join([*block.comments, *body]))
    return "\n\n".join(parts) + "\n"


def run_scenario(blocks: list[Block], *, machine: MachineFactory | None = None) -> list[Block]:
    """The same blocks with the transcripts that come out."""
    scenario = Scenario(machine)
    return [Block(block.comments, block.commands, scenario.run(block.commands)) for block in blocks]


class Scenario:
    """Carries out commands against one simulated group."""

    def __init__(self, machine: MachineFactory | None = None) -> None:
        self._machine = machine
        self._commands: dict[str, Callable[[list[str]], None]] = {
            "group": self._group,
            "send": self._send,
            "run": self._run,
            "drop": self._drop,
            "crash": self._crash,
            "restart": self._restart,
            "pause": self._pause,
            "resume": self._resume,
            "partition": self._partition,
            "cut": self._cut,
            "heal": self._heal,
            "lose-disk": self._lose_disk,
            "damage": self._damage,
            "fail-fsync": self._fail_fsync,
            "voters": self._voters,
            "join": self._join,
            "leave": self._leave,
            "watch": self._watch,
            "show": self._show,
            "order": self._order,
        }
        self._simulation: Simulation | None = None
        self._transcript: Transcript | None = None

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

    @property
    def simulation(self) -> Simulation:
        """The group; raises `Misuse` before the command `group`."""
        if self._simulation is None:
            raise Misuse("a scenario begins with the command group")
        return self._simulation

    def _node(self, name: str) -> SimulatedNode:
        node = self.simulation.by_name.get(name)
        if node is None:
            raise Misuse(f"there is no member {name!r}; there are {', '.join(self.simulation.by_name)}")
        return node

    def _group(self, words: list[str]) -> None:
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
            is_tracing=True,
            is_shuffled=False,
        )
        for name in settings.clients:
            simulation.add_client(name)
        for node in simulation.nodes:
            node.disk.slow_chance = 0.0
        facts = Facts(simulation)
        self._workload = Workload(simulation, think_s=1.0, size_max=1, outstanding_max=1 << 20)
        self._checkers = CheckerSet(facts, self._workload)
        self._transcript = Transcript(simulation)
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

    def _send(self, words: list[str]) -> None:
        node = self._node(words[0])
        for word in words[1:]:
            name, _, size = word.partition("*")  # big*5000 is a batch of 5000 bytes called big
            payload = name.encode().ljust(int(size or 0), b".")
            self._told.call(name)
            self._workload.order_payload(node, payload)

    def _run(self, words: list[str]) -> None:
        if words == ["until-quiet"]:
            self._run_until_quiet()
        else:
            self.simulation.run_until(self.simulation.now + read_duration(words[0]))

    def _run_until_quiet(self) -> None:
        simulation, told = self.simulation, self._told
        end = simulation.now + QUIET_S_MAX
        told.spoken_at = simulation.now
        while simulation.now - told.spoken_at < QUIET_S:
            if simulation.now > end:
                told.say("still busy")
                return
            simulation.run_until(simulation.now + STEP_S)

    @property
    def _told(self) -> Transcript:
        assert self._transcript is not None
        return self._transcript

    def _drop(self, words: list[str]) -> None:
        """drop S->M Commit 2: drops every such frame; a last word `once` drops only the first."""
        source, target = self._read_arrow(words[0])
        frame, numbers = words[1], [int(word) for word in words[2:] if word.isdigit()]
        left = [1 if words[-1] == "once" else 1 << 30]

        def drops(sender: int, receiver: int, data: bytes) -> bool:
            if source not in (-1, sender) or target not in (-1, receiver) or not left[0]:
                return False
            if frame not in frame_names(data) or not all(frame_has_number(data, number) for number in numbers):
                return False
            left[0] -= 1
            return True

        self.simulation.network.add_rule(drops)

    def _read_arrow(self, word: str) -> tuple[int, int]:
        source, _, target = word.partition("->")
        return tuple(-1 if name == "*" else self._node(name).index for name in (source, target))  # type: ignore[return-value]

    def _crash(self, words: list[str]) -> None:
        for name in words:
            self._node(name).end("crash", keeps_prefix=False)

    def _restart(self, words: list[str]) -> None:
        for name in words:
            self._node(name).start_again()

    def _pause(self, words: list[str]) -> None:
        for name in words:
            self._node(name).pause()

    def _resume(self, words: list[str]) -> None:
        for name in words:
            self._node(name).resume()

    def _partition(self, words: list[str]) -> None:
        sides = [
            [self._node(name.strip()).index for name in side.split(",") if name.strip()]
            for side in " ".join(words).split("|")
        ]
        pairs = [(a, b) for one in sides for other in sides if one is not other for a in one for b in other]
        self.simulation.network.cut(pairs)

    def _cut(self, words: list[str]) -> None:
        for word in words:
            source, target = self._read_arrow(word)
            everyone = range(len(self.simulation.nodes))
            sources = everyone if source < 0 else (source,)
            targets = everyone if target < 0 else (target,)
            self.simulation.network.cut((a, b) for a in sources for b in targets if a != b)

    def _heal(self, words: list[str]) -> None:
        self.simulation.network.heal()

    def _lose_disk(self, words: list[str]) -> None:
        for name in words:
            node = self._node(name)
            if node.is_up:
                node.end("crash", keeps_prefix=False)
            node.disk.lose()

    def _damage(self, words: list[str]) -> None:
        """damage D entry 3: the stored record cannot be read any more."""
        name, kind, *numbers = words
        for number in numbers or ["0"]:
            self._node(name).disk.damage((kind, int(number), 0))

    def _fail_fsync(self, words: list[str]) -> None:
        for name in words:
            self._node(name).disk.is_failing = True

    def _voters(self, words: list[str]) -> None:
        """voters S add W: asks the sequencer S."""
        sequencer, change, name = words
        self._node(sequencer).feed(ChangeVoters(self._node(name).me.number, change == "add"))

    def _join(self, words: list[str]) -> None:
        for name in words:
            self.simulation.add_client(name).disk.slow_chance = 0.0
            self._node(name).start()

    def _leave(self, words: list[str]) -> None:
        for name in words:
            self._node(name).feed(Goodbye())

    def _watch(self, words: list[str]) -> None:
        self._told.shown = frozenset(words)

    def _show(self, words: list[str]) -> None:
        name, *keys = words
        machine = self._node(name).machine
        described: object = {"state": "down"} if machine is None else machine.describe()
        for key in keys:
            described = described.get(key) if isinstance(described, dict) else None
        self._told.show(name, described)

    def _order(self, words: list[str]) -> None:
        """Says who has delivered what, in order; members with the same order share a line."""
        self._told.show_order(words)


def read_duration(text: str) -> float:
    """500ms or 2s, in seconds."""
    for suffix, factor in (("ms", 0.001), ("s", 1.0)):
        if text.endswith(suffix):
            return float(text.removesuffix(suffix)) * factor
    raise Misuse(f"{text!r} is no duration; write 500ms or 2s")
