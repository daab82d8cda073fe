"""Which functions of a program run for what comes to its work process: one after the other, in the order of arrival.

What came waits in a line, and is confirmed when it enters that, so that two functions may tell each other things. A
line that is full confirms nothing: what comes then waits with those who said it, where it is bounded as well.
"""

import functools
import hashlib
import inspect
import logging
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from alphorn.message_server.process_machine import Given, Told
from alphorn.model.errors import Misuse, PeerViolation
from alphorn.model.events import EVERYTHING, KINDS, MISSED, Event
from alphorn.model.process_conversation import COMMAND, read_body

LINE_MAX = 1_000  # confirmed, and no function has run for it yet
LINE_BYTES_MAX = 8 << 20
ITEM_BYTES = 200  # that any of them takes
WISHES_MAX = 8_192  # that others may be doing; beyond that the oldest are left to them
PER_PROCESS, PER_CLUSTER = "process", "cluster"

Function = Callable[[Any], Any]
_log = logging.getLogger("alphorn.cluster")


class Message(msgspec.Struct, frozen=True):
    """What another work process told this one."""

    sender: str
    body: Any


class Call(NamedTuple):
    """A function that is to run now."""

    function: Function
    argument: Message | Event
    key: bytes = b""  # of what only one process of the cluster does

    def log_failure(self, error: BaseException) -> None:
        """The function raised, which concerns nobody else."""
        name, what = name_of(self.function), _describe(self.argument)
        _log.error("event=function_failed function=%s for=%s", name, what, exc_info=error)


class _Wish(NamedTuple):
    """A function that runs when events of a kind come."""

    kind: str
    function: Function
    name: str
    is_for_one: bool  # process of the cluster


class Calls:
    """The functions of one work process, and what waits for them."""

    __slots__ = (
        "_bytes",
        "_compete",
        "_complete",
        "_confirmed",
        "_held",
        "_is_over",
        "_line",
        "_on_message",
        "_ready",
        "_take",
        "_unconfirmed",
        "_undecided",
        "_wishes",
        "dropped",
    )

    def __init__(
        self,
        *,
        take: Callable[[Given | Told], None],
        compete: Callable[[bytes], None],
        complete: Callable[[bytes], None],
    ) -> None:
        self._take, self._compete, self._complete = take, compete, complete
        self._wishes: list[_Wish] = []
        self._on_message: Function | None = None
        self._line: deque[Given | Told | Call] = deque()  # confirmed; and what was won
        self._confirmed = self._bytes = 0  # of the line and of what is held
        self._unconfirmed: deque[Given | Told] = deque()  # that came behind the line
        self._held: deque[Given] = deque()  # messages that came before there was a function for them
        self._ready: deque[Call] = deque()
        self._undecided: OrderedDict[bytes, Call] = OrderedDict()  # that one process of the cluster does
        self._is_over = False
        self.dropped = 0  # messages for which there was no function

    @property
    def kinds(self) -> list[str]:
        """Of the events that are wanted."""
        return sorted({wish.kind for wish in self._wishes} - {MISSED})

    def add(self, kind: Any, function: Any, once_per: Any) -> None:
        """A function that runs when events of this kind come; raises `Misuse`."""
        if not isinstance(kind, str):
            raise Misuse(f"the kind of an event is a str like 'node_down', not {type(kind).__name__}")
        KINDS.check(kind)
        check_function(function)
        if once_per not in (PER_PROCESS, PER_CLUSTER):
            raise Misuse(f"once_per is {once_per!r}; it is 'process', or 'cluster' for one process of all")
        name = name_of(function)
        alike = sum(wish.kind == kind and wish.name.partition("#")[0] == name for wish in self._wishes)
        self._wishes.append(_Wish(kind, function, f"{name}#{alike}", once_per == PER_CLUSTER))

    def answer_messages(self, function: Any) -> None:
        """The function that runs for messages, also for those that came before; raises `Misuse`."""
        check_function(function)
        self._on_message = function
        for given in self._held:
            self._confirmed -= 1
            self._bytes -= _size_of(given)
        held, self._held = self._held, deque()
        for given in reversed(held):
            self._enter(given, first=True)

    def on_given(self, given: Given | Told) -> None:
        """Something came."""
        if self._is_over:
            return  # whoever said it hears that it was not taken
        self._unconfirmed.append(given)
        self._let_in()

    def on_won(self, key: bytes) -> None:
        """This process is to do it."""
        call = self._undecided.pop(key, None)
        if call is not None:
            self._line.append(call)

    def next(self) -> Call | None:
        """What is to run now; `finish` follows."""
        while not self._ready and self._line:
            item = self._line.popleft()
            if isinstance(item, Call):
                self._ready.append(item)
                continue
            self._confirmed -= 1
            self._bytes -= _size_of(item)
            if isinstance(item, Told):
                self._find_functions(item.event)
            elif self._on_message is None:
                self._hold(item)
            else:
                self._find_body(self._on_message, item)
            self._let_in()
        return self._ready.popleft() if self._ready else None

    def finish(self, call: Call) -> None:
        """It has run, or has failed, and is not to be done by anybody else."""
        if call.key:
            self._complete(call.key)

    def end(self) -> None:
        """Nothing more is confirmed; what was can still run."""
        self._is_over = True
        self._unconfirmed.clear()

    def clear(self) -> None:
        """Nothing more runs."""
        self.end()
        for waiting in (self._line, self._ready, self._held):
            waiting.clear()

    def describe(self) -> dict[str, object]:
        """The printable state."""
        return {
            "functions": len(self._wishes) + (self._on_message is not None),
            "line": self._confirmed,
            "line_bytes": self._bytes,
            "unconfirmed": len(self._unconfirmed),
            "undecided": len(self._undecided),
            "dropped": self.dropped,
        }

    def _let_in(self) -> None:
        while self._unconfirmed and self._confirmed < LINE_MAX and self._bytes < LINE_BYTES_MAX:
            given = self._unconfirmed.popleft()
            self._enter(given)
            self._take(given)

    def _enter(self, given: Given | Told, *, first: bool = False) -> None:
        (self._line.appendleft if first else self._line.append)(given)
        self._confirmed += 1
        self._bytes += _size_of(given)

    def _hold(self, given: Given) -> None:
        """A message without a function, which may come yet. Nothing waits for that, so of many the last are held."""
        self._held.append(given)
        self._confirmed += 1
        self._bytes += _size_of(given)
        while 2 * len(self._held) > LINE_MAX or 2 * sum(map(_size_of, self._held)) > LINE_BYTES_MAX:
            dropped = self._held.popleft()
            self._confirmed -= 1
            self._bytes -= _size_of(dropped)
            if not self.dropped:
                _log.warning("event=message_dropped sender=%s reason='on_message was never called'", dropped.sender)
            self.dropped += 1

    def _find_body(self, function: Function, given: Given) -> None:
        try:
            body = read_body(given.body)
        except PeerViolation as error:
            _log.warning("event=message_unreadable sender=%s reason=%r", given.sender, str(error))
            return
        self._ready.append(Call(function, Message(given.sender, body)))

    def _find_functions(self, event: Event) -> None:
        if is_of_command(event):
            return
        wishes = [wish for wish in self._wishes if wish.kind in (event.kind, EVERYTHING)]
        if event.kind == MISSED and not wishes:
            _log.warning("event=events_missed count=%s", event.details.get("count", ""))
        for wish in wishes:
            if not wish.is_for_one or event.kind == MISSED:
                self._ready.append(Call(wish.function, event))
                continue
            key = key_of(event, wish.name)
            self._undecided[key] = Call(wish.function, event, key)
            if len(self._undecided) > WISHES_MAX:
                self._undecided.popitem(last=False)
            self._compete(key)


def key_of(event: Event, function: str) -> bytes:
    """What every process calls this function's work on this event."""
    return hashlib.blake2b(msgspec.msgpack.encode((event.name, function)), digest_size=32).digest()


def is_of_command(event: Event) -> bool:
    """Whether it tells that a command has come or gone, of which nobody is told."""
    return event.kind.startswith("node_") and event.node.startswith(COMMAND)


def name_of(function: Any) -> str:
    """The name of a function, the same in every process that has it."""
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def check_function(function: Any) -> None:
    """Raises `Misuse` for what cannot be called."""
    if not callable(function):
        raise Misuse(f"{function!r} is no function; give something to call with one argument")


def check_blocking(function: Any) -> None:
    """Raises `Misuse` for what would have to be awaited."""
    check_function(function)
    if inspect.iscoroutinefunction(function):
        raise Misuse(f"{name_of(function)} is to be awaited; join with alphorn.aio.join_cluster for that")


def _size_of(given: Given | Told) -> int:
    return ITEM_BYTES + (len(given.body) if isinstance(given, Given) else 0)


def _describe(argument: Message | Event) -> str:
    return f"message of {argument.sender}" if isinstance(argument, Message) else f"{argument.kind} of {argument.node}"
