"""What administrators want of places: a destination on another channel.

The wish becomes a plan in the log that the destination is in; whoever carries it (carrying.py), its end is heard from
that log, and then everybody who waits is answered.
"""

from alphorn.client_manager.administration import Administration
from alphorn.client_manager.connection import Connection
from alphorn.client_manager.desk import Desk
from alphorn.client_manager.directory import parts_of, place_of
from alphorn.client_manager.moving import Moving
from alphorn.model import commands, conversation
from alphorn.model.commands import MoveStage
from alphorn.model.conversation import Done
from alphorn.model.destinations import parse_destination
from alphorn.model.errors import Error, Misuse
from alphorn.model.link import Answered


class Placing:
    """Who waits for a destination to be on another channel."""

    __slots__ = ("_administration", "_desk", "_ended", "_moving", "_waiting")

    def __init__(self, desk: Desk, moving: Moving, administration: Administration) -> None:
        self._desk = desk
        self._moving = moving
        self._administration = administration
        self._ended: dict[int, commands.Move] = {}  # how it ended, by the place that was left
        self._waiting: dict[int, list[tuple[Connection, int]]] = {}  # by the place that it leaves

    def on_move(self, connection: Connection, frame: conversation.Move) -> None:
        """Plans a move, and answers when it has ended; at once for a destination that is there."""
        try:
            destination = parse_destination(frame.destination)
            channel = self._channel(frame.channel)
        except Error as error:
            self._desk.fail(connection.stream, frame.request, error)
            return
        self._administration.locate(
            connection, frame.request, destination, lambda place: self._plan(connection, frame.request, place, channel)
        )

    def _channel(self, name: str) -> int:
        """The number of a channel; raises `Misuse`."""
        names = self._desk.settings.channel_names
        if name not in names:
            raise Misuse(f"there is no channel {name!r}; there is {', '.join(names)}")
        return names.index(name)

    def _plan(self, connection: Connection, request: int, place: int, channel: int) -> None:
        place = self._moving.current(place)
        if parts_of(place)[0] == channel:
            self._desk.reply(connection.stream, Done(request))
            return

        def make(number: int) -> commands.Move:
            return commands.Move(number, MoveStage.PLANNED, channel)

        self._ended.pop(place, None)

        def on_planned(answer: Answered) -> None:
            self._waiting.setdefault(place, []).append((connection, request))
            if place in self._ended:  # the log was faster than the answer
                self._tell(place, self._ended[place])

        self._moving.request(place, make, self._desk.answer_to(connection, request, on_planned))

    def on_moved(self, channel: int, command: commands.Move) -> None:
        """The log says how a move has ended."""
        if command.stage not in (MoveStage.ENDED, MoveStage.CANCELLED):
            return
        place = place_of(channel, command.destination)
        self._ended[place] = command
        self._tell(place, command)

    def _tell(self, place: int, command: commands.Move) -> None:
        for connection, request in self._waiting.pop(place, ()):
            if not self._desk.is_there(connection):
                continue
            if command.stage is MoveStage.ENDED:
                self._desk.reply(connection.stream, Done(request))
            else:
                self._desk.fail(connection.stream, request, Misuse(command.reason))
