"""What a member process and the program that started it say to each other: one JSON object per line.

Words (`Word`) go to the member's standard input, events (`Event`) come from its standard output. The end of the input
asks the member to stop in good order, so members never outlive the program that started them. Processes of a cluster's
nodes do the same with words of their own (`NodeWord`, `NodeEvent`).
"""

import msgspec


class Describe(msgspec.Struct, frozen=True, tag="describe"):
    """Asks for a `Described`."""


class StartLoad(msgspec.Struct, frozen=True, kw_only=True, tag="start_load"):
    """Asks the member to order numbered batches. Answered by `LoadStarted`, and by `LoadStopped` at the end."""

    size: int  # bytes of each batch
    per_s: float = 0.0  # batches per second; 0 sends as fast as the window allows
    in_flight: int = 64  # batches without an answer, at most
    is_quiet: bool = False  # no event for each commit, only the sum at the end
    count: int = 0  # batches to order before it stops by itself; 0 for no end


class StopLoad(msgspec.Struct, frozen=True, tag="stop_load"):
    """Asks the member to order no more; `LoadStopped` follows when every batch has its answer."""


Word = Describe | StartLoad | StopLoad


class Started(msgspec.Struct, frozen=True, kw_only=True, tag="started"):
    """The member takes part."""

    address: str


class Synchronised(msgspec.Struct, frozen=True, tag="synchronised"):
    """Whether the member follows the log closely."""

    is_synchronised: bool


class Primary(msgspec.Struct, frozen=True, kw_only=True, tag="primary"):
    """Who is primary from this number on, as this member delivered it."""

    sequence: int
    epoch: int
    number: int
    at: float  # CLOCK_MONOTONIC, which all processes of a machine share


class LoadStarted(msgspec.Struct, frozen=True, tag="load_started"):
    """From here on this member's batches carry this sender's name, in hexadecimal digits."""

    sender: str


class BatchesOrdered(msgspec.Struct, frozen=True, kw_only=True, tag="ordered"):
    """Batches of this member that are committed: counters from `first` through `last`."""

    first: int
    last: int
    at: float  # of the first


class BatchRefused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """A batch that was not taken, or whose outcome cannot be known."""

    counter: int
    reason: str
    is_unknown: bool


class LoadStopped(msgspec.Struct, frozen=True, kw_only=True, tag="load_stopped"):
    """Every batch has its answer."""

    ordered: int
    refused: int


class Tallied(msgspec.Struct, frozen=True, kw_only=True, tag="tallied"):
    """What this member has delivered, as one number that two members share only when they delivered the same."""

    batches: int
    chain: str


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of one sender that were delivered, as inclusive ranges."""

    sender: str
    ranges: list[tuple[int, int]]


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What the process has used since it began, in seconds."""

    at: float
    user_s: float
    system_s: float
    sync_cpu_s: float  # of the store's thread, writing and syncing
    sync_wall_s: float
    syncs: int


class Described(msgspec.Struct, frozen=True, kw_only=True, tag="described"):
    """The whole printable state."""

    tally: Tallied
    delivered_bytes: int
    repeats: int  # batches delivered again, or out of their sender's order: must be 0
    seen: list[Seen]
    usage: Usage
    node: dict[str, object]


class Stopped(msgspec.Struct, frozen=True, tag="stopped"):
    """The member has fallen silent."""

    reason: str


Event = (
    Started
    | Synchronised
    | Primary
    | LoadStarted
    | BatchesOrdered
    | BatchRefused
    | LoadStopped
    | Tallied
    | Described
    | Stopped
)


class NodeDescribe(msgspec.Struct, frozen=True, tag="node_describe"):
    """Asks a node of a cluster for a `NodeDescribed`."""


class NodeDieAt(msgspec.Struct, frozen=True, tag="node_die_at"):
    """For tests: the process kills itself when it takes this step for the so-manieth time.

    The steps are those of io/crash_points.py; a count of 0 lets it live.
    """

    step: str
    count: int = 1


NodeWord = NodeDescribe | NodeDieAt


class NodeStarted(msgspec.Struct, frozen=True, tag="node_started"):
    """The nodes of this process take part."""

    names: tuple[str, ...]


class NodeFailed(msgspec.Struct, frozen=True, tag="node_failed"):
    """A node of this process cannot start or go on; the process ends."""

    reason: str


class NodeDescribed(msgspec.Struct, frozen=True, tag="node_described"):
    """The printable state of every node of this process, by its name."""

    state: dict[str, object]


NodeEvent = NodeStarted | NodeFailed | NodeDescribed

_encoder = msgspec.json.Encoder(enc_hook=str)
_word_decoder: msgspec.json.Decoder[Word] = msgspec.json.Decoder(Word)
_event_decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


def encode_line(said: Word | Event | NodeWord | NodeEvent) -> bytes:
    """One line."""
    return _encoder.encode(said) + b"\n"


def decode_word(line: bytes) -> Word:
    """A line from the program; raises `msgspec.DecodeError`."""
    return _word_decoder.decode(line)


def decode_event(line: bytes) -> Event:
    """A line from the member; raises `msgspec.DecodeError`."""
    return _event_decoder.decode(line)
