"""Two channels' engines, and a destination carried from one to the other as a Client Manager does it."""

from collections.abc import Callable, Iterator

from alphorn.message_manager.effects import Answer, Effect
from alphorn.message_manager.engine import Engine
from alphorn.message_manager.exporting import export_page
from alphorn.message_manager.moves import Lent
from alphorn.message_manager.topic import Topic
from alphorn.model.commands import (
    AnyCommand,
    Arrive,
    Carried,
    Entry,
    Expect,
    Move,
    MoveStage,
    Settle,
    decode_entry,
    encode_entry,
)

ATTEMPT = b"an attempt"


class Side:
    """One channel: its engine and its log."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.engine = Engine()
        self.log: dict[int, bytes] = {}

    def order(self, *commands: AnyCommand) -> list[Effect]:
        payload = encode_entry(Entry(list(commands)))
        sequence = self.engine.sequence + 1
        self.log[sequence] = payload
        return self.engine.apply(sequence, decode_entry(payload))

    def answer(self, command: AnyCommand) -> Answer:
        effects = self.order(command)
        return next((effect for effect in effects if isinstance(effect, Answer)), Answer(0))

    def restart(self) -> None:
        """Goes on from a checkpoint, which must hold all there is."""
        before = b"".join(self.engine.checkpoint())
        self.engine = Engine.restore([before])
        assert b"".join(self.engine.checkpoint()) == before

    def state_of(self, number: int) -> dict[str, object]:
        return next(each for each in self.engine.describe()["destinations"] if each["number"] == number)  # type: ignore


class Travel:
    """A destination of `here` on its way to `there`."""

    def __init__(self, here: Side, there: Side, number: int) -> None:
        self.here = here
        self.there = there
        self.number = number
        self.target = 0
        self.start = 0
        self.lent = Lent({}, {})

    def steps(self) -> list[Callable[[], None]]:
        return [self.plan, self.expect, self.copy, self.begin, self.copy, self.arrive, self.end, self.settle]

    def run(self) -> int:
        for step in self.steps():
            step()
        return self.target

    def names(self, first: Side) -> list[str]:
        """Of all channels, this one's first."""
        return [f"channel-{number}" for number in dict.fromkeys((first.number, 0, 1))]

    def plan(self) -> None:
        assert not self.here.answer(Move(self.number, MoveStage.PLANNED, self.there.number)).error

    def expect(self) -> None:
        source = self.here.engine.destinations.get(self.number)
        leaving = self.here.engine.moves.leaving.get(self.number)
        source = source or (leaving.source if leaving else None)
        assert source is not None
        subscriptions = source.subscriptions.values() if isinstance(source, Topic) else ()
        named = [each for each in subscriptions if each.is_durable or each.is_shared]
        names = [(each.is_durable, each.client, each.name) for each in named]
        answer = self.there.answer(Expect(source.destination, source.policy, self.here.number, self.number, names))
        assert not answer.error, answer
        self.target, self.start = answer.number, answer.position + 1

    def carried(self) -> Iterator[Carried]:
        start = self.start
        while True:
            page = export_page(self.here.engine, self.number, start, 0, self.here.log.get)
            for run in page.runs:
                yield Carried(
                    self.target,
                    run.producer,
                    run.counter,
                    run.count,
                    run.flags,
                    run.timestamp,
                    run.blob,
                    position=run.position,
                )
            start = page.start
            if not start:
                self.start = page.newest + 1
                return

    def copy(self) -> None:
        for command in list(self.carried()):
            assert not self.there.answer(command).error

    def begin(self) -> None:
        command = Move(self.number, MoveStage.BEGUN, self.there.number, self.target, channels=self.names(self.here))
        assert not self.here.answer(command).error

    def arrive(self, attempt: bytes = ATTEMPT) -> None:
        pieces = list(self.here.engine.export(self.number, self.lent))
        for place, piece in enumerate(pieces):
            is_last = place == len(pieces) - 1
            channels = self.names(self.there) if is_last else []
            command = Arrive(self.target, attempt, place, [piece], is_last, channels)
            assert not self.there.answer(command).error

    def end(self) -> None:
        assert not self.here.answer(Move(self.number, MoveStage.ENDED, self.there.number, self.target)).error

    def settle(self) -> None:
        self.there.order(Settle(self.target))
