"""What clients want of a log: commands to be ordered, and those whose outcome the primary tells."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from alphorn.model.commands import (
    NOBODY,
    Abandon,
    Acknowledge,
    AnyCommand,
    Carried,
    CreateDestination,
    Forget,
    Fragment,
    Publish,
    Retire,
    Return,
    Stage,
    Subscribe,
    TransactionCommit,
    TransactionDecide,
    TransactionFinish,
    TransactionPrepare,
    TransactionSettle,
    Unsubscribe,
    connection_of,
)
from alphorn.model.link import Answered

# What a command costs replicas beside its bytes, in bytes that cost as much, about: messages and what is said of them,
WORK_BYTES = 4 << 10
HEAVY_BYTES = 16 << 10  # and what comes and goes with a state of its own
_LIGHT = frozenset((Publish, Acknowledge, Return, Fragment, Abandon, Stage, Carried))

Then = Callable[[], None]


def always() -> bool:
    """Of a command: it is wanted whatever has become of whoever asked for it."""
    return True


def owner_of(command: AnyCommand) -> bytes:
    """The connection whose end undoes what a command has done; nothing where none does."""
    match command:
        case Publish() | Fragment() | Abandon():
            return connection_of(command.producer)
        case Subscribe():
            return connection_of(command.consumer)
        case CreateDestination():
            return command.owner
    return b""


_KEYS: dict[type, Callable[[Any], bytes]] = {
    Publish: lambda command: command.producer,
    Fragment: lambda command: command.producer,
    Abandon: lambda command: command.producer,
    Acknowledge: lambda command: command.consumer,
    Return: lambda command: command.consumer,
    Subscribe: lambda command: command.consumer,
    Unsubscribe: lambda command: command.consumer,
    CreateDestination: lambda command: command.owner,
    TransactionCommit: lambda command: command.session,
    TransactionPrepare: lambda command: command.session,
    TransactionDecide: lambda command: command.session,
    TransactionFinish: lambda command: command.session,
    TransactionSettle: lambda command: command.session,
    Forget: lambda command: command.connection,
    Retire: lambda command: command.connection,
}


def speaker_of(command: AnyCommand) -> bytes:
    """The connection that a command names as the one that wants it; nothing where it names none."""
    key = _KEYS.get(type(command))
    return connection_of(key(command)) if key is not None else b""


# What nobody else says again, or whoever does says it under the same number. A transaction of one channel is its
# client's to say again: the log does not know it for as long as a Client Manager may stand still.
_ALWAYS_OWN = (
    Forget,
    TransactionPrepare,
    TransactionDecide,
    TransactionFinish,
    TransactionSettle,
)


def is_own(wish: "Wish", whose: bytes) -> bool:
    """Whether a Client Manager wants this itself; what it wants for a client, that one wants again where it goes on."""
    if isinstance(wish.command, _ALWAYS_OWN):
        return True
    speaker = speaker_of(wish.command)
    return speaker == NOBODY or not (speaker or (wish.request and whose))


class Pending(msgspec.Struct, gc=False):
    """A request whose outcome the primary tells.

    A command in the log is ordered again when the primary changes; what was asked on the link is `lost`, and so is the
    command of a connection that has ended, and one that nobody wants any more.
    """

    answer: Callable[[Answered], None]
    command: AnyCommand | None = None
    lost: Then | None = None
    members: Sequence[AnyCommand] = ()  # that must stand behind the command, in the same entry
    size: int = 0
    whose: bytes = b""
    is_wanted: Callable[[], bool] = always
    has_left: bool = False  # its entry has: only then the primary may have answered it

    def lose(self) -> None:
        """Nobody waits for it any more, or nobody answers it."""
        if self.lost is not None:
            self.lost()


class Wish(msgspec.Struct, frozen=True, gc=False):
    """A command that somebody wants ordered, with what belongs to it."""

    command: AnyCommand
    size: int  # in an entry, at most
    request: int = 0
    then: Then | None = None
    until: float = 0.0
    members: Sequence[AnyCommand] = ()

    @property
    def work(self) -> int:
        """What it costs everybody."""
        own = WORK_BYTES if type(self.command) in _LIGHT else HEAVY_BYTES
        return self.size + own + WORK_BYTES * len(self.members)
