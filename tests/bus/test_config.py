"""The founding agreement: every fault is named, and every difference changes the digest."""

import msgspec
import pytest

from alphorn.bus.config import GroupConfig, MemberConfig, Role
from alphorn.model.errors import Misuse
from tests.bus.group import make_config


def test_usual_groups_can_work() -> None:
    for servers, witnesses in ((1, 0), (2, 1), (3, 0), (5, 2)):
        make_config(servers=servers, witnesses=witnesses).check()


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"copies": 4}, "copies 4 needs as many data servers, and there are 3"),
        ({"copies": 1, "copies_min": 2}, "copies_min 2 is not between 1 and copies 1"),
        ({"copies_min": 0}, "copies_min 0 is not between 1 and copies 2"),
        ({"report_quorum": 4}, "report_quorum 4 is not between 1 and the 3 data servers"),
        ({"report_quorum": 0}, "report_quorum 0 is not between 1 and the 3 data servers"),
        ({"acknowledge_quorum": 1}, "acknowledge_quorum 1 is not a majority of 3 commit servers"),
        ({"acknowledge_quorum": 4}, "acknowledge_quorum 4 is not a majority of 3 commit servers"),
        ({"checkpoint_interval": 0}, "checkpoint_interval is at least 1"),
        ({"members": ()}, "no member has the role sequencer"),
    ],
)
def test_a_setting_that_cannot_work_is_misuse_and_named(settings: dict[str, object], fault: str) -> None:
    with pytest.raises(Misuse, match=fault):
        msgspec.structs.replace(make_config(), **settings).check()


def member(number: int, name: str, roles: Role) -> MemberConfig:
    return MemberConfig(number=number, name=name, address=name, roles=roles)


EVERY = Role.SEQUENCER | Role.DATA | Role.COMMIT


@pytest.mark.parametrize(
    ("members", "fault"),
    [
        ((member(1, "a", EVERY), member(1, "b", EVERY)), "two members share a number"),
        ((member(1, "a", EVERY), member(2, "a", EVERY)), "two members share a name"),
        ((member(0, "a", EVERY),), "member numbers go from 1 to 32767"),
        ((member(0x8000, "a", EVERY),), "member numbers go from 1 to 32767"),
        ((member(1, "a", EVERY), member(2, "b", Role.SEQUENCER)), "b may be sequencer, so it must be a commit server"),
        (
            (member(1, "a", EVERY), member(2, "k", Role.CHECKPOINT)),
            "k makes checkpoints, so it must be a data server too",
        ),
    ],
)
def test_members_that_cannot_work_together_are_misuse(members: tuple[MemberConfig, ...], fault: str) -> None:
    with pytest.raises(Misuse, match=fault):
        GroupConfig(group=1, members=members, copies=1).check()


def test_fewer_checkpoint_servers_than_copies_are_misuse() -> None:
    keeper = EVERY | Role.CHECKPOINT
    members = (member(1, "a", keeper), member(2, "b", EVERY))
    GroupConfig(group=1, members=members, copies=1).check()
    with pytest.raises(Misuse, match="copies 2 needs as many checkpoint servers, and there are 1"):
        GroupConfig(group=1, members=members, copies=2).check()


def test_a_group_without_checkpoint_servers_can_work() -> None:
    GroupConfig(group=1, members=(member(1, "a", EVERY), member(2, "b", EVERY)), copies=2).check()


def test_all_faults_are_named_at_once() -> None:
    with pytest.raises(Misuse, match=r"copies 9 needs .*; report_quorum 9"):
        make_config(copies=9, report_quorum=9).check()


def test_the_digest_is_equal_for_equal_configurations_and_differs_for_any_difference() -> None:
    config = make_config()
    others = [
        make_config(servers=4),
        make_config(copies=3),
        make_config(checkpoint_interval=5),
        make_config(lowest_rank_first=False),
        make_config(bus="another"),
        msgspec.structs.replace(config, group=8),
    ]
    assert make_config().digest() == config.digest()
    assert len({config.digest(), *[other.digest() for other in others]}) == 1 + len(others)
