"""Flow control at a Client Manager: which messages are let into the log, and who is told to wait before that.

Rules.
- A destination takes nothing while the primary calls it full, or while a Message Manager of its channel has no room on
  its disk. A session waits while it has too much under way, and while its channel has too much waiting: at half of
  what that may be, if its connection has no less than its share; beyond, whoever it is.
- Clients are told early: `Flow` goes to every connection that has looked a destination up or sent to it, `Hold` to the
  session alone. Both go again when the low mark is reached.
- What comes all the same is not kept here: it is postponed, and its producer sends it again, in order. So nobody's
  messages wait behind those of a full destination, and memory is bounded whatever clients do.
- All of it is soft. A primary that comes tells anew which destinations are full.
- Clients name a destination by the place where they found it. Where it has moved since, what is told of its new place
  is told to them under the old one.
"""

from collections.abc import Iterable
from itertools import chain, islice

from alphorn.client_manager.connection import Connection
from alphorn.client_manager.desk import Desk
from alphorn.client_manager.moving import Moving
from alphorn.model import conversation, link
from alphorn.model.conversation import parts_of, place_of

PLACES_MAX = 10_000  # that one connection is told of
EASED_MAX = 100  # sessions that are looked at in a turn, while their channel still has much to do


class FlowControl:
    """What takes no messages at the moment, and who was told."""

    __slots__ = ("_congested", "_desk", "_full", "_likely", "_moving", "_stores", "postponed")

    def __init__(self, desk: Desk, moving: Moving) -> None:
        self._desk = desk
        self._moving = moving
        moving.on_turned = self._on_turned
        self._full: dict[int, str] = {}  # place → reason
        self._stores: list[dict[str, str]] = [{} for _ in desk.channels]  # Message Manager → reason
        self._likely: dict[int, dict[Connection, None]] = {}  # place, as they know it → who may send there
        self._congested: list[dict[tuple[Connection, int], None]] = [{} for _ in desk.channels]  # sessions on hold
        self.postponed = 0  # batches

    # --- destinations ---

    def reason_at(self, place: int) -> str:
        """Why a destination takes nothing at the moment; empty when it does."""
        place = self._moving.current(place)
        return self._full.get(place, "") or self.store_reason(parts_of(place)[0])

    def store_reason(self, channel: int) -> str:
        """Why the disks of a channel take nothing at the moment; empty when they do."""
        return next(iter(self._stores[channel].values()), "")

    def channel_reason(self, channel: int) -> str:
        """Why nothing more is let into a channel's log at the moment, whatever it is for; empty when it is."""
        waiting = self._desk.channels[channel].unordered_bytes
        is_full = waiting >= self._desk.settings.channel_bytes_max
        return self.store_reason(channel) or (self._told(waiting) if is_full else "")

    def enter(self, connection: Connection, place: int) -> None:
        """A connection may send to this destination: it hears of its state from now on."""
        if place in connection.places:
            return
        if len(connection.places) >= PLACES_MAX:
            self._drop_oldest(connection)
        connection.places[place] = None
        self._likely.setdefault(place, {})[connection] = None
        if reason := self.reason_at(place):
            self._desk.reply(connection.stream, conversation.Flow([place], reason))

    def leave(self, connection: Connection) -> None:
        """A connection's stream is gone."""
        for place in connection.places:
            self._forget(connection, place)
        self.report([place for place in connection.places if self.reason_at(place)])
        for sessions in self._congested:
            for key in [key for key in sessions if key[0] is connection]:
                del sessions[key]

    def on_full(self, channel: int, frame: link.Full) -> None:
        """The primary tells which destinations are full, or free again."""
        told = {place_of(channel, number): reason for number, reason in frame.destinations}
        if frame.is_whole:
            told = {place: "" for place in self._full if parts_of(place)[0] == channel} | told
        for place, reason in told.items():
            before = self.reason_at(place)
            if reason:
                self._full[place] = reason
            else:
                self._full.pop(place, None)
            if bool(self.reason_at(place)) is not bool(before):
                for known in self._known_as(place):
                    self._tell(self._likely[known], [known])
                self.report([place])

    def on_stored(self, channel: int, name: str, reason: str) -> None:
        """A Message Manager tells whether its disk has room; one that is gone needs none."""
        stores = self._stores[channel]
        was_blocked = bool(stores)
        if reason:
            stores[name] = reason
        else:
            stores.pop(name, None)
        if bool(stores) is was_blocked:
            return
        places = [place for place in self._of_channel(channel) if self._moving.current(place) not in self._full]
        interested = dict.fromkeys(chain.from_iterable(self._likely[place] for place in places))
        for connection in interested:
            self._tell([connection], [place for place in places if place in connection.places])
        self.report(places)

    def report(self, places: Iterable[int]) -> None:
        """Tells primaries how many producers wait for these destinations; who is free has none."""
        told: dict[int, list[tuple[int, int]]] = {}
        for place in dict.fromkeys(map(self._moving.current, places)):
            channel, number = parts_of(place)
            count = sum(
                producer.place == known
                for known in (self._known_as(place) if self.reason_at(place) else ())
                for each in self._likely[known]
                for producer in each.producers.values()
            )
            told.setdefault(channel, []).append((number, count))
        for channel, producers in told.items():
            self._desk.ask_primary(channel, link.Waiting(producers))

    def greet(self, channel: int) -> None:
        """A primary is there, or another one."""
        blocked = [place for place in self._of_channel(channel) if self.reason_at(place)]
        if blocked:
            self.report(blocked)

    def on_deleted(self, place: int) -> list[tuple[Connection, int]]:
        """A destination is gone: nobody waits for it any more. Gives who knew it, and as what."""
        is_blocked = bool(self.reason_at(place))
        self._full.pop(place, None)
        known = [(connection, name) for name in self._known_as(place) for connection in self._likely.pop(name)]
        for connection, name in known:
            del connection.places[name]
            if is_blocked:
                self._desk.reply(connection.stream, conversation.Flow([name], ""))
        return known

    def _on_turned(self, old: int, place: int) -> None:
        """A destination has moved: who knew it hears how its new place stands."""
        was_blocked = bool(self._full.pop(old, "") or self._stores[parts_of(old)[0]])
        if was_blocked or self.reason_at(place):
            for known in self._known_as(place):
                self._tell(self._likely[known], [known])
            self.report([place])

    def _known_as(self, place: int) -> list[int]:
        """The places under which clients know a destination."""
        if not self._moving.is_possible:
            return [place] if place in self._likely else []
        return [known for known in self._likely if self._moving.current(known) == place]

    def _of_channel(self, channel: int) -> list[int]:
        """The places of destinations that are on a channel now."""
        return [place for place in self._likely if parts_of(self._moving.current(place))[0] == channel]

    def _tell(self, connections: Iterable[Connection], places: list[int]) -> None:
        for connection in connections:
            self._desk.reply(connection.stream, conversation.Flow(places, self.reason_at(places[0])))

    def _drop_oldest(self, connection: Connection) -> None:
        """It is told of no more destinations than that; where it sends again it is told again."""
        oldest = next(iter(connection.places))
        del connection.places[oldest]
        self._forget(connection, oldest)
        if self.reason_at(oldest):
            self._desk.reply(connection.stream, conversation.Flow([oldest], ""))

    def _forget(self, connection: Connection, place: int) -> None:
        interested = self._likely.get(place)
        if interested is not None:
            interested.pop(connection, None)
            if not interested:
                del self._likely[place]

    # --- sessions ---

    def let_in(self, connection: Connection, session: int, place: int, size: int) -> bool:
        """Whether a batch is let in; otherwise it is to be postponed, and its sender was told why it waits.

        A session that has nothing under way may send one batch of any size.
        """
        if self.reason_at(place):
            return False
        under_way, channel = connection.under_way.get(session, 0), parts_of(self._moving.current(place))[0]
        ground, limit = self._desk.channels[channel], self._desk.settings.channel_bytes_max
        if ground.unordered_bytes >= limit or ground.is_over(connection.id, limit // 2):
            self._wait_for_channel(connection, session, channel)
            return False
        if under_way and under_way + size > self._desk.settings.session_bytes_max:
            self._hold(connection, session, under_way)
            return False
        return True

    def begin(self, connection: Connection, session: int, place: int, size: int) -> None:
        """A session's batch is under way."""
        under_way = connection.under_way[session] = connection.under_way.get(session, 0) + size
        channel = parts_of(self._moving.current(place))[0]
        if self._desk.channels[channel].is_over(connection.id, self._desk.settings.channel_bytes_max // 4):
            self._wait_for_channel(connection, session, channel)
        elif under_way > self._desk.settings.session_bytes_max // 2:
            self._hold(connection, session, under_way)

    def end(self, connection: Connection, session: int, size: int) -> None:
        """A session's batch is answered."""
        left = connection.under_way.get(session, 0) - size
        if left > 0:
            connection.under_way[session] = left
        else:
            connection.under_way.pop(session, None)
        if session in connection.on_hold:
            self._release(connection, session)

    def ease(self) -> None:
        """The end of a turn: sessions go on whose channel has taken most of what waited, or most of theirs."""
        limit = self._desk.settings.channel_bytes_max
        low, high = limit // 8, limit - limit // 4
        for number, sessions in enumerate(self._congested):
            if not sessions:
                continue
            channel = self._desk.channels[number]
            is_low, share = channel.unordered_bytes <= low, channel.share_of(low)
            if channel.unordered_bytes > high:
                continue
            for key in list(sessions if is_low else islice(sessions, EASED_MAX)):
                del sessions[key]
                if is_low or channel.unordered_of(key[0].id) <= share:
                    self._release(*key)
                else:
                    sessions[key] = None  # the others are looked at first

    def _wait_for_channel(self, connection: Connection, session: int, channel: int) -> None:
        self._congested[channel][(connection, session)] = None
        self._hold(connection, session, self._desk.channels[channel].unordered_of(connection.id))

    def _hold(self, connection: Connection, session: int, waiting: int) -> None:
        if session not in connection.on_hold:
            connection.on_hold.add(session)
            self._desk.reply(connection.stream, conversation.Hold(session, self._told(waiting)))

    def _told(self, waiting: int) -> str:
        return f"{waiting >> 10} KiB wait at {self._desk.settings.name} for their place in the log; go on later"

    def _release(self, connection: Connection, session: int) -> None:
        is_congested = any((connection, session) in sessions for sessions in self._congested)
        is_low = connection.under_way.get(session, 0) <= self._desk.settings.session_bytes_max // 4
        if is_low and not is_congested and session in connection.on_hold:
            connection.on_hold.discard(session)
            self._desk.reply(connection.stream, conversation.Hold(session, ""))

    def describe(self) -> dict[str, object]:
        """For people."""
        return {
            "full": {str(place): reason for place, reason in self._full.items()},
            "stores": self._stores,
            "on_hold": sum(len(connection.on_hold) for connection in self._desk.connections.values()),
            "postponed": self.postponed,
        }
