"""Events of the cluster: what happened, told once however many nodes noticed it.

An event is named by the channel and the log number at which it happened, or by the node and the run it happened to.
So whoever notices the same thing names it alike, and message servers and receivers tell it once. Clocks name nothing:
`time` is there for people.
"""

from collections.abc import Iterable
from typing import Annotated

import msgspec
from msgspec import Meta

from alphorn.model.errors import Misuse

KIND_CHARACTERS_MAX = 64
DETAILS_MAX = 16
TEXT_CHARACTERS_MAX = 1024
TIME_MAX = 1e11  # that every calendar knows
PRESENCE = ("node_up", "node_down", "node_suspected")  # which message servers tell, and nobody else
MISSED = "missed"  # what a subscriber is told in place of events that nobody has kept for it
EVERYTHING = "*"  # subscribes to every kind

Text = Annotated[str, Meta(max_length=TEXT_CHARACTERS_MAX)]


class Event(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """Something that happened in the cluster."""

    kind: Annotated[str, Meta(min_length=1, max_length=KIND_CHARACTERS_MAX)]
    node: Text  # whom it happened to, or who noticed it first where it happened to none
    channel: Text = ""  # whose log it is in; empty where it is in none
    epoch: int = 0  # of the channel
    time: Annotated[float, Meta(ge=0, le=TIME_MAX)] = 0.0  # Unix time at who noticed it first; for people
    number: int = 0  # of the channel's log, or counted by the node where there is no channel
    run: Annotated[bytes, Meta(max_length=32)] = b""  # of the node; empty for what is in a log
    details: Annotated[dict[Text, int | float | Text], Meta(max_length=DETAILS_MAX)] = {}

    @property
    def name(self) -> tuple[object, ...]:
        """What tells it from all others, the same wherever it is noticed."""
        if self.run:
            return (self.kind, self.node, self.run, self.number)
        return (self.kind, self.channel, self.epoch, self.number, self.details.get("destination", ""))

    def as_dict(self) -> dict[str, object]:
        """For programs: plain values, the details beside the rest."""
        plain: dict[str, object] = {
            "kind": self.kind,
            "node": self.node,
            "channel": self.channel,
            "epoch": self.epoch,
            "time": self.time,
            "number": self.number,
        }
        return {
            **{name if name not in plain else f"detail_{name}": value for name, value in self.details.items()},
            **plain,
        }


class Kinds:
    """The kinds of events that there are. A part of the cluster that has events of its own registers them."""

    __slots__ = ("_kinds",)

    def __init__(self, kinds: Iterable[tuple[str, str]] = ()) -> None:
        self._kinds = dict(kinds)

    def register(self, kind: str, meaning: str) -> None:
        """One more kind, with a sentence on what it means; raises `Misuse` for one that means something else."""
        if not kind.isidentifier() or len(kind) > KIND_CHARACTERS_MAX or kind == MISSED:
            raise Misuse(f"an event cannot be of kind {kind!r}; take a short name of letters, digits and _")
        if self._kinds.setdefault(kind, meaning) != meaning:
            raise Misuse(f"events of kind {kind} exist already: {self._kinds[kind]}; take another name")

    def check(self, kind: str) -> None:
        """Raises `Misuse` for a kind that nobody has registered."""
        if kind not in self._kinds and kind not in (MISSED, EVERYTHING):
            raise Misuse(f"there are no events of kind {kind!r}; there are {', '.join(sorted(self._kinds))}")

    def __contains__(self, kind: str) -> bool:
        return kind in self._kinds

    def meanings(self) -> dict[str, str]:
        """Every kind with what it means."""
        return dict(self._kinds)


KINDS = Kinds(
    (
        ("node_up", "a work process has joined the cluster"),
        ("node_down", "a work process has left, or has been away for too long"),
        ("node_suspected", "a work process has been silent for a while, and may be down"),
        ("primary_changed", "a channel has another primary"),
        ("channel_lost", "a channel has no primary any more, and no other has come"),
        ("backup_synchronised", "a backup has all of its channel's log and follows it"),
        ("backup_lagging", "a backup no longer follows its channel's log closely"),
        ("destination_created", "a queue or topic was created"),
        ("destination_deleted", "a queue or topic was deleted"),
        ("destination_moved", "a queue or topic has moved to another channel"),
        ("disk_low", "a Message Manager's disk has no room for messages"),
        ("disk_ok", "a Message Manager's disk has room for messages again"),
    )
)
