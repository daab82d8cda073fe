"""What must hold in the end of dead messages: who receives from `queue:_DMQ` gets those of every channel."""

from collections.abc import Sequence

from alphorn.client.choices import PREFETCH_MAX, choose_pattern, pattern_of
from alphorn.client.core import Core
from alphorn.client.inbox import AckMode
from alphorn.client.pattern_inbox import PatternInbox
from alphorn.message_manager.engine import Engine
from alphorn.message_manager.queue import Queue
from alphorn.model.conversation import parts_of
from alphorn.model.destinations import DEAD_MESSAGES, Destination, DestinationKind
from alphorn.model.ranges import RangeSet

NAME = "the dead are received by one name"
_DEAD = Destination(DestinationKind.QUEUE, DEAD_MESSAGES)


class DeadLetters:
    """A consumer of all dead messages, which keeps what it gets."""

    def __init__(self, core: Core) -> None:
        pattern = pattern_of(str(_DEAD))
        assert pattern is not None
        wish = choose_pattern(
            pattern,
            selector=None,
            no_local=False,
            prefetch=PREFETCH_MAX,
            subscription=None,
            shared=False,
            durable=True,
            start="new",
        )
        session = core.open_session(AckMode.INDIVIDUAL)
        self._box: PatternInbox = core.patterns.open(session, wish, lambda answer: None)

    def find_missing(self, engines: Sequence[Engine]) -> str:
        """What it has not received, or should not have, in words; nothing when it has all that is there."""
        held = {parts_of(inbox.consume.place)[0]: inbox.held for inbox in self._box.joined.values()}
        for channel, engine in enumerate(engines):
            there, here = _dead_of(engine), held.get(channel, RangeSet())
            if there.flat() != here.flat():
                return f"channel {channel} has the dead messages {there.flat()}, and {here.flat()} were received"
        return ""


def _dead_of(engine: Engine) -> RangeSet:
    found = engine.destinations.get(engine.numbers.get(_DEAD, 0))
    return found.backlog.pending if isinstance(found, Queue) else RangeSet()
