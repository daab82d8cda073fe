"""The `group` command of scenarios: members by role, and any setting of the group, its timing or its budget by name."""

import msgspec

from alphorn.bus.config import Budget, GroupConfig, MemberConfig, Role, Timing
from alphorn.model.errors import Misuse

ROLES = {
    "sequencer": Role.SEQUENCER | Role.COMMIT,
    "data": Role.DATA,
    "commit": Role.COMMIT,
    "checkpoint": Role.CHECKPOINT,
    "server": Role.SEQUENCER | Role.COMMIT | Role.DATA | Role.CHECKPOINT,
}


class Settings(msgspec.Struct, frozen=True):
    """What the command says."""

    config: GroupConfig
    timing: Timing
    budget: Budget
    clients: list[str]
    keeps: int  # delivered batches that upper layers need on, at most


def read_settings(words: list[str]) -> Settings:
    """Reads `sequencer=S data=D,E commit=C clients=M copies=2 suspect_s=0.1 datagram_bytes=1200`."""
    roles: dict[str, Role] = {}
    clients: list[str] = []
    keeps = 0
    values: dict[type, dict[str, object]] = {GroupConfig: {}, Timing: {}, Budget: {}}
    for word in words:
        key, _, value = word.partition("=")
        if key in ROLES:
            for name in value.split(","):
                roles[name] = roles.get(name, Role.NONE) | ROLES[key]
        elif key in ("members", "clients"):
            clients += value.split(",")
        elif key == "keeps":
            keeps = int(value)
        else:
            owner = next((owner for owner in values if key in owner.__struct_fields__), None)  # type: ignore[attr-defined]
            if owner is None:
                raise Misuse(f"group has no setting {key!r}; name a role, clients, or a field of the configuration")
            values[owner][key] = msgspec.json.decode(value)
    members = tuple(
        MemberConfig(number=place, name=name, address=name, roles=role, rank=place, tag=name.lower())
        for place, (name, role) in enumerate(roles.items(), 1)
    )
    config = msgspec.convert({"group": 7, "members": members, **values[GroupConfig]}, GroupConfig, from_attributes=True)
    return Settings(
        config, msgspec.convert(values[Timing], Timing), msgspec.convert(values[Budget], Budget), clients, keeps
    )
