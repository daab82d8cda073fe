"""alphorn: a message server cluster with one order everywhere."""

from alphorn import aio
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

__version__ = "0.1.0"

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
    "__version__",
    "aio",
    "connect",
    "glob",
    "regex",
]
