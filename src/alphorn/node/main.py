"""A process of a cluster: reads the cluster file, runs the nodes it was named, and stops in good order when told to.

    python -m alphorn.node.main --config cluster.toml --name mm1 --found     # the very first start
    python -m alphorn.node.main --config cluster.toml --name mm1             # every later one

Several nodes may share the process (`--name mm1 --name mm2`). SIGTERM and SIGINT stop it. With `--controlled` it speaks
to the program that started it by lines of JSON (io/control.py), and ends with that program. The exit code is 0 after a
stop in good order; else it is 1, with one sentence on standard error.
"""

import argparse
import asyncio
import contextlib
import gc
import importlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

import msgspec
import uvloop

from alphorn.io.cluster_file import ClusterFile, NodeTable, read_cluster_file
from alphorn.io.control import NodeDescribed, NodeDieAt, NodeEvent, NodeFailed, NodeStarted, NodeWord, encode_line
from alphorn.io.disk import refusal_of
from alphorn.io.log_task import CURRENT_NODE, LogFile, LogHandler, LogTask, Place, standard_error
from alphorn.io.node_directory import NodeDirectory
from alphorn.io.process import raise_file_limit
from alphorn.io.tasks import Tasks
from alphorn.model.errors import Error, Misuse, Unavailable
from alphorn.node.client_half import ClientHalf
from alphorn.node.group import COLLECT_AFTER, STANDARD_INPUT, STANDARD_OUTPUT, SWITCH_S, write_whole

KINDS = {  # imported when a process runs one
    "message_manager": "alphorn.node.message_manager:MessageManagerNode",
    "client_manager": "alphorn.node.client_manager:ClientManagerNode",
    "witness": "alphorn.node.witness:WitnessNode",
    "message_server": "alphorn.node.message_server:MessageServerNode",
}
STOP_ORDER = (
    "client_manager",
    "message_manager",
    "witness",
    "message_server",
)  # so that nothing clients ordered is left unanswered

RENEW_S = 1.0  # after which a message server that could not go on begins anew

_log = logging.getLogger("alphorn.node.main")  # also when it is the main module
_decode_word: Callable[[bytes], NodeWord] = msgspec.json.Decoder(NodeWord).decode


class Node(Protocol):
    """A node of any kind."""

    stopped: asyncio.Future[str]  # once started; gets the reason when the node falls silent by itself

    async def start(self) -> None:
        """Takes part; raises an `Error` with a sentence."""

    async def stop(self) -> None:
        """Leaves in good order."""

    def publish_log(self, lines: list[str]) -> None:
        """Puts its log lines onto the `_LOG` topic."""

    def meet(self, half: ClientHalf) -> None:
        """It has an internal connection from now on."""

    def describe(self) -> dict[str, object]:
        """The one printable state."""

    def die_at(self, step: str, count: int) -> None:
        """For tests: kills the process at this step (io/crash_points.py)."""


class MakeNode(Protocol):
    """How a node is made."""

    def __call__(self, file: ClusterFile, name: str, *, founding: bool, beside: Sequence[Node] = ()) -> Node:
        """A node of the cluster that has not started; those beside it in its process have."""


def find_kind(kind: str) -> MakeNode:
    """The class that runs nodes of this kind."""
    module, _, name = KINDS[kind].partition(":")
    return cast(MakeNode, getattr(importlib.import_module(module), name))


class NodeRunner:
    """The nodes of this process with their directories and logs."""

    def __init__(self, file: ClusterFile, names: Sequence[str], *, find: Callable[[str], MakeNode] = find_kind) -> None:
        self._file = file
        self._find = find
        named = [table.name for name in names for table in file.beside(name)]
        self.tables = [file.node(name) for name in dict.fromkeys(named)]
        self.directories = {table.name: NodeDirectory(Path(file.directory), table.name) for table in self.tables}
        self.logs: dict[str, LogTask] = {}
        self._files: list[LogFile] = []
        self._handler: LogHandler | None = None
        self._tasks = Tasks()
        self._is_stopping = False
        self._running: dict[str, Node] = {}
        self._halves: dict[str, ClientHalf] = {}  # none where the cluster has no message server
        self.failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def start(self, *, found: bool) -> None:
        """Starts every node in turn; raises an `Error`, and leaves it to `stop` to end those that run already."""
        for directory in self.directories.values():
            directory.take()
        self._open_logs()
        for table in self.tables:
            with _speaking_as(table.name):
                await self._start_node(table, found=found)

    async def stop(self) -> None:
        """Stops the nodes, closes the logs, and lets others have the directories."""
        self._is_stopping = True
        await self._tasks.close()
        for table in sorted(self.tables, key=lambda table: STOP_ORDER.index(table.kind)):
            with _speaking_as(table.name):
                if table.name in self._halves:
                    await self._halves[table.name].close()
                if table.name in self._running:
                    await self._running[table.name].stop()
                    _log.info("event=node_stopped")
        self._running.clear()
        self._halves.clear()
        if self._handler is not None:
            logging.getLogger().removeHandler(self._handler)
        are_written = [log.close() for log in self.logs.values()]
        if all(are_written):
            for file in self._files:
                file.close()
        for directory in self.directories.values():
            directory.release()

    def describe(self) -> dict[str, object]:
        """The printable state of every node, by its name."""
        state: dict[str, object] = {name: node.describe() for name, node in self._running.items()}
        halves = {name: half.describe() for name, half in self._halves.items()}
        logs = {name: log.describe() for name, log in self.logs.items()}
        return {**state, "internal_connections": halves, "logs": logs}

    def die_at(self, step: str, count: int) -> None:
        """Arms every node."""
        for node in self._running.values():
            node.die_at(step, count)

    def _open_logs(self) -> None:
        for name, directory in self.directories.items():
            places: list[Place] = []
            if "file" in self._file.log:
                self._files.append(LogFile(directory.log))
                places.append(self._files[-1])
            if "standard_error" in self._file.log:
                places.append(standard_error)
            self.logs[name] = LogTask(name, places)
        self._handler = LogHandler(list(self.logs.values()))
        logging.getLogger().addHandler(self._handler)

    async def _start_node(self, table: NodeTable, *, found: bool) -> None:
        directory = self.directories[table.name]
        founding = self._decide_founding(table, found=found)
        beside = [self._running[other.name] for other in self._file.beside(table.name) if other.name in self._running]
        node = self._find(table.kind)(self._file, table.name, founding=founding, beside=beside)
        try:
            await node.start()
            self._running[table.name] = node
            if founding:
                directory.mark_founded()
        except OSError as error:
            raise refusal_of("node", directory.folder, error) or Unavailable(
                f"node {table.name} cannot start: {error}; see to that, then start it again"
            ) from error
        self.logs[table.name].publish = self._publisher(node)
        node.stopped.add_done_callback(lambda done: self._on_stopped(table.name, done))
        if self._file.message_servers:
            half = ClientHalf(self._file, table)
            await half.start()
            self._halves[table.name] = half
            node.meet(half)
        _log.info("event=node_started kind=%s pid=%d founding=%s", table.kind, os.getpid(), founding)

    @staticmethod
    def _publisher(node: Node) -> Place:
        """Hands log lines over to the node's event loop, where they go onto the `_LOG` topic."""
        loop = asyncio.get_running_loop()

        def publish(lines: list[bytes]) -> None:
            loop.call_soon_threadsafe(node.publish_log, [line.rstrip(b"\n").decode() for line in lines])

        return publish

    def _decide_founding(self, table: NodeTable, *, found: bool) -> bool:
        directory = self.directories[table.name]
        votes = table.kind == "message_manager" or bool(table.witness)
        if found and votes and directory.is_founded and directory.was_blank:
            _log.warning("event=disk_lost text=%s", "founded before and blank now: rejoins as one that lost its disk")
        is_founding = found and votes and not directory.is_founded
        if is_founding:
            self._file.check_new()
        return is_founding

    async def _renew(self, table: NodeTable) -> None:
        """A message server begins anew, knowing nothing; those whose process it shares go on meanwhile."""
        await self._running.pop(table.name).stop()
        while True:
            await asyncio.sleep(RENEW_S)
            node = self._find(table.kind)(self._file, table.name, founding=False)
            try:
                await node.start()
                break
            except (Error, OSError) as error:
                _log.error("event=node_failed reason=%s", error)
        self._running[table.name] = node
        node.stopped.add_done_callback(lambda done: self._on_stopped(table.name, done))
        _log.info("event=node_started kind=%s pid=%d founding=%s", table.kind, os.getpid(), False)

    def _on_stopped(self, name: str, done: "asyncio.Future[str]") -> None:
        is_guest = self._file.node(name).kind == "message_server" and len(self.tables) > 1
        if is_guest and not (done.cancelled() or self._is_stopping):
            _log.error("event=node_failed node=%s reason=%s", name, done.result())
            with _speaking_as(name):
                self._tasks.start(self._renew(self._file.node(name)), name=f"begin {name} anew")
        elif not done.cancelled() and not self.failed.done():
            self.failed.set_result(f"node {name} cannot go on: {done.result()}; see {self.directories[name].log}")


@contextlib.contextmanager
def _speaking_as(name: str) -> Iterator[None]:
    """What is logged here, and by tasks and callbacks that begin here, is this node's."""
    token = CURRENT_NODE.set(name)
    try:
        yield
    finally:
        CURRENT_NODE.reset(token)


class _Words(asyncio.Protocol):
    """Cuts standard input into words."""

    def __init__(self, runner: NodeRunner, stop: asyncio.Event) -> None:
        self._runner = runner
        self._stop = stop
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            word = _decode_word(line)
            if isinstance(word, NodeDieAt):
                self._runner.die_at(word.step, word.count)
            else:
                _say(NodeDescribed(self._runner.describe()))

    def eof_received(self) -> None:
        self._stop.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop.set()


async def run_nodes(
    file: ClusterFile,
    names: Sequence[str],
    *,
    found: bool,
    is_controlled: bool = False,
    find: Callable[[str], MakeNode] = find_kind,
    on_started: Callable[[], Coroutine[Any, Any, None]] | None = None,
) -> None:
    """Runs these nodes until told to stop; raises `Unavailable` when one falls silent by itself.

    `on_started` is awaited once all of them run, unless told to stop before.
    """
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    runner = NodeRunner(file, names, find=find)
    runner.failed.add_done_callback(lambda _: stop.set())
    if is_controlled:
        await loop.connect_read_pipe(lambda: _Words(runner, stop), os.fdopen(STANDARD_INPUT, "rb", buffering=0))
    try:
        if await _unless(stop, runner.start(found=found)):
            if is_controlled:
                _say(NodeStarted(tuple(table.name for table in runner.tables)))
            gc.collect()
            gc.freeze()
            if on_started is not None:
                await _unless(stop, on_started())
            await stop.wait()
        if runner.failed.done():
            raise Unavailable(runner.failed.result())
    except Error as error:
        if runner.logs:
            _log.error("event=process_failed reason=%s", error)
        raise
    finally:
        await runner.stop()


async def _unless(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Awaits the work, unless told to stop before it is done: then it is cancelled, and False returned."""
    told, done = asyncio.ensure_future(stop.wait()), asyncio.ensure_future(work)
    try:
        await asyncio.wait((told, done), return_when=asyncio.FIRST_COMPLETED)
        if done.done():
            done.result()
            return True
        return False
    finally:
        told.cancel()
        done.cancel()
        await asyncio.wait((told, done))


def _say(event: NodeEvent) -> None:
    with contextlib.suppress(BrokenPipeError):  # the program has ended; the end of standard input says so too
        write_whole(STANDARD_OUTPUT, encode_line(event))


def run_process(
    file: ClusterFile,
    names: Sequence[str],
    *,
    found: bool,
    is_controlled: bool = False,
    find: Callable[[str], MakeNode] = find_kind,
    on_started: Callable[[], Coroutine[Any, Any, None]] | None = None,
) -> None:
    """`run_nodes` with the settings of a process of its own."""
    logging.getLogger().setLevel(logging.INFO)
    raise_file_limit()
    sys.setswitchinterval(SWITCH_S)
    gc.set_threshold(COLLECT_AFTER)
    work = run_nodes(file, names, found=found, is_controlled=is_controlled, find=find, on_started=on_started)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work)


def main(arguments: list[str] | None = None, *, find: Callable[[str], MakeNode] = find_kind) -> int:
    """The process."""
    parser = argparse.ArgumentParser(prog="alphorn.node.main", description="Runs nodes of a cluster.")
    parser.add_argument("--config", type=Path, required=True, help="cluster file, TOML or JSON")
    parser.add_argument("--name", action="append", required=True, help="node to run; may be given again")
    parser.add_argument("--found", action="store_true", help="heeded at the very first start of a node")
    parser.add_argument("--controlled", action="store_true", help="speak JSON lines on standard input and output")
    options = parser.parse_args(arguments)
    try:
        if not __debug__:
            raise Misuse("Python runs with -O, which strips the assertions alphorn relies on; start it without -O")
        file = read_cluster_file(options.config)
        run_process(file, options.name, found=options.found, is_controlled=options.controlled, find=find)
    except Error as error:
        sentence = " ".join(str(error).split())
        if options.controlled:
            _say(NodeFailed(sentence))
        print(f"alphorn: {sentence}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
