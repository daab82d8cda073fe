"""Waiting for a cluster so that who waits knows it: what for is said once, and a command ends when it is told to.

A cluster without a primary answers nothing until it has one. The client library waits for that, as programs want it; a
person at a terminal wants to hear of it, and to be able to give up.
"""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from alphorn import Connection
from alphorn.client.choices import check_timeout
from alphorn.model.errors import Error, Unavailable

SILENT_S = 2.0  # before who waits is told for what
GOODBYE_S = 1.0  # for saying goodbye after a failure; the cluster finds out by itself otherwise

Found = TypeVar("Found")


class Pace:
    """How the work goes that is waited for."""

    def __init__(self) -> None:
        self.steps = 0  # that were made
        self.is_ours = False  # whether the cluster waits for us, as while standard input is read


@contextlib.contextmanager
def explaining(what: str | Callable[[], str]) -> Iterator[Pace]:
    """Says what is waited for, once there was no step of the work for long."""
    pace, over = Pace(), threading.Event()
    threading.Thread(target=explain, args=(what, pace, over.wait), name="alphorn-explain", daemon=True).start()
    try:
        yield pace
    finally:
        over.set()


def explain(what: str | Callable[[], str], pace: Pace, is_over: Callable[[float], bool]) -> None:
    """Looks now and then, until it is over, and speaks at the first time that nothing has gone on meanwhile."""
    seen = pace.steps
    while not is_over(SILENT_S):
        if not pace.is_ours and pace.steps == seen:
            sentence = what if isinstance(what, str) else what()
            _say(f"{sentence}; waiting, Ctrl-C gives up")
            return
        seen = pace.steps


class Link:
    """Tells who waits that the connection is lost, once that lasts, and that it is back; `on_event` hears of it."""

    def __init__(self) -> None:
        self._silence: threading.Timer | None = None
        self._is_told = False

    def on_event(self, name: str, detail: str) -> None:
        """Called by the connection, one event after the other."""
        if self._silence is not None:
            self._silence.cancel()
            self._silence.join()  # it may be speaking just now
            self._silence = None
        if name == "disconnected":
            self._silence = threading.Timer(SILENT_S, self._tell)
            self._silence.daemon = True
            self._silence.start()
        elif self._is_told and name != "closed":
            self._is_told = False
            _say("the cluster is reached again")

    def _tell(self) -> None:
        self._is_told = True
        _say("the connection to the cluster is lost; trying again, Ctrl-C gives up")


def _say(sentence: str) -> None:
    print(f"alphorn: {sentence}", file=sys.stderr, flush=True)


def within(seconds: float, act: Callable[[], Found], what: str) -> Found:
    """What `act` gives; raises `Unavailable` when it takes longer, and lets it be."""
    call = _Call(act)
    thread = threading.Thread(target=call.run, name="alphorn-call", daemon=True)
    thread.start()
    thread.join(check_timeout(seconds))  # which waits for ever where a lock cannot count so far
    if thread.is_alive():
        raise Unavailable(f"{what} within {seconds:g} s; `alphorn status` shows what is there")
    return call.result()


class _Call(Generic[Found]):
    """A call in a thread of its own, and what came of it."""

    def __init__(self, act: Callable[[], Found]) -> None:
        self._act = act
        self._found: list[Found] = []
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._found.append(self._act())
        except BaseException as error:  # it is raised where it is waited for
            self._error = error

    def result(self) -> Found:
        if self._error is not None:
            raise self._error
        return self._found[0]


@contextlib.contextmanager
def ending(connection: Connection) -> Iterator[Connection]:
    """Ends the connection as its own `with` does, but after a failure, Ctrl-C included, without long waiting."""
    try:
        yield connection
    except BaseException as error:
        goodbye = threading.Thread(target=_leave, args=(connection, error), name="alphorn-goodbye", daemon=True)
        goodbye.start()
        goodbye.join(GOODBYE_S)
        raise
    connection.__exit__(None)


def _leave(connection: Connection, error: BaseException) -> None:
    with contextlib.suppress(Error):  # there is one already, which is told
        connection.__exit__(type(error), error)
