"""One process of one group: reads its member file, takes part, and stops in good order when told to.

    python -m alphorn.node.group member.toml --found      # the very first start of a configured member
    python -m alphorn.node.group member.toml              # every later one

SIGTERM and SIGINT stop it; a second one is not needed. With `--controlled` it speaks to the program that started it by
lines of JSON (io/control.py), and ends with that program. The exit code is 0 after a stop in good order, else 1.
"""

import argparse
import asyncio
import gc
import logging
import os
import resource
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import uvloop

from alphorn.bus.entries import Assignment, Member
from alphorn.io.control import (
    Describe,
    Described,
    Event,
    Primary,
    Started,
    StartLoad,
    StopLoad,
    Stopped,
    Synchronised,
    Usage,
    Word,
    decode_word,
    encode_line,
)
from alphorn.io.member_file import MemberFile, read_member_file
from alphorn.model.errors import Error, Misuse
from alphorn.model.ranges import RangeSet
from alphorn.node.bus import BusNode, BusSettings
from alphorn.node.load import Load
from alphorn.node.tally import Tally

SWITCH_S = 0.0001  # how long the event loop may keep the store's thread waiting for the interpreter
COLLECT_AFTER = 50_000  # allocations between two passes of the cycle collector: the bus makes no cycles per batch
STANDARD_INPUT, STANDARD_OUTPUT = 0, 1


class GroupMember:
    """The upper layer of a member that serves nobody: a tally, and a load where one is asked for.

    Every event goes to `say`; `tally_every` batches apart the tally itself does.
    """

    def __init__(self, file: MemberFile, *, founding: bool, tally_every: int = 0) -> None:
        self._file = file
        self._tally = Tally()
        self._tally_every = tally_every
        self._load: Load | None = None
        self._says = False
        self.node = BusNode(_settings(file, founding=founding), self)

    async def start(self, *, is_controlled: bool) -> None:
        """Takes part; raises what `BusNode.start` raises."""
        self._says = is_controlled
        await self.node.start()
        self._say(Started(address=self.node.address))

    async def stop(self) -> None:
        """Leaves in good order."""
        if self._load is not None:
            self._load.abandon()
        await self.node.stop()

    def hear(self, word: Word) -> None:
        """Does what the program that started this process asks."""
        match word:
            case Describe():
                self._say(self._described())
            case StartLoad():
                if self._load is not None:
                    self._load.abandon()
                self._load = Load(word, order=self.node.order, say=self._say)
            case StopLoad():
                if self._load is not None:
                    self._load.end()

    # The upper layer's side of the bus.

    def on_deliver(self, sequence: int, assignment: Assignment, payload: bytes | memoryview) -> None:
        """See `Upper`."""
        self._tally.add(sequence, payload, assignment.digest)
        if self._tally_every and self._tally.batches % self._tally_every == 0:
            self._say(self._tally.tallied())

    def on_ordered(self, handle: int, sequence: int) -> None:
        """See `Upper`."""
        if self._load is not None:
            self._load.on_ordered(handle)

    def on_refused(self, handle: int, reason: str, *, is_unknown: bool) -> None:
        """See `Upper`."""
        if self._load is not None:
            self._load.on_refused(handle, reason, is_unknown=is_unknown)

    def on_window(self, *, is_open: bool) -> None:
        """See `Upper`."""
        if self._load is not None:
            self._load.on_window(is_open=is_open)

    def on_member(self, sequence: int, event: str, member: Member) -> None:
        """See `Upper`."""

    def on_primary(self, sequence: int, epoch: int, number: int, *, is_self: bool, members: tuple[Member, ...]) -> None:
        """See `Upper`."""
        self._say(Primary(sequence=sequence, epoch=epoch, number=number, at=time.monotonic()))

    def on_synchronised(self, *, is_synchronised: bool) -> None:
        """See `Upper`."""
        self._say(Synchronised(is_synchronised))

    def give_checkpoint(self, sequence: int) -> Iterable[bytes]:
        """See `Upper`."""
        return self._tally.save()

    def retained(self, sequence: int) -> RangeSet:
        """See `Upper`: the tally needs no batch again."""
        return RangeSet()

    def install_checkpoint(self, sequence: int, chunks: Iterator[bytes]) -> None:
        """See `Upper`."""
        self._tally.load(chunks)

    def on_stop(self, reason: str) -> None:
        """See `Upper`."""
        if self._load is not None:
            self._load.abandon()
        self._say(Stopped(reason))

    def _say(self, event: Event) -> None:
        if self._says:
            try:
                write_whole(STANDARD_OUTPUT, encode_line(event))
            except BrokenPipeError:  # the program has ended; the end of standard input says so too
                self._says = False

    def _described(self) -> Described:
        node = self.node.describe()
        return Described(
            tally=self._tally.tallied(),
            delivered_bytes=self._tally.payload_bytes,
            repeats=self._tally.repeats,
            seen=self._tally.seen(),
            usage=_usage(node),
            node=node,
        )


def write_whole(descriptor: int, data: bytes) -> None:
    """Writes all of it, waiting for the reader where it must."""
    while data:
        data = data[os.write(descriptor, data) :]


def _usage(node: dict[str, object]) -> Usage:
    used, store = resource.getrusage(resource.RUSAGE_SELF), node["store"]
    assert isinstance(store, dict)
    return Usage(
        at=time.monotonic(),
        user_s=used.ru_utime,
        system_s=used.ru_stime,
        sync_cpu_s=store.get("sync_cpu_s", 0.0),
        sync_wall_s=store.get("sync_wall_s", 0.0),
        syncs=store.get("syncs", 0),
    )


def _settings(file: MemberFile, *, founding: bool) -> BusSettings:
    me = file.me()
    is_configured = me.number > 0
    if founding and not is_configured:
        raise Misuse(f"member {file.name} is a client and founds nothing; start it without --found")
    return BusSettings(
        config=file.config(),
        me=me,
        store=Path(file.directory) if is_configured else None,
        founding=founding,
        interface=file.interface,
        data_address=file.data_address,
        control_address=file.control_address,
        ttl=file.ttl,
        reads=not is_configured or "data" in roles_of(file),
        history=file.history or is_configured,
        is_tracing=file.trace,
        cluster_key=Path(file.cluster_key) if file.cluster_key else None,
        capture=Path(file.capture) if file.capture else None,
        timing=file.timing,
        budget=file.budget,
    )


def roles_of(file: MemberFile) -> tuple[str, ...]:
    """The roles the group's table gives this member."""
    return next((member.roles for member in file.group.members if member.name == file.name), ())


class _Words(asyncio.Protocol):
    """Cuts standard input into words."""

    def __init__(self, member: GroupMember, stop: asyncio.Event) -> None:
        self._member = member
        self._stop = stop
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._member.hear(decode_word(line))

    def eof_received(self) -> None:
        self._stop.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop.set()


async def run_member(file: MemberFile, *, founding: bool, is_controlled: bool, tally_every: int) -> int:
    """Runs until told to stop, or until the member falls silent by itself; returns the exit code."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    member = GroupMember(file, founding=founding, tally_every=tally_every)
    await member.start(is_controlled=is_controlled)
    member.node.stopped.add_done_callback(lambda _: stop.set())
    if is_controlled:
        await loop.connect_read_pipe(lambda: _Words(member, stop), os.fdopen(STANDARD_INPUT, "rb", buffering=0))
    gc.collect()
    gc.freeze()
    await stop.wait()
    has_failed = member.node.stopped.done()
    await member.stop()
    return int(has_failed)


def main(arguments: list[str] | None = None) -> int:
    """The process."""
    parser = argparse.ArgumentParser(prog="alphorn.node.group", description="Runs one member of one group.")
    parser.add_argument("file", type=Path, help="member file, TOML or JSON")
    parser.add_argument("--found", action="store_true", help="the very first start of a configured member")
    parser.add_argument("--controlled", action="store_true", help="speak JSON lines on standard input and output")
    parser.add_argument("--tally-every", type=int, default=0, help="say the tally after so many batches")
    options = parser.parse_args(arguments)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s %(message)s", level=logging.INFO)
    sys.setswitchinterval(SWITCH_S)
    gc.set_threshold(COLLECT_AFTER)
    try:
        if not __debug__:
            raise Misuse("Python runs with -O, which strips the assertions alphorn relies on; start it without -O")
        file = read_member_file(options.file)
        if file.trace:
            logging.getLogger().setLevel(logging.DEBUG)
        work = run_member(
            file,
            founding=options.found,
            is_controlled=options.controlled,
            tally_every=options.tally_every,
        )
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(work)
    except (Error, msgspec.DecodeError) as error:
        print(f"alphorn: {' '.join(str(error).split())}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
