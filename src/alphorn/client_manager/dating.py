"""Clocks of clients, and the time of each channel's log: what a client dates by its own clock is dated by that time.

Neither is compared with this node's clock: both are known by how far they are from the time of turns, which never
jumps. So how long a message lives does not depend on whose clock is right.
"""

import msgspec

MATTERS_MS = 1000  # differences that are less come from the way between nodes
_EXPIRATION, _DELIVER_AT = 3, 4  # places in a packed message
_LATEST_MS = 1 << 53  # nothing is dated later, whatever clocks say

_decode = msgspec.msgpack.Decoder(list[list[msgspec.Raw]]).decode
_decode_time = msgspec.msgpack.Decoder(int).decode
_encode = msgspec.msgpack.Encoder().encode


class Dating:
    """How far the logs' times are from the time of turns, by channel, as primaries said it."""

    __slots__ = ("_offsets",)

    def __init__(self) -> None:
        self._offsets: dict[int, int] = {}

    def learn(self, channel: int, time_ms: int, now: float) -> None:
        """The time of a channel's log is this now."""
        self._offsets[channel] = offset_of(time_ms, now)

    def meet(self, channel: int, time_ms: int, now: float) -> None:
        """There is a primary that says this, and has been told what is known here: that holds unless it says more."""
        if known := self.time_ms(channel, now):
            time_ms = known
        if time_ms:
            self.learn(channel, time_ms, now)

    def time_ms(self, channel: int, now: float) -> int:
        """The time of a channel's log, or of another's where that is not known: channels keep one time. 0 for none."""
        offset = self._offset(channel)
        return 0 if offset is None else offset + int(now * 1000)

    def shift_ms(self, channel: int, client: int | None) -> int:
        """What is to be added to times by a client's clock (`offset_of`, None for one that keeps the log's time)."""
        offset = self._offset(channel)
        if offset is None or client is None or abs(offset - client) < MATTERS_MS:
            return 0
        return offset - client

    def _offset(self, channel: int) -> int | None:
        if channel in self._offsets or not self._offsets:
            return self._offsets.get(channel)
        return self._offsets[min(self._offsets)]


def offset_of(time_ms: int, now: float) -> int:
    """How far a clock is from the time of turns."""
    return time_ms - int(now * 1000)


def shifted(blob: bytes | memoryview, shift_ms: int) -> bytes:
    """A batch that is readable (model/messages.py), with its messages' times moved."""
    messages = _decode(blob)
    for fields in messages:
        for place in (_EXPIRATION, _DELIVER_AT):
            if place < len(fields) and 0 < (time_ms := _decode_time(fields[place])) < _LATEST_MS:
                fields[place] = msgspec.Raw(_encode(min(max(1, time_ms + shift_ms), _LATEST_MS)))
    return _encode(messages)
