"""Client processes, started and ended here, and what the system says of any process."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from alphorn.model.errors import Unavailable
from alphorn.testing.message_bench.tasks import (
    GO,
    AnyTask,
    AnyWord,
    Done,
    Failed,
    Open,
    Ready,
    decode_word,
    encode_task,
)

END_S = 10.0
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class ClientProcess:
    """One process with one task."""

    def __init__(self, task: AnyTask) -> None:
        command = [sys.executable, "-m", "alphorn.testing.message_bench.client"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        self._write(encode_task(task) + b"\n")

    def await_open(self) -> None:
        """Waits until it has what it needs."""
        self._expect(Open)

    def await_ready(self) -> None:
        """Waits until it is warm."""
        self._expect(Ready)

    def go(self) -> None:
        """Gives the word."""
        self._write(GO)

    def result(self) -> Done:
        """What it did, once it is done; raises `Unavailable`."""
        done = self._expect(Done)
        assert isinstance(done, Done)
        return done

    def close(self) -> None:
        """Ends it, by force where it must."""
        with contextlib.suppress(OSError):
            self._input.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._output.close()

    def _write(self, line: bytes) -> None:
        with contextlib.suppress(BrokenPipeError):  # it has ended: the next word that is expected says so
            self._input.write(line)
            self._input.flush()

    def _expect(self, kind: type[AnyWord]) -> AnyWord:
        line = self._output.readline()
        if not line:
            raise Unavailable("a client process of the benchmark ended; its last words are above")
        word: AnyWord = decode_word(line)
        if isinstance(word, Failed):
            raise Unavailable(f"a client process of the benchmark failed: {word.reason}")
        assert isinstance(word, kind), word
        return word


@contextlib.contextmanager
def client_processes(tasks: list[AnyTask]) -> Iterator[list[ClientProcess]]:
    """One process for each task; all have ended afterwards."""
    with contextlib.ExitStack() as stack:
        started = []
        for task in tasks:
            started.append(ClientProcess(task))
            stack.callback(started[-1].close)
        yield started


def cpu_s(pid: int) -> float:
    """Processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK_S


def memory_bytes(pid: int, field: str) -> int:
    """A figure of /proc/PID/status: VmRSS now, VmHWM at most, RssAnon without mapped files."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    raise Unavailable(f"the system does not tell {field} of process {pid}")
