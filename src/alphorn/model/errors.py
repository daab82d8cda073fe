"""Errors, classified by who must act.

`Misuse`: the caller is wrong and should change the call. `PeerViolation`: the other side sent something no correct peer
sends; drop it or close the connection. `Unavailable`: nothing is wrong, try again later. `Corruption`: what the disk
gave back is not what was written. Every message names the thing, its state and the way out.
"""


class Error(Exception):
    """Whatever alphorn raises on purpose."""


class Misuse(Error):
    """The call cannot be right as it stands; the message says what would be."""


class InvalidDestination(Misuse):
    """No such destination, or no destination can have this name, kind or policy."""


class InvalidSelector(Misuse):
    """The selector is not in the selector language; the message says where."""


class MessageTooLarge(Misuse):
    """The message does not fit; a larger one goes as a stream."""


class AccessDenied(Error):
    """This user may not do this."""


class Blocked(Error):
    """The destination takes no more at the moment; nothing was sent."""


class Postponed(Blocked):
    """The destination has no room for all of these messages now: the same ones are sent again when it has."""


class TransactionRolledBack(Error):
    """Nothing of the transaction was done."""


class UnknownOutcome(Error):
    """What was asked may or may not have been done, and it cannot be found out any more."""


class PeerViolation(Error):
    """Bytes from the wire that no correct peer sends."""


class Unavailable(Error):
    """The cluster cannot do this now; nothing was done, so the same call may be made again."""


class Moved(Unavailable):
    """The destination is on another channel, or on its way there; servers go on there by themselves."""


class NoDeadLetterQueue(InvalidDestination):
    """A policy names a dead letter queue that its channel has not got; servers see to it by themselves."""


class Corruption(Error):
    """Stored bytes fail their checksum or their own rules."""
