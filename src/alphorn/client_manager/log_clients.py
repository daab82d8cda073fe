"""Clients that read the log in bulk or publish in stages: where the log is served, what is staged, who has read what.

Bulk itself does not pass here: readers go to Message Managers, whose addresses they learn here (decision 24).
"""

from collections.abc import Callable
from typing import Any

from alphorn.client_manager.connection import Connection
from alphorn.client_manager.desk import Desk
from alphorn.client_manager.flow import FlowControl
from alphorn.model import commands
from alphorn.model.conversation import Done, parts_of
from alphorn.model.errors import PeerViolation, Postponed
from alphorn.model.link import Answered
from alphorn.model.log_conversation import (
    ChannelKnown,
    Channels,
    ChannelsAnswer,
    DropStaged,
    NoteReader,
    PublishStaged,
    Stage,
)
from alphorn.model.messages import BATCH_MESSAGES_MAX, check_plain, count_of, headers_of

# What tests may watch: a client asks to publish what it staged, and it is in the log, which nobody has told the client.
PUBLISH_ASKED, PUBLISH_ANSWERED = "publish-asked", "publish-answered"

_KEY_BYTES = len(commands.key_of(bytes(commands.CONNECTION_BYTES), 0))


class LogClients:
    """Their requests. Each ends as a command in the log, answered by the primary; again, it changes nothing."""

    __slots__ = ("_desk", "_flow")

    def __init__(self, desk: Desk, flow: FlowControl) -> None:
        self._desk = desk
        self._flow = flow

    def handlers(self) -> dict[type, Callable[[Connection, Any], None]]:
        """What is done with each kind of frame."""
        return {
            Channels: self.on_channels,
            Stage: self.on_stage,
            PublishStaged: self.on_publish_staged,
            DropStaged: self.on_drop_staged,
            NoteReader: self.on_note_reader,
        }

    def on_channels(self, connection: Connection, frame: Channels) -> None:
        """Says who serves the log."""
        desk = self._desk
        known = [
            ChannelKnown(name, channel.heard, list(servers))
            for (name, servers), channel in zip(desk.settings.servers, desk.channels, strict=False)
        ]
        desk.reply(connection.stream, ChannelsAnswer(frame.request, known))

    def on_stage(self, connection: Connection, frame: Stage) -> None:
        """One staged batch, checked at the door like any other, and postponed while its channel takes nothing.

        A destination that is full does not matter before it is published.
        """
        self._check_batch(frame)
        channel, number = parts_of(frame.place)
        self._check_channel(channel)
        if reason := self._flow.channel_reason(channel):
            self._desk.fail(connection.stream, frame.request, Postponed(reason))
            return
        command = commands.Stage(
            number,
            frame.producer,
            frame.counter,
            frame.count,
            frame.flags,
            frame.timestamp,
            self._desk.dated(connection, channel, frame.flags, frame.blob),
            writer=frame.writer,
            batch=frame.batch,
            partition=frame.partition,
            attempt=frame.attempt,
            part=frame.part,
            staged_bytes_max=self._desk.settings.staged_bytes_max,
        )
        self._request(connection, frame.request, channel, command, size=len(frame.blob))

    def on_publish_staged(self, connection: Connection, frame: PublishStaged) -> None:
        """Makes what was staged on a channel visible."""
        if any(not 0 <= parts <= commands.STAGED_PARTS_MAX for _, _, parts, _ in frame.attempts):
            raise PeerViolation(f"what a writer stages has at most {commands.STAGED_PARTS_MAX} parts")
        if len(frame.destinations) > commands.STAGED_PARTS_MAX:
            raise PeerViolation(f"what a writer stages has at most {commands.STAGED_PARTS_MAX} destinations")
        if len({partition for partition, *_ in frame.attempts}) != len(frame.attempts):
            raise PeerViolation("a batch names a partition twice")
        command = commands.PublishStaged(frame.writer, frame.batch, frame.attempts, frame.destinations)
        self._desk.reach(PUBLISH_ASKED)
        self._request(connection, frame.request, frame.channel, command, step=PUBLISH_ANSWERED)

    def on_drop_staged(self, connection: Connection, frame: DropStaged) -> None:
        """Lets go of what was staged on a channel."""
        self._request(connection, frame.request, frame.channel, commands.DropStaged(frame.writer, frame.batch))

    def on_note_reader(self, connection: Connection, frame: NoteReader) -> None:
        """Notes how far a reader has come on a channel."""
        command = commands.NoteReader(frame.name, frame.destinations, frame.sequence)
        self._request(connection, frame.request, frame.channel, command)

    def _request(
        self,
        connection: Connection,
        request: int,
        channel: int,
        command: commands.AnyCommand,
        *,
        size: int = 0,
        step: str = "",
    ) -> None:
        desk = self._desk
        self._check_channel(channel)

        def on_done(answer: Answered) -> None:
            desk.reach(step)
            desk.reply(connection.stream, Done(request, answer.number))

        answer = desk.answer_to(connection, request, on_done)
        desk.channels[channel].request(command, answer, size=size, whose=connection.id)

    def _check_channel(self, channel: int) -> None:
        channels = self._desk.channels
        if not 0 <= channel < len(channels) or channels[channel].is_removed:
            raise PeerViolation(f"there is no channel {channel}; ask for the channels first")

    def _check_batch(self, frame: Stage) -> None:
        """Raises `PeerViolation` for what no correct library sends."""
        size = len(frame.blob)
        if len(frame.writer) > commands.WRITER_NAME_MAX:
            raise PeerViolation(f"the name of a writer has at most {commands.WRITER_NAME_MAX} characters")
        if len(frame.producer) != _KEY_BYTES or not 0 < frame.counter < commands.COUNTER_MAX:
            raise PeerViolation("a staged batch names an impossible producer or counter")
        if size > self._desk.settings.batch_bytes_max:
            raise PeerViolation(
                f"a batch of {size} bytes is too large; at most {self._desk.settings.batch_bytes_max} go at once"
            )
        if not 0 < frame.count <= BATCH_MESSAGES_MAX or count_of(frame.blob) != frame.count:
            raise PeerViolation(f"a batch says it has {frame.count} messages, and that is not so")
        if frame.flags:  # servers will look into it, and must not find surprises there
            headers_of(frame.blob)
            return
        check_plain(frame.blob)
