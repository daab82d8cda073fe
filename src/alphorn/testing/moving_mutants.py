"""Deliberate mistakes in what moves destinations between channels."""

from typing import Any

from alphorn.client_manager.consuming import Consuming
from alphorn.client_manager.draining import Draining
from alphorn.client_manager.moving import Moving
from alphorn.client_manager.wildcards import Wildcards
from alphorn.message_manager import departing, directory, landing, staging, travelling
from alphorn.message_manager.engine import Engine
from alphorn.message_manager.moves import Elsewhere, Lent
from alphorn.message_manager.producers import Producers
from alphorn.message_manager.queue import Queue
from alphorn.message_manager.state import State
from alphorn.message_manager.topic import Topic
from alphorn.message_manager.writers import Writer, Writers
from alphorn.model.commands import CreateDestination, PublishStaged
from alphorn.model.conversation import parts_of
from alphorn.model.destinations import Destination
from alphorn.model.moving_link import Inventoried
from alphorn.model.ranges import RangeSet
from alphorn.testing.mutation import Mutant, Patch


def _counters_left_behind() -> list[Patch]:
    def copy(producers: Producers, destination: Queue | Topic) -> Producers:
        return Producers()

    return [(departing, "_copy", copy)]


def _lent_forgotten() -> list[Patch]:
    original = Engine.export

    def export(self: Engine, number: int, lent: Lent) -> Any:
        return original(self, number, Lent({}, {}))

    return [(Engine, "export", export)]


def _refused_dropped() -> list[Patch]:
    original = Moving.__dict__["_go_on"]

    def go_on(self: Any, place: int) -> None:
        self._redirects[place].returned.clear()
        original(self, place)

    return [(Moving, "_go_on", go_on)]


def _held_left_behind() -> list[Patch]:
    original = Consuming.__dict__["_on_moved"]

    def on_moved(self: Any, consumers: list[Any], place: int) -> Any:
        for consumer in consumers:
            consumer.held = RangeSet()
        return original(self, consumers, place)

    return [(Consuming, "_on_moved", on_moved)]


def _refused_believed() -> list[Patch]:
    return [(Moving, "has_refused", lambda self, channel, sequence, command: False)]


def _patterns_not_asked() -> list[Patch]:
    def can_begin(self: Any, place: int) -> bool:
        return self._desk.directory.at(place) is not None and place not in self._cancelled

    return [(Moving, "_can_begin", can_begin)]


def _batches_left_behind() -> list[Patch]:
    def bring_nothing(state: State, there: State, source_number: int, number: int) -> None:
        """Writers begin anew with the destination."""

    return [(landing, "_bring_writers", bring_nothing)]


def _consumed_left_behind() -> list[Patch]:
    return [(Queue, "needed", lambda self: [self.backlog.pending])]


def _word_for_newcomers() -> list[Patch]:
    def has_published(self: Writer, batch: int, destination: int, came_at: int) -> bool:
        return batch <= max(self.into.get(destination, -1), self.published if came_at < self.published_at else -1)

    return [(Writer, "has_published", has_published)]


def _word_for_all() -> list[Patch]:
    def has_published(self: Writer, batch: int, destination: int, came_at: int) -> bool:
        return batch <= max(self.into.get(destination, -1), self.published)

    return [(Writer, "has_published", has_published)]


def _staged_forgotten() -> list[Patch]:
    def have_staged(self: Writers, destination: int) -> bool:
        return False

    return [(Writers, "have_staged", have_staged)]


def _left_overlooked() -> list[Patch]:
    def check_nothing(state: State, writer: Writer, command: PublishStaged) -> None:
        """Whatever has left, the channel's word holds for it."""

    return [(staging, "_check_left", check_nothing)]


def _record_lost() -> list[Patch]:
    original = directory._elsewhere

    def elsewhere(state: State, command: CreateDestination) -> Elsewhere | None:
        is_known = command.destination in state.moves.elsewhere
        found = original(state, command)
        if not is_known:
            state.moves.elsewhere.pop(command.destination, None)
        return found

    return [(directory, "_elsewhere", elsewhere)]


def _register_unaware() -> list[Patch]:
    def note(self: Any, name: Any, channel: int) -> None:
        name.drain.noted.add(name.destination)
        self._end(name)

    return [(Draining, "_note", note)]


def _coming_overlooked() -> list[Patch]:
    original = travelling.inventory

    def inventory(engine: Engine) -> list[Inventoried]:
        coming = {str(incoming.made.destination) for incoming in engine.moves.incoming.values()}
        return [each for each in original(engine) if each.name not in coming]

    return [(travelling, "inventory", inventory)]


def _dead_letters_left_behind() -> list[Patch]:
    def do_nothing(state: State, destination: Queue | Topic, channels: Any, effects: Any) -> None:
        """The policy stays as it was."""

    return [(landing, "settle_dead_letters", do_nothing), (departing, "follow_to_part", do_nothing)]


def _part_forgotten() -> list[Patch]:
    original = Wildcards.__dict__["_join"]

    def join(self: Any, watch: Any, place: int, destination: Destination, turn: Any) -> None:
        if watch.whole is None or parts_of(place)[0] == 0:
            original(self, watch, place, destination, turn)

    return [(Wildcards, "_join", join)]


MOVING_MUTANTS = tuple(
    Mutant(name=name, description=description, kind="channels", patch=patch)
    for name, description, patch in (
        ("counters-left-behind", "Producers' counters do not move along.", _counters_left_behind),
        ("lent-forgotten", "What consumers hold is given to others where the destination goes.", _lent_forgotten),
        ("refused-dropped", "What came too late for the old channel is not sent to the new one.", _refused_dropped),
        ("held-left-behind", "Consumers follow without what they hold.", _held_left_behind),
        ("refused-believed", "What is refused behind a move is taken for done.", _refused_believed),
        ("patterns-not-asked", "Consumers of patterns do not hear at once that a move begins.", _patterns_not_asked),
        (
            "batches-left-behind",
            "What writers have published does not move along.",
            _batches_left_behind,
        ),
        (
            "consumed-left-behind",
            "What a queue retains of consumed messages does not move along.",
            _consumed_left_behind,
        ),
        ("word-for-all", "What a channel has published counts for what came later.", _word_for_all),
        (
            "word-for-newcomers",
            "What a channel has published counts for what came meanwhile.",
            _word_for_newcomers,
        ),
        ("record-lost", "A channel that takes no new names does not note where it has sent one.", _record_lost),
        ("register-unaware", "Who will be asked for a name after a drain is not told where it is.", _register_unaware),
        ("coming-overlooked", "A drain overlooks what is still on its way to the channel.", _coming_overlooked),
        (
            "dead-letters-left-behind",
            "A policy names a dead letter queue of another channel.",
            _dead_letters_left_behind,
        ),
        ("part-forgotten", "Who receives dead messages gets those of the first channel.", _part_forgotten),
        ("left-overlooked", "A batch is told to be published where its destination has left.", _left_overlooked),
        ("staged-forgotten", "A destination leaves while messages are staged for it.", _staged_forgotten),
    )
)
