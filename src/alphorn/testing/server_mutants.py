"""Deliberate mistakes in message servers and in the client half of work processes."""

from typing import Any

from alphorn.message_server.claims import Claims
from alphorn.message_server.competing import Competing
from alphorn.message_server.core import MessageServer
from alphorn.message_server.exchange import Exchange
from alphorn.message_server.happenings import Happenings
from alphorn.message_server.lanes import Listening, OwnLane
from alphorn.message_server.outbox import Message
from alphorn.message_server.ring import Cursor, Entry, Ring
from alphorn.message_server.tells import Heard, Talk, Tells
from alphorn.message_server.work_process import WorkProcess
from alphorn.model.internal import Home, Lanes, ProcessFrame, Relay, Row, Say
from alphorn.testing.mutation import Mutant, Patch


def _any_number_heard() -> list[Patch]:
    def hear(self: Heard, frame: Relay) -> bool:
        if frame.number <= self.last:
            return False
        self.last = frame.number
        self.untaken[frame.number] = 0
        return True

    return [(Heard, "hear", hear)]


def _heard_again() -> list[Patch]:
    def hear(self: Heard, frame: Relay) -> bool:
        self.last = max(self.last, frame.number)
        self.untaken[frame.number] = 0
        return True

    return [(Heard, "hear", hear)]


def _confirmed_untaken() -> list[Patch]:
    return [(Heard, "through", property(lambda self: self.last))]


def _base_forgotten() -> list[Patch]:
    def say_one(self: Any, talk: Talk, message: Message) -> None:
        self._say(talk.via, Say(talk.run, 1, message.number, message.body))

    return [(Tells, "_say_one", say_one)]


def _told_to_next_run() -> list[Patch]:
    def end(self: Any, talk: Talk) -> None:
        self._by_run.pop(talk.run, None)
        talk.run, talk.via = b"", ""
        said = list(talk.confirm(talk.said[-1].number)) if talk.said else []
        waiting = list(talk.waiting.values())
        talk.waiting.clear()
        for message in [*said, *waiting]:
            message.number = 0
            talk.add(message)

    return [(Tells, "end", end)]


def _not_told_again() -> list[Patch]:
    def do_nothing(self: Tells, talk: Talk, now: float) -> None:
        """What is lost on its way is lost."""

    return [(Tells, "_say_again", do_nothing)]


def _numbers_begin_again() -> list[Patch]:
    original = Tells.__dict__["tidy"]

    def tidy(self: Any, talk: Talk) -> None:
        if not talk:
            self._numbers.pop(talk.run, None)
        original(self, talk)

    return [(Tells, "tidy", tidy)]


def _taken_before_held() -> list[Patch]:
    return [(Exchange, "_safe_through", lambda self: self.ring.end - 1)]


def _taken_before_given() -> list[Patch]:
    def safe_through(self: Any) -> int:
        return self._peer.through if self._peer is not None else self.ring.end - 1  # type: ignore[no-any-return]

    return [(Exchange, "_safe_through", safe_through)]


def _lane_said_backwards() -> list[Patch]:
    original = OwnLane.to_say_again

    def to_say_again(self: OwnLane, server: bytes) -> tuple[int, list[ProcessFrame]]:
        first, frames = original(self, server)
        return first, frames[::-1]

    return [(OwnLane, "to_say_again", to_say_again)]


def _lane_not_said_again() -> list[Patch]:
    return [(OwnLane, "to_say_again", lambda self, server: (self.last + 1, []))]


def _home_begins_now() -> list[Patch]:
    original = Exchange.come_home

    def come_home(self: Any, process: Any, frame: Home) -> None:
        original(self, process, Home(frame.is_here, frame.first, lanes=self.ring.lanes()))

    return [(Exchange, "come_home", come_home)]


def _positions_not_said() -> list[Patch]:
    original = Listening.come_home

    def come_home(self: Listening) -> Lanes:
        original(self)
        return []

    return [(Listening, "come_home", come_home)]


def _own_given_back() -> list[Patch]:
    original = Cursor.step

    def step(self: Cursor, entry: Entry) -> bool:
        own, self.own = self.own, b""
        is_given = original(self, entry)
        self.own = own
        return is_given

    return [(Cursor, "step", step)]


def _names_not_known() -> list[Patch]:
    original = Happenings.add

    def add(self: Any, event: Any) -> bool:
        self._names.pop(event.name, None)
        return original(self, event)

    def on_notify(self: Any, server: str, frame: Any, now: float) -> None:
        self._events.clear()
        before(self, server, frame, now)

    before = WorkProcess.__dict__["_on_notify"]
    return [(Happenings, "add", add), (WorkProcess, "_on_notify", on_notify)]


def _claims_not_freed() -> list[Patch]:
    return [(Claims, "free", lambda self, run: [])]


def _one_yes_is_enough() -> list[Patch]:
    original = Competing.__dict__["_go_on"]

    def go_on(self: Any, key: bytes) -> None:
        joined = self._joined
        granted = self._asking[key]
        self._joined = lambda: list(granted) or joined()
        original(self, key)
        self._joined = joined

    return [(Competing, "_go_on", go_on)]


def _done_forgotten() -> list[Patch]:
    def finish(self: Any, run: bytes, key: bytes) -> None:
        self._claims.pop(key, None)

    return [(Claims, "finish", finish)]


def _missed_not_counted() -> list[Patch]:
    return [(Cursor, "count_missed", lambda self, record: 0)]


def _synchronised_too_soon() -> list[Patch]:
    def meet(self: Any, lanes: Lanes) -> None:
        self.part()
        self._peer = self.ring.open(b"", None, dict(lanes), float("inf"))
        self._is_moved = True

    return [(Exchange, "meet", meet)]


def _earlier_link_answered() -> list[Patch]:
    def do_nothing(self: MessageServer) -> None:
        """What was to be said on a link that is over is said on the next one."""

    return [(MessageServer, "_forget_link", do_nothing)]


def _name_shared() -> list[Patch]:
    def make_way(self: Any, row: Row, now: float) -> None:
        """Whoever comes is let in; who has the name is not asked."""
        holder = self._roster.of_name(row.name)
        if holder is not None and holder.run != row.run:
            del self._roster._by_name[row.name]

    return [(MessageServer, "_make_way", make_way)]


def _ring_without_end() -> list[Patch]:
    def append(self: Any, entry: Entry, now: float) -> None:
        limits = self._bytes_max, self._entries_max
        self._bytes_max = self._entries_max = 1 << 60
        original(self, entry, now)
        self._bytes_max, self._entries_max = limits

    original = Ring.append
    return [(Ring, "append", append)]


SERVER_MUTANTS = tuple(
    Mutant(name=name, description=description, kind="servers", patch=patch)
    for name, description, patch in (
        ("any-number-heard", "A receiver takes any number above the last one.", _any_number_heard),
        ("heard-again", "A receiver takes what is said to it again.", _heard_again),
        ("confirmed-untaken", "A receiver confirms what its program has not taken.", _confirmed_untaken),
        ("base-forgotten", "A receiver waits for numbers that were given up.", _base_forgotten),
        ("told-to-next-run", "What a run may have heard is told to the next run of its name.", _told_to_next_run),
        ("not-told-again", "What was lost on its way to a process is not said again.", _not_told_again),
        ("numbers-begin-again", "Who has nothing more to say to a run begins with 1 there.", _numbers_begin_again),
        ("taken-before-held", "What is for all is safe before the other server has it.", _taken_before_held),
        ("taken-before-given", "With one server, what is for all is safe before all have it.", _taken_before_given),
        ("lane-said-backwards", "What is for all is said again in the wrong order.", _lane_said_backwards),
        ("lane-not-said-again", "What is for all is not said again to a new home.", _lane_not_said_again),
        ("home-begins-now", "A new home begins with what comes from then on.", _home_begins_now),
        ("positions-not-said", "A new home does not hear what a process has.", _positions_not_said),
        ("own-given-back", "A process is given what it has said to all others.", _own_given_back),
        ("event-names-not-known", "An event is told as often as it is reported.", _names_not_known),
        ("claims-not-freed", "What a process was to do stays with it when it has died.", _claims_not_freed),
        ("one-yes-is-enough", "A process runs a function when one server has said yes.", _one_yes_is_enough),
        ("done-forgotten", "Servers forget a function as soon as it has run.", _done_forgotten),
        ("missed-not-counted", "Who was away for too long is not told how much it missed.", _missed_not_counted),
        ("synchronised-too-soon", "A server is told that this was all before it has the ring.", _synchronised_too_soon),
        ("earlier-link-answered", "What answers an earlier link is said on the next one.", _earlier_link_answered),
        ("name-shared", "A second run of a name is let in beside the first.", _name_shared),
        ("ring-without-end", "A ring keeps whatever comes within a minute.", _ring_without_end),
    )
)
