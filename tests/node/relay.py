"""A machine that stands in for the endpoint: it stores its own batches, tells the group, and delivers what it hears."""

import math
from typing import Any

import msgspec

from alphorn.bus.entries import Assignment, Member, digest_of
from alphorn.bus.frames import COMMIT_TYPE, CheckpointChunk, Commit, Data, Heartbeat, decode_all, encode, says_only
from alphorn.bus.machine import (
    CONTROL_GROUP,
    DATA_GROUP,
    CheckpointInstalled,
    CheckpointRefused,
    CheckpointWritten,
    Deliver,
    DropThrough,
    Durable,
    Goodbye,
    Input,
    InstallCheckpoint,
    MemberChanged,
    Order,
    Ordered,
    Output,
    Persist,
    PrimaryChanged,
    PutAssignments,
    PutEntry,
    Received,
    Refused,
    Send,
    Stop,
    SynchronisedChanged,
    TakeCheckpoint,
    Trace,
    WindowChanged,
)
from alphorn.model.ids import Kind, make_id, make_origin, start_units
from alphorn.model.ranges import RangeSet

MEMBER = Member(9, "nine", "127.0.0.1:9", 0, 0, "tag", b"o" * 10, 1)
EVENTS = [
    WindowChanged(False),
    MemberChanged(3, "joined", MEMBER),
    PrimaryChanged(4, 1 << 16, 9, False),
    SynchronisedChanged(True),
    Refused(77, "the window is full", True),
    Trace("traced", "a=1"),
]


class Relay:
    """Payloads are commands, as `_on_order` lists them; all else is relayed."""

    lacking = ""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings
        self.origin = make_origin(settings["host"], settings["port"], start_units(settings["unix_s"]))
        self.heard: list[object] = []
        self.outputs: list[Output] = []
        self.orders: dict[int, int] = {}
        self.sequence = 0
        self.token = 0

    def receive(self, item: Input, now: float) -> None:
        match item:
            case Order(payload, handle):
                self._on_order(payload, handle)
            case Durable(token):
                for waiting in [waiting for waiting in self.orders if waiting <= token]:
                    self.outputs.append(Ordered(self.orders.pop(waiting), waiting))
            case Received(data):
                for frame in decode_all(data):
                    self._on_body(frame.body)
            case CheckpointWritten() | CheckpointInstalled() | CheckpointRefused() | Goodbye():
                self.heard.append(item)

    def can_wait(self, datagram: bytes | memoryview) -> bool:
        return says_only(datagram, frozenset((COMMIT_TYPE,)), 1)

    def on_time(self, now: float) -> None:
        raise AssertionError("nothing is ever due")

    def next_deadline(self) -> float:
        return math.inf

    def take_outputs(self) -> list[Output]:
        taken, self.outputs = self.outputs, []
        return taken

    def describe(self) -> dict[str, object]:
        return {"sequence": self.sequence}

    def _on_body(self, body: object) -> None:
        if isinstance(body, Data):
            self.outputs.append(Deliver(body.sequence, Assignment(1, body.id), body.payload))
        else:
            self.heard.append(body)

    def _on_order(self, payload: bytes, handle: int) -> None:
        self.sequence += 1
        batch = make_id(self.origin, Kind.BATCH, self.sequence)
        assignment = Assignment(1, batch, 0, digest_of(payload), len(payload))
        self.token += 1
        self.orders[self.token] = handle
        writes = [PutAssignments(self.sequence, [assignment]), PutEntry(self.sequence, payload, assignment.digest)]
        self.outputs.append(Persist(self.token, writes))
        match payload.split(b" "):
            case [b"events"]:
                self.outputs += EVENTS
            case [b"checkpoint"]:
                self.outputs.append(TakeCheckpoint(self.sequence, 1, b"group state"))
            case [b"install", sequence]:
                self.outputs.append(InstallCheckpoint(int(sequence)))
            case [b"collect", sequence]:
                self.token += 1
                self.outputs.append(Persist(self.token, [DropThrough(int(sequence), is_retaining=True)]))
            case [b"stop"]:
                self.outputs += [Stop("the log went on without this member"), Deliver(99, assignment, b"never")]
            case [b"large", address]:
                self.outputs.append(self._say(address.decode(), CheckpointChunk(1, 2, 0, 1, bytes(1 << 20))))
            case [b"patient"]:
                self.outputs.append(self._say(CONTROL_GROUP, Commit(self.sequence, 1, [])))
            case [b"prompt"]:
                self.outputs.append(self._say(CONTROL_GROUP, Heartbeat(self.sequence, 1, 0, 0)))
            case [b"quiet", *_]:
                pass
            case [b"bug"]:
                raise AssertionError("an invariant is broken")
            case _:
                self.outputs.append(self._say(DATA_GROUP, self._data(batch, payload, assignment.digest)))

    def _data(self, batch: bytes, payload: bytes, digest: int) -> Data:
        return Data(batch, 0, self.sequence, digest, len(payload), 0, 0, 1, payload)

    def _say(self, to: str, body: Any) -> Send:
        return Send(to, encode(group=self.settings["config"].group, epoch=1, number=1, origin=self.origin, body=body))


class Listener:
    """An upper layer that writes down what it is told; its state is the payloads it was given."""

    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []
        self.state: list[bytes] = []
        self.needed = RangeSet()
        self.finish = None  # what installing a checkpoint waits for

    def on_deliver(self, sequence, assignment, payload):
        self.state.append(bytes(payload))

    def on_ordered(self, handle, sequence):
        self.told.append(("ordered", handle, sequence))

    def on_refused(self, handle, reason, *, is_unknown):
        self.told.append(("refused", handle, reason, is_unknown))

    def on_window(self, *, is_open):
        self.told.append(("window", is_open))

    def on_member(self, sequence, event, member):
        self.told.append(("member", sequence, event, member))

    def on_primary(self, sequence, epoch, number, *, is_self, members):
        self.told.append(("primary", sequence, epoch, number, is_self))

    def on_synchronised(self, *, is_synchronised):
        self.told.append(("synchronised", is_synchronised))

    def give_checkpoint(self, sequence):
        return [msgspec.msgpack.encode(self.state)]

    def retained(self, sequence):
        return self.needed

    def install_checkpoint(self, sequence, chunks):
        self.state = msgspec.msgpack.decode(b"".join(chunks), type=list[bytes])
        return self.finish and self.finish(sequence)

    def on_stop(self, reason):
        self.told.append(("stop", reason))
