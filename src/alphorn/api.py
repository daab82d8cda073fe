"""The names of `import alphorn`, which loads this module when the first of them is used."""

from alphorn.client.blocking.connection import Connection, connect
from alphorn.client.blocking.consumer import Browser, Consumer
from alphorn.client.blocking.producer import Producer, Receipt
from alphorn.client.blocking.session import Session
from alphorn.client.message import Message
from alphorn.model.destinations import Destination
from alphorn.model.errors import (
    AccessDenied,
    Blocked,
    Corruption,
    Error,
    InvalidDestination,
    InvalidSelector,
    MessageTooLarge,
    Misuse,
    TransactionRolledBack,
    Unavailable,
    UnknownOutcome,
)
from alphorn.model.patterns import Pattern, glob, regex

__all__ = [
    "AccessDenied",
    "Blocked",
    "Browser",
    "Connection",
    "Consumer",
    "Corruption",
    "Destination",
    "Error",
    "InvalidDestination",
    "InvalidSelector",
    "Message",
    "MessageTooLarge",
    "Misuse",
    "Pattern",
    "Producer",
    "Receipt",
    "Session",
    "TransactionRolledBack",
    "Unavailable",
    "UnknownOutcome",
    "connect",
    "glob",
    "regex",
]
