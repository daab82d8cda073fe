"""What a program on a work process does: it tells, reports, subscribes, competes, and takes what it is given."""

import random
from collections import deque
from collections.abc import Sequence

import alphorn.message_server.process_machine as pm
from alphorn.model import internal
from alphorn.model.events import EVERYTHING, Event
from alphorn.testing.servers.facts import Competition, Facts, Saying, key_of
from alphorn.testing.servers.worker import Worker

KINDS = ("destination_created", "primary_changed", "disk_low", "channel_lost")
ONCE = "destination_created"  # those who want such events compete to act on them
UNKNOWN = "nobody"  # no process ever has this name
TIMEOUTS_S = (0.5, 2.0, 5.0, 10.0, 30.0)
SIZES = (12, 12, 12, 40, 200, 3000, 60_000)
FUNCTION_S = (0.05, 0.3, 2.0, 8.0)  # that a function runs
TAKING_S = (0.0, 0.0, 0.0, 0.02, 0.3)  # mean, that a program needs for one thing
RECENT_MAX = 50


class Program:
    """The program of one work process, whichever run of it."""

    def __init__(self, worker: Worker, facts: Facts, stream: random.Random, *, names: Sequence[str], pace_s: float):
        self._worker = worker
        self._facts = facts
        self._stream = stream
        self._names = names  # of all processes
        self._pace_s = pace_s
        self.taking_s = stream.choice(TAKING_S)
        self.sulks_until = 0.0  # it takes nothing before
        self.is_calm = True  # it begins nothing by itself
        worker.program = self

    # --- life ---

    def draw_wants(self) -> list[str]:
        """The kinds of events that the next run wants."""
        if self._stream.random() < 0.3:
            return [EVERYTHING]
        return sorted(self._stream.sample(KINDS, self._stream.randint(1, len(KINDS))))

    def begin(self) -> None:
        """Its process starts."""
        self._handle = 0
        self.open: dict[int, Saying] = {}  # what waits for an answer
        self._asked: set[int] = set()
        self._given: deque[pm.Given | pm.Told] = deque()
        self._is_taking = False
        self._run = self._worker.run
        self._schedule_next()

    def find_unfinished(self) -> str:
        """What is still to be done, in words; nothing when it has all answers and has taken all that it was given."""
        name = self._worker.name
        if self.open:
            return f"{name} waits for answers to {list(self.open.values())[:3]}"
        if self._asked:
            return f"{name} has asked for the last events and has no answer"
        return f"{name} has not taken {len(self._given)} things" if self._given else ""

    # --- acting ---

    def _schedule_next(self) -> None:
        later_s = self._stream.expovariate(1.0) * self._pace_s
        self._worker.schedule.after(later_s, self._act, self._worker.run)

    def _act(self, run: int) -> None:
        worker = self._worker
        if run != worker.run or not worker.is_up:
            return
        if worker.is_running and not self.is_calm and not worker.is_leaving:
            self._do_something()
        self._schedule_next()

    def _do_something(self) -> None:
        draw = self._stream
        match draw.choices(("tell", "others", "unknown", "want", "recent", "large"), (60, 25, 2, 3, 2, 0.5))[0]:
            case "tell":
                others = [name for name in self._names if name != self._worker.row_name]
                self.say(draw.choice(others), draw.choice(TIMEOUTS_S), draw.choice(SIZES))
            case "others":
                self.say(internal.OTHERS, draw.choice(TIMEOUTS_S), draw.choice(SIZES))
            case "unknown":
                self.say(UNKNOWN, draw.choice(TIMEOUTS_S), SIZES[0])
            case "large":
                self.say(draw.choice(self._names), 1.0, internal.MESSAGE_BYTES_MAX + 1)
            case "want":
                self._worker.receive(pm.WantEvents(tuple(self.draw_wants())))
            case _:
                self.ask_recent()

    def say(self, to: str, timeout_s: float, size: int) -> Saying:
        """Says something to one process, or to all others."""
        self._handle += 1
        saying = self._facts.say(self._worker.facts_run, to, timeout_s, size)
        self.open[self._handle] = saying
        self._worker.tell(self._worker.name, f"says #{saying.number} to {to or 'all others'}, for {timeout_s} s")
        self._worker.receive(pm.SendMessage(self._handle, to, saying.body, timeout_s))
        return saying

    def report(self, event: Event) -> None:
        """Tells the cluster of something."""
        self._worker.tell(self._worker.name, f"reports {event.kind} {event.number}")
        self._facts.report(self._worker.facts_run, event)
        self._worker.receive(pm.TellEvent(event))

    def ask_recent(self) -> None:
        """Asks for the last events."""
        self._handle += 1
        self._asked.add(self._handle)
        self._worker.receive(pm.AskRecent(self._handle, RECENT_MAX))

    # --- hearing ---

    def hear(self, output: pm.Output) -> None:
        """What the machine has for the program."""
        match output:
            case pm.Given() | pm.Told():
                self._on_given(output)
            case pm.Outcome(handle, error, reason):
                self._on_outcome(handle, error, reason)
            case pm.Recent(handle):
                self._asked.discard(handle)
            case pm.Won(key):
                self._on_won(key)

    def _on_outcome(self, handle: int, error: str, reason: str) -> None:
        if handle in self._asked:
            self._asked.remove(handle)
            return
        saying = self.open.pop(handle)
        self._worker.tell(self._worker.name, f"#{saying.number}: {f'{error}: {reason}' if error else 'acknowledged'}")
        self._facts.answer(saying, error)

    def _on_given(self, output: pm.Given | pm.Told) -> None:
        worker = self._worker
        if isinstance(output, pm.Given):
            saying = self._facts.find(output.body)
            worker.tell(worker.name, f"is given {saying} as {output.number}")
            self._facts.give(worker.facts_run, output)
        else:
            event = output.event
            worker.tell(worker.name, f"is told {event.kind} {event.number} {event.node} {event.details}")
            self._facts.tell(worker.facts_run, event)
        self._given.append(output)
        if not self._is_taking:
            self._is_taking = True
            self._take_soon(worker.run)

    def _take_soon(self, run: int) -> None:
        later_s = self._stream.expovariate(1.0) * self.taking_s if self.taking_s else 0.0
        later_s = max(later_s, self.sulks_until - self._worker.schedule.now)
        self._worker.schedule.after(later_s, self._take, run)

    def _take(self, run: int) -> None:
        worker = self._worker
        if run != worker.run or not worker.is_up:
            return
        if not worker.is_running or worker.schedule.now < self.sulks_until:
            worker.schedule.after(0.1, self._take, run)
            return
        item = self._given.popleft()
        self._facts.take(worker.facts_run, item)
        if item.number:
            worker.receive(pm.Taken(item.run, item.number))
        if isinstance(item, pm.Told) and item.event.kind == ONCE:
            self._compete(key_of(item.event))
        self._is_taking = bool(self._given)
        if self._is_taking and worker.is_up:
            self._take_soon(run)

    # --- once in the cluster ---

    def _compete(self, key: bytes) -> None:
        self._facts.compete(self._worker.facts_run, key)
        self._worker.receive(pm.Compete(key))

    def _on_won(self, key: bytes) -> None:
        worker = self._worker
        worker.tell(worker.name, f"runs {key[:3].hex()}")
        self._facts.win(worker.facts_run, key)
        worker.schedule.after(self._stream.choice(FUNCTION_S), self._complete, worker.run, key)

    def _complete(self, run: int, key: bytes) -> None:
        worker = self._worker
        if run != worker.run or not worker.is_up:
            return
        if not worker.is_running:
            worker.schedule.after(0.1, self._complete, run, key)
            return
        worker.tell(worker.name, f"has run {key[:3].hex()}")
        self._facts.complete(key)
        worker.receive(pm.Complete(key))

    def competition(self, key: bytes) -> Competition:
        """Who runs it."""
        return self._facts.competitions[key]
