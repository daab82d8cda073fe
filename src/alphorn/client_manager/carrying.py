"""Carries destinations from one channel to another: a primary asks for it, and asks another when this one is gone.

    expect them there → copy messages while they are used here → begin → copy the rest → all else → end

Every step is a command in one of the two logs and changes nothing when it is taken twice, so whoever carries on after a
failure begins at the beginning, and what is there already is passed over.
"""

from collections.abc import Callable

from alphorn.client_manager.desk import Desk
from alphorn.model.commands import Arrive, Carried, Expect, Move, MoveStage
from alphorn.model.errors import InvalidDestination, Misuse
from alphorn.model.ids import Kind
from alphorn.model.link import Answered
from alphorn.model.moving_link import CarriedRun, Carry, Export, Exported

COPY_ROUNDS = 2  # while it is used, each to the newest message at its beginning; what comes later is little


class Carrying:
    """All journeys that this Client Manager was asked for."""

    __slots__ = ("_desk", "_journeys")

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._journeys: dict[tuple[int, int], Journey] = {}  # by channel and number

    def on_carry(self, channel: int, frame: Carry) -> None:
        """A primary wants a destination to be carried away; one that is under way goes on."""
        key = (channel, frame.number)
        known = self._journeys.get(key)
        if known is None or known.is_ending:  # that one was cancelled, and this is another plan
            self._journeys[key] = Journey(self._desk, channel, frame, on_end=self._on_end)
            self._journeys[key].begin()

    def _on_end(self, journey: "Journey") -> None:
        if self._journeys.get(journey.key) is journey:
            del self._journeys[journey.key]

    def on_exported(self, channel: int, frame: Exported) -> None:
        """Some of what is to be carried."""
        for journey in list(self._journeys.values()):
            if journey.channel == channel and journey.asked == frame.request:
                journey.on_exported(frame)

    def describe(self) -> dict[str, object]:
        """For people."""
        return {f"{channel}/{number}": journey.copied for (channel, number), journey in self._journeys.items()}


class Journey:
    """One destination on its way."""

    __slots__ = (
        "_attempt",
        "_carry",
        "_desk",
        "_goal",
        "_has_begun",
        "_number",
        "_on_end",
        "_pieces",
        "_rounds",
        "_start",
        "asked",
        "channel",
        "copied",
        "is_ending",
        "key",
    )

    def __init__(self, desk: Desk, channel: int, carry: Carry, *, on_end: "Callable[[Journey], None]") -> None:
        self._desk = desk
        self._carry = carry
        self._on_end = on_end
        self._number = 0  # there
        self._start = 0  # the position to go on from
        self._goal = 0  # the newest position when this round began; 0 when it has not
        self._rounds = 0
        self._has_begun = False
        self._attempt = b""
        self._pieces = 0
        self.channel = channel
        self.key = (channel, carry.number)
        self.is_ending = False  # it was cancelled, which the log has not said yet
        self.asked = 0  # request of an export
        self.copied = 0  # messages

    def begin(self) -> None:
        """Makes the other channel expect it; anew, where something went wrong later."""
        self._start = self._goal = self._rounds = 0
        carry = self._carry
        there = self._desk.channels[carry.channel]
        if there.is_removed:  # since it was planned
            reason = f"the channel where {carry.destination} was to go is removed; choose another"
            self._on_expected(Answered(0, error=Misuse.__name__, reason=reason))
            return
        command = Expect(carry.destination, carry.policy, self.channel, carry.number, carry.names)
        repeats = there.repeats

        def on_answer(answer: Answered) -> None:
            # Where it was ordered again, the log may have refused it and then take it, and nobody would carry what is
            # expected: one that comes behind both tells.
            if answer.error and there.repeats != repeats:
                self.begin()
            else:
                self._on_expected(answer)

        there.request(command, on_answer)

    def on_exported(self, frame: Exported) -> None:
        """Messages, or a piece of all else, go into the other log."""
        if frame.record:
            self._on_piece(frame)
            return
        self._answered()
        if not self._goal:
            self._goal = frame.newest
        self._start = frame.start
        there = self._desk.channels[self._carry.channel]
        for run in frame.runs[:-1]:
            there.want(self._carried(run), size=len(run.blob))
        if frame.runs:
            last = frame.runs[-1]
            self.copied += sum(run.count for run in frame.runs)
            there.request(self._carried(last), self._then(self._go_on), size=len(last.blob))
        else:
            self._go_on(Answered(0))

    def _carried(self, run: CarriedRun) -> Carried:
        blob = memoryview(bytes(run.blob))
        start = run.position
        return Carried(
            self._number, run.producer, run.counter, run.count, run.flags, run.timestamp, blob, position=start
        )

    def _go_on(self, answer: Answered) -> None:
        is_at_goal = not self._start or (not self._has_begun and self._start > self._goal)
        if not is_at_goal:
            self._ask_page()
        elif self._has_begun:
            self._attempt = bytes(self._desk.ids.next(Kind.CONNECTION))
            self._ask(-1)
        elif self._rounds < COPY_ROUNDS and self._start:
            self._rounds += 1
            self._goal = 0
            self._ask_page()
        else:
            channels = self._desk.directory.names_from(self.channel)
            command = Move(self._carry.number, MoveStage.BEGUN, self._carry.channel, self._number, channels=channels)
            self._desk.channels[self.channel].request(command, self._then(self._on_begun))

    def _on_expected(self, answer: Answered) -> None:
        if answer.error:
            self._desk.log("warning", "move_cancelled", f"destination={self._carry.destination} reason={answer.reason}")
            command = Move(self._carry.number, MoveStage.CANCELLED, self._carry.channel, 0, answer.reason)
            self.is_ending = True
            self._desk.channels[self.channel].request(command, lambda _: self._end("cancelled"))
            return
        self._number = answer.number
        if answer.position < 0:
            self._has_begun = True
            self._arrived(answer)
            return
        self._start = answer.position + 1
        self._ask_page()

    def _on_begun(self, answer: Answered) -> None:
        self._has_begun = True
        self._start = self._start or self._goal + 1
        self._ask_page()

    def _on_piece(self, frame: Exported) -> None:
        there = self._desk.channels[self._carry.channel]
        record = bytes(frame.record)
        channels = self._desk.directory.names_from(self._carry.channel) if frame.is_last else []
        command = Arrive(self._number, self._attempt, self._pieces, [record], frame.is_last, channels)
        self._pieces += 1
        if frame.is_last:
            self._answered()
            there.request(command, self._then(self._arrived), size=len(record))
        else:
            there.want(command, size=len(record))

    def _arrived(self, answer: Answered) -> None:
        command = Move(self._carry.number, MoveStage.ENDED, self._carry.channel, self._number)
        self._desk.channels[self.channel].request(command, lambda _: self._end("ended"))

    def _then(self, then: Callable[[Answered], None]) -> Callable[[Answered], None]:
        """Goes on where a step was taken; begins anew where it was not, because another may have been faster."""

        def on_answer(answer: Answered) -> None:
            if answer.error:
                self._desk.later(self.begin)
            else:
                then(answer)

        return on_answer

    def _ask_page(self) -> None:
        self._ask(self._start)

    def _ask(self, start: int) -> None:
        here = self._desk.channels[self.channel]
        self._pieces = 0

        def on_answer(answer: Answered) -> None:
            if answer.error == InvalidDestination.__name__:
                self._give_up()
            else:  # it could not be read; there is no hurry
                self._desk.later(lambda: self._ask(start))

        self.asked = here.ask(on_answer, lost=lambda: self._ask(start))
        self._desk.ask_primary(self.channel, Export(self.asked, self._carry.number, start))

    def _answered(self) -> None:
        self._desk.channels[self.channel].pending.pop(self.asked, None)

    def _give_up(self) -> None:
        """Nothing is left to carry: the destination was deleted before it left, or somebody else has carried it."""
        here, there = self._desk.channels[self.channel], self._desk.channels[self._carry.channel]

        def on_recalled(answer: Answered) -> None:
            command = Move(self._carry.number, MoveStage.CANCELLED, self._carry.channel)
            here.request(command, lambda _: self._end("given up"))

        # Means nothing where it has come. It is expected no more before the channel that it was on forgets it.
        there.request(Move(self._number, MoveStage.CANCELLED, self.channel), on_recalled)

    def _end(self, how: str) -> None:
        self._desk.log("info", "move", f"destination={self._carry.destination} messages={self.copied} how={how}")
        self._on_end(self)
