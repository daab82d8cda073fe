"""A primary and its backups are on the same bus: whoever is configured for another one is not let in."""

import msgspec
import pytest

from alphorn.bus import frames as f
from alphorn.bus.machine import Received, Stop
from tests.bus.group import Group, make_config


@pytest.mark.requirement("TOP-3")
def test_a_backup_configured_for_another_bus_is_refused_and_stops() -> None:
    config = make_config()
    elsewhere = msgspec.structs.replace(config, bus="239.1.1.1:7000 239.1.1.2:7001")
    group = Group(config).found()
    group.run(0.5)
    station = group["S2"].running._station
    join = f.Join(station.as_member(), False, elsewhere.digest(), station.ledger.last, station.epoch, 0)
    before = len(group["S2"].of(Stop))
    frame = f.encode(group=config.group, epoch=station.epoch, number=2, origin=station.origin, body=join)
    group["S1"].feed(Received(b"".join(frame)))
    group.run(0.1)
    stops = group["S2"].of(Stop)[before:]
    assert [stop.reason for stop in stops] == ["the configuration of S2 differs from the group's; copy it and restart"]


@pytest.mark.requirement("TOP-3")
def test_a_store_made_on_one_bus_is_not_opened_on_another() -> None:
    config = make_config()
    assert config.digest() != msgspec.structs.replace(config, bus="239.1.1.1:7000").digest()
