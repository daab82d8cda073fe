"""Deliberate mistakes in the rooms above the log: engine, dispatcher, Client Manager."""

from typing import Any

from alphorn.bus.group_state import GroupState
from alphorn.bus.sender import Sender
from alphorn.client.outbox import Outbox
from alphorn.client_manager.channel import Channel
from alphorn.client_manager.connection import Connection, Consumer
from alphorn.client_manager.consuming import Consuming
from alphorn.client_manager.loose import Loose
from alphorn.client_manager.publishing import Publishing
from alphorn.client_manager.wildcards import Wildcards
from alphorn.message_manager import checkpoint, core, engine, publishing
from alphorn.message_manager.absent import Absent
from alphorn.message_manager.backlog import Backlog
from alphorn.message_manager.clock import Clock
from alphorn.message_manager.core import MessageManager
from alphorn.message_manager.effects import Deferred, Effect
from alphorn.message_manager.engine import Engine
from alphorn.message_manager.fullness import Fullness
from alphorn.message_manager.grace import Grace
from alphorn.message_manager.outlet import Outlet
from alphorn.message_manager.publishing import publish
from alphorn.message_manager.queue import Queue
from alphorn.message_manager.section import Section
from alphorn.message_manager.segments import Segments
from alphorn.message_manager.settling import give_back
from alphorn.message_manager.snapshot import Snapshot
from alphorn.message_manager.staging import publish_staged
from alphorn.message_manager.state import State
from alphorn.message_manager.streams import Pieces, Streams
from alphorn.message_manager.supply import Supply
from alphorn.model import commands
from alphorn.model.commands import Entry, Publish, PublishStaged, Return
from alphorn.model.conversation import Acknowledge, Confirmed, Done
from alphorn.model.conversation import Publish as PublishFrame
from alphorn.model.messages import BATCH_MESSAGES_MAX
from alphorn.model.ranges import Range, RangeSet
from alphorn.testing.mutation import Mutant, Patch


def _counter_not_checked() -> list[Patch]:
    def publish_always(state: State, command: Publish, place: int, effects: list[Effect]) -> None:
        producer = state.producers.find(command.producer) or state.producers.add(command.producer)
        producer.next, producer.awaited = command.counter, 0
        publish(state, command, place, effects)

    return [(engine, "_APPLY", {**engine.__dict__["_APPLY"], Publish: publish_always})]


def _counters_not_kept() -> list[Patch]:
    return [(checkpoint, "records_of_connection", lambda producers, table=0: iter(()))]


def _held_not_claimed() -> list[Patch]:
    return [(Consumer, "claims", lambda self: [])]


def _return_not_counted() -> list[Patch]:
    def give_back(self: Backlog, first: int, last: int, *, is_counted: bool = True) -> list[Range]:
        return self.pending.intersection(first, last)

    return [(Backlog, "give_back", give_back)]


def _confirmed_early() -> list[Patch]:
    original = Publishing.on_publish

    def on_publish(self: Any, connection: Connection, frame: PublishFrame) -> None:
        original(self, connection, frame)
        self._desk.reply(connection.stream, Confirmed(frame.producer, frame.counter + frame.count - 1))

    return [(Publishing, "on_publish", on_publish)]


def _acknowledged_early() -> list[Patch]:
    original = Consuming.on_acknowledge

    def on_acknowledge(self: Any, connection: Connection, frame: Acknowledge) -> None:
        self._desk.reply(connection.stream, Done(frame.request))
        original(self, connection, frame)

    return [(Consuming, "on_acknowledge", on_acknowledge)]


def _no_grace() -> list[Patch]:
    return [(Grace, "is_over", property(lambda self: True))]


def _nothing_retained() -> list[Patch]:
    return [(Engine, "retained", lambda self: RangeSet()), (Snapshot, "needed", lambda self: RangeSet())]


def _consumed_swept() -> list[Patch]:
    return [(Queue, "sweep", lambda self: self.segments.sweep([self.backlog.kept]))]


def _changed_unwritten() -> list[Patch]:
    return [(Section, "keep", lambda self, key: None)]


def _loose_not_told() -> list[Patch]:
    return [(Loose, "of", lambda self, channel: [])]


def _absent_kept() -> list[Patch]:
    original = Absent.overdue_consumers

    def overdue_consumers(self: Absent, now: float) -> list[bytes]:
        original(self, now)
        return []

    return [(Absent, "overdue_consumers", overdue_consumers)]


def _requests_not_repeated() -> list[Patch]:
    return [(Channel, "repeat_requests", lambda self: None)]


def _fragments_not_retained() -> list[Patch]:
    return [(Streams, "entries", lambda self: iter(()))]


def _fragments_not_kept() -> list[Patch]:
    return [(checkpoint, "_records_of_streams", lambda streams: iter(()))]


def _fragments_swept_early() -> list[Patch]:
    return [(Segments, "among", lambda self, places: set())]


def _pieces_run_on() -> list[Patch]:
    original = Pieces.append

    def append(self: Pieces, sequence: int, command: int, size: int) -> None:
        follows = self.places(self.count - 1, 1) if self.count else []
        original(self, follows[0] + 1 if follows else sequence, command, size)

    return [(Pieces, "append", append)]


def _late_not_joined() -> list[Patch]:
    return [(Wildcards, "_match", lambda self, channel, place, destination, turn: None)]


def _limit_not_kept() -> list[Patch]:
    return [(publishing, "room_of", lambda state, destination, consumed=None: BATCH_MESSAGES_MAX)]


def _release_not_told() -> list[Patch]:
    original = Fullness.take_changes

    def take_changes(self: Fullness) -> list[tuple[int, str]]:
        return [(number, reason) for number, reason in original(self) if reason]

    return [(Fullness, "take_changes", take_changes)]


def _postponed_not_sent_again() -> list[Patch]:
    def send_again(self: Outbox) -> list[bytes]:
        self._postponed.clear()
        return []

    return [(Outbox, "_send_again", send_again)]


def _batch_not_remembered() -> list[Patch]:
    def publish_and_forget(state: State, command: PublishStaged, place: int, effects: list[Effect]) -> None:
        publish_staged(state, command, place, effects)
        state.writers.use(command.writer).published = -1

    return [(engine, "_APPLY", {**engine.__dict__["_APPLY"], PublishStaged: publish_and_forget})]


def _guest_not_answered() -> list[Patch]:
    original = MessageManager._answer

    def answer(self: Any, origin: bytes, entry: Entry, effects: list[Effect], now: float) -> None:
        if origin == self._origin:
            self._orders.on_applied(entry.requests)
        else:
            original(self, origin, entry, effects, now)

    return [(MessageManager, "_answer", answer)]


def _earlier_primary_heard() -> list[Patch]:
    def decode_all(payload: bytes | memoryview, epoch: int) -> Entry:
        return commands.decode_entry(payload)

    return [(core, "decode_heeded", decode_all), (commands, "decode_heeded", decode_all)]


def _delayed_overtaken() -> list[Patch]:
    return [(Supply, "delay", lambda self, first, last: self.withdraw(first, last))]


def _recovering_overtakes() -> list[Patch]:
    def again_of(self: Outlet, owner: Any) -> RangeSet | None:
        return owner.again if owner.is_attached else None

    return [(Outlet, "_again_of", again_of)]


def _time_not_followed() -> list[Patch]:
    return [
        (Clock, "follow", lambda self, said_ms, now, *, is_alone: None),
        (Clock, "hear", lambda self, told_ms, now: False),
    ]


def _waiting_not_told() -> list[Patch]:
    def give_back_ready(state: State, command: Return, place: int, effects: list[Effect]) -> None:
        give_back(state, command, place, effects)
        if command.is_unseen or not command.delay_ms:
            effects[:] = [effect for effect in effects if not isinstance(effect, Deferred)]

    return [(engine, "_APPLY", {**engine.__dict__["_APPLY"], Return: give_back_ready})]


def _held_still_parked() -> list[Patch]:
    attach, withdraw, attaching = Outlet.attach, Supply.withdraw_parked, list[Outlet]()

    def attach_only(self: Outlet, consumer: Any, selector: Any, held: RangeSet) -> None:
        attaching.append(self)
        attach(self, consumer, selector, held)
        attaching.pop()

    def withdraw_later(self: Supply, first: int, last: int, holders: Any) -> None:
        if not attaching:
            withdraw(self, first, last, holders)

    return [(Outlet, "attach", attach_only), (Supply, "withdraw_parked", withdraw_later)]


def _given_up_goes_on() -> list[Patch]:
    def depart(self: GroupState, origin: bytes) -> None:
        if origin not in self._departed:
            self._departed.append(origin)

    return [(GroupState, "_depart", depart)]


def _forsaken_ordered() -> list[Patch]:
    return [(Channel, "_take_waiting", lambda self: [])]


def _waiting_goes_on() -> list[Patch]:
    return [(Sender, "drop", lambda self, reason: None)]


MESSAGE_MUTANTS = tuple(
    Mutant(name=name, description=description, kind="cluster", patch=patch)
    for name, description, patch in (
        ("counter-not-checked", "A message that is sent again is stored again.", _counter_not_checked),
        ("counters-not-kept", "Checkpoints do not say what producers have sent.", _counters_not_kept),
        ("held-not-claimed", "Consumers attach again without what they hold.", _held_not_claimed),
        ("return-not-counted", "What comes back is given out as if for the first time.", _return_not_counted),
        ("confirmed-early", "A message is confirmed before it is committed.", _confirmed_early),
        ("acknowledged-early", "An acknowledgement is answered before it is committed.", _acknowledged_early),
        ("no-grace", "A new primary gives messages out before it knows who holds them.", _no_grace),
        ("nothing-retained", "Entries with messages are dropped when the log is collected.", _nothing_retained),
        ("consumed-swept", "A queue that retains lets go of what is consumed.", _consumed_swept),
        ("changed-unwritten", "What a checkpoint has not written yet changes before it has.", _changed_unwritten),
        ("loose-not-told", "A new primary does not hear what consumers had that are gone.", _loose_not_told),
        ("absent-kept", "What lost clients hold never comes back.", _absent_kept),
        ("fragments-not-retained", "Entries with fragments are dropped with the log.", _fragments_not_retained),
        ("fragments-not-kept", "Checkpoints do not say where fragments are.", _fragments_not_kept),
        ("fragments-swept-early", "A body is let go before its message is consumed.", _fragments_swept_early),
        ("pieces-run-on", "Fragments are taken to follow each other in the log.", _pieces_run_on),
        ("late-not-joined", "A consumer of a pattern does not hear of destinations that come later.", _late_not_joined),
        ("requests-not-repeated", "What a lost primary was asked is not asked again.", _requests_not_repeated),
        ("limit-not-kept", "A full destination that blocks takes what comes.", _limit_not_kept),
        ("release-not-told", "Producers do not hear that a destination has room again.", _release_not_told),
        ("batch-not-remembered", "A staged batch that is published again is seen again.", _batch_not_remembered),
        ("guest-not-answered", "A primary takes its guest's requests for its own.", _guest_not_answered),
        ("held-still-parked", "What a late consumer holds waits for another too.", _held_still_parked),
        ("delayed-overtaken", "What came back to wait is overtaken in its group.", _delayed_overtaken),
        (
            "recovering-overtakes",
            "A consumer that recovers is given what is to follow what waits.",
            _recovering_overtakes,
        ),
        ("waiting-not-told", "Who gives back what waits already has it still.", _waiting_not_told),
        ("time-not-followed", "Time stands still until the own clock is where the log is.", _time_not_followed),
        ("earlier-primary-heard", "What an earlier primary wanted is done in a later epoch.", _earlier_primary_heard),
        ("given-up-goes-on", "A member that was given up goes on with what it had sent.", _given_up_goes_on),
        ("forsaken-ordered", "What waited for clients that are elsewhere is ordered.", _forsaken_ordered),
        ("waiting-goes-on", "A member that stood still sends what it had in hand.", _waiting_goes_on),
        ("not-sent-again", "Producers do not send again what was postponed.", _postponed_not_sent_again),
    )
)
