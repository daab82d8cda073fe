"""The same API as `alphorn` itself, with `await` and `async with`; what needs neither is the same object."""

from alphorn.client.aio.connection import Connection, connect
from alphorn.client.aio.consumer import Browser, Consumer
from alphorn.client.aio.process import WorkProcess, join_cluster
from alphorn.client.aio.producer import Producer, Receipt
from alphorn.client.aio.session import Session
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
    "WorkProcess",
    "connect",
    "glob",
    "join_cluster",
    "regex",
]
