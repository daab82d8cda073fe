"""Streams within a process."""

import asyncio
from collections.abc import Callable
from typing import Any

from alphorn.io.local_streams import connect
from alphorn.io.streams import LENGTH_BYTES, FrameStream


def frame(body: bytes) -> bytes:
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


class End:
    """Makes one end, and keeps what it hears."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    def make(self, make: Callable[..., FrameStream] = FrameStream) -> FrameStream:
        self.stream = make(
            on_frames=self.on_frames,
            on_closed=lambda stream, reason: self.log.append(f"{self.name} closed: {reason}"),
            on_open=lambda stream: self.log.append(f"{self.name} open"),
            frame_bytes_max=100,
        )
        return self.stream

    def on_frames(self, stream: FrameStream, frames: list[memoryview]) -> None:
        assert stream is self.stream
        self.log.append(f"{self.name} hears {[bytes(each).decode() for each in frames]}")


def run(test: Callable[[End, End, list[str]], Any]) -> list[str]:
    log: list[str] = []

    async def joined() -> None:
        called, calling = End("mm", log), End("cm", log)
        connect(called.make, calling.make)
        test(called, calling, log)
        await asyncio.sleep(0)

    asyncio.run(joined())
    return log


def test_both_ends_are_open_and_the_one_that_is_called_hears_of_it_first() -> None:
    assert run(lambda called, calling, log: None) == ["mm open", "cm open"]


def test_what_is_flushed_is_heard_at_once_frame_by_frame_and_what_is_only_queued_is_not() -> None:
    def test(called: End, calling: End, log: list[str]) -> None:
        calling.stream.send(frame(b"one"))
        calling.stream.send(frame(b"t"), b"")
        assert log[2:] == []
        calling.stream.flush()
        calling.stream.flush()
        called.stream.send(frame(b"back")[:5], frame(b"back")[5:])
        called.stream.flush()
        assert log[2:] == ["mm hears ['one', 't']", "cm hears ['back']"]
        assert called.stream.unsent_bytes == 0

    run(test)


def test_either_end_closes_both_after_what_was_queued_and_nothing_is_heard_afterwards() -> None:
    def test(called: End, calling: End, log: list[str]) -> None:
        called.stream.send(frame(b"last"))
        called.stream.close("it stops")
        calling.stream.send(frame(b"late"))
        calling.stream.flush()
        calling.stream.abort("again")

    assert run(test)[2:] == ["cm hears ['last']", "mm closed: it stops", "cm closed: it stops"]


def test_a_stream_that_is_broken_off_says_nothing_more() -> None:
    def test(called: End, calling: End, log: list[str]) -> None:
        called.stream.send(frame(b"never"))
        called.stream.abort("a violation")
        called.stream.flush()

    assert run(test)[2:] == ["mm closed: a violation", "cm closed: a violation"]
