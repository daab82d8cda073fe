"""The I/O thread of a blocking connection: keeps a stream to some Client Manager and moves bytes for the core.

One lock guards the core; whoever waits does so on `changed`. Programs wake the thread only when it sleeps
(`is_asleep`, for what must leave at once; `is_idle`, for acknowledgements, which leave together at least every
`ACKNOWLEDGE_S`): the thread says that it sleeps before it looks a last time, and a program looks after it has added.

A program that sends now and then need not wait for the thread to wake up: while that sleeps, `push` writes to the
stream itself. One that sends all the time leaves it to the thread, which gathers what was sent meanwhile.
"""

import logging
import os
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable
from functools import partial
from random import Random
from typing import TypeVar

from alphorn.client.blocking.intake import BUFFER_BYTES, Intake
from alphorn.client.blocking.streaming import open_body
from alphorn.client.blocking.tunnel import open_tunnel
from alphorn.client.blocking.waiting import Waiting
from alphorn.client.core import Core, State
from alphorn.client.forks import FORKS, forked
from alphorn.client.inbox import Inbox
from alphorn.client.refusals import again
from alphorn.client.requests import Answer, OnAnswer
from alphorn.client.route import Route
from alphorn.client.url import Address, Target
from alphorn.doors.native import encode
from alphorn.io.sockets import forget_unsent
from alphorn.model.conversation import AnyClientFrame, Close
from alphorn.model.errors import Error, Misuse, PeerViolation, Unavailable

ACKNOWLEDGE_S = 0.01
FRAMES_PER_WRITE = 64
GOODBYE_S = 1.0  # so long the Client Manager is heard out when a connection is broken off
PUSH_S = 0.0005  # a program writes to the stream itself at most this often

_log = logging.getLogger("alphorn.client")
OnEvent = Callable[[str, str], None]
Result = TypeVar("Result")


class Line:
    """The thread, the stream, and the lock."""

    def __init__(
        self,
        target: Target,
        core: Core,
        *,
        context: ssl.SSLContext | None = None,
        connect_timeout: float,
        reconnect_timeout: float,
    ) -> None:
        self.core = core
        core.opener = partial(open_body, self)
        self._path = target.path  # of the WebSocket that leads there; empty where none does
        self._context = context  # how that is sealed
        self.lock = threading.Lock()
        self.changed = Waiting(self.lock)
        self.is_asleep = False
        self.is_idle = False
        self._stream: socket.socket | None = None  # while programs may write to it
        self._unsent: list[bytes | memoryview] = []  # taken from the core, and not in the stream yet
        self._is_cut = False  # a program writes, or was interrupted while it did: nobody knows how far it came
        self._push_at = 0.0
        self.forks = FORKS.number
        self._on_event: OnEvent | None = None
        self._events: list[tuple[str, str]] = []
        self._route = Route(target.addresses, Random(os.urandom(16)))
        self._give_up_s = connect_timeout
        self._give_up_at = 0.0
        self._address = target.addresses[0]  # the one that is tried,
        self._welcome_by = 0.0  # and until when
        self._reconnect_timeout = reconnect_timeout
        self._is_ending = False
        self._reason: Error = Unavailable("the connection is closed; connect again")  # for what is asked after its end
        self._wake_lock = threading.Lock()  # nobody writes to a descriptor that is closed, and perhaps another's by now
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="alphorn-io", daemon=True)

    def start(self, on_event: OnEvent | None) -> None:
        """Connects; raises what went wrong."""
        self._on_event = on_event
        self._give_up_at = time.monotonic() + self._give_up_s
        try:
            self._thread.start()
            self.changed.wait_for(lambda: self.core.state is not State.CONNECTING)
        except BaseException:
            self._begin_to_end(Unavailable("connecting was interrupted; connect again"))
            raise
        if self.core.failure is not None:
            self._thread.join()
            raise again(self.core.failure)

    def note_event(self, name: str, detail: str) -> None:
        """The core tells what happened; the program hears it outside of the lock."""
        self._events.append((name, detail))

    # For programs' threads.

    def check(self) -> None:
        """Raises `Misuse` after a fork, after closing, and in the I/O thread, which must not wait for itself."""
        self.check_thread()
        if self.core.failure is not None:
            raise again(self.core.failure)

    def check_thread(self) -> None:
        """Raises `Misuse` where nobody may wait for the connection."""
        if FORKS.number != self.forks:
            raise forked()
        if threading.current_thread() is self._thread:
            raise Misuse("on_event runs in the connection's own thread and must not wait for it; use another thread")

    def wait_for(self, is_done: Callable[[], object], timeout: float | None) -> bool:
        """Waits until something holds, looked at whenever the server said something; False when the time is over."""
        return bool(is_done()) or self.changed.wait_for(is_done, timeout)

    def wake(self) -> None:
        """Lets the thread look for something to send."""
        self.is_asleep = self.is_idle = False
        with self._wake_lock:
            if self._wake_fd >= 0:
                os.eventfd_write(self._wake_fd, 1)

    def push(self) -> None:
        """Sends what is to be sent, if the thread sleeps and it has been quiet; otherwise lets the thread do it."""
        now = time.monotonic()
        if now < self._push_at or self.lock.locked():
            self.wake()
            return
        self.change(self._push)

    def _push(self) -> None:
        if not self.is_asleep or self._stream is None or self._unsent:
            self.wake()
            return
        self._push_at = time.monotonic() + PUSH_S
        frames: list[bytes | memoryview] = list(self.core.take_output(time.time_ns() // 1_000_000, with_wishes=False))
        self._is_cut = True
        try:
            self._unsent = _send(self._stream, frames)
        except OSError:
            self._unsent = frames  # the thread finds out what is wrong
        self._is_cut = False
        if self._unsent:
            self.wake()

    def change(self, act: Callable[[], Result]) -> Result:
        """Changes what the lock guards; where that is broken off in the middle, the connection ends.

        The handler of a signal may raise between any two steps of a program's thread, as Ctrl-C does. What is half
        done then would be lost, or done twice, without a word. So this is no place to wait.
        """
        with self.lock:
            try:
                return act()
            except Error:
                raise
            except BaseException as error:
                self.tear(error)
                raise

    def tear(self, error: BaseException) -> None:
        """Under the lock: a change was broken off in the middle, so nobody knows any more what holds."""
        self.core.fail(
            Unavailable(f"a call was broken off in the middle by {error!r}, and the connection; connect again")
        )
        self.changed.notify_all()
        self.wake()

    def ask(self, make: Callable[[int], AnyClientFrame], *, forgives: bool = False) -> Answer:
        """Asks and waits for the answer; raises the error that is the answer."""
        return self.await_answer(lambda on_answer: self.core.request(make, on_answer, forgives=forgives))

    def await_answer(self, wish: Callable[[OnAnswer], object]) -> Answer:
        """Makes a wish under the lock and waits for its answer; raises the error that is the answer."""
        self.check()
        answers: list[Answer | Error] = []
        self.change(lambda: wish(answers.append))
        self.wake()
        self.changed.wait_for(lambda: answers)
        answer = answers[0]
        if isinstance(answer, Error):
            raise again(answer)
        return answer

    def open_inbox(self, wish: Callable[[OnAnswer], Inbox]) -> Inbox:
        """Begins to receive; raises why not. Interrupted, it leaves nothing behind that receives for nobody."""
        made: list[Inbox] = []
        try:
            self.await_answer(lambda on_answer: made.append(wish(on_answer)))
        except Error:
            raise
        except BaseException:
            for inbox in made:
                self.change(partial(self.core.close_inbox, inbox, lambda answer: None))
            self.wake()
            raise
        return made[0]

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._is_ending

    def unknown_outcomes(self) -> list[Error]:
        """What became of messages that nobody can tell about any more."""
        with self.lock:
            return self.core.unknown_outcomes()

    def close(self, reason: Misuse) -> None:
        """Says goodbye and ends the thread; interrupted, that ends all the same."""
        self._begin_to_end(reason)
        if threading.current_thread() is not self._thread:
            self._thread.join()
            with self.lock:
                self._finish()  # the thread may have ended before

    def _begin_to_end(self, reason: Error) -> None:
        with self.lock:
            if not self._is_ending:
                self.core.say_goodbye()
                self._reason, self._is_ending = reason, True
                self.wake()
                self.changed.notify_all()

    def _finish(self) -> None:
        """Under the lock: nothing comes any more."""
        self.core.fail(self._reason)
        self.changed.notify_all()
        with self._wake_lock:
            if self._wake_fd >= 0:
                os.close(self._wake_fd)
                self._wake_fd = -1

    # In the thread.

    def _run(self) -> None:
        try:
            while not self._is_ending and self.core.failure is None:
                stream = self._connect()
                if stream is not None:
                    with stream:
                        reason = self._serve_safely(stream)
                    with self.lock:
                        if self.core.state is State.OPEN:
                            self._give_up_at = time.monotonic() + self._give_up_s
                        elif self.core.state is State.CONNECTING:
                            self._route.on_failure(self._address, reason)
                        self.core.on_disconnected(reason)
                    self._tell_events()
        except BaseException as error:  # nobody else would hear it, and everybody would wait
            _log.exception("event=io_failed")
            with self.lock:
                self.core.fail(Unavailable(f"the connection's I/O ended by an error of the library: {error!r}"))
        with self.lock:
            self.changed.notify_all()
            if self._is_ending:
                self._finish()
        self._tell_events()

    def _connect(self) -> socket.socket | None:
        """A stream to some Client Manager; None when it is over."""
        deadline = self._give_up_at
        while True:
            pause = min(self._route.pause_s(), max(0.0, deadline - time.monotonic()))
            self.changed.wait_for(lambda: self._is_ending, pause)
            with self.lock:
                if self._is_ending or self.core.failure is not None:
                    return None
                if time.monotonic() >= deadline:
                    self.core.fail(self._route.exhausted(self._give_up_s))
                    return None
            now = time.monotonic()
            self._welcome_by = min(now + self._route.wait_s(self._give_up_s), deadline)
            self._address = self._route.next_address()
            stream = self._open(self._address, max(0.01, self._welcome_by - now))
            if stream is not None:
                return stream

    def _open(self, address: Address, timeout: float) -> socket.socket | None:
        try:
            if self._path:
                stream = open_tunnel(address, self._path, self._context, timeout)
            else:
                stream = socket.create_connection(address, timeout)
                stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except TimeoutError:
            self._route.on_silence(address)
            return None
        except (OSError, PeerViolation) as error:
            self._route.on_failure(address, getattr(error, "strerror", None) or str(error))
            return None
        stream.setblocking(False)
        return stream

    def _serve_safely(self, stream: socket.socket) -> str:
        try:
            return self._serve(stream)
        except PeerViolation as error:
            # One that has not said welcome is perhaps no Client Manager, which is told when all were tried.
            level = logging.DEBUG if self.core.state is State.CONNECTING else logging.WARNING
            _log.log(level, "event=peer_violation reason=%r", str(error))
            return str(error)
        except OSError as error:
            return error.strerror or str(error)
        finally:
            with self.lock:
                self._stream = None

    def _serve(self, stream: socket.socket) -> str:
        """Moves bytes until the stream ends; gives the reason."""
        poller = select.poll()
        poller.register(self._wake_fd, select.POLLIN)
        poller.register(stream, select.POLLIN)
        intake = Intake()
        told_at = 0.0
        welcome_by = self._welcome_by
        with self.lock:
            self.core.on_connected(time.monotonic(), time.time_ns() // 1_000_000)
            self._unsent = []
            # What a tunnel seals must not be written by one thread while another reads.
            self._stream = None if self._path else stream
        while True:
            now = time.monotonic()
            waiting = self._unsent[0] if self._unsent else None
            with self.lock:
                failure, is_last = self.core.failure, False
                if failure is None:
                    self.core.on_time(now)  # also while the stream takes nothing: whoever hangs reads nothing
                if failure is None and not self._unsent:
                    with_wishes = now - told_at >= ACKNOWLEDGE_S
                    self._unsent = list(self.core.take_output(time.time_ns() // 1_000_000, with_wishes=with_wishes))
                    is_last = self._is_ending  # what was taken ends with the goodbye
                    if with_wishes and self._unsent:
                        told_at = now
            if failure is not None:
                self._say_last(stream)
                return str(failure)
            if self._unsent:
                self._unsent = _send(stream, self._unsent)
                if waiting is not None and not (self._unsent and self._unsent[0] is waiting):
                    self.core.silence.on_movement(now)
            if self.core.wants_reconnection:
                if not self._path:  # one end of a pair of sockets has nothing on its way
                    forget_unsent(stream)  # it is said again elsewhere, and would be done twice
                return "the Client Manager does not answer, or sent us away"
            if is_last and not self._unsent:
                return "closed"
            if self.core.state is State.CONNECTING and now > welcome_by:
                return "it said nothing"
            is_readable = self._sleep(poller, stream, told_at, welcome_by, is_full=bool(self._unsent))
            if is_readable and not self._receive(stream, intake):
                return "the Client Manager closed the connection"

    def _say_last(self, stream: socket.socket) -> None:
        """The connection was broken off, and will not come back: others get at once what its consumers hold."""
        if not self.core.connection or self._is_cut:
            return
        _send(stream, [*self._unsent, encode(Close())])
        stream.shutdown(socket.SHUT_WR)
        stream.settimeout(GOODBYE_S)
        until = time.monotonic() + GOODBYE_S
        while stream.recv(BUFFER_BYTES) and time.monotonic() < until:
            pass  # a stream that is closed while more comes is reset, and what was said last may be lost

    def _sleep(
        self, poller: select.poll, stream: socket.socket, told_at: float, welcome_by: float, *, is_full: bool
    ) -> bool:
        """Waits for something to do; says whether the stream can be read."""
        core = self.core
        poller.modify(stream, select.POLLIN | select.POLLOUT if is_full else select.POLLIN)
        self.is_asleep = True
        deadline = welcome_by if core.state is State.CONNECTING else core.next_deadline()
        timeout = 1.0 if deadline is None else min(1.0, max(0.001, deadline - time.monotonic()))
        with self.lock:
            if not is_full and (core.has_output or self._is_ending):
                timeout = 0.0
            elif core.has_wishes:
                timeout = min(timeout, max(0.0, told_at + ACKNOWLEDGE_S - time.monotonic()))
            else:
                self.is_idle = True
                if self.core.has_wishes:  # a program's thread went on before it could see that this one is idle
                    timeout = 0.0
        events = poller.poll(timeout * 1000) if timeout else poller.poll(0)
        self.is_asleep = self.is_idle = False
        is_readable = False
        for fd, event in events:
            if fd == self._wake_fd:
                os.eventfd_read(fd)
            elif event & ~select.POLLOUT:
                is_readable = True
        return is_readable

    def _receive(self, stream: socket.socket, intake: Intake) -> bool:
        """Reads what is there; False at the end of the stream."""
        try:
            count = stream.recv_into(intake.room())
        except BlockingIOError:
            return True
        if not count:
            return False
        frames = intake.take(count)
        if not frames:
            self.core.silence.on_movement(time.monotonic())
        else:
            with self.lock:
                self.core.receive(frames, time.monotonic())
                if self.core.state is State.OPEN:
                    self._give_up_s = self._reconnect_timeout
                    # Behind a wall the addresses that Client Managers know of each other lead nowhere.
                    self._route.on_open(time.monotonic(), [] if self._path else self.core.addresses)
                self.changed.notify_all()
            self._tell_events()
        return True

    def _tell_events(self) -> None:
        while self._events:
            name, detail = self._events.pop(0)
            _log.debug("event=%s detail=%r", name, detail)
            if self._on_event is not None:
                try:
                    self._on_event(name, detail)
                except Exception:
                    _log.exception("event=on_event_failed name=%s", name)


def _send(stream: socket.socket, frames: list[bytes | memoryview]) -> list[bytes | memoryview]:
    """Writes as much as the stream takes; gives the rest."""
    place = 0
    while place < len(frames):
        part = frames[place : place + FRAMES_PER_WRITE]
        try:
            sent = stream.sendmsg(part)
        except BlockingIOError:
            break
        for frame in part:
            if sent < len(frame):
                frames[place] = memoryview(frame)[sent:]
                return frames[place:]
            sent -= len(frame)
            place += 1
    return frames[place:]
