"""What administrators want of places: a destination on another channel, or a channel without destinations.

A wish becomes a plan in the log that the destination is in; whoever carries it (carrying.py), its end is heard from
that log, and then everybody who waits is answered. A channel is drained by closing it and moving all that is there to
where it would be created now.
"""

from collections import deque
from collections.abc import Callable
from functools import partial

import msgspec

from alphorn.client_manager.connection import Connection
from alphorn.client_manager.desk import Desk
from alphorn.client_manager.moving import Moving
from alphorn.client_manager.naming import Naming
from alphorn.model import commands, moving_conversation
from alphorn.model.commands import MoveStage
from alphorn.model.conversation import Done, Failed, parts_of, place_of
from alphorn.model.destinations import Destination, parse_destination
from alphorn.model.errors import Error, InvalidDestination, Misuse, Moved
from alphorn.model.link import Answered
from alphorn.model.moving_link import Export, Exported

AT_ONCE = 16  # moves of one drain

OnEnd = Callable[[str], None]  # with the reason why not; empty where it is there

_decode_inventory = msgspec.msgpack.Decoder(list[tuple[str, int]]).decode


class Placing:
    """Who waits for a destination to be on another channel."""

    __slots__ = ("_desk", "_drains", "_moving", "_naming", "_waiting")

    def __init__(self, desk: Desk, moving: Moving, naming: Naming) -> None:
        self._desk = desk
        self._moving = moving
        self._naming = naming
        self._waiting: dict[int, list[OnEnd]] = {}  # by the place that it leaves
        self._drains: dict[tuple[int, int], _Drain] = {}  # by channel and request for its inventory

    def on_move(self, connection: Connection, frame: moving_conversation.Move) -> None:
        """Plans a move, and answers when it has ended; at once for a destination that is there."""
        try:
            destination = parse_destination(frame.destination)
            channel = self._channel(frame.channel)
        except Error as error:
            self._desk.fail(connection.stream, frame.request, error)
            return

        def on_end(reason: str) -> None:
            if not self._desk.is_there(connection):
                return
            if reason:
                self._desk.fail(connection.stream, frame.request, Misuse(reason))
            else:
                self._desk.reply(connection.stream, Done(frame.request))

        def on_missing(error: str, reason: str) -> None:
            self._desk.reply(connection.stream, Failed(frame.request, error, reason))

        plan = partial(self._plan, connection.id, channel, on_end)
        self._naming.locate(connection, destination, lambda place, _: plan(place), on_missing)

    def on_drain(self, connection: Connection, frame: moving_conversation.Drain) -> None:
        """Closes a channel for new destinations and moves all others off it, or opens it again."""
        try:
            channel = self._channel(frame.channel)
            others = [number for number in range(len(self._desk.channels)) if number != channel]
            if channel == 0 and not frame.is_over:
                raise Misuse(f"{frame.channel} has what belongs to the system and stays; drain another channel")
            if all(number in self._desk.directory.closed for number in others) and not frame.is_over:
                raise Misuse(f"no channel but {frame.channel} takes destinations; open another one first")
        except Error as error:
            self._desk.fail(connection.stream, frame.request, error)
            return
        stage = MoveStage.OPENED if frame.is_over else MoveStage.CLOSED

        def on_done(answer: Answered) -> None:
            if frame.is_over:
                self._desk.reply(connection.stream, Done(frame.request))
            else:
                self._ask_inventory(_Drain(connection, frame.request, channel))

        answered = self._desk.answer_to(connection, frame.request, on_done)
        self._desk.channels[channel].request(commands.Move(0, stage, channel), answered, whose=connection.id)

    def on_moved(self, channel: int, command: commands.Move) -> None:
        """The log says how a move has ended, or that a channel is closed or open."""
        closed = self._desk.directory.closed
        match command.stage:
            case MoveStage.CLOSED:
                closed.add(channel)
            case MoveStage.OPENED:
                closed.discard(channel)
            case MoveStage.ENDED | MoveStage.CANCELLED:
                reason = (
                    "" if command.stage is MoveStage.ENDED else command.reason or "the move was cancelled; try again"
                )
                self._tell(place_of(channel, command.destination), reason)

    def on_deleted(self, place: int) -> None:
        """The log says that a destination is gone, which may have been about to leave."""
        self._tell(place, "it was deleted before it could be moved; create it again to go on")

    def on_exported(self, channel: int, frame: Exported) -> bool:
        """The names of all that is on a channel that is to be drained; False for what others have asked for."""
        drain = self._drains.pop((channel, frame.request), None)
        if drain is None:
            return False
        self._desk.channels[channel].pending.pop(frame.request, None)
        for name, elsewhere in _decode_inventory(frame.record):
            destination = parse_destination(name)
            if elsewhere != self._desk.directory.channel_for(destination):
                drain.left.append(destination)
        drain.count = len(drain.left)
        for _ in range(AT_ONCE):
            self._drain_next(drain)
        if not drain.count:
            self._finish(drain)
        return True

    def _channel(self, name: str) -> int:
        """The number of a channel; raises `Misuse`."""
        settings = self._desk.settings
        found = {each: number for number, each in enumerate(settings.channel_names) if number in self._desk.used}
        if name not in found:
            raise Misuse(f"there is no channel {name!r}; there are {', '.join(found)}")
        return found[name]

    def _plan(self, whose: bytes, channel: int, on_end: OnEnd, place: int) -> None:
        """From where it is, which for one on its way is known when it is there."""
        self._moving.when(place, lambda: self._plan_at(whose, channel, on_end, self._moving.current(place)))

    def _plan_at(self, whose: bytes, channel: int, on_end: OnEnd, place: int) -> None:
        if parts_of(place)[0] == channel:
            on_end("")
            return
        waiting = self._waiting.setdefault(place, [])
        waiting.append(on_end)  # before it is planned: the log may be faster than the answer

        def plan_again() -> None:
            if on_end in waiting:
                waiting.remove(on_end)
                self._plan(whose, channel, on_end, place)

        def on_planned(answer: Answered) -> None:
            if answer.error == Moved.__name__:  # it has just come, and may go on when its consumers have followed
                self._desk.later(plan_again)
            elif answer.error and on_end in waiting:
                waiting.remove(on_end)
                on_end(answer.reason)

        def make(number: int) -> commands.Move:
            return commands.Move(number, MoveStage.PLANNED, channel)

        self._moving.request(place, make, on_planned, again=plan_again, whose=whose)

    def _tell(self, place: int, reason: str) -> None:
        waiting = self._waiting.pop(place, [])
        told, waiting[:] = list(waiting), []
        for on_end in told:
            on_end(reason)

    # --- draining ---

    def _ask_inventory(self, drain: "_Drain") -> None:
        channel = self._desk.channels[drain.channel]
        request = channel.ask(lambda answer: None, lost=lambda: self._ask_inventory(drain))
        self._drains[drain.channel, request] = drain
        self._desk.ask_primary(drain.channel, Export(request, 0, 0))

    def _drain_next(self, drain: "_Drain") -> None:
        if not drain.left or not self._desk.is_there(drain.connection):
            return
        destination = drain.left.popleft()
        target = self._desk.directory.channel_for(destination)

        def on_end(reason: str) -> None:
            drain.moved += not reason
            drain.reason = drain.reason or reason
            go_on()

        def on_missing(error: str, reason: str) -> None:
            if error == InvalidDestination.__name__:  # it was deleted, and its name is all that is left here
                go_on()
            else:
                on_end(reason)

        def go_on() -> None:
            drain.count -= 1
            if drain.count:
                self._drain_next(drain)
            else:
                self._finish(drain)

        self._naming.locate(
            drain.connection,
            destination,
            lambda place, _: self._plan(drain.connection.id, target, on_end, place),
            on_missing,
            channel=drain.channel,
        )

    def _finish(self, drain: "_Drain") -> None:
        if not self._desk.is_there(drain.connection):
            return
        if drain.reason:
            error = Misuse(f"{drain.moved} destinations were moved, and one was not: {drain.reason}")
            self._desk.fail(drain.connection.stream, drain.request, error)
        else:
            self._desk.reply(drain.connection.stream, Done(drain.request, drain.moved))


class _Drain:
    """A channel that is to be without destinations, and who waits for it."""

    __slots__ = ("channel", "connection", "count", "left", "moved", "reason", "request")

    def __init__(self, connection: Connection, request: int, channel: int) -> None:
        self.connection = connection
        self.request = request
        self.channel = channel
        self.left: deque[Destination] = deque()
        self.count = 0  # not there yet
        self.moved = 0
        self.reason = ""  # why one could not be moved
