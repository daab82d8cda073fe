"""What a replica testifies of audited destinations, on the `_AUDIT` topic of its channel: what the log did to messages.

Every replica speaks for itself, primary or not. Events wait until the topic is there, within bounds.
"""

from collections.abc import Sequence

from alphorn.message_manager.effects import Arrived, Created, Deleted, Effect, Noted, NotedStored, Unsubscribed
from alphorn.message_manager.engine import Engine
from alphorn.message_manager.status import About
from alphorn.model.audit import AUDIT_TOPIC, AuditEvent, AuditStage, AuditTrail, digests_of
from alphorn.model.commands import AnyCommand, Entry, Publish
from alphorn.model.destinations import Destination


class Testimony:
    """Of one replica."""

    __slots__ = ("_audited", "_has_asked", "_trail")

    def __init__(self, about: About) -> None:
        self._trail = AuditTrail(about.name, about.name.encode() + about.run)
        self._audited: dict[int, str] = {}  # destinations that this replica testifies of, as it has said
        self._has_asked = False

    @property
    def is_waiting(self) -> bool:
        """Whether there is anything to publish."""
        return self._trail.is_waiting

    def commands(self, numbers: dict[Destination, int], now_ms: int) -> list[AnyCommand]:
        """What to order: events, or once the topic for them."""
        number = numbers.get(AUDIT_TOPIC)
        if number is not None:
            return [self._trail.publish(number, now_ms)]
        has_asked, self._has_asked = self._has_asked, True
        return [] if has_asked else [AuditTrail.create()]

    def hear(self, engine: Engine, epoch: int, entry: Entry, effects: Sequence[Effect]) -> None:
        """Takes note of what an entry did to audited destinations. Costs nothing where there is none."""
        if not engine.audited and not self._audited:
            return
        for effect in effects:
            match effect:
                case NotedStored():
                    self._committed(engine, epoch, entry, effect)
                case Noted():
                    self._noted(engine, effect)
                case Arrived() if effect.destination in engine.audited:
                    self._say(
                        engine, effect.destination, AuditStage.OFFERED, effect.subscription, effect.first, effect.last
                    )
                case Unsubscribed() if effect.destination in engine.audited:
                    self._say(
                        engine, effect.destination, AuditStage.DROPPED, effect.subscription, detail="unsubscribed"
                    )
                case Created() if effect.number in engine.audited:
                    self._audited[effect.number] = str(effect.destination)
                    first = engine.destinations[effect.number].next_position
                    self._say(engine, effect.number, AuditStage.BEGUN, first=first)
                case Created() | Deleted() if effect.number in self._audited:
                    self._trail.add(AuditEvent(stage=AuditStage.ENDED, destination=self._audited.pop(effect.number)))

    def _committed(self, engine: Engine, epoch: int, entry: Entry, effect: NotedStored) -> None:
        found, run = engine.destinations.get(effect.destination), effect.run
        if found is None:
            return  # deleted by the same entry
        digests: list[int] = []
        if effect.is_here:
            batch = entry.commands[run.command]
            assert isinstance(batch, Publish)
            digests = digests_of(batch.blob, run.index, run.count)
        self._trail.add(
            AuditEvent(
                stage=AuditStage.COMMITTED,
                destination=str(found.destination),
                epoch=epoch,
                sequence=run.sequence,
                command=run.command,
                index=run.index,
                first=run.position,
                last=run.position + run.count - 1,
                producer=effect.producer.hex(),
                counter=effect.counter,
                count=run.count,
                flags=effect.flags,
                digests=digests,
            )
        )

    def _noted(self, engine: Engine, effect: Noted) -> None:
        found = engine.destinations.get(effect.destination)
        if found is None:
            return
        for first, last in zip(effect.positions[::2], effect.positions[1::2], strict=True):
            self._trail.add(
                AuditEvent(
                    stage=effect.stage,
                    destination=str(found.destination),
                    subscription=effect.subscription,
                    sequence=engine.sequence,
                    first=first,
                    last=last,
                    consumer=effect.consumer.hex(),
                    is_unseen=effect.detail == "unseen",
                    detail=effect.detail,
                )
            )

    def _say(
        self,
        engine: Engine,
        number: int,
        stage: AuditStage,
        subscription: int = 0,
        first: int = 0,
        last: int = 0,
        *,
        detail: str = "",
    ) -> None:
        self._trail.add(
            AuditEvent(
                stage=stage,
                destination=str(engine.destinations[number].destination),
                subscription=subscription,
                sequence=engine.sequence,
                first=first,
                last=last,
                detail=detail,
            )
        )
