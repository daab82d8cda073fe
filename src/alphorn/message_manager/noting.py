"""Notes for the audit: what became of messages, where a destination is audited; nothing, and no cost, elsewhere."""

from alphorn.message_manager.effects import Effect, Noted, NotedStored
from alphorn.message_manager.queue import Queue
from alphorn.message_manager.segments import Run
from alphorn.message_manager.topic import Topic
from alphorn.model.audit import AuditStage
from alphorn.model.commands import Publish
from alphorn.model.ranges import Range


def note(
    effects: list[Effect],
    destination: Queue | Topic,
    subscription: int,
    stage: AuditStage,
    ranges: list[Range],
    *,
    consumer: bytes = b"",
    detail: str = "",
) -> None:
    """These messages have come to this stage."""
    if destination.policy.audit and ranges:
        positions = [position for part in ranges for position in part]
        effects.append(Noted(destination.number, subscription, stage, positions, consumer, detail))


def note_stored(effects: list[Effect], destination: Queue | Topic, batch: Publish, run: Run) -> None:
    """New messages are in their destination. What was staged lies in an earlier entry of the log, the rest in this."""
    if destination.policy.audit:
        effects.append(
            NotedStored(
                destination=destination.number,
                run=run,
                producer=batch.producer,
                counter=batch.counter + run.index,
                flags=batch.flags,
                is_here=run.arrival in (0, run.sequence),
            )
        )
