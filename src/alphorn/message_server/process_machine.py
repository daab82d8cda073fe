"""What goes into the client half of a work process and what comes out.

Its owner (io/work_process.py) performs outputs in order, at the end of each turn. Servers are known by name.
"""

import msgspec

from alphorn.model import internal
from alphorn.model.events import Event


class Input(msgspec.Struct, frozen=True, gc=False):
    """Something that happened."""


class Connected(Input, frozen=True, gc=False):
    """There is a connection to this server."""

    server: str


class Disconnected(Input, frozen=True, gc=False):
    """It is gone, or could not be made."""

    server: str


class Heard(Input, frozen=True, gc=False):
    """A message server said something."""

    server: str
    frame: internal.AnyServerFrame


class SendMessage(Input, frozen=True, gc=False):
    """Says something to a process, or to all others; `Outcome` with the handle follows."""

    handle: int
    to: str
    body: bytes
    timeout_s: float


class TellEvent(Input, frozen=True, gc=False):
    """Something happened in the cluster."""

    event: Event


class WantEvents(Input, frozen=True, gc=False):
    """The kinds of events that are wanted from now on."""

    kinds: tuple[str, ...]


class Taken(Input, frozen=True, gc=False):
    """The owner has taken what this sender said, through this number."""

    run: bytes
    number: int


class Compete(Input, frozen=True, gc=False):
    """This is to be done by one process of the cluster: `Won` follows where it is this one."""

    key: bytes


class Complete(Input, frozen=True, gc=False):
    """It is done."""

    key: bytes


class AskRecent(Input, frozen=True, gc=False):
    """The last events are wanted; `Recent` or `Outcome` with the handle follows."""

    handle: int
    maximum: int


class AskServers(Input, frozen=True, gc=False):
    """How the servers stand is wanted; `Standing` follows from each that is joined."""


class Quit(Input, frozen=True, gc=False):
    """The process leaves in good order."""


class Output(msgspec.Struct, frozen=True, gc=False):
    """Something to do."""


class Send(Output, frozen=True, gc=False):
    """Say this to a server."""

    server: str
    frame: internal.ProcessFrame


class Cut(Output, frozen=True, gc=False):
    """Close the connection to a server, after what was said to it."""

    server: str
    reason: str


class Given(Output, frozen=True, gc=False):
    """A message for the program; `Taken` answers."""

    sender: str
    run: bytes
    number: int
    body: bytes


class Told(Output, frozen=True, gc=False):
    """An event for the program; `Taken` answers, where it has a number."""

    run: bytes
    number: int
    event: Event


class Outcome(Output, frozen=True, gc=False):
    """What came of a message; an error is a class of model/errors.py, and none is success."""

    handle: int
    error: str = ""
    reason: str = ""


class Won(Output, frozen=True, gc=False):
    """This process is to do it; `Complete` answers."""

    key: bytes


class Recent(Output, frozen=True, gc=False):
    """The last events, oldest first."""

    handle: int
    events: list[Event]


class Standing(Output, frozen=True, gc=False):
    """How a server stands, as JSON."""

    server: str
    data: bytes


class Turned(Output, frozen=True, gc=False):
    """It has joined a server, or was refused for good; without an error it has joined."""

    server: str
    error: str = ""
    reason: str = ""


class Changed(Output, frozen=True, gc=False):
    """Other processes have come or gone (`WorkProcess.others`)."""
