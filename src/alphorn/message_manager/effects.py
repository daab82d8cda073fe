"""What applying a command brought about. Replicas get the same effects; only the primary acts on them."""

import msgspec

from alphorn.message_manager.segments import Run
from alphorn.model.audit import AuditStage
from alphorn.model.destinations import Destination, Policy


class Effect(msgspec.Struct, frozen=True, gc=False):
    """Something that the dispatcher or a waiting Client Manager must hear of."""


class Arrived(Effect, frozen=True, gc=False):
    """Messages may be given out that could not be before: new, returned, due, or moved here."""

    destination: int
    subscription: int  # 0 for a queue
    first: int  # position
    last: int
    consumer: bytes = b""  # who had them, where they come back


class Deferred(Effect, frozen=True, gc=False):
    """Messages came back and wait for their time: nobody holds them, and `Arrived` follows when they are due."""

    destination: int
    subscription: int
    positions: list[int]  # flat pairs
    consumer: bytes = b""  # who had them


class Gone(Effect, frozen=True, gc=False):
    """Messages are not to be given out any more: acknowledged, expired, dead, replaced, purged."""

    destination: int
    subscription: int
    positions: list[int]  # flat pairs


class Lapsed(Effect, frozen=True, gc=False):
    """The time of messages is over while consumers have them: they die when they come back."""

    destination: int
    subscription: int
    positions: list[int]  # flat pairs


class Finished(Effect, frozen=True, gc=False):
    """A prepared transaction is over with a destination that has a limit, and may have room now; none for others."""

    destination: int


class Noted(Effect, frozen=True, gc=False):
    """Something became of messages of an audited destination; there is none for others."""

    destination: int
    subscription: int
    stage: AuditStage
    positions: list[int]  # flat pairs
    consumer: bytes = b""  # who had them
    detail: str = ""


class NotedStored(Effect, frozen=True, gc=False):
    """New messages are in an audited destination; there is none for others."""

    destination: int
    run: Run
    producer: bytes
    counter: int  # of the first one
    flags: int
    is_here: bool  # whether they lie in the entry that was applied


class Created(Effect, frozen=True, gc=False):
    """A destination exists now, or its policy changed."""

    number: int
    destination: Destination
    policy: Policy
    is_new: bool = False  # it was on no channel before
    is_temporary: bool = False


class Deleted(Effect, frozen=True, gc=False):
    """A destination is gone."""

    number: int
    destination: Destination
    is_temporary: bool = False


class Subscribed(Effect, frozen=True, gc=False):
    """A subscription exists now."""

    destination: int
    subscription: int


class Unsubscribed(Effect, frozen=True, gc=False):
    """A subscription is gone."""

    destination: int
    subscription: int


class Planned(Effect, frozen=True, gc=False):
    """A destination is to go to another channel."""

    number: int


class Left(Effect, frozen=True, gc=False):
    """A destination goes to another channel: nothing of it is given out here any more."""

    number: int


class Settled(Effect, frozen=True, gc=False):
    """All consumers of a destination that has come from another channel have followed."""

    number: int


class Landed(Effect, frozen=True, gc=False):
    """A destination has come from another channel; its consumers follow."""

    number: int


class Answer(Effect, frozen=True, gc=False):
    """The outcome of the command at this place of the entry, where it is not plain success without a value."""

    command: int
    # Of the destination or subscription that was asked for; the first counter that is postponed; a writer's newest
    # batch, where it stages an older one.
    number: int = 0
    error: str = ""  # class of model.errors; empty is success
    reason: str = ""  # the sentence for people
    position: int = 0  # how far a destination on its way was carried
