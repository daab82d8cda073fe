"""A candidate driven by hand: what tests of takeover, and of whose turn it is, share."""

from alphorn.bus.commit_server import CommitServer
from alphorn.bus.config import GroupConfig, Role, Timing
from alphorn.bus.entries import Assignment
from alphorn.bus.follower import Follower
from alphorn.bus.frames import Absent, Promise
from alphorn.bus.nack import Requests
from alphorn.bus.receiver import Receiver
from alphorn.bus.repair import Repairer
from alphorn.bus.sequencer import Sequencer
from alphorn.bus.takeover import Takeover
from tests.bus.group import make_config
from tests.bus.stations import EPOCH, Bench, batch_id

TIMING = Timing()
OLD = EPOCH


class Standing:
    """Member 1 of three stands for sequencer; nobody is heard. Numbers 1 to 3 are joins, committed.

    Unless it has just started, `is_led=False`, a sequencer led it before.
    """

    def __init__(
        self, config: GroupConfig | None = None, *log: Assignment, roles: Role | None = None, is_led: bool = True
    ) -> None:
        self.bench = Bench(config or make_config(), roles=roles)
        self.bench.join(1, 2, 3)
        station = self.bench.station
        station.epoch = station.durable_epoch = OLD
        if is_led:
            station.ledger.confirm(OLD, 3)
        self.follower = Follower(station, durable=3, now=0.0)
        self.follower.known_committed = 3
        if log:
            self.follower.adopt(3, list(log))
        self.bench.settle()
        commit_server = CommitServer(station, self.follower, is_returning=False, now=0.0)
        self.sequencer = Sequencer(station, self.follower, 0.0)
        self.repairer = Repairer(station, 0.0)
        self.receiver = Receiver(station, self.follower, Requests(station), self.repairer, delivered=3)
        self.takeover = Takeover(
            station, self.follower, self.receiver, commit_server, self.sequencer, self.repairer, 0.0
        )

    def ask(self, now: float = 1.0) -> int:
        """Claims an epoch, durably; gives it."""
        self.takeover.ask(now)
        self.bench.settle()
        return self.bench.station.epoch

    def promise(
        self,
        number: int,
        *log: Assignment,
        committed: int = 3,
        epoch: int | None = None,
        previous: int = 3,
        is_granted: bool = True,
        promised: int | None = None,
    ) -> None:
        epoch = self.bench.station.epoch if epoch is None else epoch
        last_epoch = log[-1].epoch if log else OLD
        body = Promise(
            is_granted,
            epoch,
            promised or epoch,
            1,
            previous,
            OLD,
            committed,
            previous + len(log),
            last_epoch,
            list(log),
        )
        self.takeover.on_promise(self.bench.frame(number, body, epoch), body, 1.0)

    def promise_own(self) -> None:
        ledger = self.bench.ledger
        self.promise(1, *ledger.slice(3, ledger.last), committed=ledger.committed)

    def deny(self, number: int, *counters: int, epoch: int | None = None) -> None:
        body = Absent([batch_id(counter) for counter in counters])
        epoch = self.bench.station.epoch if epoch is None else epoch
        self.takeover.on_absent(self.bench.frame(number, body, epoch), body, 1.0)

    @property
    def log(self) -> list[Assignment]:
        ledger = self.bench.ledger
        return [assignment for assignment in ledger.slice(3, ledger.last) if not assignment.system]
