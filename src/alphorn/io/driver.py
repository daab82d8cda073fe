"""The one loop that runs any machine: inputs in, one timer, one outbox.

Inputs reach the machine at once. The turn then ends once, in the loop's next pass, however many inputs arrived on
however many sockets meanwhile: due time is given, outputs are taken and performed in order, and the owner's `end_turn`
sends what they added up to. So batches grow with load, and nothing waits when there is none.

Time is given only after everything that has arrived was heard (`hear`): a process that the machine kept waiting would
otherwise suspect members, and ask for batches, whose frames lie in its own sockets.

An exception from the machine or from an output is a bug or a lost disk: the driver stops for good and says so.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar

from alphorn.model.errors import PeerViolation

ROUNDING_S = 0.0005  # uvloop rounds to whole milliseconds: a timer that is too early would fire until its time has come
ROUNDS_MAX = 8  # of outputs that cause inputs, before other work of the loop gets its turn

_log = logging.getLogger(__name__)


_Input = TypeVar("_Input")
_Output = TypeVar("_Output")
_Taken = TypeVar("_Taken", contravariant=True)
_Given = TypeVar("_Given", covariant=True)


class Runnable(Protocol[_Taken, _Given]):
    """The part of every machine's contract that a driver needs."""

    def receive(self, item: _Taken, now: float) -> None:
        """Takes in one thing that happened."""

    def on_time(self, now: float) -> None:
        """Does what is due."""

    def next_deadline(self) -> float:
        """When `on_time` wants to be called; infinity for never."""

    def take_outputs(self) -> Iterable[_Given]:
        """Everything to do since the last call, in order."""


class Driver(Generic[_Input, _Output]):
    """Runs one machine on the running event loop.

    `perform` is called for each output and may call `receive` again. `end_turn` is called once after the last output of
    a turn. `hear` hands over what has arrived and was not noticed yet. `on_failure` is called at most once, after which
    nothing more is performed.
    """

    __slots__ = (
        "_armed_at",
        "_end_turn",
        "_has_inputs",
        "_hear",
        "_is_closed",
        "_loop",
        "_machine",
        "_on_failure",
        "_perform",
        "_timer",
        "_turn",
        "turns",
        "violations",
    )

    def __init__(
        self,
        machine: Runnable[_Input, _Output],
        *,
        perform: Callable[[_Output], None],
        end_turn: Callable[[], None],
        on_failure: Callable[[BaseException], None],
        hear: Callable[[], None] = lambda: None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._machine = machine
        self._perform = perform
        self._end_turn = end_turn
        self._on_failure = on_failure
        self._hear = hear
        self._timer: asyncio.TimerHandle | None = None
        self._armed_at = -math.inf
        self._turn: asyncio.Handle | None = None
        self._is_closed = False
        self._has_inputs = False
        self.turns = 0
        self.violations = 0  # inputs the machine refused: a peer of another version, or a stranger

    @property
    def is_closed(self) -> bool:
        """Whether the machine has been stopped, by its owner or by a failure."""
        return self._is_closed

    def start(self) -> None:
        """Performs what the machine already wants and arms the timer."""
        self._finish_soon()

    def receive(self, item: _Input) -> None:
        """Hands one input over; its outputs are performed when the turn ends. Ignored after closing."""
        self.receive_all((item,))

    def receive_all(self, items: Iterable[_Input]) -> None:
        """Hands over all that arrived together."""
        if self._is_closed:
            return
        self._has_inputs = True
        now = self._loop.time()
        receive = self._machine.receive
        try:
            for item in items:
                try:
                    receive(item, now)
                except PeerViolation as violation:  # One peer's words are refused; the others are heard.
                    self.violations += 1
                    _log.debug("event=peer_refused reason=%s", violation)
        except Exception as error:
            self._fail(error)
            return
        if self._turn is None:
            self._finish_soon()

    def finish_turn(self) -> None:
        """Ends the turn now: for a last word before closing."""
        if self._turn is not None:
            self._turn.cancel()
        self._finish_turn()

    def close(self) -> None:
        """Stops the machine: no input is taken and no output performed any more."""
        self._is_closed = True
        for handle in (self._timer, self._turn):
            if handle is not None:
                handle.cancel()
        self._timer = self._turn = None

    def _finish_soon(self) -> None:
        self._turn = self._loop.call_soon(self._finish_turn)

    def _finish_turn(self) -> None:
        if self._is_closed:
            return
        machine = self._machine
        self.turns += 1
        try:
            now = self._loop.time()
            # What has become due by this turn's own inputs is due when the timer is armed again.
            if self._armed_at <= now and machine.next_deadline() <= now:
                self._hear()
                if self.is_closed:
                    return
                machine.on_time(now)
            is_done = self._perform_all()
            self._end_turn()
            if is_done and self._has_inputs:  # the end of the turn caused some: they need not wait for the loop
                is_done = self._perform_all()
                self._end_turn()
                is_done = is_done and not self._has_inputs
        except Exception as error:
            self._fail(error)
            return
        if self.is_closed:  # One of the outputs, or the end of the turn, stopped this machine.
            return
        if self._turn is not None:  # This turn's own, or one that an input asked for while it ran.
            self._turn.cancel()
            self._turn = None
        if not is_done:
            self._finish_soon()
        self._arm()

    def _perform_all(self) -> bool:
        """Performs outputs, and those of the inputs they cause; False when there may be more."""
        for _ in range(ROUNDS_MAX):
            self._has_inputs = False
            for output in list(self._machine.take_outputs()):
                if self._is_closed:
                    return True
                self._perform(output)
            if not self._has_inputs:
                return True
        return False

    def _arm(self) -> None:
        # A timer that is armed too early only wakes up to be armed again: cheaper than replacing it in each turn.
        deadline = self._machine.next_deadline()
        if self._timer is not None:
            if deadline >= self._armed_at:
                return
            self._timer.cancel()
        self._armed_at = deadline
        self._timer = None if deadline == math.inf else self._loop.call_at(deadline + ROUNDING_S, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self._turn is not None:
            return  # it does what is due, and arms the timer again
        if self._machine.next_deadline() <= self._loop.time():
            self._finish_turn()
        else:
            self._arm()  # what it was armed for has moved meanwhile

    def _fail(self, error: Exception) -> None:
        _log.critical("event=machine_failed error=%r", error, exc_info=error)
        self.close()
        self._on_failure(error)
