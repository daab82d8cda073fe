"""What a member waits for that only others can give, in words for the person who may have to start them.

To the others it is a member that waits, and to its owner one that runs: nobody else would say it.
"""

from alphorn.bus.membership import Membership
from alphorn.bus.station import Station
from alphorn.bus.takeover import Takeover


def lacking(station: Station, membership: Membership, takeover: Takeover) -> str:
    """One sentence; nothing where it lacks nothing, or was heard by a sequencer, which will see to it."""
    name, group, ledger = station.name, station.config.bus or station.config.group, station.ledger
    if takeover.sought:
        return (
            f"{name} would lead {group}, but number {takeover.sought} of the log may be final, and of those who answer "
            "nobody can read its batch; start the other nodes with the disks they had: without them that batch is lost "
            "and only a new log on blank disks can go on"
        )
    if membership.is_welcome:
        return ""
    if station.is_barred and not ledger.last:
        return (
            f"{name} had a blank disk and waits for the log of {group}, but nobody who has it answers; start the other "
            "nodes, or, only if this is the very first start of all of them, stop them and start each with --found"
        )
    if ledger.last < station.impaired_until:
        return (
            f"{name} cannot read what number {ledger.last + 1} of the log of {group} means, and does not vote before "
            "it is told, but nobody who knows answers; start the other nodes"
        )
    return ""
