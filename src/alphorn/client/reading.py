"""Reads the body of a message that came in fragments: a few pieces ahead of the program, and never more than that.

Whatever else the connection receives stands behind the pieces that are on their way. So where a piece comes soon after
the question, only one is asked for at a time; several are to bridge the way to a cluster that is far.

Each piece is a request of its own, named by the message it belongs to, so it does not matter on which stream, or by
which Client Manager, the next one is answered. At the end the bytes are checked against what the sender counted. The
owner calls everything under the connection's lock.
"""

from collections.abc import Callable
from functools import partial
from typing import Protocol

import xxhash

from alphorn.client.refusals import again
from alphorn.client.requests import Answer, OnAnswer
from alphorn.client.silence import Silence
from alphorn.model.conversation import AnyClientFrame, FragmentRead, ReadFragment
from alphorn.model.errors import Corruption, Error, PeerViolation
from alphorn.model.messages import Streamed

AHEAD = 4  # pieces asked for before the program wants them,
AHEAD_NEAR = 1  # and where they come within
NEAR_S = 0.05


class Asking(Protocol):
    """What is needed of a connection's core."""

    silence: Silence

    def request(self, make: Callable[[int], AnyClientFrame], on_answer: OnAnswer, *, forgives: bool = False) -> None:
        """Asks until it is answered."""


class Reading:
    """One body as one program reads it."""

    __slots__ = (
        "_ahead",
        "_asked",
        "_asked_at",
        "_core",
        "_digest",
        "_name",
        "_pieces",
        "_size",
        "_streamed",
        "_taken",
        "failure",
        "is_closed",
    )

    def __init__(
        self, core: Asking, streamed: Streamed, *, place: int, producer: bytes, counter: int, sequence: int
    ) -> None:
        self._core = core
        self._streamed = streamed
        self._name = place, producer, counter, sequence
        self._pieces: dict[int, bytes] = {}
        self._asked = 0
        self._asked_at: dict[int, float] = {}  # by piece: when the connection was last heard before
        self._ahead = AHEAD_NEAR
        self._taken = 0
        self._size = 0
        self._digest = xxhash.xxh3_128()
        self.failure: Error | None = None
        self.is_closed = False

    @property
    def is_over(self) -> bool:
        """Whether all was taken."""
        return self._taken == self._streamed.fragments

    @property
    def is_ready(self) -> bool:
        """Whether `take` has something to say."""
        return self.is_closed or self.is_over or self.failure is not None or self._taken in self._pieces

    def ask(self) -> None:
        """Asks for as many pieces as may be under way."""
        while self._asked < min(self._streamed.fragments, self._taken + self._ahead) and self.failure is None:
            index = self._asked
            self._asked += 1
            self._asked_at[index] = self._core.silence.heard_at
            self._core.request(partial(self._question, index), partial(self._on_answer, index))

    def take(self) -> bytes:
        """The next piece, when one is there; nothing at the end. Raises what went wrong, and `Corruption`."""
        if self.failure is not None:
            raise again(self.failure)
        if self.is_over or self.is_closed:
            return b""
        piece = self._pieces.pop(self._taken)
        self._taken += 1
        self._size += len(piece)
        self._digest.update(piece)
        self._check_end()
        self.ask()
        return piece

    def _check_end(self) -> None:
        sent = self._streamed
        if self._taken == sent.fragments and (self._size, self._digest.digest()) != (sent.size, sent.digest):
            self.failure = Corruption(
                f"the body has {self._size} bytes and not the {sent.size} that were sent, or others; do not use it, "
                "and have it sent again"
            )
            raise self.failure

    def _question(self, index: int, request: int) -> ReadFragment:
        return ReadFragment(request, *self._name, index)

    def close(self) -> None:
        """Nothing more is wanted; what is still on its way is dropped when it comes. Needs no lock."""
        self.is_closed = True
        self._pieces = {}

    def _on_answer(self, index: int, answer: Answer | Error) -> None:
        is_near = self._core.silence.heard_at - self._asked_at.pop(index) <= NEAR_S
        self._ahead = AHEAD_NEAR if is_near else AHEAD
        if isinstance(answer, Error):
            self.failure = self.failure or answer
        elif not isinstance(answer, FragmentRead):
            self.failure = PeerViolation("the Client Manager answered the question for a fragment with something else")
        elif not self.is_closed:
            self._pieces[index] = bytes(answer.blob)
