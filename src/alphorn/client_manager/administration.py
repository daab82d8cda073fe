"""What clients ask about destinations: where one is, to create or delete one, to look into a queue, and the state."""

from collections.abc import Callable
from typing import Any

import msgspec

from alphorn.client_manager.connection import Connection
from alphorn.client_manager.consuming import Consuming, delivered
from alphorn.client_manager.desk import Desk
from alphorn.client_manager.directory import Listed
from alphorn.client_manager.finding import Finding
from alphorn.client_manager.flow import FlowControl
from alphorn.client_manager.machine import Logged
from alphorn.model import commands, link
from alphorn.model.conversation import (
    Administer,
    Browse,
    Done,
    Failed,
    Resolve,
    Resolved,
    Status,
    StatusAnswer,
    Unsubscribe,
    Vanished,
    parts_of,
    place_of,
)
from alphorn.model.destinations import Destination, Policy, parse_destination, temporary_prefix
from alphorn.model.errors import Error, InvalidDestination, Misuse, PeerViolation, Unavailable
from alphorn.model.log_lines import LOG_TOPIC, LogLines

_decode_policy = msgspec.msgpack.Decoder(Policy).decode


class Administration:
    """Requests about destinations."""

    __slots__ = (
        "_browsing",
        "_consuming",
        "_describing",
        "_desk",
        "_finding",
        "_flow",
        "_is_asking_for_log",
        "_log_lines",
    )

    def __init__(self, desk: Desk, finding: Finding, consuming: Consuming, flow: FlowControl) -> None:
        self._desk = desk
        self._finding = finding
        self._flow = flow
        self._consuming = consuming
        self._log_lines: LogLines | None = None
        self._is_asking_for_log = False
        self._browsing: dict[tuple[int, int], tuple[Connection, int]] = {}
        self._describing: dict[tuple[int, int], _Gathering] = {}

    def on_logged(self, run: bytes, item: Logged) -> None:
        """This node's own log lines go to the `_LOG` topic of the first channel; until that is known they wait."""
        desk = self._desk
        if self._log_lines is None:
            self._log_lines = LogLines(run)
        lines = self._log_lines
        lines.add(item.lines)
        listed = desk.directory.find(LOG_TOPIC)
        if not self._flow.has_room(0):
            return  # they wait, as far as there is room for them
        if listed is not None:
            desk.channels[0].want(lines.publish(parts_of(listed.place)[1], item.now_ms))
        elif not self._is_asking_for_log:
            self._is_asking_for_log = True
            desk.channels[0].request(LogLines.create(), lambda answer: self._on_log_topic(lines, item.now_ms, answer))

    def _on_log_topic(self, lines: LogLines, now_ms: int, answer: link.Answered) -> None:
        self._is_asking_for_log = False
        if not answer.error:
            self._desk.directory.learn(place_of(0, answer.number), LOG_TOPIC, answer.policy or Policy())
            self._desk.channels[0].want(lines.publish(answer.number, now_ms))

    def on_resolve(self, connection: Connection, frame: Resolve) -> None:
        """Finds a destination, or creates it."""
        desk = self._desk
        try:
            destination = parse_destination(frame.destination)
            policy = self._read_policy(destination, frame.policy)
            prefix = temporary_prefix(connection.id)
            if frame.is_temporary and not destination.name.startswith(prefix):
                raise InvalidDestination(f"the name of a temporary destination begins with {prefix} here")
        except Error as error:
            desk.fail(connection.stream, frame.request, error)
            return
        listed = desk.directory.find(destination)
        if listed is not None and not frame.policy:
            self._resolved(connection, frame.request, listed)
            return
        owner = connection.id if frame.is_temporary else b""
        self._create(connection, frame.request, destination, policy, owner)

    def _create(
        self, connection: Connection, request: int, destination: Destination, policy: Policy, owner: bytes
    ) -> None:
        desk = self._desk
        channel = desk.directory.channel_for(destination)

        def on_created(answer: link.Answered) -> None:
            place = place_of(channel, answer.number)
            listed = desk.directory.learn(place, destination, answer.policy or policy)
            if policy not in (Policy(), listed.policy):
                desk.fail(connection.stream, request, other_policy(listed, policy))
            else:
                self._resolved(connection, request, listed)

        command = commands.CreateDestination(destination, policy, owner)
        desk.channels[channel].request(command, desk.answer_to(connection, request, on_created))

    def _resolved(self, connection: Connection, request: int, listed: Listed) -> None:
        self._flow.enter(connection, listed.place)
        self._desk.reply(connection.stream, Resolved(request, listed.place, str(listed.destination)))

    @staticmethod
    def _read_policy(destination: Destination, data: bytes) -> Policy:
        if not data:
            return Policy()
        try:
            policy = _decode_policy(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidDestination(f"the policy of {destination} cannot be read: {error}") from None
        policy.check(destination)
        return policy

    def on_administer(self, connection: Connection, frame: Administer) -> None:
        """Creates, deletes, changes, purges or redrives one destination."""
        try:
            destination = parse_destination(frame.destination)
            policy = self._read_policy(destination, frame.policy)
            if frame.action == "create":
                self._create(connection, frame.request, destination, policy, b"")
                return
            if frame.action not in ("delete", "policy", "purge", "redrive", "release"):
                raise Misuse(f"{frame.action!r} is nothing that can be done with {destination}")
        except Error as error:
            self._desk.fail(connection.stream, frame.request, error)
            return
        self._locate(connection, frame.request, destination, lambda place: self._do(connection, frame, place, policy))

    def _locate(
        self, connection: Connection, request: int, destination: Destination, then: Callable[[int], None]
    ) -> None:
        """Goes on with the place of a destination that exists."""
        desk = self._desk
        listed = desk.directory.find(destination)
        if listed is not None:
            then(listed.place)
            return
        channel = desk.directory.channel_for(destination)

        def on_found(answer: link.Answered) -> None:
            place = place_of(channel, answer.number)
            desk.directory.learn(place, destination, answer.policy or Policy())
            then(place)

        number = desk.channels[channel].ask(
            desk.answer_to(connection, request, on_found), lost=lambda: self._unavailable(connection, request)
        )
        if not desk.ask_primary(channel, link.Locate(number, destination)):
            desk.channels[channel].pending.pop(number)
            self._unavailable(connection, request)

    def _unavailable(self, connection: Connection, request: int) -> None:
        if self._desk.is_there(connection):
            error = Unavailable("no primary serves this destination at the moment; try again")
            self._desk.fail(connection.stream, request, error)

    def _do(self, connection: Connection, frame: Administer, place: int, policy: Policy) -> None:
        channel, number = parts_of(place)
        command: commands.AnyCommand
        match frame.action:
            case "delete":
                command = commands.DeleteDestination(number)
            case "policy":
                command = commands.SetPolicy(number, policy)
            case "purge":
                command = commands.Purge(number)
            case "release":
                command = commands.Release(number, frame.number)
            case _:
                command = commands.Redrive(number, [])

        def on_done(answer: link.Answered) -> None:
            self._desk.reply(connection.stream, Done(frame.request, answer.number))

        self._desk.channels[channel].request(command, self._desk.answer_to(connection, frame.request, on_done))

    def on_deleted(self, place: int) -> None:
        """The log says that a destination is gone: its consumers end (CM-22), and who knew it looks for it anew."""
        listed = self._desk.directory.forget(place)
        for known in self._flow.on_deleted(place):
            self._desk.reply(known.stream, Vanished(place))
        if listed is None:
            return
        for consumer in [consumer for consumer in self._desk.consumers.values() if consumer.place == place]:
            connection = self._desk.connections.get(consumer.stream)
            if connection is not None:
                reason = f"{listed.destination} was deleted"
                self._consuming.close(connection, consumer, InvalidDestination.__name__, reason)

    def on_unsubscribe(self, connection: Connection, frame: Unsubscribe) -> None:
        """Ends a durable or shared subscription of this client; one to a pattern with all that it has to topics.

        Which topic it belongs to, and whether it is in use, is the primary's to know; every channel is asked in turn,
        until it knows of none.
        """
        self._find_subscription(connection, frame, 0, has_ended=False)

    def _find_subscription(self, connection: Connection, frame: Unsubscribe, channel: int, *, has_ended: bool) -> None:
        desk = self._desk
        if channel == len(desk.channels) and has_ended:
            desk.reply(connection.stream, Done(frame.request))
            return
        if channel == len(desk.channels):
            error = InvalidDestination(f"this client has no subscription named {frame.name!r}")
            desk.fail(connection.stream, frame.request, error)
            return

        def on_answer(answer: link.Answered) -> None:
            if not desk.is_there(connection):
                return
            if answer.error == InvalidDestination.__name__:
                self._find_subscription(connection, frame, channel + 1, has_ended=has_ended)
            elif answer.error:
                desk.reply(connection.stream, Failed(frame.request, answer.error, answer.reason))
            else:
                destination, subscription = answer.number >> 32, answer.number & 0xFFFFFFFF
                self._unsubscribe(connection, frame, channel, destination, subscription)

        number = desk.channels[channel].ask(on_answer, lost=lambda: self._unavailable(connection, frame.request))
        if not desk.ask_primary(channel, link.FindSubscription(number, connection.client_id, frame.name)):
            desk.channels[channel].pending.pop(number)
            self._unavailable(connection, frame.request)

    def _unsubscribe(
        self, connection: Connection, frame: Unsubscribe, channel: int, destination: int, subscription: int
    ) -> None:
        def on_done(answer: link.Answered) -> None:
            self._find_subscription(connection, frame, channel, has_ended=True)

        command = commands.Unsubscribe(destination, subscription)
        self._desk.channels[channel].request(command, self._desk.answer_to(connection, frame.request, on_done))

    def on_browse(self, connection: Connection, frame: Browse) -> None:
        """Looks into a queue without consuming."""
        if not 0 <= parts_of(frame.place)[0] < len(self._desk.channels):
            raise PeerViolation(f"no destination has the place {frame.place}; resolve its name first")
        self._finding.find(frame.place, lambda listed: self._browse(connection, frame, is_there=listed is not None))

    def _browse(self, connection: Connection, frame: Browse, *, is_there: bool) -> None:
        desk = self._desk
        channel, destination = parts_of(frame.place)
        if not desk.is_there(connection):
            return
        if not is_there:
            desk.fail(connection.stream, frame.request, InvalidDestination("this destination is gone; resolve it anew"))
            return

        def on_done(answer: link.Answered) -> None:
            self._browsing.pop((channel, number), None)
            desk.reply(connection.stream, Done(frame.request, answer.number))

        def on_lost() -> None:
            self._browsing.pop((channel, number), None)
            self._unavailable(connection, frame.request)

        number = desk.channels[channel].ask(desk.answer_to(connection, frame.request, on_done), lost=on_lost)
        self._browsing[(channel, number)] = (connection, frame.request)
        look = link.Look(number, destination, frame.selector, frame.start, frame.maximum)
        if not desk.ask_primary(channel, look):
            desk.channels[channel].pending.pop(number)
            on_lost()

    def on_browsed(self, channel: int, frame: link.Looked) -> None:
        """Messages that a look found, with their batches."""
        connection, _ = self._browsing.get((channel, frame.request), (None, 0))
        if connection is None or not self._desk.is_there(connection):
            return
        for run, payload in frame.runs:
            command = commands.decode_entry(payload).commands[run.command]
            if isinstance(command, commands.Publish):
                self._desk.reply(connection.stream, delivered(0, run, command))

    def on_status(self, connection: Connection, frame: Status) -> None:
        """The cluster's state, put together from what every Message Manager says."""
        desk = self._desk
        gathering = _Gathering(connection, frame.request)
        for channel, ground in enumerate(desk.channels):
            for name in sorted(ground.links):
                number = ground.number()
                self._describing[(channel, number)] = gathering
                gathering.waiting[(channel, number)] = name
                desk.ask(channel, name, link.Describe(number))
        if not gathering.waiting:
            self._unavailable(connection, frame.request)

    def on_described(self, channel: int, name: str, frame: link.Described) -> None:
        """A Message Manager's state; the last one completes the answer."""
        gathering = self._describing.pop((channel, frame.request), None)
        if gathering is not None:
            gathering.parts.append((channel, name, msgspec.json.decode(frame.data)))
            self._gathered(gathering, (channel, frame.request))

    def on_link_lost(self, channel: int, name: str) -> None:
        """A Message Manager that is gone is not waited for."""
        for key, gathering in list(self._describing.items()):
            if key[0] == channel and gathering.waiting.get(key) == name:
                del self._describing[key]
                self._gathered(gathering, key)

    def _gathered(self, gathering: "_Gathering", key: tuple[int, int]) -> None:
        gathering.waiting.pop(key, None)
        if not gathering.waiting and self._desk.is_there(gathering.connection):
            data = msgspec.json.encode(merge_status(gathering.parts))
            self._desk.reply(gathering.connection.stream, StatusAnswer(gathering.request, data))


def other_policy(listed: Listed, wanted: Policy) -> Misuse:
    """Why a destination is not created that exists with another policy than is wanted."""
    pairs = [(name, getattr(listed.policy, name), getattr(wanted, name)) for name in Policy.__struct_fields__]
    differences = ", ".join(f"{name} is {there!r}, not {new!r}" for name, there, new in pairs if there != new)
    return Misuse(
        f"{listed.destination} exists with another policy ({differences}); "
        "change that with destinations.policy, or create it without a policy to leave it as it is"
    )


class _Gathering:
    """A status request that waits for Message Managers."""

    __slots__ = ("connection", "parts", "request", "waiting")

    def __init__(self, connection: Connection, request: int) -> None:
        self.connection = connection
        self.request = request
        self.waiting: dict[tuple[int, int], str] = {}
        self.parts: list[tuple[int, str, dict[str, Any]]] = []


def merge_status(parts: list[tuple[int, str, dict[str, Any]]]) -> dict[str, Any]:
    """One picture of the cluster: each Message Manager speaks for itself, the primary for clients and destinations."""
    nodes: dict[str, dict[str, Any]] = {}
    channels: dict[int, dict[str, Any]] = {}
    destinations: list[dict[str, Any]] = []
    readers: list[dict[str, Any]] = []
    for channel, _, part in sorted(parts, key=lambda part: (part[0], part[1])):
        nodes[part["node"]["name"]] = part["node"]
        if part["node"]["role"] == "primary":
            channels[channel] = part["channel"]
            destinations += part["destinations"]
            readers += part["readers"]
            for other in part["client_managers"]:
                nodes.setdefault(other["name"], other)
    newest = {channel["name"]: channel["sequence"] for channel in channels.values()}
    for node in nodes.values():
        if node["role"] == "backup":
            node["lag"] = max(0, newest.get(node["channel"], node["applied"]) - node["applied"])
    return {
        "nodes": list(nodes.values()),
        "channels": list(channels.values()),
        "destinations": destinations,
        "readers": readers,
    }
