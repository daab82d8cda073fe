"""A small ordering protocol for testing the simulator itself: member 1 is sequencer for ever.

It repeats everything until it is answered, so it survives loss, duplication, delay, pauses and crashes; it has no
takeover, no membership and no checkpoints. `faults` switches deliberate mistakes on, to see the checkers bite.
"""

from collections.abc import Iterable
from random import Random

import msgspec

from alphorn.bus.config import Budget, GroupConfig, MemberConfig, Role, Timing
from alphorn.bus.entries import Assignment, digest_of, make_epoch
from alphorn.bus.frames import Commit, CommitAcknowledge, CommitSubmit, Data, Frame, decode_all, encode, fragment_batch
from alphorn.bus.machine import (
    CONTROL_GROUP,
    DATA_GROUP,
    Deliver,
    Durable,
    Input,
    Order,
    Ordered,
    Output,
    Persist,
    PutAssignments,
    PutEntry,
    PutMeta,
    Received,
    Send,
    SynchronisedChanged,
    Write,
)
from alphorn.bus.storage import Meta, Storage
from alphorn.model.errors import PeerViolation
from alphorn.model.ids import IdSource, Kind

EPOCH = make_epoch(1, 1)
REPEAT_S = 0.05


class FixedSequencer:
    """Obeys `Machine`."""

    def __init__(
        self,
        *,
        config: GroupConfig,
        me: MemberConfig,
        storage: Storage,
        host: bytes,
        port: int,
        unix_s: float,
        founding: bool,
        random: Random,
        timing: Timing,
        budget: Budget,
        now: float,
        faults: frozenset[str] = frozenset(),
    ) -> None:
        self.config, self.me, self.storage, self.budget, self.faults = config, me, storage, budget, faults
        meta = storage.meta()
        previous = meta if isinstance(meta, Meta) else None
        self.ids = IdSource(host, port, unix_s=unix_s, previous_start=previous.start if previous else -1)
        self.outbox: list[Output] = []
        self.token = 0
        self.waiting: dict[int, list[Output]] = {}
        self.log: list[Assignment] = []
        self.payloads: dict[bytes, bytes] = {}
        self.fragments: dict[tuple[bytes, int], dict[int, bytes]] = {}  # by batch and cut
        self.mine: dict[bytes, tuple[int, bytes]] = {}
        self.acknowledged: dict[int, int] = {}
        self.positions: dict[bytes, int] = {self.ids.origin: 1 << 60}  # where each run stands, clients too
        self.committed = self.delivered = self.stored = 0
        self.deadline = now + REPEAT_S
        self.is_started = False
        self._load()
        new = Meta(config=b"", number=me.number, incarnation=1, start=self.ids.start, promised=EPOCH)
        self._persist([PutMeta(msgspec.msgpack.encode(new))], [SynchronisedChanged(True)])

    @property
    def is_sequencer(self) -> bool:
        return self.me.number == 1

    def _load(self) -> None:
        while isinstance(assignment := self.storage.assignment(len(self.log) + 1), Assignment):
            self.log.append(assignment)
            payload = self.storage.entry(len(self.log))
            assert isinstance(payload, bytes)
            self.payloads[assignment.id] = payload
        self.stored = len(self.log)

    def receive(self, item: Input, now: float) -> None:
        match item:
            case Received():
                try:
                    for frame in decode_all(item.data):
                        self._on_frame(frame)
                except PeerViolation:
                    return
            case Durable():
                for token in [token for token in self.waiting if token <= item.token]:
                    for output in self.waiting.pop(token):
                        self._perform(output)
            case Order():
                batch = self.ids.next(Kind.BATCH)
                self.mine[batch] = (item.handle, item.payload)
                self._send_data(batch, item.payload)
        self._advance()

    def on_time(self, now: float) -> None:
        self.deadline = now + REPEAT_S
        for batch, (_, payload) in list(self.mine.items())[:1]:
            self._send_data(batch, payload)
        if self.is_sequencer:
            first = min(self.committed, *self.positions.values())
            self._send(CONTROL_GROUP, CommitSubmit(first, EPOCH, self.committed, self.log[first : first + 8]))
            for assignment in self.log[first : first + 8]:
                self._send_data(assignment.id, self.payloads[assignment.id])
            low = max(0, self.committed - 8)
            self._send(CONTROL_GROUP, Commit(self.committed, low + 1, self.log[low : self.committed]))
        self._acknowledge()
        self._advance()

    def next_deadline(self) -> float:
        return self.deadline

    def take_outputs(self) -> Iterable[Output]:
        outputs, self.outbox = self.outbox, []
        return outputs

    def describe(self) -> dict[str, object]:
        return {"committed": self.committed, "delivered": self.delivered}

    def _on_frame(self, frame: Frame) -> None:
        body = frame.body
        match body:
            case Data():
                self._on_data(body)
            case CommitSubmit():
                self._on_submit(body.previous, body.assignments)
            case CommitAcknowledge() if self.is_sequencer:
                self.positions[frame.origin] = max(self.positions.get(frame.origin, 0), body.stored)
                if frame.number:
                    self.acknowledged[frame.number] = max(self.acknowledged.get(frame.number, 0), body.stored)
                    self._commit()
            case Commit():
                self._on_submit(body.first - 1, body.assignments)
                self.committed = max(self.committed, min(body.committed, len(self.log)))

    def _on_data(self, data: Data) -> None:
        if data.id in self.payloads:
            return
        parts = self.fragments.setdefault((data.id, data.fragments), {})
        parts[data.fragment] = bytes(data.payload)
        if len(parts) == data.fragments:
            payload = b"".join(parts[place] for place in range(data.fragments))
            del self.fragments[data.id, data.fragments]
            self.payloads[data.id] = payload
            if self.is_sequencer:
                self._number(data.id, payload)

    def _number(self, batch: bytes, payload: bytes) -> None:
        earlier = [assignment.id for assignment in self.log if assignment.id[:10] == batch[:10]]
        expected = int.from_bytes(earlier[-1][11:], "big") + 1 if earlier else 1
        counter = int.from_bytes(batch[11:], "big")
        if "reorder" not in self.faults and counter != expected:
            del self.payloads[batch]  # its sender repeats it after the one before
            return
        self.log.append(Assignment(EPOCH, batch, 0, digest_of(payload), len(payload)))

    def _on_submit(self, previous: int, assignments: list[Assignment]) -> None:
        for sequence, assignment in enumerate(assignments, previous + 1):
            if sequence == len(self.log) + 1:
                self.log.append(assignment)

    def _advance(self) -> None:
        writes: list[Write] = []
        while self.stored < len(self.log) and self.log[self.stored].id in self.payloads:
            assignment = self.log[self.stored]
            self.stored += 1
            payload = self.payloads[assignment.id]
            writes.append(PutAssignments(self.stored, [assignment]))
            writes.append(PutEntry(self.stored, payload, assignment.digest))
        if writes:
            self._persist(writes, [_Stored(self.stored)])
            if "eager" in self.faults:
                self._acknowledge(self.stored)
        self._deliver()

    def _deliver(self) -> None:
        while self.delivered < self.committed and self.log[self.delivered].id in self.payloads:
            assignment = self.log[self.delivered]
            self.delivered += 1
            if "gap" in self.faults and self.delivered == 5:
                continue
            self.outbox.append(Deliver(self.delivered, assignment, self.payloads[assignment.id]))
            if assignment.id in self.mine:
                self.outbox.append(Ordered(self.mine.pop(assignment.id)[0], self.delivered))

    def _commit(self) -> None:
        needed = 1 if "minority" in self.faults else len([m for m in self.config.members if Role.DATA in m.roles])
        values = sorted(self.acknowledged.values(), reverse=True)
        if len(values) >= needed and values[needed - 1] > self.committed:
            first, self.committed = self.committed + 1, min(values[needed - 1], len(self.log))
            self._send(CONTROL_GROUP, Commit(self.committed, first, self.log[first - 1 : self.committed][:8]))

    def _persist(self, writes: list[Write], then: list[Output]) -> None:
        self.token += 1
        self.waiting[self.token] = then
        self.outbox.append(Persist(self.token, writes))

    def _perform(self, output: Output) -> None:
        if isinstance(output, _Stored):
            self._acknowledge(output.sequence)
        else:
            self.is_started = True
            self.outbox.append(output)

    def _acknowledge(self, through: int | None = None) -> None:
        if not self.me.number:
            self._send(self.config.members[0].address, CommitAcknowledge(0, self.delivered))
            return
        through = self.acknowledged.get(self.me.number, 0) if through is None else through
        self.acknowledged[self.me.number] = max(through, self.acknowledged.get(self.me.number, 0))
        if self.is_sequencer:
            self._commit()
        else:
            self._send(self.config.members[0].address, CommitAcknowledge(through, through))

    def _send_data(self, batch: bytes, payload: bytes) -> None:
        frames = fragment_batch(
            batch, payload, digest=digest_of(payload), timestamp=0, limit=self.budget.datagram_bytes
        )
        for data in frames:
            self._send(DATA_GROUP, data)
            if self.is_sequencer:
                self._on_data(data)

    def _send(self, to: str, body: object) -> None:
        if self.is_started:
            parts = encode(
                group=7,
                epoch=EPOCH,
                number=self.me.number,
                origin=self.ids.origin,
                body=body,  # type: ignore[arg-type]
            )
            self.outbox.append(Send(to, parts))


class _Stored(Output, frozen=True, gc=False):
    sequence: int
