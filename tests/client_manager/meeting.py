"""Clients, a Client Manager and the Message Managers of two channels, as machines that talk at once.

Each channel has a primary and a backup. What they say goes over the wire's form, as between processes, and the log
commits at once.
"""

from collections.abc import Sequence

from alphorn.client_manager import machine as front
from alphorn.client_manager.core import ClientManager
from alphorn.client_manager.desk import Settings
from alphorn.doors import native
from alphorn.message_manager import machine as back
from alphorn.message_manager.core import MessageManager
from alphorn.message_manager.engine import Engine
from alphorn.message_manager.status import About
from alphorn.model import link
from alphorn.model.commands import AnyCommand, Entry, encode_entry
from alphorn.model.conversation import AnyClientFrame, Goodbye, Hello, OpenSession
from alphorn.model.errors import PeerViolation
from alphorn.model.frame_kinds import ServerFrame
from alphorn.model.ids import IdSource
from tests.client_manager.proving import SIGNET, secret_of

ORIGIN = b"o" * 10
LINK = 1


class Replica:
    """One Message Manager of a channel."""

    def __init__(self, name: str, entries: dict[int, bytes]) -> None:
        about = About(name=name, pid=1, address="", channel=name)
        self.name = name
        self.origin = name.ljust(10).encode()
        self.manager = MessageManager(about, wall_ms=lambda now: int(now * 1000), read=entries.get)


class Meeting:
    """All of them. `said` is what each stream was told."""

    def __init__(self, channels: int = 2) -> None:
        self.now = 1000.0
        self.entries: list[dict[int, bytes]] = [{} for _ in range(channels)]
        self.replicas = [
            [Replica(f"mm{channel}{letter}", self.entries[channel]) for letter in "ab"] for channel in range(channels)
        ]
        self._managers = 0
        self.manager = self._make_manager(frozenset())
        self.said: dict[int, list[ServerFrame]] = {}
        self.hung: dict[int, str] = {}
        self.streams = 0
        self._epochs = [1] * channels
        for channel, replicas in enumerate(self.replicas):
            replicas[0].manager.receive(back.Promoted(1, replicas[0].origin, ()), self.now)
            self._link(channel)
        self.settle()

    def _make_manager(self, removed: frozenset[int]) -> ClientManager:
        self._managers += 1
        channels = len(self.replicas)
        ids = IdSource(b"\x7f\x00\x00\x01", 7700, unix_s=1_800_000_000.0 + self._managers)
        names = tuple(f"channel-{number}" for number in range(channels))
        settings = Settings(name="cm1", channels=channels, channel_names=names, removed=removed)
        return ClientManager(settings, ids, origins=[ORIGIN] * channels, signet=SIGNET)

    def _link(self, channel: int) -> None:
        for replica in self.replicas[channel]:
            self.manager.receive(front.Linked(channel, replica.name, True), self.now)
            replica.manager.receive(back.LinkOpened(LINK), self.now)

    def renew(self, *removed: int) -> None:
        """The Client Manager ends; another one, which knows nothing, begins, where these channels are removed."""
        for replica in [replica for replicas in self.replicas for replica in replicas]:
            replica.manager.receive(back.LinkClosed(LINK), self.now)
            replica.manager.receive(back.ClientManagerLeft(ORIGIN), self.now)
        self.settle()
        self.manager = self._make_manager(frozenset(removed))
        for channel in range(len(self.replicas)):
            if channel not in removed:
                self._link(channel)
        self.settle()

    # --- clients ---

    def open(self) -> int:
        """A client that has not said anything; gives its stream."""
        self.streams += 1
        self.manager.receive(front.Opened(self.streams), self.now)
        return self.streams

    def connect(self, *sessions: int, connection: bytes = b"", client_id: str = "") -> int:
        """A client with these sessions."""
        stream = self.open()
        self.say(stream, Hello(native.VERSION, client_id, connection=connection, secret=secret_of(connection)))
        for session in sessions:
            self.say(stream, OpenSession(session))
        return stream

    def say(self, stream: int, *frames: AnyClientFrame) -> None:
        """What a client says at once, through its door; it is dealt with to its end."""
        for frame in frames:
            body = bytearray(native.encode(frame))[native.LENGTH_BYTES :]
            self.manager.receive(front.Said(stream, native.decode_client(body)), self.now)
            body[:] = bytes(len(body))  # the next frame of a stream takes its place
        self.settle()

    def close(self, stream: int) -> None:
        """A client's stream is gone."""
        self.manager.receive(front.Closed(stream, "gone"), self.now)
        self.settle()

    def heard(self, stream: int) -> list[ServerFrame]:
        """What a client was told since the last look."""
        return self.said.pop(stream, [])

    # --- Message Managers ---

    def lose_primary(self, channel: int) -> None:
        """A channel has none, until `take_over`."""
        self._epochs[channel] += 1
        self.replicas[channel][0].manager.receive(back.Demoted(self._epochs[channel]), self.now)
        self.settle()

    def take_over(self, channel: int) -> None:
        """The backup of a channel becomes its primary, and hears of everything anew."""
        primary, backup = self.replicas[channel]
        self.replicas[channel] = [backup, primary]
        self._epochs[channel] += 1
        primary.manager.receive(back.Demoted(self._epochs[channel]), self.now)
        backup.manager.receive(back.Promoted(self._epochs[channel], backup.origin, (ORIGIN,)), self.now)
        self.settle()

    def commit_other(self, channel: int, *wanted: AnyCommand, epoch: int = 0) -> None:
        """An entry of another Client Manager is in the log, or of whoever was primary in an epoch."""
        self._commit(channel, encode_entry(Entry(list(wanted), [], epoch)), b"another.cm", 0)
        self.settle()

    # --- time and talk ---

    def pass_time(self, seconds: float) -> None:
        """Everybody does what is due."""
        self.now += seconds
        for machine in (self.manager, *(replica.manager for replicas in self.replicas for replica in replicas)):
            machine.on_time(self.now)
        self.settle()

    def settle(self) -> None:
        """Everybody hears what was said, until nobody has anything to say."""
        for _ in range(10_000):
            is_quiet = not self._perform(self.manager.take_outputs())
            for channel, replicas in enumerate(self.replicas):
                for replica in replicas:
                    is_quiet &= not self._do(channel, replica, replica.manager.take_outputs())
            if is_quiet and self.manager.next_deadline() > self.now:
                return
            if is_quiet:
                self.manager.on_time(self.now)
        raise AssertionError("they talk for ever")

    def _perform(self, outputs: Sequence[front.Output]) -> bool:
        for output in outputs:
            match output:
                case front.Order(channel, handle, payload):
                    self._commit(channel, payload, ORIGIN, handle)
                case front.Reply(stream, frame):
                    native.decode_server(native.encode(frame)[native.LENGTH_BYTES :])
                    self.said.setdefault(stream, []).append(frame)
                case front.Ask(channel, name, frame):
                    asked = link.decode_asked(link.encode(frame)[native.LENGTH_BYTES :])
                    [replica] = [each for each in self.replicas[channel] if each.name == name]
                    replica.manager.receive(back.Asked(LINK, asked), self.now)
                case front.Hang(stream, reason):
                    self.hung[stream] = reason
        return bool(outputs)

    def _do(self, channel: int, replica: Replica, outputs: Sequence[back.Output]) -> bool:
        for output in outputs:
            match output:
                case back.Order(payload):
                    self._commit(channel, payload, replica.origin, 0)
                case back.Tell(_, frame):
                    told = link.decode_told(link.encode(frame)[native.LENGTH_BYTES :])
                    self.manager.receive(front.Told(channel, replica.name, told), self.now)
                case back.Supply(_, request, sequences):
                    there = [each for each in sequences if each in self.entries[channel]]
                    entries = [(each, memoryview(self.entries[channel][each])) for each in there]
                    self.manager.receive(front.Told(channel, replica.name, link.Entries(request, entries)), self.now)
                case back.Break():
                    raise AssertionError(f"{replica.name} closed the link: {output.reason}")
        return bool(outputs)

    def _commit(self, channel: int, payload: bytes, origin: bytes, handle: int) -> None:
        sequence = len(self.entries[channel]) + 1
        self.entries[channel][sequence] = payload
        for replica in self.replicas[channel]:
            replica.manager.receive(back.Committed(sequence, origin, payload, self._epochs[channel]), self.now)
        self.manager.receive(front.Committed(channel, sequence, handle, payload, self._epochs[channel]), self.now)

    # --- what must be so, whatever was said ---

    def check_replicas(self) -> None:
        """All replicas of a channel are the same, and can be written to disk and read again."""
        for replicas in self.replicas:
            written = [b"".join(replica.manager.engine.checkpoint()) for replica in replicas]
            assert written[0] == written[1], "replicas differ"
            assert b"".join(Engine.restore([written[0]]).checkpoint()) == written[0], "a replica cannot be restored"

    def is_sent_away(self, stream: int) -> bool:
        """Whether a client was told that it is wrong, and hung up."""
        last = self.said.get(stream, [])[-1:]
        is_told = bool(last) and isinstance(last[0], Goodbye) and last[0].error == PeerViolation.__name__
        return is_told and stream in self.hung
