"""What was asked and not answered: each question is repeated on a new stream until its answer comes."""

from collections.abc import Callable

import msgspec

from alphorn.client.refusals import error_of
from alphorn.model.conversation import (
    Acknowledge,
    AnyClientFrame,
    CommitTransaction,
    Consume,
    ConsumePattern,
    Done,
    Failed,
    FragmentRead,
    Recover,
    Resolved,
    Return,
    StatusAnswer,
)
from alphorn.model.errors import Error, InvalidDestination, UnknownOutcome
from alphorn.model.log_conversation import ChannelsAnswer
from alphorn.model.process_conversation import TicketAnswer
from alphorn.model.ranges import RangeSet

REMEMBERED_S = 50.0  # the cluster forgets a connection that was away for a minute, and its transactions with it

Answer = Resolved | Done | StatusAnswer | FragmentRead | ChannelsAnswer | TicketAnswer
OnAnswer = Callable[[Answer | Error], None]


class Request:
    """One question."""

    __slots__ = ("forgives", "frame", "is_repeated", "on_answer")

    def __init__(self, frame: AnyClientFrame, on_answer: OnAnswer, *, forgives: bool) -> None:
        self.frame = frame
        self.on_answer = on_answer
        self.forgives = forgives  # asked twice, the second answer may be that it is gone: the first time did it
        self.is_repeated = False


class Requests:
    """All open questions of a connection, in the order in which they were asked."""

    __slots__ = ("_open",)

    def __init__(self) -> None:
        self._open: dict[int, Request] = {}

    def __len__(self) -> int:
        return len(self._open)

    def add(self, number: int, frame: AnyClientFrame, on_answer: OnAnswer, *, forgives: bool = False) -> None:
        """A question with this number is asked."""
        self._open[number] = Request(frame, on_answer, forgives=forgives)

    def on_answer(self, frame: Answer | Failed) -> None:
        """An answer; one to nothing that is open comes from before a reconnection and is dropped."""
        request = self._open.pop(frame.request, None)
        if request is None:
            return
        if not isinstance(frame, Failed):
            request.on_answer(frame)
            return
        error = error_of(frame.error, frame.reason)
        is_forgiven = request.forgives and request.is_repeated and isinstance(error, InvalidDestination)
        request.on_answer(Done(frame.request) if is_forgiven else error)

    def fail(self, error: Error) -> None:
        """No answer comes any more."""
        ended, self._open = self._open, {}
        for request in ended.values():
            request.on_answer(error)

    def forget(self, consumer: int, error: Error | None) -> None:
        """A consumer is over: nothing about it is repeated; who waits for it to begin hears the error."""
        asked = Consume | Acknowledge | Return | Recover
        numbers = [
            number
            for number, request in self._open.items()
            if isinstance(request.frame, asked) and request.frame.consumer == consumer
        ]
        ended = [self._open.pop(number) for number in numbers]
        for request in ended:
            if error is not None:
                request.on_answer(error)

    def on_connected(self, away_s: float) -> None:
        """A stream is there. After a long time what became of transactions cannot be found out any more."""
        if away_s <= REMEMBERED_S:
            return
        error = UnknownOutcome(
            f"the connection was cut off for more than {REMEMBERED_S:.0f} s while a transaction was being committed; "
            "look at what it was to change before doing it again"
        )
        numbers = [n for n, request in self._open.items() if isinstance(request.frame, CommitTransaction)]
        for request in [self._open.pop(number) for number in numbers]:
            request.on_answer(error)

    def renew(self, wish: ConsumePattern) -> bool:
        """A wish that was not answered is told as it is now; False where it was answered."""
        for number, request in self._open.items():
            if isinstance(request.frame, ConsumePattern) and request.frame.watch == wish.watch:
                request.frame = msgspec.structs.replace(wish, request=number)
                return True
        return False

    def consumes(self) -> list[Consume]:
        """Those that begin to receive."""
        return [request.frame for request in self._open.values() if isinstance(request.frame, Consume)]

    def repeat(
        self,
        renew: Callable[[Consume, list[int]], Consume],
        unsettled: dict[int, RangeSet],
        *,
        is_resumed: bool,
    ) -> list[AnyClientFrame]:
        """Everything to ask on a new stream: consumers first, then the rest.

        `renew` makes a consumer's frame anew, with the positions it gave up without an answer so far. A message that
        came again after it was given back may be spoken of twice: only the newest word counts, for the ones before have
        been heard. `unsettled` are the positions of a consumer whose newest word is not among the questions.
        """
        given_up: dict[int, RangeSet] = {}
        newer: dict[int, RangeSet] = {}
        rest: list[AnyClientFrame] = []
        for request in reversed(self._open.values()):
            request.is_repeated = is_resumed
            frame = request.frame
            for consumer, flat in _spoken_of(frame):
                positions = RangeSet(zip(flat[::2], flat[1::2], strict=True))
                later = newer.setdefault(consumer, unsettled.get(consumer, RangeSet()))
                if isinstance(frame, Acknowledge | Return):
                    frame = msgspec.structs.replace(frame, positions=positions.difference(later).flat())
                later.update(positions)
                given_up.setdefault(consumer, RangeSet()).update(positions)
            if not isinstance(frame, Consume):
                rest.append(frame)
        frames: list[AnyClientFrame] = []
        for consume in self.consumes():
            frames.append(renew(consume, given_up.get(consume.consumer, RangeSet()).flat()))
        return frames + rest[::-1]


def _spoken_of(frame: AnyClientFrame) -> list[tuple[int, list[int]]]:
    """Which positions of which consumers a frame gives up."""
    match frame:
        case Acknowledge() | Return() | Recover():
            return [(frame.consumer, frame.positions)]
        case CommitTransaction():
            return [(consumer, positions) for consumer, _, positions in frame.consumed]
    return []
