"""Goal: what is staged and published leaves the same state everywhere, amid all other commands.

Method: as in test_determinism, with writers in the stream; both engines read staged entries from one log.
"""

from random import Random

import msgspec
import pytest

from alphorn.message_manager.engine import Engine
from alphorn.message_manager.reading import Reading
from alphorn.model import log_link
from alphorn.model.commands import AnyCommand, DropStaged, Entry, NoteReader, PublishStaged, Stage
from tests.message_manager.test_determinism import ENTRIES, Stream, checkpoint_of

FAR = (1 << 40, 0, 0)


class WritingStream(Stream):
    """The same world, with three writers in it that often repeat themselves."""

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self.staged: dict[tuple[str, int], dict[int, list[Stage]]] = {}
        self.batches: dict[str, int] = {}

    def command(self, engine: Engine) -> AnyCommand:
        if self.random.random() < 0.6:
            return super().command(engine)
        return self.random.choice([self.stage, self.stage, self.stage, self.publish_staged, self.note])(engine)

    def stage(self, engine: Engine) -> Stage:
        random = self.random
        writer = random.choice("uvw")
        batch = self.batches.setdefault(writer, 0) + random.choice([0, 0, 0, -1])
        partition = random.randint(0, 1)
        known = self.staged.setdefault((writer, batch), {}).setdefault(partition, [])
        part = len(known) if not known or random.random() < 0.9 else random.randrange(len(known))
        fields = msgspec.structs.astuple(self.publish(engine))
        made = Stage(*fields, writer, batch, partition, 7, part)
        if part == len(known):
            known.append(made)
        return made

    def publish_staged(self, engine: Engine) -> AnyCommand:
        random = self.random
        writer = random.choice("uvw")
        batch = self.batches.get(writer, 0)
        staged = self.staged.get((writer, batch), {})
        attempts = [(number, 7, len(parts), sum(part.count for part in parts)) for number, parts in staged.items()]
        if random.random() < 0.1:
            return DropStaged(writer, batch)
        if random.random() < 0.7:
            self.batches[writer] = batch + 1
        return PublishStaged(writer, batch, attempts)

    def note(self, engine: Engine) -> NoteReader:
        return NoteReader(self.random.choice(["r", "s", ""]), [self.number(engine)], engine.sequence)


def read_everything(engine: Engine, entries: dict[int, Entry]) -> list[tuple[int, int, int, int, int]]:
    answer = Reading(entries.get).answer(engine, log_link.Scan(1, sorted(engine.destinations), (0, 0, 0), FAR, 1 << 30))
    assert isinstance(answer, log_link.Scanned)
    return [(it.arrival, it.destination, it.position, it.ordinal, it.count) for it in answer.batches]


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.requirement("HA-1", "HA-3")
def test_writers_leave_the_same_state_on_a_replica_from_a_checkpoint(seed: int) -> None:
    random = Random(seed)
    stream = WritingStream(random)
    entries: dict[int, Entry] = {}
    lived, restored = Engine(), Engine()
    for engine in (lived, restored):
        engine.read_with(entries.get)
    for sequence in range(1, ENTRIES):
        entry = entries[sequence] = stream.entry(lived)
        assert lived.apply(sequence, entry) == restored.apply(sequence, entry), sequence
        if random.random() < 0.05:
            restored = Engine.restore(restored.checkpoint())
            restored.read_with(entries.get)
            needed = restored.retained()
            for number in [number for number in entries if not needed.intersection(number, number)]:
                if number < sequence:
                    del entries[number]  # what a checkpoint does not need, no later state may need
        found = read_everything(lived, entries)
        assert found == sorted(found)
    assert checkpoint_of(lived) == checkpoint_of(restored)
    assert read_everything(lived, entries) == read_everything(restored, entries)
    assert lived.retained() == restored.retained()


def test_these_streams_publish_what_they_stage() -> None:
    """The test above is worth something only if its writers get through."""
    published = refused = 0
    for seed in range(5):
        stream, engine, entries = WritingStream(Random(seed)), Engine(), dict[int, Entry]()
        engine.read_with(entries.get)
        for sequence in range(1, ENTRIES):
            entry = entries[sequence] = stream.entry(engine)
            effects = engine.apply(sequence, entry)
            places = [place for place, command in enumerate(entry.commands) if isinstance(command, PublishStaged)]
            wrong = {effect.command for effect in effects if getattr(effect, "error", "")}
            refused += sum(place in wrong for place in places)
            published += sum(place not in wrong and bool(entry.commands[place].attempts) for place in places)
    assert published > 20
    assert refused > 20
