"""A session as the core knows it."""

from alphorn.client.inbox import AckMode, Inbox
from alphorn.client.lane import Lane
from alphorn.client.outbox import Outbox
from alphorn.client.requests import OnAnswer
from alphorn.model.errors import Error


class Transaction:
    """What a transacted session has under way (client/transactions.py)."""

    __slots__ = ("counter", "doom", "is_committing", "leaving")

    def __init__(self) -> None:
        self.counter = 1  # of the one that is open
        self.is_committing = False
        self.doom: Error | None = None  # why it can only be rolled back
        self.leaving: list[Inbox] = []  # closed by the program, with messages that belong to the transaction


class SessionState:
    """One flow: its mode, producers and consumers."""

    __slots__ = ("closers", "inboxes", "mode", "number", "outboxes", "transaction")

    def __init__(self, number: int, mode: AckMode) -> None:
        self.number = number
        self.mode = mode
        self.outboxes: dict[int, Outbox | Lane] = {}
        self.inboxes: dict[int, Inbox] = {}
        self.closers: list[OnAnswer] = []  # who waits until it is closed; somebody once that is asked for
        self.transaction = Transaction() if mode is AckMode.TRANSACTED else None

    def acknowledge(self) -> None:
        """All that was handed out is consumed."""
        for inbox in self.inboxes.values():
            inbox.acknowledge_handed()

    def recover(self) -> None:
        """All that is not acknowledged comes back."""
        for inbox in self.inboxes.values():
            inbox.recover()
