"""What client processes are told to do, and what they say; one line of JSON each.

A process opens what it needs and says `Open`; it warms up and says `Ready`; it waits for the word `GO`, does its work,
and says `Done`. Times are of the machine's monotonic clock, which its processes share.
"""

from typing import Any

import msgspec

GO = b"go\n"


class Task(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One process's work."""

    url: str


class Produce(Task, frozen=True, kw_only=True, tag=True):
    """Sends to each destination so many messages, `at_once` to each in turn, and waits until all are confirmed."""

    destinations: tuple[str, ...]
    messages: int
    size: int = 100
    at_once: int = 5000  # given to one `send_many`
    is_single: bool = False  # `send`, message by message
    has_one_producer: bool = False  # for all destinations, instead of one for each
    warm_up: int = 0  # messages to each destination before


class Consume(Task, frozen=True, kw_only=True, tag=True):
    """Receives from each destination so many messages, in turn, and acknowledges them."""

    destinations: tuple[str, ...]
    messages: int
    at_once: int = 5000  # asked of one `receive_many`
    is_single: bool = False  # iterates, message by message
    prefetch: int = 1000
    client_id: str = ""
    subscribers: int = 0  # to each destination, a topic, with durable subscriptions; 0 for queues
    warm_up: int = 0


class Pace(Task, frozen=True, kw_only=True, tag=True):
    """Sends at a steady pace, receives in the same process, and measures each message's way."""

    destination: str
    messages: int
    per_second: int
    size: int = 100
    warm_up: int = 0


class Idle(Task, frozen=True, kw_only=True, tag=True):
    """Opens so many connections that say nothing after their greeting, until the input ends."""

    connections: int


AnyTask = Produce | Consume | Pace | Idle


class Open(msgspec.Struct, frozen=True, tag=True):
    """It has what it needs."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """It is warm, and waits for the word."""


class Done(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """All is done: confirmed, or acknowledged."""

    messages: int
    begun: float  # s
    ended: float  # s
    cpu_s: float  # of the process between the two
    latencies_ms: dict[str, float] = {}


class Failed(msgspec.Struct, frozen=True, tag=True):
    """It could not."""

    reason: str


AnyWord = Open | Ready | Done | Failed

encode_task: Any = msgspec.json.Encoder().encode
decode_task: Any = msgspec.json.Decoder(AnyTask).decode
decode_word: Any = msgspec.json.Decoder(AnyWord).decode
