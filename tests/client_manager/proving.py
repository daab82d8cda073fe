"""How connections prove themselves to a Client Manager that is driven by hand."""

import hmac

from alphorn.client_manager.core import ClientManager
from alphorn.client_manager.machine import Linked, Order, Told
from alphorn.model import link
from alphorn.model.commands import SIGNET_BYTES, decode_entry

SIGNET = b"s" * SIGNET_BYTES  # the cluster's
DRAFT = b"d" * SIGNET_BYTES  # what a Client Manager offers


def secret_of(connection: bytes) -> bytes:
    """What a client says that comes back; nothing with a new connection."""
    return hmac.digest(SIGNET, connection, "sha256") if connection else b""


def tell_signet(manager: ClientManager) -> None:
    """It meets the primary of its first channel, and hears what the cluster's signet is."""
    manager.receive(Linked(0, "mm1", True), 0.0)
    manager.receive(Told(0, "mm1", link.Role("mm1", 1, True)), 0.0)
    [order] = [output for output in manager.take_outputs() if isinstance(output, Order)]
    [request] = decode_entry(order.payload).requests
    manager.receive(Told(0, "mm1", link.Answered(request, signet=SIGNET)), 0.0)
