"""What a Client Manager testifies of audited destinations: what clients gave it, and what it gave to clients.

Events go to the `_AUDIT` topic of the destination's own channel, behind what the turn ordered. Where nothing is audited
this costs one look into an empty set for each batch.
"""

import functools

from alphorn.client_manager.channel import Channel
from alphorn.client_manager.directory import Directory
from alphorn.model.audit import AuditEvent, AuditStage, AuditTrail, digests_of
from alphorn.model.commands import Publish
from alphorn.model.conversation import Delivered, parts_of
from alphorn.model.link import Answered


class Auditing:
    """One trail for each channel that has anything to say."""

    __slots__ = ("_asking", "_channels", "_directory", "_name", "_numbers", "_offset_ms", "_run", "_trails")

    def __init__(self, name: str, directory: Directory, channels: list[Channel], *, wall_offset_ms: int) -> None:
        self._name = name
        self._directory = directory
        self._channels = channels
        self._offset_ms = wall_offset_ms
        self._run = b""
        self._trails: dict[int, AuditTrail] = {}
        self._numbers: dict[int, int] = {}  # of the topic, by channel
        self._asking: set[int] = set()

    def begin(self, run: bytes) -> None:
        """What names this run of this node."""
        self._run = run

    def covers(self, place: int) -> bool:
        """Whether the destination at this place is audited."""
        return place in self._directory.audited

    def produced(self, place: int, batch: Publish) -> None:
        """A client's batch is taken."""
        self._add(
            place,
            AuditEvent(
                stage=AuditStage.PRODUCED,
                destination=self._destination(place),
                producer=batch.producer.hex(),
                counter=batch.counter,
                count=batch.count,
                flags=batch.flags,
                digests=digests_of(batch.blob),
            ),
        )

    def confirmed(self, place: int, producer: bytes, counter: int, count: int) -> None:
        """A client is told that its messages are committed."""
        self._add(
            place,
            AuditEvent(
                stage=AuditStage.CONFIRMED,
                destination=self._destination(place),
                producer=producer.hex(),
                counter=counter,
                count=count,
            ),
        )

    def delivered(self, place: int, subscription: int, consumer: bytes, frame: Delivered) -> None:
        """Messages are sent to a consumer."""
        digests = digests_of(frame.blob)
        self._add(
            place,
            AuditEvent(
                stage=AuditStage.DELIVERED,
                destination=self._destination(place),
                sequence=frame.sequence,
                index=frame.index,
                subscription=subscription,
                first=frame.position,
                last=frame.position + len(digests) - 1,
                producer=frame.producer.hex(),
                counter=frame.counter,
                count=len(digests),
                consumer=consumer.hex(),
                attempt=frame.delivery_count,
                digests=digests,
            ),
        )

    def flush(self, now: float) -> None:
        """Orders what waits, or first the topic that it waits for."""
        now_ms = self._offset_ms + int(now * 1000)
        for channel, trail in self._trails.items():
            if not trail.is_waiting:
                continue
            number = self._numbers.get(channel)
            if number is not None:
                batch = trail.publish(number, now_ms)
                self._channels[channel].want(batch, size=len(batch.blob))
            elif channel not in self._asking:
                self._asking.add(channel)
                self._channels[channel].request(AuditTrail.create(), functools.partial(self._on_topic, channel))

    def describe(self) -> dict[str, object]:
        """For people."""
        return {"dropped": sum(trail.dropped for trail in self._trails.values())}

    def _on_topic(self, channel: int, answer: Answered) -> None:
        self._asking.discard(channel)
        if not answer.error:
            self._numbers[channel] = answer.number

    def _add(self, place: int, event: AuditEvent) -> None:
        channel = parts_of(place)[0]
        trail = self._trails.get(channel)
        if trail is None:
            trail = self._trails[channel] = AuditTrail(self._name, self._run)
        trail.add(event)

    def _destination(self, place: int) -> str:
        listed = self._directory.at(place)
        return str(listed.destination) if listed is not None else ""
