"""What goes into a Client Manager and what comes out.

Its owner (node/client_manager.py) performs outputs in order, at the end of each turn. Streams are clients' connections
as the owner numbers them; channels and Message Managers are known by their place in the cluster's configuration.
"""

from typing import Any

import msgspec

from alphorn.model.conversation import AnyClientFrame
from alphorn.model.events import Event
from alphorn.model.frame_kinds import Asked, ServerFrame
from alphorn.model.link import AnyTold


class Input(msgspec.Struct, frozen=True, gc=False):
    """Something that happened."""


class Opened(Input, frozen=True, gc=False):
    """A client came through a door."""

    stream: int


class Said(Input, frozen=True, gc=False):
    """A client said something. Views in it end with the call."""

    stream: int
    frame: AnyClientFrame


class Closed(Input, frozen=True, gc=False):
    """A client's stream is gone."""

    stream: int
    reason: str


class Writable(Input, frozen=True, gc=False):
    """Whether a client takes what it is sent, or lets it pile up. Also the answer to `Gauge`, where it does."""

    stream: int
    is_writable: bool


class Committed(Input, frozen=True, gc=False):
    """An entry of the log, in its order. `handle` is that of the own order, 0 for those of others."""

    channel: int
    sequence: int  # 0 where entries before it were passed over, so that nobody can tell what became of it
    handle: int
    payload: bytes
    epoch: int = 0  # in which it got its number


class Lost(Input, frozen=True, gc=False):
    """An own entry was refused, or its outcome cannot be known."""

    channel: int
    handle: int
    reason: str
    is_given_up: bool = False  # it is never ordered, because the group has given this node's member up


class Window(Input, frozen=True, gc=False):
    """Whether the bus takes more on this channel now."""

    channel: int
    is_open: bool


class Joined(Input, frozen=True, gc=False):
    """This node's member of a channel's group goes by another origin from now on: the group had given it up."""

    channel: int
    origin: bytes


class Linked(Input, frozen=True, gc=False):
    """The link to a Message Manager is there, or gone."""

    channel: int
    name: str
    is_up: bool


class Told(Input, frozen=True, gc=False):
    """A Message Manager said something."""

    channel: int
    name: str
    frame: AnyTold


class Hung(Input, frozen=True, gc=False):
    """For so long nothing could be heard or done that clients may have left, each behind what it had said here."""

    seconds: float


class Logged(Input, frozen=True, gc=False):
    """This node wrote log lines, which belong on the `_LOG` topic too."""

    lines: list[str]
    now_ms: int


class ServersStand(Input, frozen=True, gc=False):
    """Rows of the cluster's state: message servers that can be reached, and programs that have joined."""

    request: int  # of `AskServers`
    rows: list[dict[str, Any]]


class Output(msgspec.Struct, frozen=True, gc=False):
    """Something to do."""


class Reply(Output, frozen=True, gc=False):
    """Say this to a client."""

    stream: int
    frame: ServerFrame


class Gauge(Output, frozen=True, gc=False):
    """Say, when what was said to a client has left, that it takes more; at once where it is so already."""

    stream: int


class Heed(Output, frozen=True, gc=False):
    """Read what a client says, or nothing more of it for now."""

    stream: int
    is_heard: bool


class Hang(Output, frozen=True, gc=False):
    """Close a client's stream, after what was said to it; or at once, where it takes nothing."""

    stream: int
    reason: str
    at_once: bool = False


class Order(Output, frozen=True, gc=False):
    """Put this entry into a channel's log; `Committed` or `Lost` with the handle follows."""

    channel: int
    handle: int
    payload: bytes


class Ask(Output, frozen=True, gc=False):
    """Say this to a Message Manager over the link."""

    channel: int
    name: str
    frame: Asked


class AskServers(Output, frozen=True, gc=False):
    """How message servers stand is wanted; `ServersStand` answers."""

    request: int


class Happen(Output, frozen=True, gc=False):
    """Tell the cluster of this event; its time is still to be filled in."""

    event: Event


class Log(Output, frozen=True, gc=False):
    """A line for the log: stable event name, then key=value details."""

    level: str
    event: str
    details: str
