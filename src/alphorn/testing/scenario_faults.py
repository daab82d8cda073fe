"""The commands of scenarios that make things go wrong: links, processes and disks.

Nothing here is drawn by chance, and nothing is forbidden: a scenario may destroy more than a group can survive.
"""

from collections.abc import Callable, Iterable

from alphorn.model.errors import Misuse
from alphorn.testing.disk import DiskState
from alphorn.testing.node import SimulatedNode
from alphorn.testing.scenario_text import read_duration
from alphorn.testing.simulator import Simulation
from alphorn.testing.transcript import Transcript, frame_has_number, frame_names

Command = Callable[[list[str]], None]
DAMAGEABLE = ("entry", "assignment", "chunk", "checkpoint", "group_state", "meta")


class ScenarioFaults:
    """Carries out the commands of one scenario that break things and mend them."""

    __slots__ = ("_images", "_simulation", "_transcript")

    def __init__(self, simulation: Simulation, transcript: Transcript) -> None:
        self._simulation = simulation
        self._transcript = transcript
        self._images: dict[str, DiskState] = {}

    def commands(self) -> dict[str, Command]:
        """By the word that calls each."""
        return {
            "drop": self._drop,
            "replay": self._replay,
            "partition": self._partition,
            "cut": self._cut,
            "heal": self._heal,
            "crash": self._crash,
            "restart": self._restart,
            "pause": self._pause,
            "resume": self._resume,
            "clock": self._clock,
            "install": self._install,
            "lose-disk": self._lose_disk,
            "keep-image": self._keep_image,
            "old-disk": self._old_disk,
            "damage": self._damage,
            "fail-fsync": self._fail_fsync,
            "mend-disk": self._mend_disk,
        }

    def node(self, name: str) -> SimulatedNode:
        """A member by its name; raises `Misuse` where there is none."""
        node = self._simulation.by_name.get(name)
        if node is None:
            raise Misuse(f"there is no member {name!r}; there are {', '.join(self._simulation.by_name)}")
        return node

    # --- links ---

    def _drop(self, words: list[str]) -> None:
        """drop S->M,N Commit 2 [once]: drops such frames until `heal`, or only the first of each link."""
        pairs = set(self._read_arrow(words[0]))
        frame, numbers = words[1], [int(word) for word in words[2:] if word.isdigit()]
        is_once = words[-1] == "once"

        def drops(source: int, target: int, data: bytes) -> bool:
            if (source, target) not in pairs or frame not in frame_names(data):
                return False
            if not all(frame_has_number(data, number) for number in numbers):
                return False
            if is_once:
                pairs.remove((source, target))
            return True

        self._simulation.network.add_rule(drops)

    def _replay(self, words: list[str]) -> None:
        """replay A CommitSubmit 7: what A said last of this kind arrives once more, as an old datagram may."""
        name, frame, *numbers = words
        node = self.node(name)
        found = self._transcript.find_said(name, frame, [int(number) for number in numbers])
        if found is None:
            raise Misuse(f"{name} has said no {' '.join(words[1:])}; nothing can be replayed")
        to, data = found
        network, target = self._simulation.network, self._simulation.by_name.get(to)
        self._transcript.note_replay(node, to, data)
        if target is None:
            network.multicast(node.index, data)
        else:
            network.unicast(node.index, target.index, data)

    def _partition(self, words: list[str]) -> None:
        """partition A,B | C: no frame passes between the sides, either way."""
        sides = [self._indices(side.strip()) for side in " ".join(words).split("|")]
        pairs = [(a, b) for one in sides for other in sides if one is not other for a in one for b in other]
        self._simulation.network.cut(pairs)

    def _cut(self, words: list[str]) -> None:
        """cut A->B: one direction only."""
        for word in words:
            self._simulation.network.cut(self._read_arrow(word))

    def _heal(self, words: list[str]) -> None:
        self._simulation.network.heal()

    def _read_arrow(self, word: str) -> list[tuple[int, int]]:
        """A,B->C as pairs; * is everybody."""
        sources, arrow, targets = word.partition("->")
        if not arrow:
            raise Misuse(f"{word!r} says no direction; write A->B, with * for everybody")
        return [(a, b) for a in self._indices(sources) for b in self._indices(targets) if a != b]

    def _indices(self, names: str) -> Iterable[int]:
        if names == "*":
            return range(len(self._simulation.nodes))
        return [self.node(name.strip()).index for name in names.split(",") if name.strip()]

    # --- processes ---

    def _crash(self, words: list[str]) -> None:
        for name in words:
            self.node(name).end("crash", keeps_prefix=False)

    def _restart(self, words: list[str]) -> None:
        for name in words:
            self.node(name).start_again()

    def _pause(self, words: list[str]) -> None:
        for name in words:
            self.node(name).pause()

    def _resume(self, words: list[str]) -> None:
        for name in words:
            self.node(name).resume()

    def _clock(self, words: list[str]) -> None:
        """clock A -3600s: its wall clock is this wrong from its next start on."""
        name, skew = words
        self.node(name).clock_skew_s = read_duration(skew)

    def _install(self, words: list[str]) -> None:
        """install A 500ms: its upper layer takes this long over each checkpoint."""
        name, duration = words
        self.node(name).installing.install_s = read_duration(duration)

    # --- disks ---

    def _lose_disk(self, words: list[str]) -> None:
        for name in words:
            self._end(name).disk.lose()

    def _keep_image(self, words: list[str]) -> None:
        for name in words:
            self._images[name] = self.node(name).disk.durable.copy()

    def _old_disk(self, words: list[str]) -> None:
        """old-disk A: its disk is replaced by what `keep-image` kept."""
        for name in words:
            if name not in self._images:
                raise Misuse(f"no image of {name} was kept; use keep-image first")
            self._end(name).disk.restore(self._images[name])

    def _end(self, name: str) -> SimulatedNode:
        node = self.node(name)
        if node.is_up:
            node.end("crash", keeps_prefix=False)
        return node

    def _damage(self, words: list[str]) -> None:
        """damage D entry 3 4, damage D chunk 12/0, damage D meta: the record cannot be read any more."""
        name, kind, *places = words
        if kind not in DAMAGEABLE:
            raise Misuse(f"a disk has no {kind!r} to damage; it has {', '.join(DAMAGEABLE)}")
        for place in places or ["0"]:
            number, _, chunk = place.partition("/")
            self.node(name).disk.damage((kind, int(number), int(chunk or 0)))

    def _fail_fsync(self, words: list[str]) -> None:
        for name in words:
            self.node(name).disk.is_failing = True

    def _mend_disk(self, words: list[str]) -> None:
        for name in words:
            self.node(name).disk.repair()
