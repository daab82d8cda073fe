"""Groups of real processes on this machine: started, told, stopped, frozen and killed one by one.

Each group has a loopback address, ports and multicast addresses of its own, so groups may run beside each other. Every
process is a child of this one and is signalled by its own pid only; when this process ends, however it ends, the
members see the end of their input and stop.

Nothing here sleeps: whoever waits is woken by what members say, and gives up at a deadline with a sentence.
"""

import asyncio
import contextlib
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from alphorn.bus.config import Budget, Timing
from alphorn.io.control import (
    Describe,
    Described,
    Event,
    LoadStarted,
    LoadStopped,
    Primary,
    Started,
    StartLoad,
    StopLoad,
    Stopped,
    Synchronised,
    Word,
    decode_event,
    encode_line,
)
from alphorn.io.member_file import SERVER, WITNESS, GroupTable, MemberFile, MemberTable, write_member_file
from alphorn.io.tasks import Tasks
from alphorn.model.errors import Unavailable

DEADLINE_S = 60.0  # generous: only a group that hangs meets it
ANSWER_S = 2.0  # for a member that may be stuck
FIRST_PORT = 21_100
LINE_BYTES_MAX = 16 << 20
LOG_LINES = 8  # of a member's log that an error shows

Watcher = Callable[["MemberProcess", Event], None]
Answer = TypeVar("Answer", Described, LoadStarted, LoadStopped)


class GroupShape(msgspec.Struct, frozen=True, kw_only=True):
    """Who is in the group, and how it is set up."""

    servers: int = 3  # each may be primary, stores data and votes
    witnesses: int = 0
    clients: int = 2
    copies: int = 2
    checkpoint_interval: int = 4096
    timing: Timing = Timing()
    budget: Budget = Budget()
    tally_every: int = 0  # batches between two tallies that members say
    trace: bool = False  # members log every step of the protocol

    @property
    def server_names(self) -> list[str]:
        """The first begins as primary."""
        return ["primary", *(f"backup-{number}" for number in range(1, self.servers))]

    @property
    def witness_names(self) -> list[str]:
        """Members that vote and store no batches."""
        return [f"witness-{number}" for number in range(1, self.witnesses + 1)]

    @property
    def client_names(self) -> list[str]:
        """Members that are not configured and keep nothing on disk."""
        return [f"client-{number}" for number in range(1, self.clients + 1)]


class MemberProcess:
    """One member: its process, where there is one, and the last it said of itself."""

    def __init__(self, group: "ProcessGroup", file: MemberFile, path: Path) -> None:
        self._group = group
        self._path = path
        self._process: asyncio.subprocess.Process | None = None
        self.file = file
        self.log = path.with_suffix(".log")
        self.starts = 0
        self.address = ""
        self.is_synchronised = False
        self.primary: Primary | None = None  # the newest it delivered
        self.stop_reason = ""
        self._answers: dict[type[Event], Event] = {}  # the newest of each kind

    @property
    def name(self) -> str:
        """As its member file has it."""
        return self.file.name

    @property
    def number(self) -> int:
        """Its number in the group; 0 for a client."""
        return self.file.me().number

    @property
    def pid(self) -> int:
        """Of the running process; 0 when there is none."""
        return self._process.pid if self._process is not None and self._process.returncode is None else 0

    @property
    def is_running(self) -> bool:
        """Whether the process exists, frozen or not."""
        return self.pid != 0

    @property
    def store(self) -> Path | None:
        """The directory of its log."""
        return Path(self.file.directory) if self.file.directory else None

    async def start(self, *, founding: bool = False) -> None:
        """Starts the process; `until` tells when it is of use."""
        assert not self.is_running, f"{self.name} runs already"
        self.starts += 1
        self.address, self.stop_reason, self.is_synchronised = "", "", False
        self.primary = None
        arguments = ["-m", "alphorn.node.group", str(self._path), "--controlled"]
        arguments += ["--found"] * founding
        arguments += ["--tally-every", str(self._group.shape.tally_every)]
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *arguments,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                limit=LINE_BYTES_MAX,
                start_new_session=True,  # Ctrl-C is for the program, which stops its members in order
            )
        self._group.tasks.start(self._listen(self._process), name=f"listen to {self.name}")

    def signal(self, number: signal.Signals) -> None:
        """Signals this one process, if it is there."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)

    async def ended(self) -> int:
        """Waits for the process to end; gives its exit code."""
        assert self._process is not None
        code = await self._process.wait()
        self.is_synchronised = False
        return code

    async def kill(self) -> None:
        """kill -9, and waits until the kernel has cleared it away."""
        self.signal(signal.SIGKILL)
        await self.ended()

    async def stop(self) -> int:
        """Stops it in good order."""
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        return await self.ended()

    def tell(self, word: Word) -> None:
        """Says a word to the process, if it is there."""
        if self._process is not None and self._process.stdin is not None and self.is_running:
            self._process.stdin.write(encode_line(word))

    def close_input(self) -> None:
        """What the process sees when this program ends."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    async def describe(self, *, deadline_s: float = DEADLINE_S) -> Described:
        """The member's whole state, now."""
        return await self._ask(Describe(), Described, deadline_s=deadline_s)

    async def start_load(self, load: StartLoad) -> str:
        """Lets it order numbered batches; gives the sender's name."""
        self._answers.pop(LoadStopped, None)
        return (await self._ask(load, LoadStarted)).sender

    async def stop_load(self) -> LoadStopped:
        """Lets it order no more, and waits until every batch has its answer."""
        return await self._ask(StopLoad(), LoadStopped)

    async def load_ended(self) -> LoadStopped:
        """Waits until a load of a given count has all its answers."""
        return await self._answer(LoadStopped, "its load to end", DEADLINE_S)

    async def _ask(self, word: Word, kind: type[Answer], *, deadline_s: float = DEADLINE_S) -> Answer:
        self._answers.pop(kind, None)
        self.tell(word)
        return await self._answer(kind, f"an answer to {type(word).__name__}", deadline_s)

    async def _answer(self, kind: type[Answer], what: str, deadline_s: float) -> Answer:
        await self._group.until(
            lambda: kind in self._answers or not self.is_running, f"{self.name}: {what}", deadline_s=deadline_s
        )
        answer = self._answers.get(kind)
        if not isinstance(answer, kind):
            raise Unavailable(f"{self.name} ended before it gave {what}:\n{self.last_words()}")
        return answer

    def last_words(self) -> str:
        """The end of its log."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return "\n".join(lines[-LOG_LINES:])

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            try:
                event = decode_event(line)
            except msgspec.DecodeError:
                break  # a process that was killed may leave half a line
            self._note(event)
            self._group.heard(self, event)
        await process.wait()
        if process is self._process:
            self.is_synchronised = False
        self._group.wake()

    def _note(self, event: Event) -> None:
        match event:
            case Started():
                self.address = event.address
            case Synchronised():
                self.is_synchronised = event.is_synchronised
            case Primary():
                self.primary = event
            case Described() | LoadStarted() | LoadStopped():
                self._answers[type(event)] = event
            case Stopped():
                self.stop_reason = event.reason


class ProcessGroup:
    """A group and its processes. Use as `async with`, which stops whatever still runs.

    `watch` hears every event of every member.
    """

    def __init__(self, directory: Path, shape: GroupShape, *, watch: Watcher | None = None) -> None:
        self.directory = directory.absolute()  # paths in member files count from the file
        self.shape = shape
        self.tasks = Tasks()
        self._watch = watch
        self._waiting: set[asyncio.Event] = set()
        self.members: dict[str, MemberProcess] = {}
        self._table = self._make_table()
        for name in (*shape.server_names, *shape.witness_names, *shape.client_names):
            self.add(name)

    async def __aenter__(self) -> "ProcessGroup":
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    @property
    def servers(self) -> list[MemberProcess]:
        """The members that hold data."""
        return [self.members[name] for name in self.shape.server_names]

    @property
    def configured(self) -> list[MemberProcess]:
        """Servers and witnesses."""
        return [member for member in self.members.values() if member.number]

    @property
    def clients(self) -> list[MemberProcess]:
        """The members that only order and read."""
        return [member for member in self.members.values() if not member.number]

    def add(self, name: str) -> MemberProcess:
        """Writes the member file of a member of that name, and starts nothing."""
        is_configured = any(member.name == name for member in self._table.members)
        file = MemberFile(
            name=name,
            group=self._table,
            directory=str(self.directory / name) if is_configured else "",
            address=f"{self._host}:0",
            timing=self.shape.timing,
            budget=self.shape.budget,
            trace=self.shape.trace,
        )
        path = self.directory / f"{name}.json"
        self.directory.mkdir(parents=True, exist_ok=True)
        write_member_file(path, file)
        made = self.members[name] = MemberProcess(self, file, path)
        return made

    async def start(self, *, founding: bool = True) -> None:
        """Starts every member and waits until all follow the log."""
        for member in self.members.values():
            await member.start(founding=founding and member.number > 0)
        await self.until_whole()

    async def until_whole(self) -> None:
        """Waits until every member follows the log closely."""
        members = self.members.values()
        await self.until(
            lambda: all(member.is_synchronised or not member.is_running for member in members),
            "all members to follow the log",
        )
        for member in members:
            if not member.is_running:
                raise Unavailable(f"{member.name} has ended:\n{member.last_words()}")

    def primary(self) -> MemberProcess | None:
        """The running member that was primary by the newest word of those that run."""
        said = [m.primary for m in self.members.values() if m.primary is not None and m.is_running]
        newest = max(said, key=lambda primary: primary.epoch, default=None)
        found = next((m for m in self.configured if newest is not None and m.number == newest.number), None)
        return found if found is not None and found.is_running else None

    async def until(self, condition: Callable[[], bool], what: str, *, deadline_s: float = DEADLINE_S) -> None:
        """Waits until the condition holds, looking after each event; raises `Unavailable` at the deadline."""
        woken = asyncio.Event()
        self._waiting.add(woken)
        try:
            async with asyncio.timeout(deadline_s):
                while not condition():
                    await woken.wait()
                    woken.clear()
        except TimeoutError:
            raise Unavailable(f"waited {deadline_s:.0f} s for {what}; {self._state()}") from None
        finally:
            self._waiting.discard(woken)

    def heard(self, member: MemberProcess, event: Event) -> None:
        """Called for each event of a member."""
        if self._watch is not None:
            self._watch(member, event)
        self.wake()

    def wake(self) -> None:
        """Lets everyone who waits look again."""
        for waiting in self._waiting:
            waiting.set()

    async def dump(self) -> None:
        """Writes the state of every member that answers to its directory, for people who look for a fault."""
        for member in self.members.values():
            with contextlib.suppress(Unavailable):
                described = await member.describe(deadline_s=ANSWER_S)
                state = msgspec.json.format(msgspec.json.encode(described))
                (self.directory / f"{member.name}.state.json").write_bytes(state)

    async def stop(self) -> None:
        """Stops all in good order: clients first, so that nothing they ordered is left unanswered."""
        for members in (self.clients, self.configured):
            await asyncio.gather(*(member.stop() for member in members if member.is_running))

    async def close(self) -> None:
        """Ends every process that is left."""
        try:
            async with asyncio.timeout(DEADLINE_S):
                await self.stop()
        except TimeoutError:
            await asyncio.gather(*(member.kill() for member in self.members.values() if member.is_running))
        await self.tasks.close()

    def _make_table(self) -> GroupTable:
        drawn = random.SystemRandom()
        self._host = f"127.{drawn.randrange(1, 255)}.{drawn.randrange(255)}.{drawn.randrange(1, 255)}"
        names = [(name, SERVER) for name in self.shape.server_names]
        names += [(name, WITNESS) for name in self.shape.witness_names]
        members = tuple(
            MemberTable(
                number=number,
                name=name,
                address=f"{self._host}:{FIRST_PORT + number}",
                roles=roles,
                rank=number,
                tag="witness" if roles is WITNESS else "server",
            )
            for number, (name, roles) in enumerate(names, 1)
        )
        return GroupTable(
            id=drawn.getrandbits(32),
            members=members,
            copies=self.shape.copies,
            checkpoint_interval=self.shape.checkpoint_interval,
        )

    def _state(self) -> str:
        rows = [
            f"{member.name}: {'runs' if member.is_running else 'is down'}"
            f"{', follows' if member.is_synchronised else ''}"
            f"{f', stopped: {member.stop_reason}' if member.stop_reason else ''}"
            for member in self.members.values()
        ]
        return f"logs are in {self.directory}; " + "; ".join(rows)
