"""What one connection may have open, and what it may have asked for without an answer. Nobody else waits for it.

The limits are far beyond what programs need (desk.py). What goes beyond them is refused with a sentence to that client
alone, and nothing else changes: it may go on when it has closed something, or has heard some of its answers. A client
with many requests is not heard for a while before it comes to that (heeding.py).
"""

from alphorn.client_manager.channel import POSITION_BYTES
from alphorn.client_manager.connection import Connection
from alphorn.client_manager.desk import Desk
from alphorn.model import conversation, log_conversation, moving_conversation
from alphorn.model.conversation import (
    AnyClientFrame,
    Browse,
    CommitTransaction,
    Consume,
    ConsumePattern,
    ConsumerClosed,
    Failed,
    Unsubscribe,
)
from alphorn.model.errors import Error, InvalidSelector, Misuse, PeerViolation, TransactionRolledBack
from alphorn.model.log_conversation import NoteReader, PublishStaged, Stage

SELECTOR_CHARACTERS_MAX = 16 << 10  # none that Message Managers understand has more
NAME_CHARACTERS_MAX = 255  # of a subscription, as they say
_ATTEMPT_BYTES = 40

# What is counted until it is answered, as each is: once, while its client is there. Consumers, and what is said of
# their messages, have bounds of their own. Beside it stands how much of the servers' time one takes, as a load.
ASKING: dict[type, int] = {
    conversation.Resolve: 1,
    conversation.Administer: 10,  # a whole queue may be let go
    conversation.Unsubscribe: 1,
    conversation.Browse: 100,  # milliseconds, of a primary that answers one after the other
    conversation.Status: 100,
    conversation.CommitTransaction: 1,
    log_conversation.Stage: 1,
    log_conversation.PublishStaged: 10,
    log_conversation.DropStaged: 10,
    log_conversation.NoteReader: 1,
    moving_conversation.Move: 10,
    moving_conversation.Drain: 10,
}


def admit(desk: Desk, connection: Connection, frame: AnyClientFrame) -> bool:
    """Whether what a client asks for is dealt with; otherwise it has been told. Raises `PeerViolation`."""
    asked = connection.asked
    if not asked and type(frame) not in ASKING:
        return True
    request = getattr(frame, "request", None)
    if request in asked:
        raise PeerViolation(f"request {request} waits for its answer already; each has a number of its own")
    if type(frame) not in ASKING:
        return True
    assert isinstance(request, int), "whoever asks says under which number"
    size, settings = _size_of(frame), desk.settings
    if len(asked) >= settings.requests_max:
        reason = f"{len(asked)} requests of this connection wait for their answers; ask again when some have come"
    elif asked and size and connection.asked_bytes + size > settings.requests_bytes_max:
        reason = f"{connection.asked_bytes >> 10} KiB of requests of this connection wait for their answers; try later"
    else:
        connection.ask(request, size, ASKING[type(frame)])
        if connection.load >= settings.load_max or 2 * connection.asked_bytes >= settings.requests_bytes_max:
            desk.busy[connection] = None
        return True
    desk.fail(connection.stream, request, _refusal(frame, reason))
    return False


def too_many(count: int, maximum: int, what: str) -> Misuse | None:
    """Why a connection that has so many of something gets no more of it; None where it does."""
    if count < maximum:
        return None
    return Misuse(f"this connection has {count} {what}, and may have no more; close some, or open another connection")


def overlong(frame: Consume | ConsumePattern | Browse) -> Error | None:
    """What is wrong with a frame whose words would be kept until somebody finds them too long; None for nothing."""
    if len(frame.selector) > SELECTOR_CHARACTERS_MAX:
        return InvalidSelector(f"a selector has at most {SELECTOR_CHARACTERS_MAX} characters; this one is longer")
    if not isinstance(frame, Browse) and len(frame.subscription) > NAME_CHARACTERS_MAX:
        return Misuse(f"names of subscriptions have at most {NAME_CHARACTERS_MAX} characters; choose a shorter one")
    return None


def may_consume(desk: Desk, connection: Connection, frame: Consume) -> bool:
    """Whether a consumer begins; otherwise its client has been told."""
    error = too_many(len(connection.consumers), desk.settings.consumers_max, "consumers") or overlong(frame)
    if error is None:
        return True
    name, reason = type(error).__name__, str(error)
    refused = Failed(frame.request, name, reason) if frame.request else ConsumerClosed(frame.consumer, name, reason)
    desk.reply(connection.stream, refused)
    return False


def _size_of(frame: AnyClientFrame) -> int:
    """Bytes that stay here until the answer comes, about, where they may be many."""
    match frame:
        case Stage():
            return len(frame.blob)
        case CommitTransaction():
            return sum(len(publish.blob) for publish in frame.publishes)
        case PublishStaged():
            return _ATTEMPT_BYTES * len(frame.attempts) + POSITION_BYTES * len(frame.destinations)
        case NoteReader():
            return len(frame.name) + POSITION_BYTES * len(frame.destinations)
        case Unsubscribe():
            return len(frame.name)
    return 0


def _refusal(frame: AnyClientFrame, reason: str) -> Error:
    return TransactionRolledBack(reason) if isinstance(frame, CommitTransaction) else Misuse(reason)
