"""Consumers of patterns: each destination that matches gets an ordinary consumer, those that come later included.

Patterns live here, and Message Managers know nothing of them. While this Client Manager has any, the primary of every
channel advertises its destinations: all at first, then each that comes or goes. A topic's creator is answered only
after this Client Manager has noted the topic (message_manager/advertising.py), which it does when the consumers that
match have subscribed. So they receive the topic's first message.

What belongs to the system is wished for in the same way and needs no watching: it is known where its parts are, and
one that is missing is made (model/system.py).

The client is told of each destination that joins, with the number of its consumer, and treats it as one of its own
from then on: it acknowledges by that number, and after a reconnection it consumes again by itself.
"""

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

import msgspec

from alphorn.client_manager.catalogue import Catalogue, Name
from alphorn.client_manager.connection import Connection
from alphorn.client_manager.consuming import Consuming
from alphorn.client_manager.desk import Desk
from alphorn.client_manager.directory import Listed
from alphorn.client_manager.finding import Finding
from alphorn.client_manager.limits import overlong, too_many
from alphorn.client_manager.moving import Moving
from alphorn.client_manager.naming import Naming
from alphorn.model import link
from alphorn.model.commands import key_of
from alphorn.model.conversation import ClosePattern, ConsumePattern, Done, Failed, Joined, parts_of, place_of
from alphorn.model.destinations import Destination, Policy
from alphorn.model.errors import InvalidDestination, InvalidSelector, Misuse, PeerViolation
from alphorn.model.joining import consume_for, number_for
from alphorn.model.pattern_index import PatternIndex, matcher_of
from alphorn.model.patterns import parse_pattern
from alphorn.model.system import whole_of

PAGE_NAMES = 2_000  # compared with a new pattern in one turn: a few milliseconds
_NEVER = float("inf")

Key = tuple[int, int]  # stream of the connection, and the client's number of the wish
Turn = tuple[int, int]  # channel, and its primary's number for what it advertised


class _Watch:
    """One client's wish."""

    __slots__ = (
        "awaited",
        "bounds",
        "connection",
        "frame",
        "joined",
        "matches",
        "pattern",
        "request",
        "unlisted",
        "whole",
    )

    def __init__(self, connection: Connection, frame: ConsumePattern, channels: Iterable[int]) -> None:
        pattern = parse_pattern(frame.pattern)
        self.connection = connection
        self.frame = frame
        self.request = frame.request  # 0 once it is answered
        self.joined: dict[int, int] = dict.fromkeys(frame.joined, 0)  # place → consumer, 0 for one of before
        self.awaited: set[int] = set()  # consumers that have not begun
        self.unlisted = set(channels)  # channels whose destinations are not compared yet, or whose part is not found
        self.pattern = pattern
        self.whole = whole_of(frame.pattern)
        self.bounds = pattern.bounds
        self.matches = matcher_of(pattern)


class Wildcards:
    """All wishes of all clients."""

    __slots__ = (
        "_asked",
        "_awaited",
        "_by_stream",
        "_catalogue",
        "_consuming",
        "_desk",
        "_finding",
        "_finding_for",
        "_index",
        "_moving",
        "_naming",
        "_pages",
        "_seen",
        "_unbegun",
        "_watches",
    )

    def __init__(self, desk: Desk, consuming: Consuming, moving: Moving, finding: Finding, naming: Naming) -> None:
        self._desk = desk
        self._naming = naming
        self._finding = finding
        self._finding_for: dict[Key, ConsumePattern] = {}  # wishes that wait until it is known where others receive
        self._consuming = consuming
        self._moving = moving
        self._watches: dict[Key, _Watch] = {}
        self._index: PatternIndex[Key] = PatternIndex()
        self._catalogue = Catalogue()
        self._by_stream: dict[int, set[int]] = {}  # the client's numbers of wishes
        self._asked: dict[int, int] = {}  # by channel: the request that watches it
        self._seen: dict[int, set[int]] = {}  # by channel, while it is listed: the places that were
        self._awaited: dict[Turn, set[bytes]] = {}  # consumers that are to begin before the turn is noted
        self._unbegun: dict[bytes, Turn] = {}  # in which turn each of those is
        self._pages: deque[tuple[_Watch, frozenset[int], Name | None]] = deque()  # to be compared with these channels

    # --- clients ---

    def on_consume(self, connection: Connection, frame: ConsumePattern) -> None:
        """A consumer of a pattern begins, or goes on after a reconnection."""
        desk, key = self._desk, (connection.stream, frame.watch)
        if frame.session not in connection.sessions or key in self._watches or key in self._finding_for:
            raise PeerViolation(f"pattern {frame.watch} is open already, or session {frame.session} is not")
        unknown = [place for place in frame.joined if self._must_find(place)]
        if unknown:
            self._find(connection, frame, unknown)
            return
        try:
            count = len(self._by_stream.get(connection.stream, ()))
            if wrong := too_many(count, desk.settings.patterns_max, "consumers of patterns") or overlong(frame):
                raise wrong
            watch = _Watch(connection, frame, desk.used)
        except (InvalidDestination, InvalidSelector, Misuse) as error:
            desk.fail(connection.stream, frame.request, error)
            return
        self._watches[key] = watch
        self._by_stream.setdefault(connection.stream, set()).add(frame.watch)
        connection.add_watch(frame.session, frame.watch)
        if watch.whole is not None:
            self._join_parts(watch, watch.whole)
            return
        self._index.add(key, watch.pattern)
        for channel in desk.used:
            if channel not in self._asked:
                self._ask(channel)
        listed = frozenset(self._asked) - frozenset(self._seen)
        if listed:
            self._compare(watch, listed, None)

    def _must_find(self, place: int) -> bool:
        """Whether a destination that a client receives from may have moved without this Client Manager's knowing."""
        is_place = 0 <= parts_of(place)[0] < len(self._desk.channels)
        return self._moving.is_possible and is_place and self._desk.directory.at(self._moving.current(place)) is None

    def _find(self, connection: Connection, frame: ConsumePattern, unknown: list[int]) -> None:
        """Begins when it is known where all are that receive already, or the same one would join once more."""
        key, left = (connection.stream, frame.watch), set(unknown)
        self._finding_for[key] = frame

        def on_found(place: int, _: Listed | None) -> None:
            left.discard(place)
            if left or self._finding_for.get(key) is not frame:
                return
            del self._finding_for[key]
            if self._desk.is_there(connection) and frame.session in connection.sessions:
                gone = {each for each in unknown if self._must_find(each)}
                joined = [each for each in frame.joined if each not in gone]
                self.on_consume(connection, msgspec.structs.replace(frame, joined=joined))

        for place in unknown:
            self._finding.find(place, partial(on_found, place))

    def on_close(self, connection: Connection, frame: ClosePattern) -> None:
        """A consumer of a pattern ends; what it holds comes back."""
        watch = self._watches.get((connection.stream, frame.watch))
        unbegun = self._finding_for.pop((connection.stream, frame.watch), None)
        if unbegun is not None:
            self._desk.reply(connection.stream, Done(unbegun.request))
        numbers = dict.fromkeys(frame.unseen)
        if watch is not None:  # after a reconnection its client names only its consumers
            numbers |= dict.fromkeys(watch.joined.values())
            if watch.request:  # its client waits for the beginning too
                self._desk.reply(connection.stream, Done(watch.request))
            self._end(watch)
        ending = [connection.consumers[number] for number in numbers if number in connection.consumers]
        left = len(ending)

        def on_ended() -> None:
            nonlocal left
            left -= 1
            if left <= 0:
                self._desk.reply(connection.stream, Done(frame.request))

        for consumer in ending:
            self._consuming.end(connection, consumer, on_ended, frame.unseen.get(consumer.number, ()))
        if not ending:
            on_ended()

    def close_session(self, connection: Connection, session: int) -> None:
        """A session ends; its consumers are ended with it."""
        for number in sorted(connection.of_session(session).watches):
            self._end(self._watches[connection.stream, number])

    def on_closed(self, connection: Connection) -> None:
        """A client is gone: nobody waits for its consumers."""
        for consumer in connection.consumers.values():
            consumer.begin()
        for watch in self._of(connection):
            self._end(watch)

    def _of(self, connection: Connection) -> list[_Watch]:
        numbers = sorted(self._by_stream.get(connection.stream, ()))
        return [self._watches[connection.stream, number] for number in numbers]

    def _end(self, watch: _Watch) -> None:
        key = watch.connection.stream, watch.frame.watch
        del self._watches[key]
        self._by_stream[key[0]].discard(key[1])
        if not self._by_stream[key[0]]:
            del self._by_stream[key[0]]
        watch.connection.remove_watch(watch.frame.session, watch.frame.watch)
        self._index.remove(key)
        self._pages = deque(page for page in self._pages if page[0] is not watch)
        if not self._index:
            self._leave()

    def _leave(self) -> None:
        """Nobody has a pattern any more, so nobody needs to know what there is."""
        for channel in self._asked:
            request = self._desk.channels[channel].ask(lambda answer: None)
            if not self._desk.ask_primary(channel, link.Watch(request, is_on=False)):
                self._desk.channels[channel].pending.pop(request)
        self._asked.clear()
        self._seen.clear()
        self._awaited.clear()
        self._unbegun.clear()
        self._catalogue.clear()

    # --- Message Managers ---

    def on_primary(self, channel: int) -> None:
        """A primary is there, or another one, which does not know yet that it is watched.

        It has turns of its own; who was to begin before is to begin before the first of them is noted.
        """
        if self._index:
            self._move([turn for turn in self._awaited if turn[0] == channel], (channel, _BEFORE))
            self._ask(channel)

    def _move(self, turns: list[Turn], to: Turn) -> None:
        """Who is to begin in these turns is to begin in another."""
        moved = {mark for turn in turns for mark in self._awaited.pop(turn) if mark != _LISTING}
        if moved:
            self._awaited.setdefault(to, set()).update(moved)
            self._unbegun.update(dict.fromkeys(moved, to))

    def _ask(self, channel: int) -> None:
        self._seen[channel] = set()
        ground = self._desk.channels[channel]
        request = ground.ask(lambda answer: self._on_listed(channel, request))
        self._asked[channel] = request
        if not self._desk.ask_primary(channel, link.Watch(request)):
            ground.pending.pop(request)  # whoever is primary next is asked

    def on_advertised(self, channel: int, frame: link.Advertised) -> None:
        """Destinations came or went."""
        if channel not in self._asked:
            return  # it was told before it heard that nobody watches any more
        for number in frame.gone:
            self._remove(place_of(channel, number))
        seen = self._seen.get(channel)
        waiting = self._awaited.setdefault((channel, frame.turn), set())
        if seen is not None:
            waiting.add(_LISTING)
            self._move([turn for turn in ((channel, _BEFORE),) if turn in self._awaited], (channel, frame.turn))
        for number, destination in frame.made:
            place = place_of(channel, number)
            if seen is not None:
                seen.add(place)
            if self._catalogue.add(place, destination):
                self._match(channel, place, destination, frame.turn)
        self._note(channel, frame.turn)

    def _match(self, channel: int, place: int, destination: Destination, turn: int) -> None:
        """A destination is new here. A pattern that is compared with all of them when they are listed can wait."""
        for key in self._index.match(destination):
            watch = self._watches[key]
            is_to_come = channel in watch.unlisted and channel in self._seen
            if not is_to_come:
                self._join(watch, place, destination, (channel, turn))

    def _on_listed(self, channel: int, request: int) -> None:
        """All that is there now was advertised: the rest of what was known is gone."""
        if self._asked.get(channel) != request:
            return
        seen = self._seen.pop(channel)
        for place in self._catalogue.of(channel):
            if place not in seen:
                self._remove(place)
        for watch in list(self._watches.values()):
            if channel in watch.unlisted and watch.whole is None:
                self._compare(watch, frozenset({channel}), None)
        for turn in [turn for turn in self._awaited if turn[0] == channel]:
            self._awaited[turn].discard(_LISTING)
            self._note(*turn)

    def _remove(self, place: int) -> None:
        destination = self._catalogue.remove(place)
        if destination is not None:
            for key in self._index.match(destination):
                self._watches[key].joined.pop(place, None)

    def _note(self, channel: int, turn: int) -> None:
        """Lets the primary know when all who waited for what it advertised receive from it."""
        if not self._awaited.get((channel, turn), True):
            del self._awaited[(channel, turn)]
            if turn != _BEFORE:
                self._desk.ask_primary(channel, link.Noted(turn))

    # --- what there is already, compared with a new pattern ---

    def on_time(self, now: float) -> None:
        """Goes on with what is to be compared, a page of names at a time."""
        if self._pages:
            self._compare(*self._pages.popleft())

    def next_deadline(self) -> float:
        """At once where something is to be compared."""
        return 0.0 if self._pages else _NEVER

    def _compare(self, watch: _Watch, channels: frozenset[int], after: Name | None) -> None:
        page = self._catalogue.page(watch.bounds, after, PAGE_NAMES)
        for name, place in page:
            if watch.matches(name) and parts_of(place)[0] in channels:
                destination = self._catalogue.at(place)
                if watch.pattern.admits(destination):
                    self._join(watch, place, destination, None)
        if len(page) == PAGE_NAMES:
            self._pages.append((watch, channels, page[-1]))
            return
        watch.unlisted -= channels
        self._answer(watch)

    def _join_parts(self, watch: _Watch, whole: Destination) -> None:
        """Each channel has a part of what belongs to the system, made where it is missing: so none comes later."""
        connection, key = watch.connection, (watch.connection.stream, watch.frame.watch)

        def on_there(channel: int, part: Destination, place: int) -> None:
            if self._watches.get(key) is watch:
                self._join(watch, place, part, None)
                watch.unlisted.discard(channel)
                self._answer(watch)

        def on_fail(channel: int, part: Destination, error: str, reason: str) -> None:
            if self._watches.get(key) is watch:
                self._end(watch)
                self._desk.reply(connection.stream, Failed(watch.frame.request, error, reason))

        self._naming.ensure_parts(connection, whole, on_there, on_fail)

    def _join(self, watch: _Watch, place: int, destination: Destination, turn: Turn | None) -> None:
        """A destination matches. `turn` is that in which it was advertised, None for those of before the wish."""
        place = self._moving.current(place)
        for known in self._moving.places_before(place) & watch.joined.keys():
            watch.joined[place] = watch.joined.pop(known)  # it came from another channel, and its consumer follows
        if place in watch.joined:
            return
        connection, frame = watch.connection, watch.frame
        number = number_for(frame.watch, place, connection.consumers)
        watch.joined[place] = number
        watch.awaited.add(number)
        consume = consume_for(frame, number, place, destination, is_new=turn is not None)
        joined = Joined(frame.watch, number, place, str(destination), turn is not None)
        self._desk.reply(connection.stream, joined)
        self._consuming.join(
            connection, consume, Listed(place, destination, Policy()), self._when_begun(watch, number, turn)
        )

    def _when_begun(self, watch: _Watch, number: int, turn: Turn | None) -> Callable[[], None]:
        mark = key_of(watch.connection.id, number)
        if turn is not None:
            self._unbegun[mark] = turn
            self._awaited[turn].add(mark)

        def on_begun() -> None:
            watch.awaited.discard(number)
            self._answer(watch)
            in_turn = self._unbegun.pop(mark, None)
            if in_turn is not None:
                self._awaited[in_turn].discard(mark)
                self._note(*in_turn)

        return on_begun

    def _answer(self, watch: _Watch) -> None:
        """The client hears once that all that was there receives."""
        if watch.request and not watch.awaited and not watch.unlisted and self._desk.is_there(watch.connection):
            self._desk.reply(watch.connection.stream, Done(watch.request))
            watch.request = 0

    def describe(self) -> dict[str, object]:
        """For people."""
        return {"patterns": len(self._watches), "destinations": len(self._catalogue)}


_LISTING = b""  # stands in a turn for those of its destinations that are still to be told
_BEFORE = -1  # stands for the first turn of a primary that has told none yet
