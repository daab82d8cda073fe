"""What all parts of a Client Manager share: its connections, its channels, the directory, and what is to be done."""

from collections.abc import Callable

import msgspec

from alphorn.client_manager.auditing import Auditing
from alphorn.client_manager.channel import ENTRY_WORK, UNDER_WAY_MAX, Channel
from alphorn.client_manager.connection import Connection, Consumer
from alphorn.client_manager.dating import Dating, shifted
from alphorn.client_manager.directory import Directory
from alphorn.client_manager.loose import Loose
from alphorn.client_manager.machine import Ask, Log, Output, Reply
from alphorn.model.conversation import Done, Failed, Resolved, StatusAnswer
from alphorn.model.errors import Error, Misuse
from alphorn.model.frame_kinds import CONSUMERS_MAX, Asked, ServerFrame
from alphorn.model.ids import IdSource
from alphorn.model.link import Answered
from alphorn.model.messages import BATCH_BYTES_MAX, Flag

LATER_S = 0.05
_DATED = Flag.EXPIRATION | Flag.DELAY
_ANSWERS = frozenset((Done, Failed, Resolved, StatusAnswer))


class KnownNode(msgspec.Struct, frozen=True):
    """A node of the cluster file."""

    name: str
    kind: str
    address: str
    channel: str = ""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """One Client Manager."""

    name: str
    pid: int = 0
    address: str = ""  # where clients reach it, "host:port"
    channels: int = 1
    channel_names: tuple[str, ...] = ()
    removed: frozenset[int] = frozenset()  # of the channels: they keep their places, and nothing is there
    addresses: tuple[str, ...] = ()  # of all Client Managers, for clients that must look for another
    servers: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = ()  # of each channel: its name, and the names and
    # link addresses of its Message Managers
    nodes: tuple[KnownNode, ...] = ()  # of the whole cluster
    message_servers: tuple[tuple[str, str], ...] = ()  # names and addresses, for programs that join
    cache_bytes: int = 64 << 20  # per channel
    batch_bytes_max: int = BATCH_BYTES_MAX  # of one publish
    prepares_all: bool = False  # a transaction over several channels is prepared by all channels, not by its own only
    wall_offset_ms: int = 0  # from the time of turns to milliseconds since 1970; only testimony uses it
    consumer_bytes_max: int = 4 << 20  # handed to one client's stream before that is found to take it
    session_bytes_max: int = 16 << 20  # of one session's messages that are not answered; it is told to wait at the half
    channel_bytes_max: int = 16 << 20  # that the bus has not taken; sessions are told to wait at a quarter
    entry_work: int = ENTRY_WORK  # of one log entry (wishes.py),
    under_way_max: int = UNDER_WAY_MAX  # and of those that are under way in a channel
    sessions_max: int = 100_000  # of one connection,
    consumers_max: int = CONSUMERS_MAX  # those of its patterns included, each of which may have a hundred thousand
    producers_max: int = 100_000
    patterns_max: int = 20_000
    requests_max: int = 100_000  # of one connection that wait for their answers,
    requests_bytes_max: int = 32 << 20  # and the messages in them
    destinations_max: int = 250_000  # of one channel,
    subscriptions_max: int = 250_000  # that have names,
    staged_bytes_max: int = 8 << 30  # of one writer there
    load_max: int = 1000  # of what one connection has asked for (limits.py), before it is not heard any more


class Desk:
    """The shared ground."""

    __slots__ = (
        "auditing",
        "busy",
        "by_connection",
        "channels",
        "connections",
        "consumers",
        "dating",
        "directory",
        "ids",
        "loose",
        "now",
        "outbox",
        "reach",
        "settings",
        "timers",
        "used",
    )

    def __init__(self, settings: Settings, ids: IdSource) -> None:
        self.settings = settings
        self.ids = ids
        self.channels = [
            Channel(
                cache_bytes=settings.cache_bytes,
                is_removed=number in settings.removed,
                entry_work=settings.entry_work,
                under_way_max=settings.under_way_max,
            )
            for number in range(settings.channels)
        ]
        self.used = [number for number, channel in enumerate(self.channels) if not channel.is_removed]
        self.directory = Directory(settings.channels, settings.channel_names, settings.removed)
        self.auditing = Auditing(settings.name, self.directory, self.channels, wall_offset_ms=settings.wall_offset_ms)
        self.connections: dict[int, Connection] = {}  # by stream
        self.by_connection: dict[bytes, Connection] = {}
        self.consumers: dict[bytes, Consumer] = {}  # by key
        self.busy: dict[Connection, None] = {}  # those that have asked for so much that they are not heard for now
        self.loose = Loose()
        self.dating = Dating()
        self.outbox: list[Output] = []
        self.now = 0.0  # of this turn
        self.reach: Callable[[str], None] = lambda step: None  # hears of every step, for tests
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def dated(self, connection: Connection, channel: int, flags: int, blob: bytes | memoryview) -> memoryview:
        """A client's batch with times by the channel's log; it outlives the frame."""
        shift_ms = self.dating.shift_ms(channel, connection.calendar_ms) if flags & _DATED else 0
        return memoryview(shifted(blob, shift_ms) if shift_ms else bytes(blob))

    def later(self, then: Callable[[], None]) -> None:
        """Does something in a little while."""
        self.timers.append((self.now + LATER_S, then))

    def on_time(self, now: float) -> None:
        """Does what is due."""
        due = [then for at, then in self.timers if at <= now]
        self.timers = [timer for timer in self.timers if timer[0] > now]
        for then in due:
            then()

    def next_deadline(self) -> float:
        """When something is due."""
        return min((at for at, _ in self.timers), default=float("inf"))

    def reply(self, stream: int, frame: ServerFrame) -> None:
        """Says something to a client."""
        if type(frame) in _ANSWERS and (connection := self.connections.get(stream)) is not None:
            connection.answer(frame.request)  # type: ignore[attr-defined]
        self.outbox.append(Reply(stream, frame))

    def fail(self, stream: int, request: int, error: Error) -> None:
        """A request of a client is not done."""
        self.reply(stream, Failed(request, type(error).__name__, str(error)))

    def ask(self, channel: int, name: str, frame: Asked) -> None:
        """Says something to a Message Manager."""
        self.outbox.append(Ask(channel, name, frame))

    def ask_primary(self, channel: int, frame: Asked) -> bool:
        """Says something to the primary, if one is known."""
        primary = self.channels[channel].primary
        if primary:
            self.ask(channel, primary, frame)
        return bool(primary)

    def channel_named(self, name: str) -> int:
        """The number of a channel; raises `Misuse`."""
        found = {each: number for number, each in enumerate(self.settings.channel_names) if number in self.used}
        if name not in found:
            raise Misuse(f"there is no channel {name!r}; there are {', '.join(found)}")
        return found[name]

    def log(self, level: str, event: str, details: str) -> None:
        """A line for the log."""
        self.outbox.append(Log(level, event, details))

    def is_there(self, connection: Connection) -> bool:
        """Whether a client that an answer is for is still on the same stream."""
        return self.connections.get(connection.stream) is connection

    def answer_to(
        self, connection: Connection, request: int, then: Callable[[Answered], None]
    ) -> Callable[[Answered], None]:
        """Passes a refusal on to the client; goes on with `then` otherwise. Does nothing for one who is gone."""

        def on_answer(answer: Answered) -> None:
            if not self.is_there(connection):
                return
            if answer.error:
                self.reply(connection.stream, Failed(request, answer.error, answer.reason))
            else:
                then(answer)

        return on_answer
