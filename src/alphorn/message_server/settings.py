"""How a message server is set up: its times and limits."""

import msgspec


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """In seconds. A connection says something every `beat_s`, so that its silence means something."""

    beat_s: float = 1.0
    suspect_s: float = 2.5  # silence after which a process is suspected, and its name may be taken
    silent_s: float = 5.0  # silence after which a connection is closed
    down_s: float = 3.0  # so long a process is away before it is called down
    keep_s: float = 60.0  # so long what a process misses is kept for it
    alone_s: float = 1.0  # so long a server that has started waits for what the other one knows


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """More is refused, or counted and not kept."""

    processes: int = 2_000
    mailbox_bytes: int = 8 << 20  # that wait for one process
    mailbox_items: int = 10_000
    total_bytes: int = 256 << 20  # that wait here
    events: int = 1_000  # of the past, for whoever asks; four times as many are told from new ones
    claims: int = 10_000
    lapsed: int = 1_000  # processes for which what they miss is counted


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """One message server."""

    name: str
    run: bytes
    peer: str = ""  # name of the other one; empty where there is none
    nodes: dict[str, str]  # of the cluster: name → kind
    timing: Timing = Timing()
    limits: Limits = Limits()
