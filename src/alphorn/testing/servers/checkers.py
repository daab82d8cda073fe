"""What message servers promise. Each checker watches one promise, has a name, and raises `Violation` for a breach."""

import alphorn.message_server.process_machine as pm
from alphorn.model.events import Event
from alphorn.testing.servers.facts import NEVER, TURN_S, Facts, Occurrence, ProcessRun, Saying, ServerRun
from alphorn.testing.watch import Violation

KEEP_S = 55.0  # who heard of a server at least so often misses nothing: what it misses is kept for a minute
SETTLED_S = 10.0  # after which every server knows what a process wants
NOTHING_SENT = frozenset(("Misuse", "Unavailable", "Blocked"))  # errors that say so


class GivenOnceInOrder:
    """What is told is given as it was said, once, in order, and to nobody else."""

    name = "given once, in the sender's order, to whom it was told"

    def __init__(self, facts: Facts) -> None:
        self._last: dict[tuple[ProcessRun, ProcessRun, bool], Saying] = {}
        facts.watch.given.append(self._on_given)

    def _on_given(self, receiver: ProcessRun, saying: Saying, given: pm.Given) -> None:
        sender = saying.sender
        if given.body != saying.body or given.run != sender.run or given.sender != sender.name:
            self._object(receiver, saying, f"as something else: {given.sender}, {len(given.body)} bytes")
        if receiver is sender:
            self._object(receiver, saying, "who has said it")
        if not saying.is_for_all and saying.to != receiver.name:
            self._object(receiver, saying, "who was not meant")
        if receiver in saying.given:
            self._object(receiver, saying, "twice")
        if saying.given and not saying.is_for_all:
            self._object(receiver, saying, f"and to an earlier run, {next(iter(saying.given))}")
        last = self._last.get((sender, receiver, saying.is_for_all))
        if last is not None and last.place > saying.place:
            self._object(receiver, saying, f"behind {last}")
        if saying.error in NOTHING_SENT:
            self._object(receiver, saying, f"though its sender was told {saying.error}")
        self._last[sender, receiver, saying.is_for_all] = saying

    def _object(self, receiver: ProcessRun, saying: Saying, how: str) -> None:
        raise Violation(self.name, f"{saying} is given to {receiver}, {how}")


class AcknowledgedIsTaken:
    """An acknowledged message was taken by whom it was for; one for all is with both servers, or everybody took it."""

    name = "acknowledged is taken"

    def __init__(self, facts: Facts, *, is_narrow: bool = False) -> None:
        self._facts = facts
        self._is_narrow = is_narrow  # what is dropped, because it is too much, is counted and acknowledged
        facts.watch.answered.append(self._on_answered)

    def _on_answered(self, saying: Saying) -> None:
        if saying.error:
            return
        if not saying.is_for_all:
            if not saying.taken:
                raise Violation(self.name, f"{saying} is acknowledged, and nobody has taken it")
            return
        if len(saying.heard_by) > 1 or self._is_narrow:
            return
        if not saying.heard_by:
            raise Violation(self.name, f"{saying} is acknowledged, and no server has ever had it")
        for server in self._facts.servers.values():
            if server.name not in saying.heard_by:
                continue
            for connection, process in server.joined.items():
                if process is saying.sender or process in saying.taken or not process.is_alive:
                    continue
                if server.welcomed_at[connection] < saying.at:
                    raise Violation(
                        self.name, f"{saying} is acknowledged, is with {server} alone, and {process} has not taken it"
                    )


class NothingIsMissed:
    """Who is there, or away for less than a minute, gets what is for all; who is longer away learns how much not."""

    name = "nothing is missed that is not counted"

    def __init__(self, facts: Facts, *, is_narrow: bool = False) -> None:
        self._facts = facts
        self._is_narrow = is_narrow  # servers keep less than a minute of what is for all
        facts.watch.finished.append(self._judge)
        facts.watch.missed.append(self._on_missed)

    def _on_missed(self, receiver: ProcessRun, count: int) -> None:
        if receiver.silent_s >= KEEP_S or self._facts.has_lost or self._is_narrow:
            return
        if sum(receiver.missed) > sum(self._facts.may_count(receiver).values()):
            raise Violation(self.name, f"{receiver} is told that it missed {count}, and was never away for a minute")

    def _judge(self) -> None:
        for receiver in self._facts.processes:
            lacking, possible = self._find_lacking(receiver)
            counted = sum(receiver.missed)
            if len(lacking) > counted:
                raise Violation(
                    self.name,
                    f"{receiver} was not given {lacking[:5]}, {len(lacking)} in all, and was told of {counted} missed",
                )
            if counted > possible and not self._is_narrow:
                raise Violation(self.name, f"{receiver} was told of {counted} missed, and missed {possible} at most")

    def _find_lacking(self, receiver: ProcessRun) -> tuple[list[Saying | Occurrence], int]:
        """What it should have been given, and how many things there were that it was not given."""
        facts = self._facts
        lacking: list[Saying | Occurrence] = []
        may_count = facts.may_count(receiver)
        possible = facts.count_of_presence(receiver) + receiver.doubtful
        newest: dict[ProcessRun, int] = {}
        oldest: dict[ProcessRun, int] = {}
        for saying in facts.sayings:
            if saying.is_for_all and receiver in saying.given:
                newest[saying.sender] = saying.place
                oldest.setdefault(saying.sender, saying.place)
        for saying in facts.sayings:
            if not saying.is_for_all or saying.sender is receiver or receiver in saying.given:
                continue
            if saying.at <= receiver.ended_at and saying.has_left:
                possible += 1
            if saying.is_lost or saying.is_left_behind or not saying.has_left:
                continue
            is_between = oldest.get(saying.sender, saying.place) < saying.place < newest.get(saying.sender, 0)
            is_safe = saying.is_acknowledged and receiver.is_alive and receiver.joined_at < saying.at
            if is_between or is_safe:
                lacking.append(saying)
        for occurrence in facts.occurrences.values():
            possible += may_count.get(occurrence, 0)  # in each lane, of whatever kind
            if receiver in occurrence.given:
                possible += len(occurrence.reporters) > 1  # of two, parted servers may give one each
            if receiver in occurrence.given or receiver in occurrence.reporters:
                continue
            kind = occurrence.event.kind
            possible += receiver.may_get(kind) and len(occurrence.reporters) > may_count.get(occurrence, 0)
            if occurrence.is_lost or not occurrence.heard_by or not receiver.is_alive:
                continue
            if receiver.joined_at < occurrence.at and receiver.has_wanted(kind, occurrence.at - SETTLED_S):
                lacking.append(occurrence)
        return lacking, possible


class SynchronisedHasAll:
    """A server that was told that this was all has what the other one had when it said so.

    While the two are parted, a process that goes from one to the other leaves behind what was safe with that one alone.
    """

    name = "a synchronised server has what the other one had"

    def __init__(self, facts: Facts, *, is_narrow: bool = False) -> None:
        self._facts = facts
        if not is_narrow:
            facts.watch.synchronised.append(self._on_synchronised)

    def _on_synchronised(self, server: ServerRun, other: ServerRun) -> None:
        facts = self._facts
        things: list[Saying | Occurrence] = [saying for saying in facts.sayings if saying.is_for_all]
        things += list(facts.occurrences.values())
        for thing in things:
            since = thing.holders.get(other, NEVER)
            if server in thing.holders or not facts.now - KEEP_S < since < other.said_all_at - TURN_S:
                continue
            speakers = [thing.sender] if isinstance(thing, Saying) else thing.reporters
            if all(server.spoken.get(speaker, -1.0) < thing.at for speaker in speakers):
                raise Violation(self.name, f"{server} is told that this was all, and lacks {thing} of {other}")


class EventsAreToldOnce:
    """An event is told once by its name, as somebody has reported it, to who wants such events."""

    name = "events are told once, to who wants them"

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._told: set[tuple[ProcessRun, tuple[object, ...]]] = set()
        facts.watch.told.append(self._on_told)

    def _on_told(self, receiver: ProcessRun, event: Event) -> None:
        if (receiver, event.name) in self._told:
            raise Violation(self.name, f"{receiver} is told twice of {event}")
        self._told.add((receiver, event.name))
        if not receiver.may_get(event.kind):
            raise Violation(self.name, f"{receiver} is told of {event}, and has never wanted such events")
        occurrence = self._facts.occurrences.get(event.name)
        if event.channel and (occurrence is None or occurrence.event.details != event.details):
            raise Violation(self.name, f"{receiver} is told of {event}, and nobody has reported it so")


class AnswersAreTrue:
    """An error is told where the promise says one, and only there; in time."""

    name = "answers are true and come in time"
    LATE_S = 1.5
    GRACE_S = 1.0  # a process without any server waits for one so long

    def __init__(self, facts: Facts, *, nodes: frozenset[str], limit: int) -> None:
        self._facts = facts
        self._nodes = nodes
        self._limit = limit
        facts.watch.answered.append(self._on_answered)

    def _on_answered(self, saying: Saying) -> None:
        sender, now = saying.sender, saying.answered_at
        if saying.given and saying.error in NOTHING_SENT:
            self._object(saying, "though it was given")
        match saying.error:
            case "":
                pass
            case "Misuse":
                self._check_misuse(saying)
            case "Unavailable":
                if not sender.was_alone(saying.at - self.LATE_S, now):
                    self._object(saying, "and its sender always had a server")
            case "UnknownOutcome":
                if now < saying.at + saying.timeout_s - 1e-6 and not self._has_another_run(saying):
                    self._object(saying, f"{now - saying.at:.3f} s after it was said for {saying.timeout_s} s")
            case "Blocked":
                self._check_blocked(saying)
            case _:
                self._object(saying, "which nobody promised")
        if not saying.error and not saying.is_for_all and saying.to not in self._facts.names:
            self._object(saying, "and nobody has this name")
        self._check_time(saying)

    def _check_misuse(self, saying: Saying) -> None:
        if len(saying.body) > 1 << 20:
            return
        if saying.is_for_all or saying.to in self._nodes:
            self._object(saying, "which is a name of the cluster")
        for server in saying.sender.joined.values():
            if server.is_alive and server.known.get(saying.to, float("inf")) < saying.at - self.LATE_S:
                self._object(saying, f"and {server} has known this name")

    def _check_blocked(self, saying: Saying) -> None:
        waiting = [other for other in self._facts.sayings if other.sender is saying.sender and not other.taken]
        if len(waiting) < self._limit and sum(len(other.body) for other in waiting) < self._limit << 10:
            self._object(saying, f"with {len(waiting)} messages that wait")

    def _has_another_run(self, saying: Saying) -> bool:
        runs = [process for process in self._facts.processes if process.name == saying.to]
        return any(process.leaves_at < NEVER or not process.is_alive for process in runs) or len(runs) > 1

    def _check_time(self, saying: Saying) -> None:
        sender, now = saying.sender, saying.answered_at
        if any(last >= saying.at and first <= now for first, last in sender.stood):
            return
        if now > saying.at + saying.timeout_s + self.LATE_S:
            self._object(saying, f"{now - saying.at:.1f} s after it was said for {saying.timeout_s} s")
        from_then = saying.at - 2 * self.GRACE_S
        until = saying.at + self.GRACE_S + self.LATE_S
        if sender.was_alone_throughout(from_then, now) and (
            saying.error not in ("Unavailable", "Misuse", "Blocked") or now > until
        ):
            self._object(saying, f"after {now - saying.at:.1f} s, and there is no server")

    def _object(self, saying: Saying, why: str) -> None:
        raise Violation(self.name, f"{saying} is answered {saying.error or 'with success'}, {why}")


class NamesAreOwned:
    """Two runs never own one name at a time in the eyes of one server."""

    name = "a name is of one run"

    def __init__(self, facts: Facts) -> None:
        facts.watch.welcomed.append(self._on_welcomed)
        facts.watch.showed.append(self._on_showed)

    def _on_welcomed(self, server: ServerRun, connection: int) -> None:
        process = server.joined[connection]
        for other in server.joined.values():
            if other is not process and other.name == process.name:
                raise Violation(self.name, f"{server} welcomes {process}, and has {other}")

    def _on_showed(self, server: ServerRun, connection: int) -> None:
        names: dict[str, bytes] = {}
        for row in server.views.get(connection, {}).values():
            if names.setdefault(row.name, row.run) != row.run:
                raise Violation(self.name, f"{server} says that two runs of {row.name} are there")
