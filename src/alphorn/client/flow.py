"""A session as the core knows it."""

from alphorn.client.inbox import AckMode, Inbox
from alphorn.client.lane import Lane
from alphorn.client.outbox import Outbox


class SessionState:
    """One flow: its mode, producers and consumers."""

    __slots__ = ("inboxes", "mode", "number", "outboxes")

    def __init__(self, number: int, mode: AckMode) -> None:
        self.number = number
        self.mode = mode
        self.outboxes: dict[int, Outbox | Lane] = {}
        self.inboxes: dict[int, Inbox] = {}

    def acknowledge(self) -> None:
        """All that was handed out is consumed."""
        for inbox in self.inboxes.values():
            inbox.acknowledge_handed()

    def recover(self) -> None:
        """All that is not acknowledged comes back."""
        for inbox in self.inboxes.values():
            inbox.recover()
