"""Drains a channel, so that it can be removed: what is there is moved, and what only its log knows is noted elsewhere.

A channel that is closed takes nothing new. All that is there, or still on its way there, is moved to where it would be
created now. But its log may also be the register of a name, or say where one went (naming.py). When it is removed, a
name's register is the channel with the next lot, so that has to know where the name is, and so have all channels with
lots before the one that has it: each of them may be the next register, whichever are removed or opened meanwhile.

For each name, while anybody else moves it, creates it or drains other channels:

    follow the logs from here: it is here → move it, and follow again
                               it is elsewhere, or was deleted there → note that in every log with a lot before

A record in another log is replaced only if it is the one that was there before the name was found by following: where
it changed meanwhile, the name passed by there, and is followed once more.
"""

from collections import Counter, deque
from collections.abc import Callable
from functools import partial

import msgspec

from alphorn.client_manager.connection import Connection
from alphorn.client_manager.desk import Desk
from alphorn.client_manager.naming import Naming
from alphorn.model import commands, moving_conversation
from alphorn.model.commands import MoveStage
from alphorn.model.conversation import Done
from alphorn.model.destinations import Destination, Policy, parse_destination
from alphorn.model.errors import Error, Misuse, Moved, Unavailable
from alphorn.model.link import Answered
from alphorn.model.moving_link import Export, Exported, Inventoried

AT_ONCE = 16  # names of one drain
TRIES = 3  # with one channel: somebody else's plan may be in the way, and be cancelled

# Whose turn it is, the channel to go to, who hears why not, and the place.
Plan = Callable[[bytes, int, Callable[[str], None], int], None]

_decode_inventory = msgspec.msgpack.Decoder(list[Inventoried]).decode


class Drain:
    """A channel that is to be without destinations, and who waits for it."""

    __slots__ = (
        "channel",
        "connection",
        "left",
        "moved",
        "noted",
        "reasons",
        "request",
        "tried",
        "under_way",
        "unnoted",
    )

    def __init__(self, connection: Connection, request: int, channel: int) -> None:
        self.connection = connection
        self.request = request
        self.channel = channel
        self.left: deque[Name] = deque()  # of this round
        self.under_way = 0
        self.tried: dict[Destination, Counter[int]] = {}  # how often they were to go to which channels
        self.noted: set[Destination] = set()  # names that are elsewhere, which the other logs know
        self.unnoted: set[Destination] = set()  # and those of which some will not know
        self.moved = 0
        self.reasons: dict[Destination, str] = {}  # why they could not be moved


Then = Callable[[Drain, list[Inventoried]], None]


class Name:
    """One name that a drained channel knows."""

    __slots__ = ("destination", "drain", "records", "target")

    def __init__(self, drain: Drain, destination: Destination, target: int) -> None:
        self.drain = drain
        self.destination = destination
        self.target = target  # where it goes if it is here
        self.records: dict[int, tuple[int, int]] = {}  # what other channels said of it: where it is, by which log entry


class Draining:
    """All drains that this Client Manager was asked for."""

    __slots__ = ("_asked", "_desk", "_naming", "_plan")

    def __init__(self, desk: Desk, naming: Naming, plan: Plan) -> None:
        self._desk = desk
        self._naming = naming
        self._plan = plan
        self._asked: dict[tuple[int, int], tuple[Drain, Then]] = {}  # by channel and request for its inventory

    def on_drain(self, connection: Connection, frame: moving_conversation.Drain) -> None:
        """Closes a channel for new destinations and moves all others off it, or opens it again."""
        try:
            channel = self._desk.channel_named(frame.channel)
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
            drain = Drain(connection, frame.request, channel)
            self._ask_inventory(drain, self._bring_back if frame.is_over else self._begin_round)

        answered = self._desk.answer_to(connection, frame.request, on_done)
        command, is_wanted = commands.Move(0, stage, channel), partial(self._desk.is_there, connection)
        self._desk.channels[channel].request(command, answered, whose=connection.id, is_wanted=is_wanted)

    def on_moved(self, channel: int, command: commands.Move) -> None:
        """The log says that a channel is closed or open."""
        if command.stage is MoveStage.CLOSED:
            self._desk.directory.closed.add(channel)
        elif command.stage is MoveStage.OPENED:
            self._desk.directory.closed.discard(channel)

    def on_exported(self, channel: int, frame: Exported) -> bool:
        """What a channel knows that is to be drained; False for what others have asked for."""
        asked = self._asked.pop((channel, frame.request), None)
        if asked is None:
            return False
        self._desk.channels[channel].pending.pop(frame.request, None)
        drain, then = asked
        if self._desk.is_there(drain.connection):
            then(drain, _decode_inventory(frame.record))
        return True

    def _ask_inventory(self, drain: Drain, then: Then) -> None:
        if not self._desk.is_there(drain.connection):
            return
        channel = self._desk.channels[drain.channel]
        request = channel.ask(lambda answer: None, lost=lambda: self._ask_inventory(drain, then))
        self._asked[drain.channel, request] = (drain, then)
        self._desk.ask_primary(drain.channel, Export(request, 0, 0))

    def _bring_back(self, drain: Drain, known: list[Inventoried]) -> None:
        """A channel is open again: what is called after it comes back, so that its dead letter queues have parts."""
        away = [parse_destination(each.name) for each in known if not each.is_here]
        parts = [each for each in away if self._desk.directory.is_part(each, drain.channel)]
        drain.under_way = len(parts)

        def on_end(*_: object) -> None:  # be it that one cannot come
            drain.under_way -= 1
            if not drain.under_way:
                self._finish(drain, [])

        def on_found(channel: int, place: int | None) -> None:
            if place is None:
                on_end()
            else:
                self._plan(drain.connection.id, drain.channel, on_end, place)

        for destination in parts:
            self._naming.trace(drain.connection, destination, drain.channel, on_found, on_end)
        if not parts:
            self._finish(drain, [])

    def _begin_round(self, drain: Drain, known: list[Inventoried]) -> None:
        """Deals with every name as often as there is something new about it; the last round finds nothing to do."""
        names, parts, stuck = [], [], []
        for each in known:
            destination = parse_destination(each.name)
            target = self._target(drain, destination, each.channel) if each.is_here else each.channel
            if target is None or destination in drain.unnoted:
                stuck.append(destination)
            elif each.is_here and self._desk.directory.is_part(destination, drain.channel):
                parts.append(Name(drain, destination, target))
            elif each.is_here or destination not in drain.noted:
                names.append(Name(drain, destination, target))
        if not stuck or names:  # whose dead messages go to parts needs them as long as it is here
            drain.left.extend(names or parts)
        if not drain.left:
            self._finish(drain, stuck)
        for _ in range(min(AT_ONCE, len(drain.left))):
            self._next(drain)

    def _target(self, drain: Drain, destination: Destination, planned: int) -> int | None:
        """Where one is to go that is here: the next channel that may take it; None where none does."""
        lots, closed = self._desk.directory.lots(destination), {drain.channel, *self._desk.directory.closed}
        targets = [planned] if planned >= 0 else [number for number in lots if number not in closed]
        tried = drain.tried.get(destination, Counter())
        return next((each for each in targets if tried[each] < TRIES), None)

    def _next(self, drain: Drain) -> None:
        if drain.left:
            drain.under_way += 1
            self._follow(drain.left.popleft())

    def _end(self, name: Name) -> None:
        drain = name.drain
        drain.under_way -= 1
        self._next(drain)
        if not drain.under_way and not drain.left:
            self._desk.later(lambda: self._ask_inventory(drain, self._begin_round))

    def _finish(self, drain: Drain, stuck: list[Destination]) -> None:
        if stuck:
            reason = drain.reasons.get(stuck[0], f"{stuck[0]} is on its way here; drain the channel once more")
            error = Misuse(f"{drain.moved} destinations were moved, and {len(stuck)} not: {reason}")
            self._desk.fail(drain.connection.stream, drain.request, error)
        else:
            self._desk.reply(drain.connection.stream, Done(drain.request, drain.moved))

    # --- one name ---

    def _follow(self, name: Name) -> None:
        """Finds out where it is, from the channel on that is drained."""
        drain = name.drain
        if self._desk.is_there(drain.connection):
            then, fail = partial(self._on_found, name), partial(self._on_lost, name)
            self._naming.trace(drain.connection, name.destination, drain.channel, then, fail)

    def _on_lost(self, name: Name, error: str, reason: str) -> None:
        if error == Unavailable.__name__:
            self._desk.later(lambda: self._follow(name))
        else:
            self._give_up(name, reason)

    def _give_up(self, name: Name, reason: str) -> None:
        name.drain.reasons[name.destination] = reason
        name.drain.unnoted.add(name.destination)
        self._end(name)

    def _on_found(self, name: Name, channel: int, place: int | None) -> None:
        if channel != name.drain.channel:
            self._note(name, channel)
        elif place is None:  # it is nowhere, and a new one is sent on along the lots
            name.drain.noted.add(name.destination)
            self._end(name)
        else:
            name.drain.tried.setdefault(name.destination, Counter())[name.target] += 1
            self._plan(name.drain.connection.id, name.target, partial(self._on_moved, name), place)

    def _on_moved(self, name: Name, reason: str) -> None:
        if not reason:
            name.drain.moved += 1
            self._follow(name)
        else:
            name.drain.reasons.setdefault(name.destination, reason)
            self._end(name)  # where there is another way, the next round finds it

    def _note(self, name: Name, channel: int) -> None:
        """Tells every channel with a lot before this one that the name is here, one after the other."""
        lots = self._desk.directory.lots(name.destination)
        before = lots[: lots.index(channel)]
        unaware = [
            each for each in before if each != name.drain.channel and name.records.get(each, (-1,))[0] != channel
        ]
        if not unaware:
            name.drain.noted.add(name.destination)
            self._end(name)
            return
        other = unaware[0]
        _, recorded_at = name.records.get(other, (-1, -1))
        command = commands.CreateDestination(
            name.destination, Policy(), otherwise=channel, recorded_at=recorded_at, is_sent_on=True
        )
        whose = name.drain.connection.id
        self._desk.channels[other].request(command, partial(self._on_noted, name, other, channel), whose=whose)

    def _on_noted(self, name: Name, other: int, channel: int, answer: Answered) -> None:
        if answer.error == Moved.__name__ and answer.number == channel:
            name.records[other] = (channel, answer.position)
            self._note(name, channel)
        elif answer.error == Moved.__name__ and answer.number >= 0:  # an older word, unless the name has moved since
            name.records[other] = (answer.number, answer.position)
            self._follow(name)
        elif answer.error == Moved.__name__:  # it is just coming there
            name.records.pop(other, None)
            self._desk.later(lambda: self._follow(name))
        elif not answer.error:  # it is there
            name.records[other] = (channel, -1)
            self._note(name, channel)
        else:
            self._give_up(name, answer.reason)
