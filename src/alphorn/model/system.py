"""What belongs to the system: a few destinations, of which every channel has one of its own, made when it is needed.

Such a name means them all: `queue:_DMQ` is a whole, and `queue:_DMQ@channel-2` the part that one channel has of it,
which in its log has the name of the whole. A consumer of a whole wishes for it as for a pattern that has no wildcard,
`glob:queue:_DMQ`, and its Client Manager joins all parts.
"""

from alphorn.model.audit import AUDIT_POLICY, AUDIT_TOPIC
from alphorn.model.destinations import DEAD_MESSAGES, Destination, DestinationKind, Policy
from alphorn.model.log_lines import LOG_POLICY, LOG_TOPIC
from alphorn.model.patterns import Pattern

SYSTEM = {  # with the policy that each begins with, whoever needs it first
    Destination(DestinationKind.QUEUE, DEAD_MESSAGES): Policy(),
    Destination(DestinationKind.TOPIC, "_ADMIN"): Policy(),
    AUDIT_TOPIC: AUDIT_POLICY,
    LOG_TOPIC: LOG_POLICY,
}
_WISHES = {str(Pattern("glob", whole.kind, whole.name)): whole for whole in SYSTEM}


def wish_for(destination: Destination) -> Pattern | None:
    """The pattern that stands for the whole of what belongs to the system; None for every other name."""
    return Pattern("glob", destination.kind, destination.name) if destination in SYSTEM else None


def whole_of(pattern: str) -> Destination | None:
    """The whole that a pattern stands for; None where it is a pattern like others."""
    return _WISHES.get(pattern)
