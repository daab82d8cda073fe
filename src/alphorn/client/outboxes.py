"""All producers of a connection: who sends what next, and what the server says of what was sent.

The cluster knows a producer as long as it may send, and would know a closed one to the end of the connection: so it is
told, once many were closed, which numbers are still in use. That goes along with what else is sent, and costs nothing.
"""

from collections.abc import Callable
from itertools import chain

from alphorn.client.flow import SessionState
from alphorn.client.lane import Lane
from alphorn.client.outbox import Outbox
from alphorn.client.pauses import Pauses
from alphorn.client.refusals import error_of
from alphorn.client.whereabouts import Ask, Whereabouts
from alphorn.doors.native import encode
from alphorn.model.commands import USED_MAX
from alphorn.model.conversation import Confirmed, Flow, Hold, Postponed, Refused, Retire, Vanished
from alphorn.model.errors import Error, InvalidDestination, Unavailable, UnknownOutcome

CLOSED_MAX = 64  # producers and sessions that were closed and of which the cluster does not know it


class Outboxes:
    """Outboxes and lanes by number."""

    __slots__ = ("_closed", "_next_number", "_of", "_pauses", "_sessions", "_whereabouts")

    def __init__(
        self, sessions: dict[int, SessionState], whereabouts: Whereabouts, next_number: Callable[[], int]
    ) -> None:
        self._sessions = sessions
        self._whereabouts = whereabouts
        self._next_number = next_number
        self._of: dict[int, Outbox | Lane] = {}
        self._pauses = Pauses()
        self._closed = 0  # that the cluster may know and has not been told of

    def open(self, session: SessionState, place: int, *, is_persistent: bool, destination: str | None = None) -> Outbox:
        """Begins to send."""
        number = self._next_number()
        outbox = Outbox(number=number, session=session.number, place=place, is_persistent=is_persistent)
        outbox.is_transacted, outbox.destination = session.transaction is not None, destination or ""
        self._enter(outbox)
        return outbox

    def open_lane(self, session: int) -> Lane:
        """Begins to send large bodies."""
        lane = Lane(number=self._next_number(), session=session)
        self._enter(lane)
        return lane

    def begin_body(self, lane: Lane, place: int) -> None:
        """Begins to send another large body."""
        lane.begin(place)
        self._pauses.apply([lane])

    def close(self, outbox: Outbox | Lane) -> None:
        """Ends sending. What is part of a transaction leaves with that; what else is not confirmed is given up."""
        outbox.is_open = False
        is_unconfirmed = isinstance(outbox, Outbox) and not outbox.is_flushed
        if isinstance(outbox, Outbox) and outbox.is_transacted and is_unconfirmed:
            outbox.on_progress()
            return
        if self._of.pop(outbox.number, None) is not None and outbox.counter:
            self.note_closed()
        if session := self._sessions.get(outbox.session):
            session.outboxes.pop(outbox.number, None)
        if is_unconfirmed and outbox.failure is None:
            outbox.on_failed(Unavailable("this producer was closed before all that it had sent was confirmed"))
        else:
            outbox.on_progress()

    def note_closed(self) -> None:
        """A producer or a session that the cluster may know is used no more."""
        self._closed += 1

    def receive(self, frame: Confirmed | Refused | Vanished | Postponed | Flow | Hold) -> None:
        """The server speaks of messages, or of who is to wait."""
        match frame:
            case Confirmed(producer, counter):
                if outbox := self._of.get(producer):
                    outbox.on_confirmed(counter)
            case Refused():
                self._on_refused(frame)
            case Vanished(place):
                outboxes = [outbox for outbox in self._of.values() if isinstance(outbox, Outbox)]
                self._whereabouts.on_vanished(place, outboxes)
            case _:
                self._pauses.receive(frame, self._of)

    def on_welcome(self) -> None:
        """There is a stream again, and nobody waits who is not told so by it."""
        self._pauses.clear(self._of.values())

    def fail(self, error: Error) -> None:
        """The library gives up."""
        for outbox in self._of.values():
            outbox.on_failed(error)

    @property
    def has_output(self) -> bool:
        """Whether something should leave at once."""
        return any(outbox.wants_packing for outbox in self._of.values())

    def pack(self, now_ms: int, ask: Ask) -> list[bytes | memoryview]:
        """What is to leave now; destinations that were deleted are asked for instead."""
        output: list[bytes | memoryview] = []
        for outbox in self._of.values():
            if isinstance(outbox, Outbox) and outbox.wants_packing and outbox.is_stale:
                self._whereabouts.find_again(outbox, ask)
            elif outbox.wants_packing:
                output += outbox.pack(now_ms)
        if self._closed >= max(CLOSED_MAX, len(self._of) + len(self._sessions)):
            self._closed = 0
            output.append(encode(self._retirement()))
        return output

    def _retirement(self) -> Retire:
        """Which numbers are in use; of very many only the first are named, and then nothing is said of later ones."""
        used = sorted({*self._of, *self._sessions})
        through = self._next_number() if len(used) <= USED_MAX else used[USED_MAX] - 1
        return Retire(through, used[:USED_MAX])

    def unconfirmed_frames(self) -> list[bytes | memoryview]:
        """What must be sent again on a new stream."""
        return list(chain.from_iterable(outbox.unconfirmed_frames() for outbox in self._of.values()))

    def unknown_outcomes(self) -> list[Error]:
        """Of producers with unconfirmed messages after giving up, what to say about the newest of them."""
        outcomes = [box.outcome(box.counter) for box in self._of.values() if box.counter > box.confirmed]
        return [outcome for outcome in outcomes if isinstance(outcome, Error)]

    def describe(self) -> list[dict[str, int]]:
        """The printable state."""
        return [outbox.describe() for outbox in self._of.values()]

    def _enter(self, outbox: Outbox | Lane) -> None:
        outbox.blocked_places = self._pauses.places
        self._pauses.apply([outbox])
        self._of[outbox.number] = self._sessions[outbox.session].outboxes[outbox.number] = outbox

    def _on_refused(self, frame: Refused) -> None:
        error = error_of(frame.error, frame.reason)
        is_gone = isinstance(error, InvalidDestination)
        if is_gone:
            self._whereabouts.places.clear()  # one of them is gone; the others are soon found again
        outbox = self._of.get(frame.producer)
        if isinstance(outbox, Outbox) and isinstance(error, UnknownOutcome):
            outbox.on_forgotten(str(error))
            self.close(outbox)
        elif outbox is not None:
            outbox.on_refused(frame.counter, frame.count, error)
            if is_gone:
                outbox.on_vanished()
