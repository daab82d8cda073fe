"""Destinations that go to another channel, as a Client Manager sees it: what is wanted there waits, and goes on there.

A client's place stays valid for ever: what it says of the old place is done at the new one. In between, everything that
concerns the destination waits here:

- what was ordered in the old log after the destination had left it was refused there, and comes back (`returned`);
- what clients want meanwhile comes behind that (`parked`);
- consumers keep what they have; they attach at the new place when the old primary has said its last word.

When nothing is under way at the old place any more and the destination is at the new one, all of it goes on there, in
order, with the same counters and positions: so nothing is lost, repeated or overtaken.
"""

from collections.abc import Callable, Sequence
from functools import partial

from alphorn.client_manager.connection import Consumer
from alphorn.client_manager.desk import Desk
from alphorn.client_manager.wishes import always
from alphorn.model.commands import (
    Acknowledge,
    AnyCommand,
    DeleteDestination,
    Move,
    MoveStage,
    Purge,
    Return,
    SetPolicy,
    Unsubscribe,
)
from alphorn.model.conversation import parts_of, place_of
from alphorn.model.destinations import Policy
from alphorn.model.errors import Moved
from alphorn.model.link import Answered, Name
from alphorn.model.moving_link import Departed, Followed, Home, Landed

Then = Callable[[], None]
Wanted = Callable[[], bool]
Unseen = Sequence[tuple[int, list[int]]]  # subscription, positions that were to be delivered and never were
Report = tuple[Unseen, Unseen]  # what was never delivered, and what was lost
Make = Callable[[int], AnyCommand]  # from the destination's number

_OF_ONE_DESTINATION = (Acknowledge, Return, Unsubscribe, Purge, SetPolicy, DeleteDestination)


class Redirect:
    """One destination that has left a place."""

    __slots__ = ("begun_at", "consumers", "has_come", "is_done", "is_silent", "parked", "place", "returned", "size")

    def __init__(self, place: int, begun_at: int) -> None:
        self.place = place  # where it goes
        self.begun_at = begun_at  # what comes later in the old log was refused
        self.is_silent = False  # nothing is delivered from the old place any more
        self.has_come = False  # it is at the new place
        self.is_done = False
        self.consumers: list[Consumer] = []
        self.returned: list[tuple[int, Then]] = []  # each with its turn: answers may come in another order
        self.parked: list[Then] = []
        self.size = 0  # bytes that wait


class Moving:
    """All destinations that have moved, and what waits for those on their way."""

    __slots__ = (
        "_cancelled",
        "_desk",
        "_followed",
        "_planned",
        "_redirects",
        "_reports",
        "_sources",
        "_turn",
        "_under_way",
        "on_moved",
        "on_turned",
    )

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._redirects: dict[int, Redirect] = {}  # by old place
        self._sources: dict[int, list[int]] = {}  # by where they go: old places
        self._under_way: dict[int, set[int]] = {}  # by place: turns of what was ordered and not heard of yet
        self._planned: set[int] = set()  # places that are to be left, as the log has said here
        self._cancelled: set[int] = set()  # places that are not to be left, after all
        self._turn = 0
        self._followed: set[int] = set()  # places that have come, whose primary waits to hear that all have followed
        self._reports: dict[int, Report] = {}  # by these places: kept until they are settled, for the next primary
        self.on_moved: Callable[[list[Consumer], int], Unseen] = lambda consumers, place: []
        self.on_turned: Callable[[int, int], None] = lambda old, new: None  # hears of places where nothing is any more

    @property
    def is_possible(self) -> bool:
        """Whether there is another channel to move to."""
        return len(self._desk.channels) > 1

    @property
    def waiting_bytes(self) -> int:
        """What waits for destinations on their way."""
        return sum(redirect.size for redirect in self._redirects.values() if not redirect.is_done)

    def current(self, place: int) -> int:
        """Where the destination of this place is now, as far as is known."""
        while (redirect := self._redirects.get(place)) is not None and redirect.is_done:
            place = redirect.place
        return place

    def has_left(self, place: int) -> bool:
        """Whether the destination of this place has set out for another one, or is there."""
        return place in self._redirects

    def places_before(self, place: int) -> set[int]:
        """The places where the destination of this one has been, or still is."""
        found: set[int] = set()
        unfollowed = [place]
        while unfollowed:
            sources = self._sources.get(unfollowed.pop(), ())
            unfollowed += [source for source in sources if source not in found]
            found.update(sources)
        return found - {place}

    def when(self, place: int, then: Then, size: int = 0) -> None:
        """Goes on at once, or when a destination on its way is there."""
        redirect = self._redirects.get(self.current(place)) if self._redirects else None
        if redirect is None:
            then()
        else:
            redirect.parked.append(then)
            redirect.size += size

    def want(
        self,
        place: int,
        make: Make,
        then: Then | None = None,
        *,
        size: int = 0,
        until: float = 0.0,
        again: Then | None = None,
    ) -> None:
        """Orders a command about a destination, in the log that it is in; `then` is called once it is committed.

        It may wait for others until a time. What was refused because the destination had left is done once more there,
        by `again` where that is given.
        """
        if not self.is_possible:
            channel, number = parts_of(place)
            self._desk.channels[channel].want(make(number), then, size=size, until=until)
            return
        repeat = again or (lambda: self.want(place, make, then, size=size))
        self.when(place, lambda: self._want(self.current(place), make, then, size, until, repeat), size)

    def request(
        self,
        place: int,
        make: Make,
        answer: Callable[[Answered], None],
        *,
        size: int = 0,
        again: Then | None = None,
        whose: bytes = b"",
        is_wanted: Wanted = always,
    ) -> None:
        """Orders a command about a destination whose outcome the primary tells, when it is that connection's turn.

        Nothing is ordered once it is not wanted.
        """
        repeat = again or (lambda: self.request(place, make, answer, size=size, whose=whose, is_wanted=is_wanted))

        def go_on() -> None:
            if is_wanted():
                self._request(self.current(place), make, answer, size, repeat, whose, is_wanted)

        self.when(place, go_on, size)

    def _want(self, place: int, make: Make, then: Then | None, size: int, until: float, repeat: Then) -> None:
        number, destination = parts_of(place)
        channel = self._desk.channels[number]
        turn = self._enter(place)

        def on_committed() -> None:
            redirect = self._redirects.get(place)
            if redirect is not None and channel.committing > redirect.begun_at:
                self._return(redirect, turn, repeat)
            elif then is not None:
                then()
            self._leave(place, turn)

        channel.want(make(destination), on_committed, size=size, until=until)

    def _request(
        self,
        place: int,
        make: Make,
        answer: Callable[[Answered], None],
        size: int,
        repeat: Then,
        whose: bytes,
        is_wanted: Wanted,
    ) -> None:
        number, destination = parts_of(place)
        turn = self._enter(place)

        def on_answer(outcome: Answered) -> None:
            if outcome.error == Moved.__name__ and outcome.home is not None:
                self._return(self.learn(place, outcome.home, is_silent=True), turn, repeat)
            else:
                answer(outcome)
            self._leave(place, turn)

        channel = self._desk.channels[number]
        command, lost = make(destination), partial(self._leave, place, turn)
        channel.request(command, on_answer, size=size, lost=lost, whose=whose, is_wanted=is_wanted)

    def _enter(self, place: int) -> int:
        """Something is under way there; gives its turn."""
        self._turn += 1
        self._under_way.setdefault(place, set()).add(self._turn)
        return self._turn

    @staticmethod
    def _return(redirect: Redirect, turn: int, repeat: Then) -> None:
        """The old log refused something; who was not waited for, because own entries were lost, goes on at once."""
        if redirect.is_done:
            repeat()
        else:
            redirect.returned.append((turn, repeat))

    def _leave(self, place: int, turn: int) -> None:
        turns = self._under_way.get(place)
        if turns is None:
            return
        turns.discard(turn)
        if not turns:
            del self._under_way[place]
            if place in self._redirects:
                self._go_on(place)

    # --- what becomes known ---

    def learn(self, place: int, home: Home, *, is_silent: bool) -> Redirect:
        """A destination has left a place."""
        redirect = self._redirects.get(place)
        if redirect is None:
            redirect = self._redirects[place] = Redirect(place_of(home.channel, home.number), home.begun_at)
            self._sources.setdefault(redirect.place, []).append(place)
            consumers = [each for each in self._desk.consumers.values() if each.place == place and each.is_attached]
            for consumer in consumers:
                self.hold(redirect, consumer)
            self._look(place, redirect)
        redirect.is_silent |= is_silent or not self._desk.channels[parts_of(place)[0]].primary
        self._go_on(place)
        return redirect

    @staticmethod
    def hold(redirect: Redirect, consumer: Consumer) -> None:
        """A consumer of a destination that has left: what its client says waits until it is attached there."""
        consumer.is_attached = False
        redirect.consumers.append(consumer)

    def on_move(self, channel: int, sequence: int, command: Move) -> None:
        """The log says that a destination leaves."""
        place = place_of(channel, command.destination)
        if command.stage is MoveStage.CANCELLED:
            self._cancelled.add(place)
            self._planned.discard(place)
        elif command.stage is MoveStage.PLANNED:
            self._cancelled.discard(place)
            self._planned.add(place)
        elif command.stage is MoveStage.BEGUN and self._can_begin(place):
            self.learn(place, Home(command.channel, command.number, sequence), is_silent=False)

    def _can_begin(self, place: int) -> bool:
        """Whether a move is not refused, and concerns anybody here; about other places the primary answers.

        A consumer of a pattern is at places that nobody here has named.
        """
        is_planned = place in self._planned
        self._planned.discard(place)
        if self._desk.directory.at(place) is not None:
            return place not in self._cancelled
        return is_planned and (self._has_anything(place) or self._desk.loose.has(*parts_of(place)))

    def on_deleted(self, channel: int, number: int) -> None:
        """The log says that a destination is gone: it leaves no more."""
        self._planned.discard(place_of(channel, number))

    def has_refused(self, channel: int, sequence: int, command: AnyCommand) -> bool:
        """Whether a log refused a command, because the destination that it is about had left before."""
        if not self._redirects or not isinstance(command, _OF_ONE_DESTINATION):
            return False
        redirect = self._redirects.get(place_of(channel, command.destination))
        return redirect is not None and sequence > redirect.begun_at

    def on_departed(self, channel: int, frame: Departed) -> None:
        """The primary has said its last word about a destination."""
        self.learn(place_of(channel, frame.number), frame.home, is_silent=True)

    def on_landed(self, channel: int, frame: Landed) -> None:
        """A destination has come, and its primary waits for those who follow."""
        place, old = place_of(channel, frame.number), place_of(frame.channel, frame.source)
        self._followed.add(place)
        redirect = self._redirects.get(old)
        if redirect is None:
            redirect = self.learn(
                old, Home(channel, frame.number, frame.begun_at), is_silent=not self._has_anything(old)
            )
        redirect.has_come = True
        if redirect.is_done:
            self._tell_followed(redirect.place)
        else:
            self._go_on(old)

    def on_primary_gone(self, channel: int) -> None:
        """Nothing comes any more of what a primary had said."""
        for place, redirect in list(self._redirects.items()):
            if parts_of(place)[0] == channel and not redirect.is_done:
                redirect.is_silent = True
                self._go_on(place)

    def on_primary(self, channel: int) -> None:
        """A primary serves this Client Manager, which may have missed what came there while it had no link."""
        for place, redirect in list(self._redirects.items()):
            if parts_of(redirect.place)[0] == channel and not redirect.has_come:
                self._look(place, redirect)

    def describe(self) -> dict[str, object]:
        """For people."""
        waiting = [redirect for redirect in self._redirects.values() if not redirect.is_done]
        return {
            "moved": len(self._redirects) - len(waiting),
            "moving": len(waiting),
            "waiting": sum(len(redirect.parked) + len(redirect.returned) for redirect in waiting),
        }

    def _has_anything(self, place: int) -> bool:
        return place in self._under_way or any(each.place == place for each in self._desk.consumers.values())

    def _look(self, place: int, redirect: Redirect) -> None:
        """Asks whether a destination has come already; if not, its primary tells when it has."""

        def on_answer(answer: Answered) -> None:
            if not answer.error and answer.destination is not None:
                self._desk.directory.learn(redirect.place, answer.destination, answer.policy or Policy())
            if not answer.error or answer.error == Moved.__name__:  # where it went on to is found out there
                redirect.has_come = True
                self._go_on(place)

        channel, number = parts_of(redirect.place)
        request = self._desk.channels[channel].ask(on_answer, lost=lambda: self._look(place, redirect))
        self._desk.ask_primary(channel, Name(request, number))

    def _go_on(self, place: int) -> None:
        """All that waits goes on at the new place, once nothing can come from the old one."""
        redirect = self._redirects[place]
        if redirect.is_done or not redirect.has_come or place in self._under_way:
            return
        if redirect.consumers and not redirect.is_silent:
            return
        redirect.is_done = True
        desk, listed = self._desk, self._desk.directory.forget(place)
        if listed is not None and desk.directory.at(redirect.place) is None:
            desk.directory.learn(redirect.place, listed.destination, listed.policy)
        loose = self._loose_at(place)
        desk.loose.forget(*parts_of(place))
        desk.log("info", "destination_moved", f"from={parts_of(place)} to={parts_of(redirect.place)}")
        self.on_turned(place, self.current(place))
        returned, parked, consumers = redirect.returned, redirect.parked, redirect.consumers
        redirect.returned, redirect.parked, redirect.consumers, redirect.size = [], [], [], 0
        for _, then in sorted(returned, key=lambda each: each[0]):
            then()
        for then in parked:
            then()
        unseen = self.on_moved(consumers, redirect.place)
        late = self._loose_at(redirect.place)  # of consumers whose end, or what they gave back, waited here
        loose += late
        if unseen or loose:
            self._reports[redirect.place] = (unseen, loose)
        if (
            returned or parked or late
        ):  # what consumers that are gone have acknowledged must be in the log before others may have it
            channel, number = parts_of(redirect.place)
            nothing = Acknowledge(number, 0, b"", [])
            desk.channels[channel].want_last(nothing, lambda: self._tell_followed(redirect.place))
        else:
            self._tell_followed(redirect.place)

    def _loose_at(self, place: int) -> list[tuple[int, list[int]]]:
        channel, number = parts_of(place)
        return [each[1:] for each in self._desk.loose.of(channel) if each[0] == number]

    def _tell_followed(self, place: int) -> None:
        if place in self._followed:
            self._followed.discard(place)
            channel, number = parts_of(place)
            unseen, loose = self._reports.get(place, ((), ()))
            self._desk.ask_primary(channel, Followed(number, list(unseen), list(loose)))

    def on_settled(self, channel: int, number: int) -> None:
        """The log says that all have followed."""
        self._reports.pop(place_of(channel, number), None)

    def on_lost(self, channel: int) -> None:
        """Own entries of a log are lost, and all clients start over: nothing of theirs is under way there."""
        for place in [place for place in self._under_way if parts_of(place)[0] == channel]:
            del self._under_way[place]
            if place in self._redirects:
                self._go_on(place)
