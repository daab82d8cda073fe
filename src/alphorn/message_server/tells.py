"""What one process says to another: the sender's part, and the receiver's.

Invariants:

- The sender pins the run that has the name, and numbers what it says to it 1, 2, 3 …, at the first saying. It keeps
  what is not confirmed, and says all of that again, in order, whenever its way may have lost something: another
  server, a row that came anew, or no progress for a while. Numbers never begin again for the same two runs.
- The receiver takes exactly the next number and drops every other. So nothing is doubled or overtaken, on whatever ways
  frames come, late or twice. It confirms what its owner has taken, and what is said again after that.
- A message whose time is up is answered for. It stays in its place, so that there is no gap, until everything before it
  is over too; then `base` tells the receiver not to wait for it.
- When the pinned run has ended, what was said to it may have been heard, and nobody can tell. What was not said goes on
  to the next run of that name.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator

from alphorn.message_server.outbox import OVERHEAD_BYTES, WINDOW, WINDOW_BYTES, Message, Sequence
from alphorn.model.internal import ProcessFrame, Relay, Row, Say

RUNS_MAX = 10_000  # whose numbers are remembered, of more those of who was silent for longest are not
NAMES_MAX = 10_000  # of processes that were seen
KNOWN_S = 3600.0  # so long a name is known
RESAY_S = 1.5  # so long a sender waits for progress before it says everything again; twice as long each time
RESAY_S_MAX = 10.0

Reach = Callable[[str, bytes], tuple[Row, str] | None]  # name and preferred run → who has it, through which server


class Talk(Sequence):
    """What is said to one name."""

    __slots__ = ("asked", "name", "resay_at", "run", "via", "wait_s")

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.run = b""  # that is pinned
        self.via = ""  # the server through which it is said; empty where there is no way
        self.asked: set[str] = set()  # servers that were asked whether somebody may have this name
        self.wait_s = RESAY_S
        self.resay_at = 0.0


class Tells:
    """The sender's part."""

    def __init__(
        self, reach: Reach, say: Callable[[str, ProcessFrame], None], on_lost: Callable[[Message], None]
    ) -> None:
        self._reach = reach
        self._say = say
        self._on_lost = on_lost  # hears of what was said to a run that has ended
        self._talks: dict[str, Talk] = {}
        self._by_run: dict[bytes, Talk] = {}
        self._numbers: OrderedDict[bytes, int] = OrderedDict()  # of runs the last that was said
        self._forgotten = 0  # to runs that are not among them no higher number was said
        self._seen: OrderedDict[str, float] = OrderedDict()  # names of processes → when last

    def __iter__(self) -> Iterator[Talk]:
        return iter(list(self._talks.values()))

    def find(self, name: str) -> Talk | None:
        """What is said to this name, where there is something."""
        return self._talks.get(name)

    def see(self, name: str, now: float) -> None:
        """There is somebody of this name, or may be."""
        self._seen[name] = now
        self._seen.move_to_end(name)
        if len(self._seen) > NAMES_MAX:
            self._seen.popitem(last=False)

    def is_known(self, name: str, now: float) -> bool:
        """Whether somebody of this name was seen within the last hour."""
        return now - self._seen.get(name, now - KNOWN_S) < KNOWN_S

    def add(self, message: Message, now: float) -> Talk:
        """One more message."""
        talk = self._talks.get(message.to)
        if talk is None:
            talk = self._talks[message.to] = Talk(message.to)
        talk.add(message)
        if talk.via:
            self._advance(talk, now)
        else:
            self.route(talk, now)
        return talk

    def route(self, talk: Talk, now: float, *, is_anew: bool = False) -> None:
        """Finds the way to a name. Where it is another, or anew, all is said again. A run in whose place there is
        another one has ended."""
        found = self._reach(talk.name, talk.run)
        if found is None:
            talk.via = ""
            return
        row, via = found
        if talk.run and row.run != talk.run:
            self.end(talk)
        if talk.run != row.run or talk.via != via or is_anew:
            talk.run, talk.via = row.run, via
            self._by_run[row.run] = talk
            self._say_again(talk, now)
        self._advance(talk, now)
        self.tidy(talk)

    def of_run(self, run: bytes) -> Talk | None:
        """What is said to this run."""
        return self._by_run.get(run)

    def end(self, talk: Talk) -> None:
        """The pinned run has ended."""
        self._by_run.pop(talk.run, None)
        talk.run, talk.via = b"", ""
        while talk.said:
            for message in talk.confirm(talk.said[0].number):
                self._on_lost(message)

    def confirm(self, run: bytes, through: int, now: float) -> list[Message]:
        """This run has everything through this number. Gives what is over."""
        talk = self._by_run.get(run)
        if talk is None:
            return []
        over = list(talk.confirm(through))
        if over:
            talk.wait_s = RESAY_S
            talk.resay_at = now + talk.wait_s
            self._advance(talk, now)
            self.tidy(talk)
        return over

    def give_up(self, message: Message) -> list[Message]:
        """Nobody waits for this any more. Gives what is over by that."""
        talk = self._talks[message.to]
        if not message.number:
            del talk.waiting[id(message)]
            over = [message]
        else:
            over = []
            while talk.said and not talk.said[0].handle:
                over += talk.confirm(talk.said[0].number)
        self.tidy(talk)
        return over

    def tidy(self, talk: Talk) -> None:
        """Forgets a name to which there is nothing to say; its numbers go on where they are."""
        if not talk:
            self._talks.pop(talk.name, None)
            self._by_run.pop(talk.run, None)

    def on_server_lost(self, server: str) -> None:
        """What was said there may be lost, and what was asked is not answered."""
        for talk in self._talks.values():
            talk.asked.discard(server)
            if talk.via == server:
                talk.via = ""

    def look(self, now: float) -> None:
        """Says again what is not confirmed for too long."""
        for talk in self._talks.values():
            if talk.via and talk.said and now >= talk.resay_at:
                talk.wait_s = min(2 * talk.wait_s, RESAY_S_MAX)
                self._say_again(talk, now)

    def _say_again(self, talk: Talk, now: float) -> None:
        talk.resay_at = now + talk.wait_s
        for message in talk.said:
            self._say_one(talk, message)

    def _advance(self, talk: Talk, now: float) -> None:
        if not talk.via:
            return
        if not talk.said:
            talk.wait_s = RESAY_S
            talk.resay_at = now + talk.wait_s
        for message in talk.advance(self._numbers.get(talk.run, self._forgotten)):
            self._numbers[talk.run] = message.number
            self._numbers.move_to_end(talk.run)
            self._say_one(talk, message)
        if len(self._numbers) > RUNS_MAX:
            self._forgotten = max(self._forgotten, self._numbers.popitem(last=False)[1])

    def _say_one(self, talk: Talk, message: Message) -> None:
        self._say(talk.via, Say(talk.run, talk.said[0].number, message.number, message.body))


class Heard:
    """The receiver's part: of one sender, what was handed to the owner."""

    __slots__ = ("_bytes", "last", "untaken", "via")

    def __init__(self) -> None:
        self.last = 0
        self.untaken: dict[int, int] = {}  # number → size
        self._bytes = 0
        self.via = ""  # the server through which it was last heard

    @property
    def through(self) -> int:
        """The owner has everything through this number."""
        return next(iter(self.untaken)) - 1 if self.untaken else self.last

    def hear(self, frame: Relay) -> bool:
        """Whether this is the next, and is not one too many: a sender that gives up may say more than its window."""
        self.last = max(self.last, frame.base - 1)
        size = OVERHEAD_BYTES + len(frame.body)
        if frame.number != self.last + 1 or (
            self.untaken and (len(self.untaken) >= WINDOW or self._bytes + size > WINDOW_BYTES)
        ):
            return False
        self.last = frame.number
        self.untaken[frame.number] = size
        self._bytes += size
        return True

    def take(self, number: int) -> None:
        """The owner has this."""
        self._bytes -= self.untaken.pop(number, 0)


class Hearing:
    """All senders that were heard; of very many, who was silent for longest is forgotten."""

    __slots__ = ("_heard", "_to_confirm")

    def __init__(self) -> None:
        self._heard: OrderedDict[bytes, Heard] = OrderedDict()
        self._to_confirm: dict[bytes, Heard] = {}

    def hear(self, server: str, frame: Relay) -> bool:
        """Whether this is for the owner."""
        heard = self._heard.get(frame.run)
        if heard is None:
            heard = self._heard[frame.run] = Heard()
            if len(self._heard) > RUNS_MAX:
                self._heard.popitem(last=False)
        else:
            self._heard.move_to_end(frame.run)
        heard.via = server
        if heard.hear(frame):
            return True
        if frame.number <= heard.through:
            self._to_confirm[frame.run] = heard
        return False

    def take(self, run: bytes, number: int) -> None:
        """The owner has this."""
        heard = self._heard.get(run)
        if heard is not None:
            heard.take(number)
            self._to_confirm[run] = heard

    def confirmations(self, joined: list[str]) -> dict[str, list[tuple[bytes, int]]]:
        """What to confirm through which server: where it came from, or where else there is one."""
        found: dict[str, list[tuple[bytes, int]]] = {}
        for run, heard in self._to_confirm.items():
            via = heard.via if heard.via in joined else next(iter(joined), "")
            if via and heard.through:
                found.setdefault(via, []).append((run, heard.through))
        self._to_confirm.clear()
        return found
