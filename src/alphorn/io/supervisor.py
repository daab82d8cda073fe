"""Runs the nodes of a cluster as processes of their own, and starts again what dies.

Every process is a child of this one and is signalled by its own pid only. When this process ends, however it ends, the
nodes see the end of their input and stop in good order, so that none outlives it. Ctrl-C on the terminal reaches only
this process, which stops its nodes in turn: Client Managers first, so that nothing clients ordered is left unanswered.
"""

import asyncio
import contextlib
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from alphorn.io.cluster_file import ClusterFile, NodeTable
from alphorn.io.control import (
    NodeDescribe,
    NodeDescribed,
    NodeDieAt,
    NodeEvent,
    NodeFailed,
    NodeStarted,
    NodeWord,
    encode_line,
)
from alphorn.io.disk import refusal_of, tells_no_space
from alphorn.io.node_directory import NodeDirectory
from alphorn.io.restarts import RestartPolicy
from alphorn.io.tasks import Tasks
from alphorn.model.errors import Misuse, Unavailable

NO_SPACE_S = 5.0  # between two starts of a node whose disk is full
STOP_S = 20.0  # after which a node that was told to stop is killed
EARLIER_S = 15.0  # how long the nodes of an earlier run may take to end
ANSWER_S = 5.0
LINE_BYTES_MAX = 16 << 20
LAST_BYTES = 4096  # of a node's standard error that are looked at

_decode_event = msgspec.json.Decoder(NodeEvent).decode

Say = Callable[[str], None]


def node_command(path: Path, name: str) -> list[str]:
    """The command line of a node's process. Founding is asked for each time; only a node never founded heeds it."""
    arguments = ["--config", str(path), "--name", name, "--found", "--controlled"]
    return [sys.executable, "-m", "alphorn.node.main", *arguments]


class NodeProcess:
    """One node, or those that share a process: the process, where there is one."""

    def __init__(
        self, tables: Sequence[NodeTable], directories: Sequence[NodeDirectory], command: Sequence[str], tasks: Tasks
    ) -> None:
        self.tables = tables
        self.directories = directories
        # A message server shares the process of another, which is why there is the process.
        own = [(t, d) for t, d in zip(tables, directories, strict=True) if t.kind != "message_server"]
        self.own_tables = [table for table, _ in own] or list(tables)
        self.directory = own[0][1] if own else directories[0]
        self.starts = 0
        self._has_started = asyncio.Event()  # the newest process takes part, or has ended
        self.reason = ""  # why it fell silent, if it said, or why there is no process
        self._command = command
        self._tasks = tasks
        self._process: asyncio.subprocess.Process | None = None
        self._asked: deque[asyncio.Future[dict[str, object]]] = deque()  # in the order of the answers
        self._started_at = 0.0
        self._starting = asyncio.Lock()

    @property
    def name(self) -> str:
        """As the cluster file has it; a message server that shares the process of others is not named."""
        return "+".join(table.name for table in self.own_tables)

    @property
    def pid(self) -> int:
        """Of the running process; 0 when there is none."""
        return self._process.pid if self._process is not None and self._process.returncode is None else 0

    async def start(self) -> None:
        """Starts the process, and waits for nothing. Where the system has none to give, it has ended at once."""
        assert not self.pid, f"{self.name} runs already"
        self.starts += 1
        self._has_started = asyncio.Event()
        self._asked = deque()
        self._process, self.reason = None, ""
        self._started_at = time.monotonic()
        async with self._starting:
            try:
                self._process = await self._start_process()
            except OSError as error:
                self.reason = str(refusal_of("node", self.directory.folder, error) or error)
                self._has_started.set()
                return
        listening = self._listen(self._process, self._has_started, self._asked)
        self._tasks.start(listening, name=f"listen to {self.name}")

    async def _start_process(self) -> asyncio.subprocess.Process:
        with self.directory.standard_error.open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                limit=LINE_BYTES_MAX,
                start_new_session=True,
            )

    async def until_started(self) -> None:
        """Waits until the node takes part; raises `Unavailable` when it ended instead."""
        await self._has_started.wait()
        if not self.pid:
            raise Unavailable(f"node {self.name} {self.how_it_ended()}")

    async def ended(self) -> float:
        """Waits for the process to end; gives the seconds that it ran."""
        assert self.starts, f"{self.name} was never started"
        if self._process is not None:
            await self._process.wait()
        return time.monotonic() - self._started_at

    def signal(self, number: signal.Signals) -> None:
        """Signals this one process, if it is there."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)

    async def stop(self, *, stop_s: float = STOP_S) -> bool:
        """Stops it in good order; False when it had to be killed."""
        async with self._starting:  # A process that is being made is stopped too.
            pass
        if not self.pid:
            return True
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(stop_s):
                await self.ended()
        except TimeoutError:
            self.signal(signal.SIGKILL)
            await self.ended()
            return False
        return True

    async def describe(self, *, answer_s: float = ANSWER_S) -> dict[str, object]:
        """The node's whole printable state; raises `Unavailable`."""
        self._say(NodeDescribe())
        described: asyncio.Future[dict[str, object]] = asyncio.get_running_loop().create_future()
        asked = self._asked
        asked.append(described)
        try:
            async with asyncio.timeout(answer_s):
                return await described
        except TimeoutError:
            raise Unavailable(f"node {self.name} (pid {self.pid}) does not answer within {answer_s:.0f} s") from None
        finally:
            if described in asked:  # nobody answered
                asked.remove(described)

    def die_at(self, step: str, count: int) -> None:
        """For tests: lets the process kill itself at a step; raises `Unavailable`."""
        self._say(NodeDieAt(step, count))

    def _say(self, word: NodeWord) -> None:
        if not self.pid or self._process is None or self._process.stdin is None:
            raise Unavailable(f"node {self.name} does not run; start it first")
        self._process.stdin.write(encode_line(word))

    def how_it_ended(self) -> str:
        """One clause for people."""
        assert self.starts, f"{self.name} was never started"
        if self._process is None:
            return f"could not be started: {self.reason}"
        code = self._process.returncode
        if code is None:
            return "runs"
        if code < 0:
            return f"was ended by {signal.Signals(-code).name}"
        reason = self.reason or self._last_line()
        return f"ended with exit code {code}" + (f": {reason}" if reason and code else "")

    def _last_line(self) -> str:
        try:
            data = self.directory.standard_error.read_bytes()[-LAST_BYTES:]
        except OSError:
            return ""
        lines = data.decode(errors="replace").strip().splitlines()
        return lines[-1].removeprefix("alphorn: ") if lines else ""

    async def _listen(
        self,
        process: asyncio.subprocess.Process,
        has_started: asyncio.Event,
        asked: deque[asyncio.Future[dict[str, object]]],
    ) -> None:
        """Hears all that it says: a process whose output nobody takes stands still when the pipe is full."""
        assert process.stdout is not None
        is_over = False
        while not is_over:
            try:
                line = await process.stdout.readline()
                is_over = not line
                event = _decode_event(line)
            except ValueError:
                continue  # too long, printed by some library, or half a line of a process that was killed
            match event:
                case NodeStarted():
                    has_started.set()
                case NodeFailed(reason):
                    self.reason = reason
                case NodeDescribed(state):
                    if asked and not (described := asked.popleft()).done():
                        described.set_result(state)
        await process.wait()
        has_started.set()
        for described in asked:
            if not described.done():
                described.set_exception(Unavailable(f"node {self.name} ended before it answered"))


class Supervisor:
    """All nodes of one cluster file. `start`, then `stop` or `kill`.

    With `restarts` a node that dies is started again, after a pause that grows, until it has died too often soon after
    its start: then it is given up, and `on_given_up` hears the sentence. One that finds its disk full is never given
    up: nothing is wrong with it, and it goes on as soon as there is space. Everything worth telling a person goes to
    `say`.
    """

    def __init__(
        self,
        path: Path,
        file: ClusterFile,
        *,
        say: Say,
        on_given_up: Say = lambda sentence: None,
        restarts: bool = True,
        command: Callable[[Path, str], list[str]] = node_command,
        policy: Callable[[], RestartPolicy] = RestartPolicy,
        no_space_s: float = NO_SPACE_S,
    ) -> None:
        self.file = file
        self._say = say
        self._on_given_up = on_given_up
        self._restarts = restarts
        self._policy = policy
        self._no_space_s = no_space_s
        self._tasks = Tasks()
        self._is_stopping = False
        self.nodes: dict[str, NodeProcess] = {}  # those of one process have the same
        for node in file.nodes:
            if node.name not in self.nodes:
                tables = file.beside(node.name)
                directories = [NodeDirectory(Path(file.directory), table.name) for table in tables]
                process = NodeProcess(tables, directories, command(path, node.name), self._tasks)
                self.nodes |= {table.name: process for table in tables}
        self.processes = list(dict.fromkeys(self.nodes.values()))

    async def until_free(self, *, wait_s: float = EARLIER_S) -> None:
        """Waits for nodes of an earlier run, which end by themselves once their parent is gone; raises `Misuse`."""
        deadline = time.monotonic() + wait_s
        for node in self.processes:
            said = False
            while holder := next(filter(None, (directory.holder() for directory in node.directories)), 0):
                if not said:
                    self._say(f"waiting for {node.name} of an earlier run to end (pid {holder})")
                    said = True
                if time.monotonic() > deadline:
                    raise Misuse(f"node {node.name} still runs as process {holder}; stop it, or choose another --dir")
                await asyncio.sleep(0.05)

    async def start(self) -> None:
        """Starts every node, and waits for none."""
        for node in self.processes:
            await node.start()
            self._tell_start(node, "starts")
            if self._restarts:
                self._tasks.start(self._keep(node), name=f"keep {node.name}")

    async def stop(self) -> None:
        """Stops all in good order, Client Managers first."""
        self._is_stopping = True
        for kind in ("client_manager", "message_manager", "witness", "message_server"):
            nodes = [node for node in self.processes if node.own_tables[0].kind == kind]
            outcomes = await asyncio.gather(*(node.stop() for node in nodes))
            for node, was_orderly in zip(nodes, outcomes, strict=True):
                if not was_orderly:
                    self._say(f"{node.name} did not stop within {STOP_S:.0f} s and was killed")
        await self._tasks.close()

    def kill(self) -> None:
        """Ends all at once; `stop` then returns soon."""
        self._is_stopping = True
        for node in self.processes:
            node.signal(signal.SIGKILL)

    async def _keep(self, node: NodeProcess) -> None:
        policy = self._policy()
        while True:
            ran_s = await node.ended()
            if self._is_stopping:
                return
            how = node.how_it_ended()
            if tells_no_space(how):
                if not await self._until_space(node, how):
                    return
                continue
            wait_s = policy.on_end(ran_s)
            if wait_s is None:
                sentence = (
                    f"{node.name} {how}; it died {policy.quick_deaths} times soon after its start and stays down; "
                    f"see {node.directory.standard_error} and {node.directory.log}, then start the cluster again"
                )
                self._say(sentence)
                self._on_given_up(sentence)
                return
            self._say(f"{node.name} {how}; it is started again in {wait_s:.1f} s")
            if not await self._restart(node, wait_s):
                return

    async def _until_space(self, node: NodeProcess, how: str) -> bool:
        """Tries until the node finds space, or has ended for another reason."""
        self._say(f"{node.name} {how}; it is started again every {self._no_space_s:.0f} s until there is space")
        while await self._restart(node, self._no_space_s, is_quiet=True):
            with contextlib.suppress(Unavailable):
                await node.until_started()
                self._say(f"{node.name} runs again, pid {node.pid}")
            if node.pid or not tells_no_space(node.how_it_ended()):
                return True
        return False

    async def _restart(self, node: NodeProcess, wait_s: float, *, is_quiet: bool = False) -> bool:
        await asyncio.sleep(wait_s)
        if self._is_stopping:
            return False
        await node.start()
        if not is_quiet:
            self._tell_start(node, "starts again")
        return True

    def _tell_start(self, node: NodeProcess, what: str) -> None:
        if node.pid:
            self._say(f"{node.name} {what}, pid {node.pid}")
