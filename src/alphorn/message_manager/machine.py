"""What goes into a Message Manager and what comes out.

Its owner (node/message_manager.py) performs outputs in order, at the end of each turn. Links are Client Managers'
connections as the owner numbers them.
"""

import msgspec

from alphorn.message_manager.fullness import Space
from alphorn.model.events import Event
from alphorn.model.frame_kinds import Told as ToldFrame
from alphorn.model.link import AnyAsked


class Input(msgspec.Struct, frozen=True, gc=False):
    """Something that happened."""


class Committed(Input, frozen=True, gc=False):
    """The next entry of the log, who ordered it, and in which epoch it got its number. The view ends with the call."""

    sequence: int
    origin: bytes
    payload: bytes | memoryview
    epoch: int


class Promoted(Input, frozen=True, gc=False):
    """This replica is primary from this place of the log on."""

    epoch: int
    origin: bytes  # of this replica's run on the bus
    client_managers: tuple[bytes, ...]  # origins of those that are members now


class Demoted(Input, frozen=True, gc=False):
    """Another replica is primary, or none."""

    epoch: int
    primary: str = ""  # by name, where it is known


class Following(Input, frozen=True, gc=False):
    """Whether this replica follows the log closely."""

    is_synchronised: bool


class ClientManagerJoined(Input, frozen=True, gc=False):
    """A Client Manager is a member, for the first time or again."""

    origin: bytes


class ClientManagerLeft(Input, frozen=True, gc=False):
    """A Client Manager is no member any more."""

    origin: bytes


class Witness(msgspec.Struct, frozen=True, gc=False):
    """A node that votes, as the group knows it."""

    name: str
    address: str
    pid: int  # 0 where it is not known
    is_live: bool


class WitnessesChanged(Input, frozen=True, gc=False):
    """Who votes in this channel and keeps no messages; only told about."""

    witnesses: tuple[Witness, ...]


class Logged(Input, frozen=True, gc=False):
    """This node wrote log lines, which belong on the `_LOG` topic too; `run` names this run of the node."""

    run: bytes
    lines: list[str]


class LinkOpened(Input, frozen=True, gc=False):
    """A Client Manager connected."""

    link: int


class LinkClosed(Input, frozen=True, gc=False):
    """Its connection is gone."""

    link: int


class Asked(Input, frozen=True, gc=False):
    """A Client Manager said something."""

    link: int
    frame: AnyAsked


class Measured(Input, frozen=True, gc=False):
    """How much of this replica's disk is in use."""

    space: Space


class Output(msgspec.Struct, frozen=True, gc=False):
    """Something to do."""


class Tell(Output, frozen=True, gc=False):
    """Say this to a Client Manager."""

    link: int
    frame: ToldFrame


class Order(Output, frozen=True, gc=False):
    """Put this entry into the log."""

    payload: bytes


class Supply(Output, frozen=True, gc=False):
    """Send these log entries, as far as they are there, to a Client Manager."""

    link: int
    request: int
    sequences: list[int]


class Break(Output, frozen=True, gc=False):
    """Close the link to a Client Manager that no correct one would be."""

    link: int
    reason: str


class Happen(Output, frozen=True, gc=False):
    """Tell the cluster of this event; its time is still to be filled in."""

    event: Event


class Log(Output, frozen=True, gc=False):
    """A line for the log: stable event name, then key=value details."""

    level: str
    event: str
    details: str
