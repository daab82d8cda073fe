"""The state of the cluster for clients that ask, put together from what every Message Manager says.

It is given in pages, so that no turn of anybody grows with the number of destinations. The first one says all that is
not destinations, and has some of these of every channel, which in small clusters are all. Each page after it is of one
channel, and only its primary is asked. A cursor is a place: a channel, and the number of a destination in it.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from alphorn.client_manager.connection import Connection
from alphorn.client_manager.desk import Desk, KnownNode
from alphorn.client_manager.machine import AskServers, ServersStand
from alphorn.model import link
from alphorn.model.conversation import Status, StatusAnswer, parts_of, place_of
from alphorn.model.errors import PeerViolation, Unavailable
from alphorn.model.status_pages import client_manager_row

UNREACHABLE = "unreachable"
PATIENCE_S = 1.0  # one that says nothing for so long, be it frozen or cut off, is not waited for any more
NO_DESTINATIONS = b'{"destinations":[]}'
SERVERS = -1  # in place of a channel: the message servers


class Part(msgspec.Struct, frozen=True):
    """What a Message Manager says for the first page."""

    channel: int
    name: str
    state: dict[str, Any]
    after: int  # its next page is what comes after this number; 0: there is none


class Picturing:
    """Requests for the state."""

    __slots__ = ("_asked", "_desk", "_first", "_later")

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._asked = 0  # how often message servers were
        self._first: dict[tuple[int, int], _Gathering] = {}  # by channel and number of a question
        self._later: dict[tuple[int, int], _Page] = {}

    def on_status(self, connection: Connection, frame: Status) -> None:
        """Asks for a page."""
        if not 0 <= parts_of(frame.cursor)[0] < len(self._desk.channels):
            raise PeerViolation(f"no page of the state begins at {frame.cursor}; begin with the first one")
        if frame.cursor:
            self._ask_primary(connection, frame)
        else:
            self._ask_all(connection, frame)

    def _ask_all(self, connection: Connection, frame: Status) -> None:
        desk = self._desk
        gathering = _Gathering(connection, frame.request, desk.now + PATIENCE_S)
        maximum = max(1, link.PAGE_ROWS // len(desk.channels))
        for channel, ground in enumerate(desk.channels):
            for name in sorted(ground.links):
                number = ground.number()
                self._first[(channel, number)] = gathering
                gathering.waiting[(channel, number)] = name
                desk.ask(channel, name, link.Describe(number, maximum))
        if not gathering.waiting:
            error = Unavailable("no Message Manager can be reached at the moment; try again")
            desk.fail(connection.stream, frame.request, error)
        elif any(node.kind == "message_server" for node in desk.settings.nodes):
            self._asked += 1
            self._first[(SERVERS, self._asked)] = gathering
            gathering.waiting[(SERVERS, self._asked)] = ""
            desk.outbox.append(AskServers(self._asked))

    def _ask_primary(self, connection: Connection, frame: Status) -> None:
        desk = self._desk
        channel, after = parts_of(frame.cursor)
        ground = desk.channels[channel]
        if not ground.primary:
            self._on_nobody(connection, frame)
            return
        number = ground.number()
        self._later[(channel, number)] = _Page(connection, frame, ground.primary, desk.now + PATIENCE_S)
        desk.ask(channel, ground.primary, link.Describe(number, link.PAGE_ROWS, after))

    def _on_nobody(self, connection: Connection, frame: Status) -> None:
        """A channel has no primary; as in the first page it is left out, unless some of it has been told already."""
        desk = self._desk
        channel, after = parts_of(frame.cursor)
        if not desk.is_there(connection):
            return
        if not after:
            desk.reply(connection.stream, StatusAnswer(frame.request, NO_DESTINATIONS, self._next(channel, 0)))
            return
        name = desk.settings.channel_names[channel] if desk.settings.channel_names else f"number {channel}"
        reason = f"channel {name} lost its primary while its destinations were being listed; ask for them again"
        desk.fail(connection.stream, frame.request, Unavailable(reason))

    def _next(self, channel: int, after: int) -> int:
        """The cursor of the page behind one of this channel."""
        if after:
            return place_of(channel, after)
        return place_of(channel + 1, 0) if channel + 1 < len(self._desk.channels) else 0

    def on_described(self, channel: int, name: str, frame: link.Described) -> None:
        """What a Message Manager says; the last one completes a first page."""
        key = (channel, frame.request)
        gathering = self._first.pop(key, None)
        if gathering is not None:
            gathering.parts.append(Part(channel, name, msgspec.json.decode(frame.data), frame.after))
            self._gathered(gathering, key)
        page = self._later.pop(key, None)
        if page is None or not self._desk.is_there(page.connection):
            return
        if frame.data:
            answer = StatusAnswer(page.frame.request, frame.data, self._next(channel, frame.after))
            self._desk.reply(page.connection.stream, answer)
        else:
            self._on_nobody(page.connection, page.frame)

    def on_servers(self, stand: ServersStand) -> None:
        """How message servers stand, and who has joined them."""
        key = (SERVERS, stand.request)
        gathering = self._first.pop(key, None)
        if gathering is not None:
            gathering.others = stand.rows
            self._gathered(gathering, key)

    def on_primary(self, channel: int) -> None:
        """Another Message Manager serves now: it is asked what the one before has not answered."""
        for key, page in list(self._later.items()):
            if key[0] == channel and page.asked != self._desk.channels[channel].primary:
                del self._later[key]
                self._ask_primary(page.connection, page.frame)

    def next_deadline(self) -> float:
        """When somebody has said nothing for too long."""
        if not self._first and not self._later:
            return math.inf
        first = min((gathering.until for gathering in self._first.values()), default=math.inf)
        return min(first, min((page.until for page in self._later.values()), default=math.inf))

    def on_time(self, now: float) -> None:
        """Goes on without those who have said nothing for too long."""
        if now < self.next_deadline():
            return
        for key, gathering in list(self._first.items()):
            if gathering.until <= now:
                del self._first[key]
                self._gathered(gathering, key)
        for key, page in list(self._later.items()):
            if page.until <= now:
                del self._later[key]
                self._on_nobody(page.connection, page.frame)

    def on_link_lost(self, channel: int, name: str) -> None:
        """A Message Manager that is gone is not waited for."""
        for key, gathering in list(self._first.items()):
            if key[0] == channel and gathering.waiting.get(key) == name:
                del self._first[key]
                self._gathered(gathering, key)
        for key, page in list(self._later.items()):
            if key[0] == channel and page.asked == name:
                del self._later[key]
                self._on_nobody(page.connection, page.frame)

    def _gathered(self, gathering: "_Gathering", key: tuple[int, int]) -> None:
        gathering.waiting.pop(key, None)
        settings = self._desk.settings
        own = client_manager_row(settings.name, settings.pid, settings.address, len(self._desk.connections))
        if not gathering.waiting and self._desk.is_there(gathering.connection):
            status, cursor = merge_status(
                gathering.parts, settings.channel_names, settings.nodes, own, gathering.others
            )
            answer = StatusAnswer(gathering.request, msgspec.json.encode(status), cursor)
            self._desk.reply(gathering.connection.stream, answer)


class _Page(msgspec.Struct, frozen=True, gc=False):
    """A later page that waits for a primary."""

    connection: Connection
    frame: Status
    asked: str  # the name of who was
    until: float


class _Gathering:
    """A first page that waits for Message Managers."""

    __slots__ = ("connection", "others", "parts", "request", "until", "waiting")

    def __init__(self, connection: Connection, request: int, until: float) -> None:
        self.connection = connection
        self.request = request
        self.until = until
        self.waiting: dict[tuple[int, int], str] = {}
        self.parts: list[Part] = []
        self.others: list[dict[str, Any]] = []  # rows of message servers and programs


def merge_status(
    parts: list[Part],
    names: Sequence[str] = (),
    known: Sequence[KnownNode] = (),
    own: Mapping[str, Any] | None = None,
    others: Sequence[Mapping[str, Any]] = (),
) -> tuple[dict[str, Any], int]:
    """One picture of the cluster: each Message Manager speaks for itself, the primary for clients and destinations.

    This Client Manager has its `own` row where no primary spoke of it: whoever reads it has reached it. `others` are
    rows of message servers and programs. Nodes that the cluster file has and nobody spoke of are there too, as
    unreachable. With it comes the cursor: destinations are told channel by channel, to the end of the first page of one
    that has more.
    """
    primaries = _primaries(parts)
    nodes: dict[str, dict[str, Any]] = {}
    channels: dict[int, dict[str, Any]] = {}
    destinations: list[dict[str, Any]] = []
    readers: list[dict[str, Any]] = []
    moves: list[dict[str, Any]] = []
    cursor = 0
    for part in sorted(parts, key=lambda part: (part.channel, part.name)):
        state = part.state
        nodes[state["node"]["name"]] = state["node"]
        if part is not primaries.get(part.channel):
            continue
        channels[part.channel] = state["channel"]
        if not cursor:
            destinations += state["destinations"]
            cursor = place_of(part.channel, part.after) if part.after else 0
        readers += state["readers"]
        moves += [
            {"name": move["name"], "from": state["channel"]["name"], "to": names[move["to"]], "stage": move["stage"]}
            for move in state.get("moves", ())
        ]
        for other in (*state["client_managers"], *state.get("witnesses", ())):
            nodes.setdefault(other["name"], other)
    newest = {channel["name"]: channel["sequence"] for channel in channels.values()}
    for node in nodes.values():
        if node["role"] == "backup":
            node["lag"] = max(0, newest.get(node["channel"], node["applied"]) - node["applied"])
    if own is not None:
        nodes.setdefault(own["name"], dict(own))
    for other in others:
        nodes.setdefault(other["name"], dict(other))
    for absent in known:
        nodes.setdefault(absent.name, _unreachable(absent))
    picture = {
        "nodes": list(nodes.values()),
        "channels": list(channels.values()),
        "destinations": destinations,
        "readers": readers,
        "moves": moves,
    }
    return picture, cursor


def _unreachable(node: KnownNode) -> dict[str, Any]:
    """It has ended, or its links are broken: from here nobody can tell."""
    return {
        "name": node.name,
        "kind": node.kind,
        "pid": None,
        "address": node.address,
        "channel": node.channel,
        "role": UNREACHABLE,
        "epoch": None,
        "lag": None,
    }


def _primaries(parts: list[Part]) -> dict[int, Part]:
    """Of each channel the one that speaks for it: where two believe that they are primary, that of the newer epoch."""
    found: dict[int, Part] = {}
    for part in parts:
        node = part.state["node"]
        if node["role"] == "primary":
            known = found.get(part.channel)
            if known is None or node["epoch"] > known.state["node"]["epoch"]:
                found[part.channel] = part
    return found
