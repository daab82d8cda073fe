"""What a replica says of itself on topics of its channel: its log lines on `_LOG`, its testimony on `_AUDIT`.

Every replica speaks for itself, primary or not. Lines and events wait until their topic is there, within bounds.
"""

from collections.abc import Callable, Sequence

from alphorn.message_manager.effects import Arrived, Created, Deleted, Effect, Noted, NotedStored, Unsubscribed
from alphorn.message_manager.engine import Engine
from alphorn.message_manager.status import About
from alphorn.model.audit import AUDIT_TOPIC, AuditEvent, AuditStage, AuditTrail, digests_of
from alphorn.model.commands import AnyCommand, Entry, Publish
from alphorn.model.destinations import Destination
from alphorn.model.log_lines import LOG_TOPIC, LogLines


class Voice:
    """Of one replica; `order` puts a command into the log."""

    __slots__ = ("_asked", "_audited", "_lines", "_order", "_trail")

    def __init__(self, about: About, order: Callable[[AnyCommand], None]) -> None:
        self._order = order
        self._lines: LogLines | None = None
        self._trail = AuditTrail(about.name, about.name.encode() + about.run)
        self._audited: dict[int, str] = {}  # destinations that this replica testifies of, as it has said
        self._asked: set[Destination] = set()  # topics that are on their way

    @property
    def is_waiting(self) -> bool:
        """Whether there is anything to publish."""
        return self._trail.is_waiting or (self._lines is not None and self._lines.is_waiting)

    def log(self, run: bytes, lines: Sequence[str]) -> None:
        """This node wrote lines; `run` names this run of it."""
        if self._lines is None:
            self._lines = LogLines(run)
        self._lines.add(lines)

    def publish(self, engine: Engine, now_ms: int) -> None:
        """Orders what waits, or first the topic that it waits for."""
        if self._lines is not None and self._lines.is_waiting:
            number = engine.numbers.get(LOG_TOPIC)
            if number is not None:
                self._order(self._lines.publish(number, now_ms))
            else:
                self._ask(LOG_TOPIC, LogLines.create())
        if self._trail.is_waiting:
            number = engine.numbers.get(AUDIT_TOPIC)
            if number is not None:
                self._order(self._trail.publish(number, now_ms))
            else:
                self._ask(AUDIT_TOPIC, AuditTrail.create())

    def _ask(self, topic: Destination, command: AnyCommand) -> None:
        if topic not in self._asked:
            self._asked.add(topic)
            self._order(command)

    def testify(self, engine: Engine, epoch: int, entry: Entry, effects: Sequence[Effect]) -> None:
        """Says what an entry did to audited destinations. Costs nothing where there is none."""
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
