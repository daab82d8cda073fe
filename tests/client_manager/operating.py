"""An operator of a few channels: what is asked for is done to its end, by a Client Manager and Message Managers."""

import msgspec

from alphorn.client_manager.directory import Directory
from alphorn.message_manager.engine import Engine
from alphorn.message_manager.queue import Queue
from alphorn.model import commands
from alphorn.model.conversation import (
    Administer,
    CloseConsumer,
    Consume,
    Delivered,
    Done,
    Failed,
    Publish,
    Resolve,
    Resolved,
    Return,
    parts_of,
)
from alphorn.model.destinations import Policy, parse_destination
from alphorn.model.frame_kinds import ClientFrame
from alphorn.model.moving_conversation import Drain, Move
from tests.client_manager.meeting import Meeting

TURNS = 100  # of a tenth of a second, until something is found to be stuck
CHANNELS = 4
DRAWN = Directory(CHANNELS, [f"channel-{number}" for number in range(CHANNELS)])


def drawing(*lots: int, kind: str = "queue") -> str:
    """A name whose lots begin with these channels."""
    names = (f"{kind}:q{number}" for number in range(1000))
    return next(name for name in names if DRAWN.lots(parse_destination(name))[: len(lots)] == list(lots))


class Operator:
    """One client that administers, sends and receives."""

    def __init__(self) -> None:
        self.meeting = Meeting(CHANNELS)
        self._request = 0
        self._counter = 0
        self._connect()

    def _connect(self) -> None:
        self._stream = self.meeting.connect(1)
        self._counter = 0

    def renew(self, *removed: int) -> None:
        """All begin anew, without these channels."""
        self.meeting.renew(*removed)
        self._connect()

    def engine(self, channel: int) -> Engine:
        return self.meeting.replicas[channel][0].manager.engine

    def begin(self, frame: ClientFrame) -> int:
        """Asks for something, and waits for nothing; gives its request."""
        self._request += 1
        self.meeting.say(self._stream, msgspec.structs.replace(frame, request=self._request))  # type: ignore[arg-type]
        return self._request

    def begin_together(self, *frames: ClientFrame) -> list[int]:
        """Asks for several things in one breath."""
        first = self._request + 1
        self._request += len(frames)
        said = [msgspec.structs.replace(frame, request=first + place) for place, frame in enumerate(frames)]  # type: ignore[arg-type]
        self.meeting.say(self._stream, *said)  # type: ignore[arg-type]
        return list(range(first, self._request + 1))

    def answer(self, request: int) -> Done | Failed | Resolved | None:
        """The answer to a request, if it has come."""
        said = self.meeting.said.get(self._stream, [])
        found = [frame for frame in said if isinstance(frame, Done | Failed | Resolved) and frame.request == request]
        return found[0] if found else None

    def ask(self, frame: ClientFrame) -> Done | Failed | Resolved:
        """Asks for something, and gives the answer."""
        return self.wait(self.begin(frame))

    def wait(self, request: int) -> Done | Failed | Resolved:
        """The answer to a request, which comes."""
        for _ in range(TURNS):
            if (answer := self.answer(request)) is not None:
                self.meeting.pass_time(0.1)
                return answer
            self.meeting.pass_time(0.1)
        raise AssertionError(f"nobody answers request {request}")

    def refusal(self, frame: ClientFrame) -> str:
        """Why something is not done."""
        answer = self.ask(frame)
        assert isinstance(answer, Failed), answer
        return answer.reason

    def do(self, frame: ClientFrame) -> None:
        answer = self.ask(frame)
        assert not isinstance(answer, Failed), answer.reason

    def resolve(self, name: str, **policy: object) -> int:
        """The channel of a destination, new or not."""
        packed = msgspec.msgpack.encode(Policy(**policy)) if policy else b""  # type: ignore[arg-type]
        answer = self.ask(Resolve(0, name, policy=packed))
        assert isinstance(answer, Resolved), answer
        return parts_of(answer.place)[0]

    def set_policy(self, name: str, **policy: object) -> None:
        self.do(Administer(0, "policy", name, msgspec.msgpack.encode(Policy(**policy))))  # type: ignore[arg-type]

    def move(self, name: str, channel: int) -> None:
        self.do(Move(0, name, f"channel-{channel}"))

    def drain(self, channel: int) -> None:
        self.do(Drain(0, f"channel-{channel}"))

    def open(self, channel: int) -> None:
        self.do(Drain(0, f"channel-{channel}", True))

    def number(self) -> int:
        """Of a producer or a consumer."""
        self._counter += 1
        return self._counter

    def order(self, channel: int, *wanted: commands.AnyCommand) -> None:
        """Something that another Client Manager has put into a log."""
        self.meeting.commit_other(channel, *wanted)

    def send(self, name: str, body: object) -> None:
        answer = self.ask(Resolve(0, name))
        assert isinstance(answer, Resolved)
        blob = memoryview(msgspec.msgpack.encode([[body]]))
        producer = self.number()
        self.meeting.say(self._stream, Publish(1, producer, answer.place, 1, 1, 0, 1000, blob))

    def reject(self, name: str, body: object) -> None:
        """A message that is sent there dies."""
        self.send(name, body)
        answer = self.ask(Resolve(0, name))
        assert isinstance(answer, Resolved)
        consumer = self.number()
        self.do(Consume(0, 1, consumer, answer.place, 1))
        said = self.meeting.said[self._stream]
        [found] = [frame for frame in said if isinstance(frame, Delivered) and frame.consumer == consumer]
        self.do(Return(0, consumer, [found.position, found.position], is_dead=True))
        self.do(CloseConsumer(0, consumer))

    def places(self, name: str) -> list[int]:
        """The channels that have a destination of this name."""
        destination = parse_destination(name)
        return [channel for channel in range(CHANNELS) if destination in self.engine(channel).numbers]

    def policy_of(self, name: str) -> Policy:
        [channel] = self.places(name)
        engine = self.engine(channel)
        return engine.destinations[engine.numbers[parse_destination(name)]].policy

    def dead(self) -> dict[tuple[int, str], int]:
        """How many dead messages are in which queue of which channel."""
        return {
            (channel, str(found.destination)): len(found.backlog.pending)
            for channel in range(CHANNELS)
            for found in self.engine(channel).destinations.values()
            if isinstance(found, Queue) and found.histories and found.backlog.pending
        }
