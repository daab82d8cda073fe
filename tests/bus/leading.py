"""A sequencer that has just begun, driven by hand: what tests of its numbering and of its care for voters share."""

import msgspec

from alphorn.bus.config import Budget, GroupConfig, Role
from alphorn.bus.entries import MemberJoined, digest_of
from alphorn.bus.follower import Follower
from alphorn.bus.frames import CommitAcknowledge, DataReport, Held, Join, Prepare, Status
from alphorn.bus.sequencer import Sequencer
from tests.bus.group import make_config
from tests.bus.stations import EPOCH, SENDER, Bench, batch_id, joined, numbered, origin_of_member, payload_of, system

FIRST = 6  # of this epoch's batches: four joins, the beginning of the epoch, then these


def held(counter: int) -> Held:
    payload = payload_of(counter)
    return Held(batch_id(counter), 0, digest_of(payload), len(payload))


class Leading:
    """Member 1 has just become sequencer; servers 1 to 3 and a client are members; its own disk is quick.

    The client may have roles, which makes it a fourth server.
    """

    def __init__(
        self,
        config: GroupConfig | None = None,
        *,
        client_roles: Role = Role.NONE,
        has_open_number: bool = False,
        **budget: int,
    ) -> None:
        self.bench = Bench(config or make_config(), budget=Budget(datagram_bytes=1200, **budget))
        self.bench.join(1, 2, 3)
        client = joined(self.bench.config, 1).member
        client = msgspec.structs.replace(
            client, number=0x8000, name="c", address="c", roles=int(client_roles), origin=SENDER
        )
        self.bench.fold(system(MemberJoined(client)))
        if has_open_number:
            self.bench.ledger.append(numbered(1, EPOCH - (1 << 16)))
        self.follower = Follower(self.bench.station, durable=4, now=0.0)
        self.sequencer = Sequencer(self.bench.station, self.follower, 0.0)
        self.bench.station.epoch = EPOCH
        self.sequencer.begin(EPOCH, 0.0)
        self.flush()

    def flush(self, now: float = 0.0) -> None:
        self.sequencer.flush(now)
        self.bench.settle()

    def report(self, number: int, *counters: int, now: float = 0.0) -> None:
        body = DataReport([held(counter) for counter in counters])
        self.sequencer.on_report(self.frame(number, body), body, now)
        self.flush(now)

    def acknowledge(self, number: int, accepted: int, stored: int, *, epoch: int = EPOCH, now: float = 0.0) -> None:
        body = CommitAcknowledge(accepted, stored)
        self.sequencer.on_acknowledge(self.frame(number, body, epoch), body, now)
        self.flush(now)

    def hear(self, number: int, accepted: int, *, is_synchronised: bool = True, now: float = 0.0) -> None:
        """A member's own report."""
        body = Status(accepted, accepted, 0, 0, 0, is_synchronised, "")
        self.sequencer.roster.on_status(self.frame(number, body), body, EPOCH, now)

    def frame(self, number: int, body: DataReport | CommitAcknowledge | Join | Prepare | Status, epoch: int = EPOCH):  # type: ignore[no-untyped-def]
        origin = self.bench.station.origin if number == 1 else origin_of_member(number)
        return self.bench.frame(number, body, epoch, origin)

    def open_epoch(self) -> None:
        """Everybody has the beginning of the epoch; what was said so far is forgotten."""
        for number in (1, 2, 3):
            self.acknowledge(number, 5, 5)
        self.bench.station.outbox.clear()

    @property
    def committed(self) -> int:
        return self.bench.ledger.committed

    def numbers(self) -> list[bytes]:
        return [assignment.id for assignment in self.bench.ledger.slice(FIRST - 1, self.bench.ledger.last)]
