"""The log of a node: one JSON object per line, written by a thread of its own that nobody waits for.

    {"time":"2026-01-31T12:00:00.123456Z","level":"info","node":"mm1","event":"link_lost","to":"mm2","reason":"..."}

Whoever logs puts a line into a bounded queue and goes on. When the places it goes to are slower than what is said,
lines are dropped and counted, and the next line that gets through says how many (`log_lines_dropped`). A place that
fails (a full disk, a closed pipe) loses its lines, is tried again with the next ones, and harms neither the node nor
the other places.
"""

import contextvars
import datetime
import logging
import os
import re
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

QUEUE_LINES_MAX = 10_000
TEXT_CHARACTERS_MAX = 8_192  # of one value
FILE_BYTES_MAX = 16 << 20
FILES_KEPT = 4  # besides the one that is written
CLOSE_S = 2.0  # how long closing waits for slow places

Place = Callable[[list[bytes]], None]  # takes lines, each with its end; may block and may raise OSError

CURRENT_NODE: contextvars.ContextVar[str] = contextvars.ContextVar("alphorn node")  # whose task or callback runs

_PAIR = re.compile(r"(\w+)=(\S+)")
_PAIRS = re.compile(r"\w+=\S+(?: \w+=\S+)*")
_PLAIN = (str, int, float, bool, type(None))
_encode = msgspec.json.Encoder().encode


class LogFile:
    """A place: a file that begins anew at a given size, the older ones being kept as `.1`, `.2` and so on."""

    def __init__(self, path: Path, *, bytes_max: int = FILE_BYTES_MAX, kept: int = FILES_KEPT) -> None:
        self._path = path
        self._bytes_max = bytes_max
        self._kept = kept
        self._descriptor = -1
        self._bytes = 0

    def __call__(self, lines: list[bytes]) -> None:
        """Writes the lines; raises `OSError`."""
        start = 0
        while start < len(lines):
            self._make_ready(len(lines[start]))
            size, end = self._bytes, start
            while end < len(lines) and (end == start or size + len(lines[end]) <= self._bytes_max):
                size += len(lines[end])
                end += 1
            self._write(b"".join(lines[start:end]))
            start = end

    def close(self) -> None:
        """Closes the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _make_ready(self, wanted: int) -> None:
        if self._descriptor >= 0 and self._bytes and self._bytes + wanted > self._bytes_max:
            self.close()
            self._rotate()
        if self._descriptor < 0:
            self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            self._bytes = os.fstat(self._descriptor).st_size
            if self._bytes and self._bytes + wanted > self._bytes_max:
                self._make_ready(wanted)

    def _rotate(self) -> None:
        names = [self._path, *(self._path.with_name(f"{self._path.name}.{n}") for n in range(1, self._kept + 1))]
        for newer, older in zip(names[-2::-1], names[:0:-1], strict=True):
            if newer.exists():
                newer.replace(older)

    def _write(self, data: bytes) -> None:
        while data:
            written = os.write(self._descriptor, data)
            self._bytes += written
            data = data[written:]


def standard_error(lines: list[bytes]) -> None:
    """A place: the process's standard error."""
    sys.stderr.buffer.write(b"".join(lines))
    sys.stderr.buffer.flush()


class LogTask:
    """Takes lines from any thread and brings them to its places on a thread of its own.

    `publish` may be set at any time: it gets the same lines, on the log's thread, and hands them on without waiting. It
    must not log, or every line would make another.
    """

    def __init__(self, node: str, places: Sequence[Place], *, queue_lines_max: int = QUEUE_LINES_MAX) -> None:
        self.node = node
        self.publish: Place | None = None
        self.dropped = 0  # lines that found the queue full; a rise means that a place is too slow
        self.failed = 0  # lines that a place refused
        self._places = places
        self._queue_lines_max = queue_lines_max
        self._waiting: list[dict[str, object]] = []
        self._dropped_unsaid = 0
        self._is_closing = False
        self._woken = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=f"log of {node}", daemon=True)
        self._thread.start()

    def say(self, level: str, event: str, fields: dict[str, object]) -> None:
        """Logs one event. Never waits; drops the line when the queue is full."""
        line = {"time": _now(), "level": level, "node": self.node, "event": event, **fields}
        with self._woken:
            if self._is_closing or len(self._waiting) >= self._queue_lines_max:
                self.dropped += 1
                self._dropped_unsaid += 1
                return
            self._waiting.append(line)
            self._woken.notify()

    def close(self, *, wait_s: float = CLOSE_S) -> bool:
        """Writes what waits; False when the places were too slow for that."""
        with self._woken:
            self._is_closing = True
            self._woken.notify()
        self._thread.join(wait_s)
        return not self._thread.is_alive()

    def describe(self) -> dict[str, object]:
        """The one printable state."""
        return {"waiting": len(self._waiting), "dropped": self.dropped, "failed": self.failed}

    def _run(self) -> None:
        while (taken := self._take()) is not None:
            lines = [_line_of(fields) for fields in taken]
            for place in self._places if self.publish is None else (*self._places, self.publish):
                try:
                    place(lines)
                except Exception:  # Whatever is wrong with a place, the node goes on.
                    self.failed += len(lines)

    def _take(self) -> list[dict[str, object]] | None:
        with self._woken:
            self._woken.wait_for(lambda: self._waiting or self._is_closing)
            taken, self._waiting = self._waiting, []
            dropped, self._dropped_unsaid = self._dropped_unsaid, 0
        if not taken:
            return None
        if dropped:
            line = {"time": _now(), "level": "warning", "node": self.node, "event": "log_lines_dropped"}
            taken.append({**line, "lines": dropped})
        return taken


class LogHandler(logging.Handler):
    """Brings what Python's logging is told to the log of the node that said it.

    Which node that is follows from the field `node` of the line, else from the context (`CURRENT_NODE`), which tasks
    and callbacks inherit. What has neither, such as a thread of a store, goes to the first node of the process.
    """

    def __init__(self, tasks: Sequence[LogTask]) -> None:
        super().__init__()
        self._tasks = {task.node: task for task in tasks}
        self._first = tasks[0]

    def emit(self, record: logging.LogRecord) -> None:
        """Called by logging."""
        try:
            event, fields = fields_of(record)
        except Exception:
            self.handleError(record)
            return
        task = self._tasks.get(str(fields.pop("node", CURRENT_NODE.get(""))), self._first)
        task.say(record.levelname.lower(), event, fields)


def fields_of(record: logging.LogRecord) -> tuple[str, dict[str, object]]:
    """The event and its fields, from a record in our form (`event=name key=%s ...`) or any other.

    Values are taken as they are handed to logging, so numbers stay numbers and texts may hold blanks; where the form
    itself is an argument, its text is taken apart. A record of any other form is kept as its text. Values become text
    here, since they may change once the caller goes on.
    """
    template = str(record.msg)
    arguments = record.args if isinstance(record.args, tuple) else (record.args,)
    fields: dict[str, object] = {}
    if _PAIRS.fullmatch(template) and template.count("%") == len(arguments):
        values = iter(arguments)
        for key, value in _PAIR.findall(template):
            fields[key] = _plain(next(values)) if value.startswith("%") else value
    elif _PAIRS.fullmatch(text := record.getMessage()[:TEXT_CHARACTERS_MAX]):
        fields |= _PAIR.findall(text)
    elif found := re.match(r"event=(\S+) ?", text):
        fields |= {"event": found[1], "text": text[found.end() :]}
    else:
        fields["text"] = text
    for taken in ("time", "level"):
        if taken in fields:
            fields[f"{taken}_"] = fields.pop(taken)
    if record.exc_info and record.exc_info[0] is not None:
        fields["exception"] = "".join(traceback.format_exception(*record.exc_info))[-TEXT_CHARACTERS_MAX:]
    return str(fields.pop("event", "said")), {**fields, "logger": record.name}


def _plain(value: object) -> object:
    if isinstance(value, str):
        return value[:TEXT_CHARACTERS_MAX]
    return value if isinstance(value, _PLAIN) else str(value)[:TEXT_CHARACTERS_MAX]


def _line_of(fields: dict[str, object]) -> bytes:
    """A line; what is no Unicode, such as the name of some file, is escaped."""
    try:
        return _encode(fields) + b"\n"
    except UnicodeEncodeError:
        return _line_of({key: _escaped(value) for key, value in fields.items()})


def _escaped(value: object) -> object:
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
