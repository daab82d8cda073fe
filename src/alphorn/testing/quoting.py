"""Quotes: a queue of last values, and a program that sends newer ones while it consumes those it has, in transactions.

It is the only one that receives them, it does not die, and nothing expires. So what it received is its own, whatever
came meanwhile: a commit must not find it gone. In the end it has consumed the newest value of every key.
"""

import random
from collections.abc import Sequence

import msgspec

from alphorn.client import transactions
from alphorn.client.core import State
from alphorn.client.flow import SessionState
from alphorn.client.inbox import AckMode, Inbox
from alphorn.client.outbox import Outbox, Parcel
from alphorn.client.packing import flags_of, pack_message
from alphorn.client.requests import Answer
from alphorn.model.conversation import Consume, Resolve
from alphorn.model.destinations import Policy
from alphorn.model.errors import Error
from alphorn.model.messages import Packed
from alphorn.testing.client_life import ClientLife, Door
from alphorn.testing.model_channels import Tell
from alphorn.testing.node import UNIX_START_S
from alphorn.testing.streams import SimulatedStreams
from alphorn.testing.watch import Violation

QUEUE = "queue:quotes"
KEYS = ("eu", "us")
PREFETCH = 3
GONE = "not all are there any more"  # what a transaction hears that finds something consumed by others, or expired


class QuotingClient(ClientLife):
    """The program. A value is a number; every later one of a key is larger."""

    name_of_promise = "a value that was received can be consumed"

    def __init__(
        self,
        *,
        place: int,
        managers: Sequence[Door],
        streams: SimulatedStreams,
        stream: random.Random,
        tell: Tell,
    ) -> None:
        super().__init__("Q1", place=place, managers=managers, streams=streams, stream=stream, tell=tell)
        self.committed = 0
        self._newest: dict[str, int] = {}  # key → the last value that was sent
        self._consumed: dict[str, int] = {}  # key → the last value that a committed transaction received
        self._sent = 0

    def find_unfinished(self) -> str:
        """What is still to be done, in words; nothing when all is well."""
        if self.core.state is not State.OPEN or self._outbox is None or not self._outbox.is_flushed:
            return f"{self.name} is {self.core.state.value} and has values that are not confirmed"
        behind = [key for key, value in self._newest.items() if self._consumed.get(key) != value]
        return f"{self.name} has not consumed the newest value of {behind}" if behind else ""

    def _begin(self) -> None:
        self._session: SessionState = self.core.open_session(AckMode.TRANSACTED)
        self._outbox: Outbox | None = None
        self._inbox: Inbox | None = None
        self._taken: dict[str, int] = {}  # in the open transaction
        self._is_committing = False
        policy = msgspec.msgpack.encode(Policy(last_value=True))
        self.core.request(lambda number: Resolve(number, QUEUE, policy=policy), self._on_found)

    def _on_found(self, answer: Answer | Error) -> None:
        if isinstance(answer, Error):
            raise Violation("clients are served", f"{self.name} cannot have {QUEUE}: {answer}")
        place = self.core.remember_place(QUEUE, answer)
        self._outbox = self.core.open_outbox(self.core.open_session(AckMode.AUTO), place, is_persistent=True)
        consume = Consume(0, 0, 0, place, PREFETCH)
        self._inbox = self.core.open_inbox(self._session, consume, QUEUE, self._on_opened)

    def _on_opened(self, answer: Answer | Error) -> None:
        if isinstance(answer, Error):
            raise Violation("clients are served", f"{self.name} cannot receive from {QUEUE}: {answer}")

    def _act(self) -> None:
        if self._outbox is not None and not self.is_calm and self._stream.random() < 0.5:
            self._send(self._outbox, self._stream.choice(KEYS))
        if self._inbox is None or self._is_committing:
            return
        for message in self._inbox.take(self._stream.randint(0, 2)):
            key = message.key or ""
            self._taken[key] = max(message.body, self._taken.get(key, 0))
        if self._taken and (self.is_calm or self._stream.random() < 0.5):
            self._commit()

    def _send(self, outbox: Outbox, key: str) -> None:
        self._sent += 1
        message = Packed(self._sent, key=key)
        outbox.add(Parcel(outbox.place, flags_of(message), 0, pack_message(message)))
        self._newest[key] = self._sent

    def _commit(self) -> None:
        taken, self._taken, self._is_committing = self._taken, {}, True

        def on_answer(answer: Answer | Error) -> None:
            self._is_committing = False
            transactions.note_told(self._session)
            if not isinstance(answer, Error):
                self.committed += 1
                self._consumed.update(taken)
            elif GONE in str(answer):
                raise Violation(self.name_of_promise, f"{self.name} received {taken}, and its commit found: {answer}")
            self._tell(self.name, f"committed {taken}: {answer}")

        transactions.commit(self.core, self._session, int((UNIX_START_S + self._now) * 1000), on_answer)
        self._flush()
