"""A sequencer's memory of its members, told by hand: what tests of it share."""

import msgspec

from alphorn.bus.config import GroupConfig, Timing
from alphorn.bus.entries import SystemEntry
from alphorn.bus.frames import Join, Status
from alphorn.bus.roster import Roster
from tests.bus.group import make_config
from tests.bus.stations import EPOCH, Bench, joined, numbered, origin_of_member, system

TIMING = Timing()


class Leading:
    """Sequencer 1 of the first epoch, with servers 1 to 3 live in their first run and a log through number `last`."""

    def __init__(self, config: GroupConfig | None = None, *, last: int = 20) -> None:
        self.bench = Bench(config or make_config())
        self.bench.join(1, 2, 3)
        for counter in range(last - 3):
            self.bench.fold(numbered(counter + 1, timestamp=counter))
        self.roster = Roster(self.bench.station, 0.0)

    def hear(self, number: int, *, accepted: int = 20, stored: int = 20, checkpoint: int = 0, now: float = 1.0,
             is_synchronised: bool = True, origin: bytes | None = None) -> None:  # fmt: skip
        origin = origin or (self.bench.station.origin if number == 1 else origin_of_member(number))
        body = Status(stored, accepted, stored, checkpoint, 0, is_synchronised, f"S{number}")
        self.roster.on_status(self.bench.frame(number, body, origin=origin), body, EPOCH, now)

    def hear_all(self, now: float = 1.0, **values: int) -> None:
        for number in (1, 2, 3):
            self.hear(number, now=now, **values)  # type: ignore[arg-type]

    def fold(self, *entries: SystemEntry) -> None:
        self.bench.fold(*map(system, entries))

    def join(self, number: int, *, incarnation: int = 2, is_blank: bool = False, accepted: int = 20,
             origin: bytes = bytes(9) + b"n", config: bytes | None = None, has_open_voters: bool = False,
             nonce: int = 0, unused: int = 20, promised: int = 0, told: tuple[int, int] | None = None,
             now: float = 1.1 + TIMING.suspect_s) -> list[SystemEntry]:  # fmt: skip
        """Asks; as one that has heard an answer just now, if nothing else is said."""
        if number <= 3 and number:
            member = joined(self.bench.config, number, origin, incarnation).member
            member = msgspec.structs.replace(member, nonce=nonce)
            config = self.bench.config.digest() if config is None else config
        else:
            member = joined(self.bench.config, 1).member
            member = msgspec.structs.replace(member, number=0, name="c", address="c", roles=0, origin=origin)
            config = b""
        station = self.bench.station
        told = (station.epoch, station.ledger.last) if told is None else told
        body = Join(member, is_blank, config, accepted, promised, unused, told)
        tip = self.bench.ledger.state
        return self.roster.on_join(body, tip, has_open_voters=has_open_voters, now=now)
