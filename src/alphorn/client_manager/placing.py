"""What administrators want of places: a destination on another channel.

A wish becomes a plan in the log that the destination is in; whoever carries it (carrying.py), its end is heard from
that log, and then everybody who waits is answered.
"""

from collections.abc import Callable
from functools import partial

from alphorn.client_manager.connection import Connection
from alphorn.client_manager.desk import Desk
from alphorn.client_manager.draining import Draining
from alphorn.client_manager.moving import Moving
from alphorn.client_manager.naming import Naming
from alphorn.model import commands, moving_conversation
from alphorn.model.commands import MoveStage
from alphorn.model.conversation import Done, Failed, parts_of, place_of
from alphorn.model.destinations import parse_destination
from alphorn.model.errors import Error, Misuse, Moved
from alphorn.model.link import Answered

OnEnd = Callable[[str], None]  # with the reason why not; empty where it is there


class Placing:
    """Who waits for a destination to be on another channel."""

    __slots__ = ("_desk", "_moving", "_naming", "_waiting", "draining")

    def __init__(self, desk: Desk, moving: Moving, naming: Naming) -> None:
        self._desk = desk
        self._moving = moving
        self._naming = naming
        self.draining = Draining(desk, naming, self.plan)
        self._waiting: dict[int, list[OnEnd]] = {}  # by the place that it leaves

    def on_move(self, connection: Connection, frame: moving_conversation.Move) -> None:
        """Plans a move, and answers when it has ended; at once for a destination that is there."""
        try:
            destination = parse_destination(frame.destination)
            channel = self._desk.channel_named(frame.channel)
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

        plan = partial(self.plan, connection.id, channel, on_end)
        self._naming.locate(connection, destination, lambda place, _: plan(place), on_missing)

    def on_moved(self, channel: int, command: commands.Move) -> None:
        """The log says how a move has ended, or that a channel is closed or open."""
        self.draining.on_moved(channel, command)
        if command.stage in (MoveStage.ENDED, MoveStage.CANCELLED):
            reason = "" if command.stage is MoveStage.ENDED else command.reason or "the move was cancelled; try again"
            self._tell(place_of(channel, command.destination), reason)

    def on_deleted(self, place: int) -> None:
        """The log says that a destination is gone, which may have been about to leave."""
        self._tell(place, "it was deleted before it could be moved; create it again to go on")

    def plan(self, whose: bytes, channel: int, on_end: OnEnd, place: int) -> None:
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
                self.plan(whose, channel, on_end, place)

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
