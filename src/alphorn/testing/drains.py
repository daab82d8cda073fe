"""What must hold in the end of names and dead letter queues, whichever channels were drained, opened and left.

A channel whose drain was the last word about it is empty and may be removed, alone or with others: then every name
leads to its destination, by the register that it has without them.
"""

from collections.abc import Callable, Collection, Sequence
from itertools import combinations

from alphorn.client.requests import Answer
from alphorn.client_manager.directory import Directory
from alphorn.message_manager.engine import Engine
from alphorn.model.destinations import Destination, DestinationKind
from alphorn.model.errors import Error
from alphorn.testing.watch import Violation

OnAnswer = Callable[[Answer | Error], None]


class Drains:
    """Which channels are drained for certain, and what follows."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._said = [0] * len(names)  # wishes so far, by channel
        self._unclear: set[int] = set()  # channels that may be opened at any time, by a wish that nobody answered
        self._drained: dict[int, int] = {}  # by channel: which wish it was
        self._waiting = 0  # for answers to wishes

    def opened(self, channel: int) -> OnAnswer:
        """A channel is to be opened; who is called hears how that ended."""
        self._said[channel] += 1
        self._unclear.add(channel)  # it is in the log, or not, or will be

        def on_answer(answer: Answer | Error) -> None:
            if not isinstance(answer, Error):
                self._unclear.discard(channel)

        return on_answer

    def drained(self, channel: int) -> OnAnswer:
        """A channel is to be drained; who is called hears how that ended."""
        self._said[channel] += 1
        said = self._said[channel]
        is_certain = channel not in self._unclear

        def on_answer(answer: Answer | Error) -> None:
            if is_certain and not isinstance(answer, Error):
                self._drained[channel] = said

        return on_answer

    def awaited(self, then: OnAnswer = lambda answer: None) -> OnAnswer:
        """Something is wished that has to end; who is called hears how that was."""
        self._waiting += 1

        def on_answer(answer: Answer | Error) -> None:
            self._waiting -= 1
            then(answer)

        return on_answer

    def removable(self) -> list[int]:
        """Channels that were drained, and nothing was said of since."""
        return [number for number, said in sorted(self._drained.items()) if said == self._said[number]]

    def find_unanswered(self) -> str:
        """How many wishes that are awaited have not ended, in words; nothing where all have."""
        return f"{self._waiting} wishes about names and channels are not answered" if self._waiting else ""

    def check(self, engines: Sequence[Engine]) -> None:
        """All is quiet; raises `Violation`."""
        removable = self.removable()
        for number in removable:
            left = [str(found) for found in _movable(engines[number])]
            if left:
                raise Violation("a drained channel is empty", f"{self._names[number]} has {', '.join(left)}")
        for count in range(len(removable) + 1):
            for removed in combinations(removable, count):
                self._check_names(engines, removed)
        for number, engine in enumerate(engines):
            self._check_dead_letters(number, engine)

    def _check_names(self, engines: Sequence[Engine], removed: Collection[int]) -> None:
        directory = Directory(len(engines), self._names, removed)
        for home, engine in enumerate(engines):
            for destination in _movable(engine):
                found = _follow(engines, destination, directory.lots(destination)[0], removed)
                if found != home:
                    raise Violation(
                        "a name leads to its destination",
                        f"{destination} is on {self._names[home]} and is looked for on {self._names[found]}, "
                        f"without {', '.join(self._names[number] for number in removed) or 'nothing'}",
                    )

    def _check_dead_letters(self, number: int, engine: Engine) -> None:
        for found in engine.destinations.values():
            named = found.policy.dead_letter
            if named is not None and Destination(DestinationKind.QUEUE, named) not in engine.numbers:
                raise Violation(
                    "a dead letter queue is beside its destination",
                    f"what dies of {found.destination} on {self._names[number]} goes to {named}, which is not there",
                )


def _movable(engine: Engine) -> list[Destination]:
    return [
        each.destination for each in engine.destinations.values() if not each.owner and not each.destination.is_reserved
    ]


def _follow(engines: Sequence[Engine], destination: Destination, register: int, removed: Collection[int]) -> int:
    """Where a Client Manager that knows nothing looks for a name at last."""
    number, asked = register, set[int]()
    while destination not in engines[number].numbers and number not in asked:
        asked.add(number)
        record = engines[number].moves.elsewhere.get(destination)
        if record is not None and record[0] in removed:  # then all are asked
            homes = (other for other, engine in enumerate(engines) if destination in engine.numbers)
            return next((other for other in homes if other not in removed), number)
        if record is None:
            break
        number = record[0]
    return number
