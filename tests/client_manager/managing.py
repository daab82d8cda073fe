"""A Client Manager driven by hand: clients, a log that commits at once, and a Message Manager that answers as told."""

import msgspec

from alphorn.client_manager.core import ClientManager
from alphorn.client_manager.desk import Settings
from alphorn.client_manager.machine import (
    Ask,
    AskServers,
    Closed,
    Committed,
    Hang,
    Heed,
    Linked,
    Opened,
    Order,
    Reply,
    Said,
    Told,
)
from alphorn.doors.native import VERSION
from alphorn.model import frame_kinds, link
from alphorn.model.commands import AnyCommand, Entry, decode_entry
from alphorn.model.commands import Publish as Published
from alphorn.model.conversation import (
    AnyClientFrame,
    Consume,
    Delivered,
    Done,
    Hello,
    OpenSession,
    Publish,
    Resolve,
    Resolved,
    Welcome,
)
from alphorn.model.destinations import Policy
from alphorn.model.frame_kinds import ServerFrame
from alphorn.model.ids import IdSource
from tests.client_manager.proving import DRAFT, SIGNET, secret_of

ORIGIN = b"o" * 10
encode = msgspec.msgpack.encode


class Managing:
    """One Client Manager with the link to `mm1`, its primary, up."""

    def __init__(self, **settings: object) -> None:
        ids = IdSource(b"\x7f\x00\x00\x01", 7700, unix_s=1_800_000_000.0)
        self.manager = ClientManager(
            Settings(name="cm1", **settings),  # type: ignore[arg-type]
            ids,
            origins=[ORIGIN],
            signet=DRAFT,
        )
        self.now = 0.0
        self.sequence = 0
        self.commits = True  # whether the log takes entries at once
        self.waiting: list[Order] = []
        self.entries: list[Entry] = []
        self.asked: list[tuple[str, frame_kinds.Asked]] = []
        self.said: dict[int, list[ServerFrame]] = {}
        self.hung: dict[int, str] = {}
        self.unheard: set[int] = set()
        self.streams = 0
        self.servers_asked: list[int] = []
        self.link_up("mm1", is_primary=True, epoch=1)
        self.tell(link.Answered(self.entries[-1].requests[0], signet=SIGNET))
        self.entries.clear()
        self.asked.clear()

    # --- driving ---

    def receive(self, item: object) -> None:
        self.manager.receive(item, self.now)  # type: ignore[arg-type]
        self.turn()

    def turn(self) -> None:
        for output in self.manager.take_outputs():
            match output:
                case Order():
                    self.entries.append(decode_entry(output.payload))
                    self.waiting.append(output)
                case Reply(stream, frame):
                    self.said.setdefault(stream, []).append(frame)
                case Ask(_, name, frame):
                    self.asked.append((name, frame))
                case AskServers(request):
                    self.servers_asked.append(request)
                case Heed(stream, is_heard):
                    (self.unheard.discard if is_heard else self.unheard.add)(stream)
                case Hang(stream, reason):
                    self.hung[stream] = reason
        if self.commits and self.waiting:
            self.commit()

    def commit(self) -> None:
        """The log takes what was ordered."""
        waiting, self.waiting = self.waiting, []
        for order in waiting:
            self.sequence += 1
            self.manager.receive(Committed(0, self.sequence, order.handle, order.payload), self.now)
        self.turn()

    def commit_other(self, *commands: AnyCommand) -> int:
        """An entry of another Client Manager."""
        self.sequence += 1
        self.receive(Committed(0, self.sequence, 0, encode(Entry(list(commands)))))
        return self.sequence

    def link_up(self, name: str, *, is_primary: bool, epoch: int) -> None:
        self.receive(Linked(0, name, True))
        self.tell(link.Role(name, epoch, is_primary), name)

    def link_down(self, name: str) -> None:
        self.receive(Linked(0, name, False))

    def tell(self, frame: frame_kinds.Told, name: str = "mm1") -> None:
        self.receive(Told(0, name, frame))  # type: ignore[arg-type]

    def answer(self, *, number: int = 0, error: str = "", reason: str = "", policy: Policy | None = None) -> None:
        """The primary answers every request of the newest entry."""
        for request in self.entries[-1].requests:
            if request:
                self.tell(link.Answered(request, number, error, reason, policy))

    # --- clients ---

    def connect(self, connection: bytes = b"", client_id: str = "", resumption: int = 0) -> "Client":
        self.streams += 1
        self.receive(Opened(self.streams))
        client = Client(self, self.streams)
        secret = secret_of(connection)
        client.say(Hello(VERSION, client_id, connection=connection, resumption=resumption, secret=secret))
        if client_id:
            self.tell(link.Answered(claimed_client(self).request))
        welcome = client.take(Welcome)[0]
        client.id = welcome.connection
        client.say(OpenSession(1))
        return client


class Client:
    """One client's side of the conversation."""

    def __init__(self, managing: Managing, stream: int) -> None:
        self.managing = managing
        self.stream = stream
        self.id = b""
        self.requests = 0

    def say(self, *frames: AnyClientFrame) -> None:
        for frame in frames:
            self.managing.manager.receive(Said(self.stream, frame), self.managing.now)
        self.managing.turn()

    def heard(self) -> list[ServerFrame]:
        return self.managing.said.pop(self.stream, [])

    def take(self, kind: type) -> list:  # type: ignore[type-arg]
        frames = self.heard()
        self.managing.said[self.stream] = [frame for frame in frames if not isinstance(frame, kind)]
        return [frame for frame in frames if isinstance(frame, kind)]

    def close(self) -> None:
        self.managing.receive(Closed(self.stream, "gone"))

    def resolve(self, name: str = "queue:q", number: int = 5, policy: Policy | None = None) -> int:
        """The place of a destination that is created, or known already."""
        self.requests += 1
        self.say(Resolve(self.requests, name))
        if not (found := self.take(Resolved)):
            self.managing.answer(number=number, policy=policy or Policy())
            found = self.take(Resolved)
        return int(found[-1].place)

    def publish(self, place: int, counter: int, *bodies: object, producer: int = 1) -> None:
        blob = memoryview(encode([[body] for body in bodies]))
        self.say(Publish(1, producer, place, counter, len(bodies), 0, 1000, blob))

    def consume(self, place: int, consumer: int = 1, **options: object) -> None:
        self.requests += 1
        self.say(Consume(self.requests, 1, consumer, place, 100, **options))  # type: ignore[arg-type]


def published(managing: Managing) -> list[Published]:
    """Every batch that was ordered."""
    return [c for entry in managing.entries for c in entry.commands if isinstance(c, Published)]


def attached(managing: Managing) -> list[link.Attach]:
    """Every attachment that was asked for since the last look."""
    found = [frame for _, frame in managing.asked if isinstance(frame, link.Attach)]
    managing.asked.clear()
    return found


def claimed_client(managing: Managing) -> link.ClaimClient:
    """The newest question for a client id."""
    return [frame for _, frame in managing.asked if isinstance(frame, link.ClaimClient)][-1]


def consuming(managing: Managing, client: Client, **options: object) -> bytes:
    """A consumer of queue:q that the primary has accepted; gives its key."""
    client.consume(client.resolve(), **options)
    [attach] = attached(managing)
    managing.tell(link.Answered(attach.request))
    assert client.take(Done)
    return attach.consumer


def entry_of(*bodies: object, counter: int = 1) -> Entry:
    """A log entry with another client's batch for queue:q."""
    blob = memoryview(encode([[body] for body in bodies]))
    return Entry([Published(5, b"p" * 20, counter, len(bodies), 0, 1000, blob)])


def batch(managing: Managing, *bodies: object, counter: int = 1) -> int:
    """Another client's batch in the log; gives its number."""
    return managing.commit_other(*entry_of(*bodies, counter=counter).commands)


def bodies_of(frame: Delivered) -> list[object]:
    """The messages of a delivery."""
    return [message[0] for message in msgspec.msgpack.decode(frame.blob)]
