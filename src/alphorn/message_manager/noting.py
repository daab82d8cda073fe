"""Notes for the audit: what became of messages, where a destination is audited; nothing, and no cost, elsewhere."""

from alphorn.message_manager.effects import Effect, Noted
from alphorn.message_manager.queue import Queue
from alphorn.message_manager.topic import Topic
from alphorn.model.audit import Stage
from alphorn.model.ranges import Range


def note(
    effects: list[Effect],
    destination: Queue | Topic,
    subscription: int,
    stage: Stage,
    ranges: list[Range],
    *,
    consumer: bytes = b"",
    command: int = 0,
    index: int = 0,
    detail: str = "",
) -> None:
    """These messages have come to this stage."""
    if destination.policy.audit and ranges:
        positions = [position for part in ranges for position in part]
        effects.append(
            Noted(
                destination.number,
                subscription,
                stage,
                positions,
                consumer,
                command=command,
                index=index,
                detail=detail,
            )
        )
