"""Steps at which a process can be told to die, for tests: nothing else finds the moments that matter.

The program that started a process arms it (io/control.py, `NodeDieAt`); a process that nobody armed takes no notice.
Client Managers name their steps themselves: those of a transaction (client_manager/transactions.py), and those of
publishing what is staged (client_manager/log_clients.py). A primary has taken one when it has applied the command and
told nobody yet. At one step the process does not die, but stands still: its Client Manager has handed a purge to its
member of the group, which has told nobody yet.
"""

import os
import signal
from collections.abc import Mapping
from typing import Any

from alphorn.model.commands import (
    PublishStaged,
    Purge,
    TransactionCommit,
    TransactionDecide,
    TransactionFinish,
    TransactionPrepare,
    decode_entry,
)
from alphorn.model.errors import PeerViolation

_TRANSACTION_APPLIED = {
    TransactionCommit: "commit-applied",
    TransactionPrepare: "prepare-applied",
    TransactionDecide: "decide-applied",
    TransactionFinish: "finish-applied",
}
PRIMARY_STEPS = tuple(_TRANSACTION_APPLIED.values())
PUBLISH_APPLIED = "publish-applied"
PURGE_HANDED = "purge-handed"
_HANDED = {Purge: PURGE_HANDED}
_STANDS_STILL = (PURGE_HANDED,)
_APPLIED = {**_TRANSACTION_APPLIED, PublishStaged: PUBLISH_APPLIED}


class CrashPoints:
    """What kills this process, if anything does."""

    __slots__ = ("_left", "_step")

    def __init__(self) -> None:
        self._step = ""
        self._left = 0

    @property
    def is_armed(self) -> bool:
        """Whether there is something to watch for."""
        return self._left > 0

    def arm(self, step: str, count: int) -> None:
        """Lets the process die when it takes this step for the so-manieth time; 0 lets it live."""
        self._step, self._left = step, count

    def reach(self, step: str) -> None:
        """A step is being taken."""
        if self._left and step == self._step:
            self._left -= 1
            if not self._left:
                os.kill(os.getpid(), signal.SIGSTOP if step in _STANDS_STILL else signal.SIGKILL)

    def reach_handed(self, payload: bytes | memoryview) -> None:
        """A Client Manager has ordered this entry."""
        self._reach_entry(payload, _HANDED)

    def reach_applied(self, payload: bytes | memoryview) -> None:
        """A primary has applied this entry."""
        self._reach_entry(payload, _APPLIED)

    def _reach_entry(self, payload: bytes | memoryview, steps: Mapping[Any, str]) -> None:
        try:
            entry = decode_entry(payload)
        except PeerViolation:
            return
        for command in entry.commands:
            step = steps.get(type(command))
            if step is not None:
                self.reach(step)
