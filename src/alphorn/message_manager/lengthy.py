"""Questions whose answers take milliseconds: what a queue holds, how the cluster stands, the log in bulk.

Clients may ask as many at once as they like. One is answered in a turn, so that consumers are served, and the bus has
its heartbeats, between any two of them. Links take turns: whoever reads the log in bulk keeps no look waiting for more
than one answer of its own.
"""

from collections import deque
from collections.abc import Callable, Mapping

from alphorn.message_manager.dispatch import Dispatcher
from alphorn.message_manager.engine import Engine
from alphorn.message_manager.questions import answer_question, refusal
from alphorn.message_manager.reading import Reading
from alphorn.message_manager.status import Picture
from alphorn.model import frame_kinds, link, log_link
from alphorn.model.errors import Error

Question = (
    link.Look | link.Describe | log_link.Survey | log_link.Measure | log_link.Scan | log_link.Search | log_link.Hash
)
Read = Callable[[int], bytes | memoryview | None]


class Lengthy:
    """The questions that wait, of each link the oldest first."""

    __slots__ = ("_asked", "_picture", "_read", "_reading")

    def __init__(self, picture: Picture, reading: Reading, read: Read) -> None:
        self._asked: dict[int, deque[Question]] = {}  # by link, in the order of their turns
        self._picture = picture
        self._reading = reading
        self._read = read

    def __bool__(self) -> bool:
        return bool(self._asked)

    def add(self, number: int, question: Question) -> None:
        """Somebody asks on this link."""
        self._asked.setdefault(number, deque()).append(question)

    def forget(self, number: int) -> None:
        """A link is gone, and nobody there waits for answers."""
        self._asked.pop(number, None)

    def answer_one(
        self,
        engine: Engine,
        dispatcher: Dispatcher | None,
        epoch: int,
        links: Mapping[int, link.Introduce | None],
    ) -> tuple[int, list[frame_kinds.Told]]:
        """What to say to the next question, and on which link; what only a primary knows no other one answers."""
        number, question = self._take()
        if isinstance(question, link.Look):
            return number, self._look(engine, question) if dispatcher is not None else []
        if isinstance(question, link.Describe):
            known = {place: introduced for place, introduced in links.items() if introduced is not None}
            read = self._reading.messages
            return number, [self._picture.answer(question, engine, dispatcher, epoch, known, read)]
        answer = self._reading.answer(engine, question)
        return number, [answer] if answer is not None else []

    def _take(self) -> tuple[int, Question]:
        number = next(iter(self._asked))
        questions = self._asked.pop(number)
        question = questions.popleft()
        if questions:
            self._asked[number] = questions  # behind the others
        return number, question

    def _look(self, engine: Engine, question: link.Look) -> list[frame_kinds.Told]:
        try:
            return answer_question(engine, question, self._read)
        except Error as error:
            return [refusal(engine, question, error)]
