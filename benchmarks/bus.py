"""What one small log entry costs each member within the bus's core, without sockets, disks and waiting.

    python benchmarks/bus.py [--entries 3000] [--json]

A primary, a backup, a witness and a member that orders one batch at a time, all in one thread under virtual time. For
each of them: turns, calls of functions, and microseconds of processor time for an entry. Calls hardly vary from run to
run, whatever else the machine does; microseconds are those of the best of several rounds. Both have a little of this
script, and of a storage in memory, in them.
"""

import argparse
import json
import random
import sys
import time
from collections import deque
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from alphorn.bus.config import Budget, GroupConfig, MemberConfig, Role, Timing
from alphorn.bus.endpoint import Endpoint
from alphorn.bus.machine import (
    CONTROL_GROUP,
    DATA_GROUP,
    Durable,
    Input,
    Order,
    Ordered,
    Output,
    Persist,
    Received,
    Send,
)
from alphorn.io.memory_storage import MemoryStorage

SERVER = Role.SEQUENCER | Role.DATA | Role.COMMIT | Role.CHECKPOINT
MEMBERS = (
    MemberConfig(number=1, name="primary", address="primary", roles=SERVER, rank=1, tag="server"),
    MemberConfig(number=2, name="backup", address="backup", roles=SERVER, rank=2, tag="server"),
    MemberConfig(number=3, name="witness", address="witness", roles=Role.COMMIT, rank=3, tag="witness"),
)
SENDER = MemberConfig(number=0, name="sender", address="sender", roles=Role.NONE, tag="client")
CONFIG = GroupConfig(group=7, members=MEMBERS, copies=2, checkpoint_interval=1 << 40)
BODY = bytes(200)
HOP_S = 0.0001  # virtual time of one round: all that was sent before it arrives
LIMIT_S = 10.0  # of virtual time, for whatever is waited for
ROUNDS = 5


class Seat:
    """One member, run as its node runs it: what has come, what is due, what follows, and when to wake up next."""

    def __init__(self, me: MemberConfig, *, founding: bool, now: float) -> None:
        self.name = me.name
        self.inbox: deque[Input] = deque()
        self.sent: list[Send] = []
        self.ordered = 0
        self.turns = 0
        self.seconds = 0.0
        self.storage = MemoryStorage(on_durable=lambda token: self.inbox.append(Durable(token)))
        self.endpoint = Endpoint(
            config=CONFIG,
            me=me,
            storage=self.storage,
            host=bytes((10, 0, 0, me.number or 9)),
            port=7000,
            unix_s=1_750_000_000.0,
            founding=founding,
            random=random.Random(me.name),
            timing=Timing(),
            budget=Budget(),
            now=now,
            reads=me.roles != Role.COMMIT,
            history=me.number != 0,
        )
        self.deadline = now

    def turn(self, now: float) -> None:
        if not self.inbox and self.deadline > now:
            return
        begun = time.process_time()
        endpoint = self.endpoint
        self.turns += 1
        while self.inbox:
            endpoint.receive(self.inbox.popleft(), now)
        if self.deadline <= now and endpoint.next_deadline() <= now:
            endpoint.on_time(now)
        while True:
            for output in endpoint.take_outputs():
                self._perform(output)
            if not self.inbox:
                break
            endpoint.receive(self.inbox.popleft(), now)
        self.deadline = endpoint.next_deadline()
        self.seconds += time.process_time() - begun

    def _perform(self, output: Output) -> None:
        match output:
            case Send():
                self.sent.append(output)
            case Persist():
                self.storage.submit(output)
            case Ordered():
                self.ordered += 1


class Bench:
    """The group, and one batch at a time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.turn_of = ""  # whose turn it is
        self.seats = [Seat(me, founding=True, now=self.now) for me in MEMBERS]
        self.until(lambda: any(_is_sequencer(seat) for seat in self.seats))
        self.sender = Seat(SENDER, founding=False, now=self.now)
        self.seats.append(self.sender)

    def round(self) -> None:
        """Everybody has a turn, and what they say arrives before the next."""
        self.now += HOP_S
        for seat in self.seats:
            self.turn_of = seat.name
            seat.turn(self.now)
        self.turn_of = ""
        for seat in self.seats:
            sent, seat.sent = seat.sent, []
            for send in sent:
                datagram = b"".join(send.parts)
                for other in self.seats:
                    is_heard = send.to == CONTROL_GROUP or (send.to == DATA_GROUP and other.name != "witness")
                    if other is not seat and (is_heard or send.to == other.name):
                        other.inbox.append(Received(datagram))

    def until(self, is_done: Callable[[], bool]) -> None:
        end = self.now + LIMIT_S
        while not is_done():
            assert self.now < end, f"after {LIMIT_S} virtual seconds still not so"
            self.round()

    def order(self, entries: int) -> None:
        for handle in range(1, entries + 1):
            wanted = self.sender.ordered + 1
            self.sender.inbox.append(Order(BODY, handle))
            self.until(lambda wanted=wanted: self.sender.ordered >= wanted)  # type: ignore[misc]

    def count_calls(self, entries: int) -> dict[str, float]:
        """Calls of functions, in Python and in C, by member."""
        counts = dict.fromkeys((seat.name for seat in self.seats), 0)

        def count(frame: object, event: str, argument: object) -> None:
            if event in ("call", "c_call") and self.turn_of:
                counts[self.turn_of] += 1

        sys.setprofile(count)
        try:
            self.order(entries)
        finally:
            sys.setprofile(None)
        return {name: calls / entries for name, calls in counts.items()}


def _is_sequencer(seat: Seat) -> bool:
    role = seat.endpoint.describe()["sequencer_role"]
    return isinstance(role, dict) and bool(role["active"])


def measure(entries: int) -> dict[str, dict[str, float]]:
    """Turns, calls and microseconds of each member for one entry."""
    bench = Bench()
    bench.order(200)
    calls = bench.count_calls(max(1, entries // ROUNDS))
    found: dict[str, dict[str, float]] = {}
    for _ in range(ROUNDS):
        for seat in bench.seats:
            seat.turns, seat.seconds = 0, 0.0
        bench.order(entries // ROUNDS)
        for seat in bench.seats:
            microseconds = 1e6 * seat.seconds / (entries // ROUNDS)
            best = min(microseconds, found.get(seat.name, {"us": microseconds})["us"])
            turns = seat.turns / (entries // ROUNDS)
            found[seat.name] = {"turns": round(turns, 1), "calls": round(calls[seat.name]), "us": round(best, 1)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=3000)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = measure(max(ROUNDS, arguments.entries))
    if arguments.json:
        print(json.dumps(found))
        return
    table = Table("member", "turns", "calls", "CPU µs", title="for one log entry of 200 bytes, in the bus's core")
    for name, figures in found.items():
        table.add_row(name, *(str(figures[key]) for key in ("turns", "calls", "us")))
    Console().print(table)


if __name__ == "__main__":
    main()
