"""The thread that calls a session's listeners, one message at a time.

Nothing that a callback raises ends it, since all other listeners of the session would end with it. A listener whose
consumer the server closes is taken out, which only the log can tell: nobody waits for its messages.
"""

import logging
import threading
from collections.abc import Callable

from alphorn.client.blocking.line import Line
from alphorn.client.inbox import Inbox
from alphorn.client.message import Message

_log = logging.getLogger("alphorn.client")
Callback = Callable[[Message], object]


class Listening:
    """The listeners of one session; the thread exists from the first on."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._callbacks: dict[Inbox, Callback] = {}
        self._thread: threading.Thread | None = None
        self._busy: Inbox | None = None  # whose callback runs
        self._is_ending = False

    def add(self, inbox: Inbox, callback: Callback) -> None:
        """Calls `callback` for the messages of this consumer from now on."""
        with self._line.lock:
            self._callbacks[inbox] = callback
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="alphorn-session", daemon=True)
                self._thread.start()
            self._line.changed.notify_all()

    def remove(self, inbox: Inbox) -> None:
        """Calls no more for this consumer; waits until a callback that runs has returned."""
        with self._line.lock:
            self._callbacks.pop(inbox, None)
        if threading.current_thread() is not self._thread:
            self._line.changed.wait_for(lambda: self._busy is not inbox)

    def close(self) -> None:
        """Ends the thread once the callback that runs has returned."""
        with self._line.lock:
            self._is_ending = True
            self._callbacks.clear()
            self._line.changed.notify_all()
            thread = self._thread
        if thread is not None and threading.current_thread() is not thread:
            thread.join()

    def _run(self) -> None:
        line = self._line
        while True:
            line.changed.wait_for(lambda: self._is_ending or self._next() is not None)
            with line.lock:
                if self._is_ending:
                    return
                inbox = self._next()
                if inbox is None:
                    continue  # it was closed a moment ago
                callback = self._callbacks.pop(inbox)
                failure = inbox.failure
                if failure is None:
                    self._callbacks[inbox] = callback  # the others come first next time
                    message = self._take(inbox)
                    self._busy = inbox
            if failure is not None:
                _log.error("event=listener_ended destination=%s reason=%r", inbox.destination, str(failure))
                continue
            try:
                if message is not None:
                    self._call(inbox, callback, message)
            finally:
                with line.lock:
                    self._busy = None
                    line.changed.notify_all()

    def _next(self) -> Inbox | None:
        """A consumer with a message to hand out, or one that has ended."""
        return next((inbox for inbox in self._callbacks if inbox.has_prefetched or inbox.failure is not None), None)

    def _take(self, inbox: Inbox) -> Message | None:
        taken = inbox.take(1)
        return taken[0] if taken else None

    def _call(self, inbox: Inbox, callback: Callback, message: Message) -> None:
        line = self._line
        try:
            callback(message)
        except BaseException:  # also SystemExit, which in a thread would end just this one, unheard
            _log.exception("event=listener_failed destination=%s message=%s", inbox.destination, message.id)
            with line.lock:
                inbox.give_back(message._arrival, message._index)
                inbox.finish()
        else:
            with line.lock:
                inbox.finish()
        if line.is_idle or (line.is_asleep and inbox.is_urgent):
            line.wake()
