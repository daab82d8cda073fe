"""What a member may do later than at once: a witness's votes nobody waits for, and frames that can wait."""

import pytest

from alphorn.bus.config import Role
from alphorn.bus.entries import EpochBegun, InSyncChanged
from alphorn.bus.frames import Commit, CommitSubmit, Data, Heartbeat, fragment_batch
from alphorn.bus.frames import encode as encode_frame
from alphorn.bus.machine import PutAssignments
from tests.bus.group import make_config
from tests.bus.stations import EPOCH, NEXT_EPOCH, Bench, numbered, origin_of_member, system

CONFIG = make_config(servers=2, witnesses=1)
WITNESS = 3


def is_urgent(bench: Bench, *assignments: object) -> bool:
    bench.station.journal.write(PutAssignments(1, list(assignments)))  # type: ignore[arg-type]
    return bench.station.write_meta(stored=0)


def datagram(*bodies: Commit | CommitSubmit | Heartbeat | Data, epoch: int = EPOCH) -> bytes:
    origin = origin_of_member(1)
    frames = [encode_frame(group=CONFIG.group, epoch=epoch, number=1, origin=origin, body=body) for body in bodies]
    return b"".join(part for parts in frames for part in parts)


def settled(number: int, **settings: object) -> Bench:
    bench = Bench(CONFIG, number, **settings)  # type: ignore[arg-type]
    bench.station.follow(EPOCH, 1)
    bench.settle()
    return bench


def test_nobody_waits_for_a_witness_while_both_data_servers_must_store() -> None:
    assert not is_urgent(settled(WITNESS), numbered(1))


def test_the_vote_of_a_data_server_is_always_waited_for() -> None:
    assert is_urgent(settled(2), numbered(1))


def test_a_witness_decides_when_a_data_server_is_out_of_sync() -> None:
    bench = settled(WITNESS)
    bench.fold(system(InSyncChanged((1,), 1)))
    assert is_urgent(bench, numbered(1))


def test_a_witness_hurries_with_entries_of_the_group_itself() -> None:
    assert is_urgent(settled(WITNESS), numbered(1), system(EpochBegun(EPOCH, 1)))


def test_a_witness_hurries_with_a_promise() -> None:
    bench = settled(WITNESS)
    bench.station.raise_fence(NEXT_EPOCH)
    assert bench.station.write_meta(stored=0)


@pytest.mark.parametrize("number", [1, 2, WITNESS])
def test_whoever_keeps_a_log_hears_of_commits_later_and_of_submits_at_once(number: int) -> None:
    bench = settled(number)
    assert bench.station.can_wait(datagram(Commit(1, 1, [numbered(1)])))
    assert bench.station.can_wait(datagram(Commit(1, 1, [numbered(1)]), Commit(2, 2, [])))
    assert not bench.station.can_wait(datagram(CommitSubmit(0, 0, 0, [numbered(1)])))
    assert not bench.station.can_wait(datagram(Commit(1, 1, []), Heartbeat(1, 1, 0, 0)))


def test_whoever_keeps_no_log_hears_of_commits_at_once_and_of_submits_later() -> None:
    bench = settled(2, roles=Role(0))
    assert bench.station.can_wait(datagram(CommitSubmit(0, 0, 0, [numbered(1)])))
    assert not bench.station.can_wait(datagram(Commit(1, 1, [numbered(1)])))


@pytest.mark.parametrize("roles", [Role.DATA, Role(0)])
def test_parts_of_a_batch_wait_for_the_last_of_them(roles: Role) -> None:
    station = settled(2, roles=roles).station
    *parts, last = fragment_batch(bytes(16), bytes(1000), digest=1, timestamp=0, limit=400)
    assert len(parts) == 3
    assert all(station.can_wait(datagram(part)) for part in parts)
    assert not station.can_wait(datagram(last))
    (whole,) = fragment_batch(bytes(16), bytes(100), digest=1, timestamp=0, limit=400)
    assert not station.can_wait(datagram(whole))
    assert not station.can_wait(datagram(parts[0], whole))


def test_words_of_another_epoch_are_heard_at_once() -> None:
    assert not settled(2).station.can_wait(datagram(Commit(1, 1, []), epoch=NEXT_EPOCH))


def test_what_is_too_short_to_be_a_frame_is_looked_at_at_once_or_later_and_harms_nothing() -> None:
    bench = settled(2)
    for length in range(80):
        bench.station.can_wait(bytes(length))
