"""What clients ask about destinations: where one is, to create or delete one, to look into a queue."""

from collections.abc import Callable
from functools import partial

import msgspec

from alphorn.client_manager.connection import Connection
from alphorn.client_manager.consuming import Consuming
from alphorn.client_manager.desk import Desk
from alphorn.client_manager.directory import Directory, Listed
from alphorn.client_manager.finding import Finding
from alphorn.client_manager.flow import FlowControl
from alphorn.client_manager.limits import overlong
from alphorn.client_manager.machine import Logged
from alphorn.client_manager.moving import Moving
from alphorn.client_manager.naming import Fail, Naming
from alphorn.client_manager.runs import looked
from alphorn.model import commands, link
from alphorn.model.conversation import (
    Administer,
    Browse,
    Done,
    Failed,
    Resolve,
    Resolved,
    Unsubscribe,
    Vanished,
    parts_of,
    place_of,
)
from alphorn.model.destinations import Destination, Policy, parse_destination, temporary_prefix
from alphorn.model.errors import (
    Error,
    InvalidDestination,
    Misuse,
    Moved,
    NoDeadLetterQueue,
    PeerViolation,
    Unavailable,
)
from alphorn.model.log_lines import LOG_TOPIC, LogLines
from alphorn.model.system import SYSTEM

OF_A_WHOLE = frozenset({"policy", "purge", "redrive"})  # what is done with all parts of what belongs to the system

_decode_policy = msgspec.msgpack.Decoder(Policy).decode
Answer = Callable[[link.Answered], None]


class Administration:
    """Requests about destinations."""

    __slots__ = (
        "_browsing",
        "_consuming",
        "_desk",
        "_finding",
        "_flow",
        "_is_asking_for_log",
        "_log_lines",
        "_moving",
        "_naming",
    )

    def __init__(
        self,
        desk: Desk,
        naming: Naming,
        finding: Finding,
        consuming: Consuming,
        flow: FlowControl,
        moving: Moving,
    ) -> None:
        self._desk = desk
        self._naming = naming
        self._moving = moving
        self._finding = finding
        self._flow = flow
        self._consuming = consuming
        self._log_lines: LogLines | None = None
        self._is_asking_for_log = False
        self._browsing: dict[tuple[int, int], tuple[Connection, int]] = {}

    def on_logged(self, run: bytes, item: Logged) -> None:
        """This node's own log lines go to the `_LOG` topic of the first channel; until that is known they wait."""
        desk = self._desk
        if self._log_lines is None:
            self._log_lines = LogLines(run)
        lines = self._log_lines
        lines.add(item.lines)
        listed = desk.directory.find(LOG_TOPIC)
        if self._flow.store_reason(0):
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
            self._resolved(connection, frame.request, listed.place, listed.destination)
            return
        owner = connection.id if frame.is_temporary else b""
        self._create(connection, frame.request, destination, policy, owner)

    def _create(
        self, connection: Connection, request: int, destination: Destination, policy: Policy, owner: bytes
    ) -> None:
        directory = self._desk.directory

        def on_there(place: int, found: Policy) -> None:
            if policy != Policy() and _at_home(policy, directory) != _at_home(found, directory):
                self._desk.fail(connection.stream, request, other_policy(destination, found, policy))
            else:
                self._resolved(connection, request, place, destination)

        self._naming.ensure(connection, destination, policy, owner, on_there, self._failing(connection, request))

    def _resolved(self, connection: Connection, request: int, place: int, destination: Destination) -> None:
        self._flow.enter(connection, place)
        self._desk.reply(connection.stream, Resolved(request, place, str(destination)))

    def _failing(self, connection: Connection, request: int) -> Fail:
        return lambda error, reason: self._desk.reply(connection.stream, Failed(request, error, reason))

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
        if frame.action in OF_A_WHOLE and destination in SYSTEM:
            self._do_with_parts(connection, frame, destination, policy)
            return

        def on_there(place: int, _: Policy) -> None:
            def on_done(answer: link.Answered) -> None:
                if frame.action == "delete":  # its client may use the name again before the log has said so here
                    self._desk.directory.doubt(self._moving.current(place))
                self._desk.reply(connection.stream, Done(frame.request, answer.number))

            self._do(connection, frame, place, policy, self._desk.answer_to(connection, frame.request, on_done))

        self._naming.locate(connection, destination, on_there, self._failing(connection, frame.request))

    def _do_with_parts(self, connection: Connection, frame: Administer, whole: Destination, policy: Policy) -> None:
        """Does it on every channel; the answer has the sum of theirs, or why it was not done on some."""
        used, count = self._desk.used, 0
        waiting, refused = set(used), dict[int, tuple[str, str]]()

        def on_answer(channel: int, part: Destination, answer: link.Answered) -> None:
            nonlocal count
            waiting.discard(channel)
            count += answer.number
            if answer.error:
                refused[channel] = answer.error, f"{part}: {answer.reason}" if len(used) > 1 else answer.reason
            if waiting:
                return
            if refused:
                reason = "; ".join(reason for _, (_, reason) in sorted(refused.items()))
                others = f"; {count} of other channels went back" if count else ""  # nothing else is refused in part
                end(link.Answered(0, 0, refused[min(refused)][0], reason + others))
            else:
                end(link.Answered(0, count))

        def on_there(channel: int, part: Destination, place: int) -> None:
            self._do(connection, frame, place, policy, partial(on_answer, channel, part))

        def on_fail(channel: int, part: Destination, error: str, reason: str) -> None:
            on_answer(channel, part, link.Answered(0, 0, error, reason))

        end = self._desk.answer_to(
            connection,
            frame.request,
            lambda answer: self._desk.reply(connection.stream, Done(frame.request, answer.number)),
        )
        self._naming.ensure_parts(connection, whole, on_there, on_fail)

    def _unavailable(self, connection: Connection, request: int) -> None:
        if self._desk.is_there(connection):
            error = Unavailable("no primary serves this destination at the moment; try again")
            self._desk.fail(connection.stream, request, error)

    def _do(
        self,
        connection: Connection,
        frame: Administer,
        place: int,
        policy: Policy,
        answered: Answer,
        *,
        is_provided: bool = False,
    ) -> None:
        def make(number: int) -> commands.AnyCommand:
            match frame.action:
                case "delete":
                    return commands.DeleteDestination(number)
                case "policy":
                    return commands.SetPolicy(number, policy)
                case "purge":
                    return commands.Purge(number)
                case "release":
                    return commands.Release(number, frame.number)
                case _:
                    return commands.Redrive(number, [])

        def on_answer(answer: link.Answered) -> None:
            if answer.error == NoDeadLetterQueue.__name__ and not is_provided and self._desk.is_there(connection):
                channel, _ = parts_of(self._moving.current(place))
                self._naming.provide(
                    connection,
                    policy,
                    channel,
                    lambda changed: self._do(connection, frame, place, changed, answered, is_provided=True),
                    lambda error, reason: answered(link.Answered(0, 0, error, reason)),
                )
            else:
                answered(answer)

        is_wanted = partial(self._desk.is_there, connection)
        self._moving.request(place, make, on_answer, whose=connection.id, is_wanted=is_wanted)

    def on_deleted(self, place: int) -> None:
        """The log says that a destination is gone: its consumers end (CM-22), and who knew it looks for it anew."""
        listed = self._desk.directory.forget(place)
        for connection, known in self._flow.on_deleted(place):
            self._desk.reply(connection.stream, Vanished(known))
        if listed is None:
            return
        for consumer in [consumer for consumer in self._desk.consumers.values() if consumer.place == place]:
            owner = self._desk.connections.get(consumer.stream)
            if owner is not None:
                reason = f"{listed.destination} was deleted"
                self._consuming.close(owner, consumer, InvalidDestination.__name__, reason)

    def on_unsubscribe(self, connection: Connection, frame: Unsubscribe) -> None:
        """Ends a durable or shared subscription of this client; one to a pattern with all that it has to topics.

        Which topic it belongs to, and whether it is in use, is the primary's to know; every channel is asked in turn,
        until it knows of none. They are asked twice: a topic may have moved from one that had its turn later to one
        that had it before. One that is on its way is waited for.
        """
        self._find_subscription(connection, frame, 0, has_ended=False)

    def _find_subscription(
        self, connection: Connection, frame: Unsubscribe, start: int, *, has_ended: bool, is_again: bool = False
    ) -> None:
        desk = self._desk
        channel = next((number for number in desk.used if number >= start), -1)
        if channel < 0 and self._moving.is_possible and not is_again:
            self._find_subscription(connection, frame, 0, has_ended=has_ended, is_again=True)
            return
        if channel < 0 and has_ended:
            desk.reply(connection.stream, Done(frame.request))
            return
        if channel < 0:
            error = InvalidDestination(f"this client has no subscription named {frame.name!r}")
            desk.fail(connection.stream, frame.request, error)
            return

        def on_answer(answer: link.Answered) -> None:
            if not desk.is_there(connection):
                return
            if answer.error == InvalidDestination.__name__:
                self._find_subscription(connection, frame, channel + 1, has_ended=has_ended, is_again=is_again)
            elif answer.error == Moved.__name__:
                desk.later(lambda: self._find_subscription(connection, frame, 0, has_ended=has_ended))
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

        place = place_of(channel, destination)
        answered = self._desk.answer_to(connection, frame.request, on_done)
        is_wanted = partial(self._desk.is_there, connection)

        def make(number: int) -> commands.Unsubscribe:
            return commands.Unsubscribe(number, subscription)

        self._moving.request(place, make, answered, whose=connection.id, is_wanted=is_wanted)

    def on_browse(self, connection: Connection, frame: Browse) -> None:
        """Looks into a queue without consuming."""
        if not 0 <= parts_of(frame.place)[0] < len(self._desk.channels):
            raise PeerViolation(f"no destination has the place {frame.place}; resolve its name first")
        if error := overlong(frame):
            self._desk.fail(connection.stream, frame.request, error)
            return
        find = partial(self._finding.find, frame.place, partial(self._browse, connection, frame))
        self._moving.when(frame.place, find)

    def _browse(self, connection: Connection, frame: Browse, listed: Listed | None) -> None:
        desk = self._desk
        if not desk.is_there(connection):
            return
        if listed is None:
            desk.fail(connection.stream, frame.request, InvalidDestination("this destination is gone; resolve it anew"))
            return
        channel, destination = parts_of(listed.place)

        tell = desk.answer_to(
            connection, frame.request, lambda answer: desk.reply(connection.stream, Done(frame.request, answer.number))
        )

        def on_answer(answer: link.Answered) -> None:
            self._browsing.pop((channel, number), None)  # be it refused, or its client gone
            tell(answer)

        def on_lost() -> None:
            self._browsing.pop((channel, number), None)
            self._unavailable(connection, frame.request)

        number = desk.channels[channel].ask(on_answer, lost=on_lost)
        self._browsing[(channel, number)] = (connection, frame.request)
        look = link.Look(number, destination, frame.selector, frame.start, frame.maximum)
        if not desk.ask_primary(channel, look):
            desk.channels[channel].pending.pop(number)
            on_lost()

    def on_browsed(self, channel: int, frame: link.Looked) -> None:
        """Messages that a look found."""
        connection, _ = self._browsing.get((channel, frame.request), (None, 0))
        if connection is None or not self._desk.is_there(connection):
            return
        for delivered in looked(frame):
            self._desk.reply(connection.stream, delivered)


def other_policy(destination: Destination, found: Policy, wanted: Policy) -> Misuse:
    """Why a destination is not created that exists with another policy than is wanted."""
    pairs = [(name, getattr(found, name), getattr(wanted, name)) for name in Policy.__struct_fields__]
    differences = ", ".join(f"{name} is {there!r}, not {new!r}" for name, there, new in pairs if there != new)
    return Misuse(
        f"{destination} exists with another policy ({differences}); "
        "change that with destinations.policy, or create it without a policy to leave it as it is"
    )


def _at_home(policy: Policy, directory: Directory) -> Policy:
    """A policy whose dead letter queue is named as clients do, who leave it open on which channel that is."""
    if policy.dead_letter is None:
        return policy
    return msgspec.structs.replace(policy, dead_letter=directory.unpinned(policy.dead_letter))
