"""What goes into a message server and what comes out.

Its owner (node/message_server.py) performs outputs in order, at the end of each turn. Connections are those of work
processes, as the owner numbers them; the peer is the other message server of the cluster.
"""

import msgspec

from alphorn.model.internal import AnyPeerFrame, AnyProcessFrame, PeerFrame, ServerFrame


class Input(msgspec.Struct, frozen=True, gc=False):
    """Something that happened."""


class Opened(Input, frozen=True, gc=False):
    """Somebody has connected. With a `ticket` it may be a program of that name and nobody else."""

    connection: int
    ticket: str = ""


class Said(Input, frozen=True, gc=False):
    """A work process said something."""

    connection: int
    frame: AnyProcessFrame


class Closed(Input, frozen=True, gc=False):
    """A connection is gone."""

    connection: int


class Clogged(Input, frozen=True, gc=False):
    """So much waits to be written to a connection that its process does not read. Nothing more is kept for it."""

    connection: int


class Met(Input, frozen=True, gc=False):
    """There is a link to the peer; an older one is over."""


class PeerSaid(Input, frozen=True, gc=False):
    """The peer said something."""

    frame: AnyPeerFrame


class Parted(Input, frozen=True, gc=False):
    """The link to the peer is gone."""


class Output(msgspec.Struct, frozen=True, gc=False):
    """Something to do."""


class Tell(Output, frozen=True, gc=False):
    """Say this to a work process. Of one thing for many processes the frame is the same object."""

    connection: int
    frame: ServerFrame


class TellPeer(Output, frozen=True, gc=False):
    """Say this to the peer."""

    frame: PeerFrame


class Hang(Output, frozen=True, gc=False):
    """Close a connection, after what was said to it."""

    connection: int
    reason: str


class Part(Output, frozen=True, gc=False):
    """Close the link to the peer."""

    reason: str


class Log(Output, frozen=True, gc=False):
    """A line for the log: stable event name, then key=value details."""

    level: str
    event: str
    details: str
