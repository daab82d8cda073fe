"""Errors, classified by who must act.

`Misuse`: the caller is wrong and should change the call. `PeerViolation`: the other side sent something no correct peer
sends; drop it or close the connection. `Unavailable`: nothing is wrong, try again later. `Corruption`: what the disk
gave back is not what was written. Every message names the thing, its state and the way out.
"""


class Error(Exception):
    """Whatever alphorn raises on purpose."""


class Misuse(Error):
    """The call cannot be right as it stands; the message says what would be."""


class InvalidSelector(Error):
    """The text of a message selector breaks the rules of its language; the message says where and what was expected."""


class PeerViolation(Error):
    """Bytes from the wire that no correct peer sends."""


class Unavailable(Error):
    """The cluster cannot do this now; nothing was done, so the same call may be made again."""


class Corruption(Error):
    """Stored bytes fail their checksum or their own rules."""
