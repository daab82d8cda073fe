"""Where a name is: which channel has a destination, and which one gets it where it is new.

Every name has a register, the log of one channel, which is the same for every Client Manager (`Directory.lots`). There
the destination is, or there stands which channel has it: where it was moved to, or sent because the channel took no new
ones. Whoever wants a name asks its register first and follows what the logs say, so no name is on two channels.

Dead messages stay on their channel. Where a policy names a dead letter queue, that is made if it is new, on the channel
of the destination; where it is on another one, a part of it is made, `broken@channel-2`, and the policy says so.
"""

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial

import msgspec

from alphorn.client_manager.connection import Connection
from alphorn.client_manager.desk import Desk
from alphorn.model import commands, link
from alphorn.model.conversation import parts_of, place_of
from alphorn.model.destinations import Destination, DestinationKind, Policy, split_channel
from alphorn.model.errors import Error, InvalidDestination, Moved, NoDeadLetterQueue, Unavailable
from alphorn.model.system import SYSTEM

Then = Callable[[int, Policy], None]  # with the place, and the policy that holds there
Fail = Callable[[str, str], None]  # with the name of the error, and the reason
ThenPart = Callable[[int, Destination, int], None]  # with the channel, what the part is called, and its place
FailPart = Callable[[int, Destination, str, str], None]


class _Search:
    """One name that is wanted, and what was found out about it."""

    __slots__ = (
        "asked",
        "connection",
        "destination",
        "fail",
        "is_provided",
        "last",
        "owner",
        "policy",
        "sent_on_to",
        "then",
    )

    def __init__(self, connection: Connection, destination: Destination, then: Then, fail: Fail) -> None:
        self.connection = connection
        self.destination = destination
        self.then = then
        self.fail = fail
        self.policy: Policy | None = None  # of a new one; None where none is made
        self.owner = b""
        self.sent_on_to = -1  # the channel of a new one, where that is not to be its register's
        self.is_provided = False  # with a dead letter queue
        self.last = 0  # the channel that was asked last
        self.asked: dict[int, int] = {}  # channels, each of which named the next, with the log entry that says so


class Naming:
    """Finds names, and gives new ones a place."""

    __slots__ = ("_desk",)

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def locate(
        self, connection: Connection, destination: Destination, then: Then, fail: Fail, *, channel: int | None = None
    ) -> None:
        """Goes on with a destination that exists; a channel that is asked first may be given."""
        listed = self._desk.directory.find(destination)
        if listed is not None:
            then(listed.place, listed.policy)
        else:
            self._begin(_Search(connection, destination, then, fail), channel)

    def trace(
        self,
        connection: Connection,
        destination: Destination,
        channel: int,
        then: Callable[[int, int | None], None],
        fail: Fail,
    ) -> None:
        """Follows what the logs say, from a channel on; goes on with the channel that leads to, and the place there."""

        def on_fail(error: str, reason: str) -> None:
            if error == InvalidDestination.__name__:
                then(search.last, None)
            else:
                fail(error, reason)

        search = _Search(connection, destination, lambda place, _: then(parts_of(place)[0], place), on_fail)
        self._begin(search, channel)

    def ensure(
        self,
        connection: Connection,
        destination: Destination,
        policy: Policy,
        owner: bytes,
        then: Then,
        fail: Fail,
        *,
        sent_on_to: int = -1,
    ) -> None:
        """Goes on with a destination, which is created where it is new: on `sent_on_to`, if that is given."""
        search = _Search(connection, destination, then, fail)
        if policy == Policy():
            policy = SYSTEM.get(split_channel(destination)[0], policy)
        search.policy, search.owner, search.sent_on_to = policy, owner, sent_on_to
        self._begin(search, None)

    def ensure_parts(self, connection: Connection, whole: Destination, then: ThenPart, fail: FailPart) -> None:
        """Goes on with each part of what belongs to the system once it is there; every channel in use has one."""
        for channel in self._desk.used:
            part = self._desk.directory.called(channel, whole)
            listed = self._desk.directory.find(part)
            if listed is not None:
                then(channel, part, listed.place)
            else:
                on_there = partial(_go_on, then, channel, part)
                self.ensure(connection, part, Policy(), b"", on_there, partial(fail, channel, part))

    def provide(
        self, connection: Connection, policy: Policy, channel: int, then: Callable[[Policy], None], fail: Fail
    ) -> None:
        """Goes on with a policy whose dead letter queue is on this channel."""
        assert policy.dead_letter is not None
        directory = self._desk.directory
        wanted = Destination(DestinationKind.QUEUE, policy.dead_letter)
        part = directory.part_of(wanted, channel)

        def on_there(place: int, _: Policy) -> None:
            if parts_of(place)[0] == channel:
                then(policy)
            elif wanted != part:
                self.ensure(connection, part, Policy(), b"", on_part, fail)
            else:
                refuse()

        def on_part(place: int, _: Policy) -> None:
            if parts_of(place)[0] == channel:
                then(msgspec.structs.replace(policy, dead_letter=part.name))
            else:
                refuse()

        def refuse() -> None:
            reason = f"{part}, for its dead messages, is on another channel; move it back, or name another queue"
            fail(InvalidDestination.__name__, reason)

        self.ensure(connection, wanted, Policy(), b"", on_there, fail, sent_on_to=channel)

    def _begin(self, search: _Search, channel: int | None) -> None:
        try:
            wanted, register = self._register(search.destination)
        except Error as error:
            search.fail(type(error).__name__, str(error))
            return
        self._ask(search, wanted, register if channel is None else channel)

    def _register(self, destination: Destination) -> tuple[Destination, int]:
        """A destination as its channel knows it, and the channel to ask first; raises `InvalidDestination`."""
        wanted, name = split_channel(destination)
        if not name:
            return destination, self._desk.directory.lots(destination)[0]
        names = {each: number for number, each in enumerate(self._desk.settings.channel_names)}
        if names.get(name) not in self._desk.used:
            raise InvalidDestination(f"there is no {destination}: no channel is named {name}; see alphorn status")
        return wanted, names[name]

    def _ask(self, search: _Search, wanted: Destination, number: int) -> None:
        channel, recorded_at = self._desk.channels[number], search.asked.get(number, -1)
        search.last = number

        def on_answer(answer: link.Answered) -> None:
            if self._desk.is_there(search.connection):
                self._on_answer(search, wanted, number, answer)

        if search.policy is not None:
            is_sent_on = search.sent_on_to not in (-1, number, *search.asked)  # it may have been there, and be closed
            otherwise = self._otherwise(search, number)
            command = commands.CreateDestination(
                wanted,
                search.policy,
                search.owner,
                otherwise=otherwise,
                recorded_at=recorded_at,
                is_sent_on=is_sent_on,
                destinations_max=self._desk.settings.destinations_max,
            )
            channel.request(command, on_answer, whose=search.connection.id)
            return
        request = channel.ask(on_answer, lost=lambda: self._lost(search))
        if not self._desk.ask_primary(number, link.Locate(request, wanted, recorded_at)):
            channel.pending.pop(request)
            self._lost(search)

    def _otherwise(self, search: _Search, number: int) -> int:
        """Where a name goes that is new, from a channel that takes no new ones. The first channel takes all."""
        return next(self._unasked(search, number), 0)

    def _unasked(self, search: _Search, number: int) -> Iterator[int]:
        lots = self._desk.directory.lots(search.destination)
        return (other for other in lots if other != number and other not in search.asked)

    def _on_answer(self, search: _Search, wanted: Destination, number: int, answer: link.Answered) -> None:
        desk = self._desk
        if answer.error == Moved.__name__ and (
            answer.number < 0 or _has_left(search, answer)
        ):  # it is just coming there
            desk.later(lambda: self._ask(search, wanted, number))
        elif answer.error == Moved.__name__:
            search.asked[number] = answer.position
            if answer.number != self._otherwise(search, number):  # it is known, so it is not sent on
                search.sent_on_to = -1
            if desk.channels[answer.number].is_removed:
                self._look_beside(search, wanted, number, deque(self._unasked(search, number)))
            else:
                self._ask(search, wanted, answer.number)
        elif answer.error == NoDeadLetterQueue.__name__ and search.policy is not None and not search.is_provided:

            def on_provided(policy: Policy) -> None:
                search.policy = policy
                self._ask(search, wanted, number)

            search.is_provided = True
            self.provide(search.connection, search.policy, number, on_provided, search.fail)
        elif answer.error and (other := self._beside(search, number)) is not None:
            search.asked[number] = -1
            self._ask(search, wanted, other)
        elif answer.error:
            search.fail(answer.error, answer.reason)
        else:
            place = place_of(number, answer.number)
            listed = desk.directory.learn(place, search.destination, answer.policy or search.policy or Policy())
            search.then(place, listed.policy)

    def _look_beside(self, search: _Search, wanted: Destination, number: int, others: deque[int]) -> None:
        """A channel names one that is removed: the name was deleted there, or sent on from there while it was closed.

        So it is new only if none of the others has it.
        """
        if not others:
            self._ask(search, wanted, number)
            return

        def on_missing(error: str, reason: str) -> None:
            if error == InvalidDestination.__name__:
                self._look_beside(search, wanted, number, others)
            else:
                search.fail(error, reason)

        beside = _Search(search.connection, search.destination, search.then, on_missing)
        beside.asked = dict(search.asked)
        self._ask(beside, wanted, others.popleft())

    def _beside(self, search: _Search, number: int) -> int | None:
        """Where else a temporary destination may be: no log says where one was sent."""
        is_anywhere = search.destination.is_temporary and not search.owner
        return next(self._unasked(search, number), None) if is_anywhere else None

    def _lost(self, search: _Search) -> None:
        if self._desk.is_there(search.connection):
            search.fail(Unavailable.__name__, "no primary serves this destination at the moment; try again")


def _go_on(then: ThenPart, channel: int, part: Destination, place: int, _: Policy) -> None:
    then(channel, part, place)


def _has_left(search: _Search, answer: link.Answered) -> bool:
    """Whether a channel expects a destination that its home, which was asked before, has no more.

    What the channel says of where it is was true before: that is no new word, and to forget what the home said because
    it leads back there would make a second one.
    """
    return answer.home is not None and answer.home.channel in search.asked
