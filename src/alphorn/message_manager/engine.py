"""The engine: applies the entries of a channel's log, one after the other, and says what each brought about.

Every replica has one. The same entries give the same state, the same effects and the same checkpoint, on every
replica and in every run: nothing here asks a clock, and what a command cannot have is answered, never raised. An entry
that cannot be right changes nothing, because it stands in the log for all replicas alike.

    effects = engine.apply(sequence, decode_entry(payload))

A queue's messages are ready for consumers as `engine.destinations[number].backlog.candidates()`, and where they are in
the log as `.segments.runs(first, last)`.
"""

from collections.abc import Callable, Iterable, Iterator
from heapq import nsmallest
from typing import Any

from alphorn.message_manager import checkpoint, restoring
from alphorn.message_manager.burial import redrive
from alphorn.message_manager.departing import move
from alphorn.message_manager.directory import create_destination, delete_destination, purge, set_policy
from alphorn.message_manager.effects import Answer, Effect
from alphorn.message_manager.landing import arrive, carried, expect, settle_landing
from alphorn.message_manager.moves import Lent, Moves
from alphorn.message_manager.needed import Needed
from alphorn.message_manager.publishing import publish
from alphorn.message_manager.queue import Queue
from alphorn.message_manager.readers import Readers, note_reader
from alphorn.message_manager.releasing import release
from alphorn.message_manager.retiring import retire
from alphorn.message_manager.section import PIECE_BYTES
from alphorn.message_manager.settling import acknowledge, give_back
from alphorn.message_manager.signets import keep_signet
from alphorn.message_manager.snapshot import Snapshot
from alphorn.message_manager.staging import drop_staged, publish_staged, stage
from alphorn.message_manager.state import State
from alphorn.message_manager.streaming import PLACES_MAX, abandon, fragment
from alphorn.message_manager.subscribing import find_named, forget, subscribe, unsubscribe
from alphorn.message_manager.ticking import Expired, expiring, tick
from alphorn.message_manager.topic import Subscription, Topic
from alphorn.message_manager.transacting import Members, commit_at_once, decide, finish, prepare, settle
from alphorn.message_manager.transaction_state import Record
from alphorn.model.commands import (
    NOBODY,
    Abandon,
    Acknowledge,
    Arrive,
    Carried,
    Command,
    CreateDestination,
    DeleteDestination,
    DropStaged,
    Entry,
    Expect,
    Forget,
    Fragment,
    KeepSignet,
    Move,
    NoteReader,
    Publish,
    PublishStaged,
    Purge,
    Redrive,
    Release,
    Retire,
    Return,
    SetPolicy,
    Settle,
    Stage,
    Subscribe,
    Tick,
    TransactionCommit,
    TransactionDecide,
    TransactionFinish,
    TransactionPrepare,
    TransactionSettle,
    Unsubscribe,
    after_group,
)
from alphorn.model.destinations import Destination
from alphorn.model.errors import Error
from alphorn.model.patterns import belongs_to
from alphorn.model.ranges import RangeSet

DESCRIBED_MAX = 100  # destinations, for people

# Each raises an error of the model before it has changed anything, or changes what it says.
_APPLY: dict[type[Command], Callable[[State, Any, int, list[Effect]], None]] = {
    Publish: publish,
    Acknowledge: acknowledge,
    Return: give_back,
    CreateDestination: create_destination,
    DeleteDestination: delete_destination,
    SetPolicy: set_policy,
    Subscribe: subscribe,
    Unsubscribe: unsubscribe,
    Forget: forget,
    Retire: retire,
    KeepSignet: keep_signet,
    Tick: tick,
    Redrive: redrive,
    Release: release,
    Purge: purge,
    Fragment: fragment,
    Abandon: abandon,
    Stage: stage,
    PublishStaged: publish_staged,
    DropStaged: drop_staged,
    NoteReader: note_reader,
    TransactionDecide: decide,
    TransactionFinish: finish,
    TransactionSettle: settle,
    Move: move,
    Expect: expect,
    Carried: carried,
    Arrive: arrive,
    Settle: settle_landing,
}
# These say what becomes of the commands after them.
_APPLY_GROUP: dict[type[Command], Callable[[State, Any, Members, int, list[Effect]], None]] = {
    TransactionCommit: commit_at_once,
    TransactionPrepare: prepare,
}


class Engine:
    """The state of a channel and its only way to change."""

    __slots__ = ("_state",)

    def __init__(self) -> None:
        self._state = State()

    @property
    def sequence(self) -> int:
        """The number of the last entry that was applied."""
        return self._state.sequence

    @property
    def now_ms(self) -> int:
        """The time of the last Tick."""
        return self._state.now_ms

    @property
    def signet(self) -> bytes:
        """The cluster's, where this is the first channel; nothing before a Client Manager has offered one."""
        return self._state.signet

    @property
    def destinations(self) -> dict[int, Queue | Topic]:
        """All destinations by number; to look at, not to change."""
        return self._state.directory

    def was_made(self, number: int) -> bool:
        """Whether a destination has or had this number; where it is not there any more, it has moved or was deleted."""
        return 0 < number < self._state.next_number

    @property
    def numbers(self) -> dict[Destination, int]:
        """The numbers of all destinations; to look at, not to change."""
        return self._state.numbers

    @property
    def audited(self) -> set[int]:
        """The numbers of audited destinations; to look at, not to change."""
        return self._state.audited

    @property
    def readers(self) -> Readers:
        """Who reads the log under a name; to look at, not to change."""
        return self._state.readers

    def read_with(self, read: Callable[[int], Entry | None]) -> "Engine":
        """Says where entries that were applied are read again; every replica has those that `retained` names."""
        self._state.read = read
        return self

    @property
    def moves(self) -> Moves:
        """Destinations that leave, have left, or come; to look at, not to change."""
        return self._state.moves

    def apply(self, sequence: int, entry: Entry) -> list[Effect]:
        """Applies the next entry of the log; what it brought about comes in order, answers last for each command."""
        state = self._state
        assert sequence > state.sequence, "entries are applied once, in order"
        state.sequence = sequence
        effects: list[Effect] = []
        after = 0  # commands before this place are done
        for place, command in enumerate(entry.commands):
            if place < after:
                continue
            apply = _APPLY.get(type(command))
            try:
                if apply is not None:
                    apply(state, command, place, effects)
                else:
                    after = after_group(entry, place)
                    members = entry.commands[place + 1 : after]
                    _APPLY_GROUP[type(command)](state, command, members, place, effects)
            except Error as error:
                effects.append(Answer(place, error=type(error).__name__, reason=str(error)))
        return effects

    def next_due(self) -> int | None:
        """When a Tick would do something, in ms since 1970; None while nothing waits for its time."""
        return self._state.next_due()

    def expiring(self, now_ms: int) -> Expired:
        """What a Tick of this time would find expired, by destination, whoever has it."""
        return expiring(self._state, now_ms)

    def connections(self) -> set[bytes]:
        """All connections that own anything here: producers' counters, volatile subscriptions, temporaries."""
        state = self._state
        found = set(state.producers.plain) | set(state.owned) | state.transactions.connections()
        for _, producers in state.tables():
            found |= set(producers.plain)
        return found - {NOBODY}

    @property
    def unresolved(self) -> dict[bytes, Record]:
        """The transactions by session that were prepared or decided here and have not ended everywhere."""
        return self._state.transactions.unresolved

    def find_subscription(self, client: str, name: str) -> tuple[int, int] | None:
        """The topic and the number of the subscription with this name: the durable one, else the shared one.

        Where there is neither, one that a subscription of this name to a pattern has.
        """
        names = self._state.names
        exact = names.get((True, client, name)) or names.get((False, client, name))
        if exact is not None:
            return exact
        return next(
            (place for (_, of, known), place in names.items() if of == client and belongs_to(known, name)), None
        )

    def find_taken_along(self, client: str, name: str) -> Destination | None:
        """The topic that has left and takes a subscription of this name along, or one of a pattern's; None if none."""
        for leaving in self._state.moves.leaving.values():
            taken = leaving.source.subscriptions.values() if isinstance(leaving.source, Topic) else ()
            named = (each for each in taken if each.client == client and (each.is_durable or each.is_shared))
            if leaving.source is not None and any(each.name == name or belongs_to(each.name, name) for each in named):
                return leaving.source.destination
        return None

    def find_claimed(self, command: Subscribe) -> tuple[int, Subscription, bool] | None:
        """Topic and subscription that this would use, and whether as it is; None for a new one. Raises an `Error`."""
        return find_named(self._state, command)

    def occupied(self, number: int) -> int:
        """Messages that count against the limit of a destination, which must be here."""
        return self._state.occupied(self._state.directory[number])

    def retained(self) -> RangeSet:
        """The numbers of the log entries that hold messages still needed, and fragments of their bodies."""
        needed = Needed(self._state)
        for destination in self._state.directory.values():
            if len(destination.segments):
                destination.sweep()
                needed.add(destination)
        for _ in needed.steps():
            pass
        return needed.entries

    def locate_fragments(self, producer: bytes, counter: int, index: int) -> list[int]:
        """Log entry and command (flat pairs) of the next pieces of a message's body; none where there is no such."""
        body = self._state.streams.sealed.get((producer, counter))
        return body.pieces.places(index, PLACES_MAX) if body is not None and index >= 0 else []

    def export(self, number: int, lent: Lent) -> Iterator[bytes]:
        """All that is known of a destination that has begun to leave, but its messages; for `Arrive`."""
        return checkpoint.write_leaving(self._state, number, lent)

    def checkpoint(self) -> Iterator[bytes]:
        """The state as bytes, in pieces; nothing may be applied before the last one is taken."""
        return Snapshot(self._state, is_guarded=False)

    def snapshot(self, *, piece_bytes: int = PIECE_BYTES) -> Snapshot:
        """The state as it is now, to be taken in pieces while entries are applied on; one is open at a time."""
        return Snapshot(self._state, is_guarded=True, piece_bytes=piece_bytes)

    @classmethod
    def restore(cls, chunks: Iterable[bytes]) -> "Engine":
        """The engine that `checkpoint` described, however its bytes were cut; raises `Corruption`."""
        made = cls()
        made._state = restoring.read(chunks)
        return made

    def describe(self) -> dict[str, object]:
        """The printable state; of many destinations only the first."""
        state = self._state
        return {
            "sequence": state.sequence,
            "now_ms": state.now_ms,
            "next_due": state.next_due(),
            "producers": sum(len(producers) for producers in state.producers.plain.values()),
            "writers": len(self._state.writers),
            "readers": len(self._state.readers),
            "connections": len(self.connections()),
            "transactions": len(state.transactions.unresolved),
            "streams": state.streams.describe(),
            "destinations": [
                state.directory[number].describe() for number in nsmallest(DESCRIBED_MAX, state.directory)
            ],
            "destinations_in_all": len(state.directory),
        }
