"""Who may send where: the one place where that is decided, whichever way messages come.

Some destinations of the system are written by the cluster alone. What nodes say themselves comes from producers that
belong to no connection, and no client can name one of those.
"""

from alphorn.message_manager.producers import Refusal
from alphorn.model.audit import AUDIT_TOPIC
from alphorn.model.commands import NOBODY, connection_of
from alphorn.model.destinations import DEAD_MESSAGES, Destination
from alphorn.model.errors import AccessDenied
from alphorn.model.log_lines import LOG_TOPIC

_OF_NODES = (AUDIT_TOPIC, LOG_TOPIC)


def may_publish(destination: Destination, producer: bytes) -> bool:
    """Whether this producer may send there."""
    if destination in _OF_NODES:
        return connection_of(producer) == NOBODY
    return destination.name != DEAD_MESSAGES


def refusal_to_publish(destination: Destination, producer: bytes) -> Refusal | None:
    """Why it may not; None when it may."""
    if may_publish(destination, producer):
        return None
    what = "what nodes of the cluster say" if destination in _OF_NODES else "dead messages"
    return AccessDenied.__name__, f"{destination} takes {what} only; send to another {destination.kind.name.lower()}"
