"""What clients say that read and write the log itself: where channels are, staged batches, how far a reader has come.

Frames and tags are those of the native door (model/conversation.py).
"""

from typing import Annotated

import msgspec

from alphorn.model.frame_kinds import ITEMS_MAX, ClientFrame, ServerFrame


class Channels(ClientFrame, frozen=True, array_like=True, gc=False, tag=60):
    """Asks which channels there are and who serves them. Answered by `ChannelsAnswer`."""

    request: int


class Stage(ClientFrame, frozen=True, array_like=True, gc=False, tag=61):
    """A batch that nobody sees before `PublishStaged`. Answered by `Done` once it is committed, or `Failed`.

    `Done` has the number of the writer's newest published batch where that is later than this one, which changes
    nothing then. `Failed` with `Postponed` says that the channel has no room now: the same is sent again later.
    """

    request: int
    place: int
    producer: bytes  # a key of the client's choice
    counter: int
    count: int
    flags: int
    timestamp: int
    blob: memoryview
    writer: str
    batch: int
    partition: int
    attempt: int
    part: int


class PublishStaged(ClientFrame, frozen=True, array_like=True, gc=False, tag=62):
    """Makes visible what was staged on one channel for a writer's batch. Answered by `Done` or `Failed`."""

    request: int
    channel: int
    writer: str
    batch: int
    # Partition, attempt, parts, messages.
    attempts: Annotated[list[tuple[int, int, int, int]], msgspec.Meta(max_length=ITEMS_MAX)]
    destinations: list[int] = []  # for which these have something, by their numbers within the channel


class DropStaged(ClientFrame, frozen=True, array_like=True, gc=False, tag=63):
    """Lets go of what was staged on one channel for a writer's batch. Answered by `Done` or `Failed`."""

    request: int
    channel: int
    writer: str
    batch: int


class NoteReader(ClientFrame, frozen=True, array_like=True, gc=False, tag=64):
    """Says how far a named reader of the log has come on one channel. Answered by `Done` or `Failed`."""

    request: int
    channel: int
    name: str
    destinations: list[int]  # numbers within the channel
    sequence: int  # it comes to this one next


class ChannelKnown(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A channel as a Client Manager knows it."""

    name: str
    heard: int  # the newest entry of its log that this Client Manager has; all it confirmed is among these
    servers: list[tuple[str, str]]  # names and link addresses of its Message Managers


class ChannelsAnswer(ServerFrame, frozen=True, array_like=True, gc=False, tag=160):
    """All channels, in the order of their numbers."""

    request: int
    channels: list[ChannelKnown]
