"""Starts message servers and work processes, lets them talk, and puts the figures beside the yardstick's."""

import contextlib
import json
import random
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from alphorn.io.cluster_file import NodeTable
from alphorn.io.local_cluster import FILE_NAME, LocalShape, lay_out, write_cluster_file
from alphorn.model.errors import Unavailable
from alphorn.testing.message_bench.figures import Figure, Target, figure
from alphorn.testing.message_bench.processes import cpu_s

TELLS_PER_S = 20_000.0
END_S = 30.0


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """How much is said."""

    count: int = 100_000  # messages to one process
    size: int = 100  # bytes of each
    window: int = 500  # of one sender, that are not acknowledged
    others: int = 50  # processes that hear what is for all


class Part:
    """A child process with one part of the work."""

    def __init__(self, part: str, *arguments: object) -> None:
        self._name = part
        command = [sys.executable, "-m", "alphorn.testing.process_bench.parts", part, *map(json.dumps, arguments)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.hear()

    def hear(self) -> dict[str, float]:
        """The next line it says; raises `Unavailable`."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise Unavailable(f"the part {self._name} of the benchmark ended; its last words are above")
        found: dict[str, float] = json.loads(line)
        return found

    def go(self) -> dict[str, float]:
        """Gives the word, and waits for what it found."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self.hear()

    def close(self) -> None:
        """Ends it, by force where it must."""
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


@contextlib.contextmanager
def started(*parts: tuple[object, ...]) -> Iterator[list[Part]]:
    """Child processes, one after the other; all end with the `with`."""
    with contextlib.ExitStack() as stack:
        made: list[Part] = []
        for name, *arguments in parts:
            part = Part(str(name), *arguments)
            stack.callback(part.close)
            made.append(part)
        yield made


@contextlib.contextmanager
def serving(addresses: list[tuple[str, str]]) -> Iterator[list[int]]:
    """Message servers as real nodes, each in a process of its own; gives their pids. Who joins waits for them."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="alphorn-bench-")))
        file = lay_out(folder, LocalShape(), host=addresses[0][1].rpartition(":")[0])
        others = tuple(node for node in file.nodes if node.kind != "message_server")
        servers = tuple(NodeTable(name=name, kind="message_server", internal=address) for name, address in addresses)
        write_cluster_file(folder / FILE_NAME, msgspec.structs.replace(file, nodes=(*others, *servers)))
        pids = []
        for name, _ in addresses:
            command = [sys.executable, "-m", "alphorn.node.main", "--config", str(folder / FILE_NAME), "--name", name]
            process = subprocess.Popen(command)
            stack.callback(process.wait)
            stack.callback(process.terminate)
            pids.append(process.pid)
        yield pids


def measure_tells(setting: Setting, *, servers: int) -> list[Figure]:
    """Messages from one process to another, beside the yardstick, which relays frames and answers."""
    addresses = free_addresses(servers)
    sending = ("sender", addresses, "sender", "listener0", setting.size, setting.count, setting.window, 1)
    with serving(addresses) as pids, started(("listeners", addresses, "listener", 1), sending) as parts:
        before_s = cpu_s(pids[0])
        found = parts[-1].go()
        used_s = cpu_s(pids[0]) - before_s
    (_, address), *_ = free_addresses(1)
    calling = ("caller", address, setting.size, setting.count, setting.window)
    with started(("relay", address), ("echo", address), calling) as parts:
        limit = parts[-1].go()
    through = f"through {'one server' if servers == 1 else 'the first of two servers'}"
    return [
        figure(f"tell, {through}", "/s", found["per_s"], Target(bound=TELLS_PER_S), limit["per_s"]),
        figure("processor time of that server", "µs each", 1e6 * used_s / setting.count),
        figure(f"round trip of one tell, p50, {through}", "ms", found["p50_ms"], limit=limit["p50_ms"]),
        figure(f"round trip of one tell, p99, {through}", "ms", found["p99_ms"], limit=limit["p99_ms"]),
    ]


def measure_others(setting: Setting) -> list[Figure]:
    """Messages for all others, which are acknowledged when both servers have them."""
    addresses = free_addresses(2)
    count = max(1, setting.count // setting.others)
    sending = ("sender", addresses, "sender", "", setting.size, count, min(setting.window, 50), setting.others)
    listening = ("listeners", addresses, "listener", setting.others)
    with serving(addresses), started(listening, sending) as parts:
        found = parts[-1].go()
    to = f"tell_others to {setting.others} processes"
    return [
        figure(to, "/s", found["per_s"]),
        figure(f"deliveries of {to}", "/s", found["per_s"] * setting.others),
        figure(f"round trip of {to}, p50", "ms", found["p50_ms"]),
        figure(f"round trip of {to}, p99", "ms", found["p99_ms"]),
    ]


def free_addresses(count: int) -> list[tuple[str, str]]:
    """Names and free addresses of so many servers."""
    host = f"127.{random.SystemRandom().randrange(1, 255)}.0.1"
    found = []
    for place in range(count):
        with contextlib.closing(socket.socket()) as probe:
            probe.bind((host, 0))
            found.append((f"ms{place + 1}", f"{host}:{probe.getsockname()[1]}"))
    return found
