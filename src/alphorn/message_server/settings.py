"""How a message server is set up: its times and limits."""

import msgspec

from alphorn.model.internal import MESSAGE_BYTES_MAX


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """In seconds. A connection says something every `beat_s`, so that its silence means something."""

    beat_s: float = 1.0
    suspect_s: float = 2.5  # silence after which a process is suspected, and its name may be taken
    silent_s: float = 5.0  # silence after which a connection is closed
    down_s: float = 3.0  # so long a process is away before it is called down
    known_s: float = 3600.0  # so long it is known after that
    keep_s: float = 65.0  # so long what is for all is kept for whoever is away
    alone_s: float = 1.0  # so long a server that has started waits for what the other one knows


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """More is refused, or counted and not kept."""

    processes: int = 2_000  # that are there; as many more that are away are known
    names: int = 4_000  # of processes that have ended
    ring_bytes: int = 64 << 20
    ring_entries: int = 50_000
    reader_bytes: int = 1 << 20  # of the ring that one process was given and has not confirmed
    events: int = 1_000  # of the past, for whoever asks; four times as many are told from new ones
    claims: int = 10_000

    def __post_init__(self) -> None:
        assert self.ring_bytes > self.reader_bytes
        assert self.ring_bytes > MESSAGE_BYTES_MAX


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """One message server."""

    name: str
    run: bytes
    peer: str = ""  # name of the other one; empty where there is none
    nodes: dict[str, str]  # of the cluster: name → kind
    timing: Timing = Timing()
    limits: Limits = Limits()
