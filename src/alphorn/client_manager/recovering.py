"""Recovery: all that a consumer has comes back, and is given out again in order.

What is newer must not overtake it. So the primary pauses the consumer first; its answer comes after everything that it
gave out before, which is kept from the client. Then all of that comes back by the log: what the program was handed, and
the rest, which does not count as delivered. When that is committed the consumer attaches again, and whatever there is
comes in the order of positions.

A primary that is lost meanwhile changes nothing: with the next one the consumer attaches paused, until this is over.
"""

from functools import partial

from alphorn.client_manager.channel import bytes_of
from alphorn.client_manager.connection import Connection, Consumer
from alphorn.client_manager.consuming import Consuming
from alphorn.client_manager.desk import Desk
from alphorn.client_manager.moving import Moving
from alphorn.client_manager.runs import pairs_of
from alphorn.model import commands, link
from alphorn.model.conversation import Done, Recover
from alphorn.model.errors import Misuse
from alphorn.model.ranges import RangeSet

_COMMAND_POSITIONS = 50_000  # of one command; even, for they come in pairs


class Recovering:
    """Recoveries of all consumers."""

    __slots__ = ("_consuming", "_desk", "_moving")

    def __init__(self, desk: Desk, consuming: Consuming, moving: Moving) -> None:
        self._desk = desk
        self._moving = moving
        self._consuming = consuming

    def on_recover(self, connection: Connection, frame: Recover) -> None:
        """A client wants everything again."""
        consumer = connection.consumers.get(frame.consumer)
        seen = RangeSet(pairs_of(frame.seen))
        if consumer is None:
            self._desk.fail(connection.stream, frame.request, Misuse(f"consumer {frame.consumer} is not open"))
        elif consumer.is_attached or consumer.recovers_later:
            self._begin(connection, consumer, frame, seen)
        else:
            consumer.recovers_later = True
            consumer.postponed.append(lambda: self._begin_late(connection, consumer, frame, seen))

    def _begin_late(self, connection: Connection, consumer: Consumer, frame: Recover, seen: RangeSet) -> None:
        consumer.recovers_later = False
        self._begin(connection, consumer, frame, seen)

    def _begin(self, connection: Connection, consumer: Consumer, frame: Recover, seen: RangeSet) -> None:
        if consumer.recovery is not None or consumer.recovers_later:
            self._desk.fail(connection.stream, frame.request, Misuse(f"consumer {consumer.number} recovers already"))
            return
        if seen.difference(consumer.held):
            error = Misuse(f"consumer {consumer.number} does not hold all of the messages that it has seen")
            self._desk.fail(connection.stream, frame.request, error)
            return
        consumer.recovery = consumer.held.difference(seen)
        for run in consumer.waiting:
            consumer.recovery.add(run.position, run.position + run.count - 1)
        consumer.waiting.clear()
        consumer.held = seen  # until the log has them back, they are its own

        def go_on() -> None:
            if self._consuming.is_current(connection, consumer):
                self._give_back(connection, consumer, frame.request)

        request = self._desk.channels[consumer.channel].ask(lambda answer: go_on(), lost=go_on)
        self._desk.ask_primary(consumer.channel, link.Pause(request, consumer.key))

    def _give_back(self, connection: Connection, consumer: Consumer, request: int) -> None:
        """Everything that the primary gave out has come; now it goes back, in one entry where that is not too large."""
        assert consumer.recovery is not None
        seen, unseen = consumer.held.flat(), consumer.recovery.flat()
        consumer.held = RangeSet()
        consumer.give_back(seen)
        self._desk.loose.add(consumer, seen)

        def done() -> None:
            consumer.come_back(seen)
            if self._consuming.is_current(connection, consumer):
                consumer.recovery = None
                self._desk.reply(connection.stream, Done(request))
                if consumer.is_attached:  # else it does so where its destination goes
                    self._consuming.attach(connection, consumer)

        parts = [(positions, is_unseen) for positions, is_unseen in ((seen, False), (unseen, True)) if positions]
        parts = [
            (positions[start : start + _COMMAND_POSITIONS], is_unseen)
            for positions, is_unseen in parts
            for start in range(0, len(positions), _COMMAND_POSITIONS)
        ]
        for place, (positions, is_unseen) in enumerate(parts, 1):
            make = partial(self._return, consumer, positions, is_unseen)
            self._moving.want(consumer.place, make, done if place == len(parts) else None, size=bytes_of(positions))
        if not parts:
            done()

    @staticmethod
    def _return(consumer: Consumer, positions: list[int], is_unseen: bool, number: int) -> commands.Return:
        return commands.Return(number, consumer.subscription, consumer.key, positions, is_unseen=is_unseen)
