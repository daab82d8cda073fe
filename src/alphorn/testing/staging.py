"""Jobs that publish in stages, as Spark's sink does: what they stage is seen all together, once, or never.

A job has a name and a note of the batch it is at; both outlive its program, and nothing else does. For each batch it
stages some partitions, sometimes in a second attempt that it does not name, and publishes. What it cannot be sure of it
does again, under the same batch and with other messages: after it died, or when its note is lost. It publishes twice,
before all is staged, or not at all.
"""

import random
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from alphorn.client.core import State
from alphorn.client.requests import Answer, OnAnswer
from alphorn.client.staging import Staging
from alphorn.model.conversation import AnyClientFrame, Resolve
from alphorn.model.errors import Error, Unavailable
from alphorn.model.log_conversation import DropStaged, PublishStaged, Stage
from alphorn.testing.book import Book
from alphorn.testing.client_life import ClientLife, Door
from alphorn.testing.model_channels import Tell
from alphorn.testing.streams import SimulatedStreams
from alphorn.testing.watch import Violation

CHANNEL = 0
BEGIN_SHARE = 0.2  # of steps in which a job that is at nothing begins
PARTITIONS_MAX = 3
PARTS_MAX = 3  # of an attempt
MESSAGES_MAX = 4  # of a part
SPARE_SHARE = 0.3  # of partitions that have an attempt more
HASTY_SHARE = 0.15  # of batches that are published before all is known to be staged
DROP_SHARE = 0.15
AGAIN_SHARE = 0.3  # of publications that are asked for again
FORGET_SHARE = 0.3  # of batches that are done and begun anew
SKIP_SHARE = 0.2  # of batches after which a number is left out

BatchName = tuple[str, int]  # writer and batch


class Publication(msgspec.Struct, eq=False):
    """What one `PublishStaged` names."""

    attempts: list[tuple[int, int, int, int]]  # partition, attempt, parts, messages
    tokens: dict[str, list[int]]  # by destination, in their order
    is_hasty: bool
    is_asked: bool = False


class StagingBook:
    """What jobs staged, asked for and were told."""

    def __init__(self) -> None:
        self.staged: dict[int, tuple[BatchName, Publication | None]] = {}  # by token; None where nothing names it
        self.batches: dict[BatchName, list[Publication]] = {}
        self.done: set[BatchName] = set()  # a job heard that it is published
        self.refused = 0  # publications that were not staged as they should be
        self.dropped = 0


class StagingClient(ClientLife):
    """A job, through all its runs."""

    def __init__(
        self,
        name: str,
        *,
        place: int,
        targets: Sequence[str],
        managers: Sequence[Door],
        streams: SimulatedStreams,
        stream: random.Random,
        book: Book,
        staging_book: StagingBook,
        tell: Tell,
    ) -> None:
        super().__init__(name, place=place, managers=managers, streams=streams, stream=stream, tell=tell)
        self._targets = targets
        self._book = book
        self._staging_book = staging_book
        self._batch = 0
        self._given_up: set[int] = set()  # batches of which something was let go, now or as soon as that is heard
        self._attempts = 0

    def find_unfinished(self) -> str:
        """What is still to be done, in words; nothing when all is well."""
        if self.core.state is not State.OPEN:
            return f"{self.name} is {self.core.state.value}"
        return f"{self.name} is at batch {self._batch}" if self._open or self._publication is not None else ""

    @property
    def _name(self) -> BatchName:
        return self.name, self._batch

    def _begin(self) -> None:
        self._places: dict[str, int] = {}
        self._publication: Publication | None = None  # what is staged, or was and is not published
        self._open = 0  # questions
        for destination in self._targets:
            self._ask(partial(Resolve, destination=destination), partial(self._on_place, destination))

    def _ask(self, make: Callable[[int], AnyClientFrame], on_answer: OnAnswer) -> None:
        run = self._run

        def answered(answer: Answer | Error) -> None:
            if run == self._run:
                self._open -= 1
                on_answer(answer)

        self._open += 1
        self.core.request(make, answered)

    def _on_place(self, destination: str, answer: Answer | Error) -> None:
        if isinstance(answer, Error):
            raise Violation("clients are served", f"{self.name} cannot have {destination}: {answer}")
        self._places[destination] = self.core.remember_place(destination, answer)

    def _act(self) -> None:
        publication, draw = self._publication, self._stream.random
        if len(self._places) < len(self._targets):
            return
        if publication is None:
            if not self._open and not self.is_calm and draw() < BEGIN_SHARE:
                self._stage()
        elif publication.is_hasty and not publication.is_asked:
            self._publish(publication)
        elif not self._open:
            if not self.is_calm and draw() < DROP_SHARE:
                self._drop()
            else:
                self._publish(publication)

    # --- staging ---

    def _stage(self) -> None:
        draw = self._stream
        made = Publication([], {}, draw.random() < HASTY_SHARE)
        for partition in range(draw.randint(1, PARTITIONS_MAX)):
            if draw.random() < SPARE_SHARE:
                self._stage_attempt(partition, None)
            self._stage_attempt(partition, made)
        if made.tokens:
            self._staging_book.batches.setdefault(self._name, [])
            self._publication = made

    def _stage_attempt(self, partition: int, publication: Publication | None) -> None:
        draw = self._stream
        self._attempts += 1
        staging = Staging(writer=self.name, batch=self._batch, partition=partition, attempt=self._attempts)
        parts, messages = draw.randint(0, PARTS_MAX), 0
        for part in range(parts):
            destination, count = draw.choice(self._targets), draw.randint(1, MESSAGES_MAX)
            counter = (self._batch << 32) + messages + 1
            tokens = self._note(staging, destination, counter, count, publication)
            make = partial(
                Stage,
                place=self._places[destination],
                producer=staging.producer,
                counter=counter,
                count=count,
                flags=0,
                timestamp=int(self._now * 1000),
                blob=memoryview(msgspec.msgpack.encode([[token] for token in tokens])),
                writer=staging.writer,
                batch=staging.batch,
                partition=staging.partition,
                attempt=staging.attempt,
                part=part,
            )
            self._ask(make, self._on_staged)
            messages += count
        if publication is not None:
            publication.attempts.append((partition, staging.attempt, parts, messages))

    def _note(
        self, staging: Staging, destination: str, counter: int, count: int, publication: Publication | None
    ) -> list[int]:
        tokens = [self._book.send(destination, staging.producer, counter + place, self._now) for place in range(count)]
        for token in tokens:
            self._staging_book.staged[token] = (self._name, publication)
        if publication is not None:
            publication.tokens.setdefault(destination, []).extend(tokens)
        return tokens

    def _on_staged(self, answer: Answer | Error) -> None:
        if isinstance(answer, Error):
            raise Violation("clients are served", f"{self.name} cannot stage: {answer}")

    # --- publishing ---

    def _publish(self, publication: Publication) -> None:
        if not publication.is_asked:
            publication.is_asked = True
            self._staging_book.batches[self._name].append(publication)
        self._tell(self.name, f"publishes batch {self._batch} {publication.attempts}")
        make = partial(
            PublishStaged, channel=CHANNEL, writer=self.name, batch=self._batch, attempts=publication.attempts
        )
        self._ask(make, partial(self._on_published, publication))

    def _on_published(self, publication: Publication, answer: Answer | Error) -> None:
        self._tell(self.name, f"hears {answer}")
        if isinstance(answer, Error):
            is_expected = publication.is_hasty or self._batch in self._given_up
            if not is_expected or not isinstance(answer, Unavailable):
                raise Violation("clients are served", f"{self.name} cannot publish batch {self._batch}: {answer}")
            self._staging_book.refused += 1
            self._publication = None
            return
        self._staging_book.done.add(self._name)
        draw = self._stream.random
        if self.is_calm or draw() >= AGAIN_SHARE:
            self._publication = None
            if self.is_calm or draw() >= FORGET_SHARE:
                self._go_on()

    def _go_on(self) -> None:
        self._batch += 2 if self._stream.random() < SKIP_SHARE else 1

    def _drop(self) -> None:
        self._given_up.add(self._batch)
        self._ask(partial(DropStaged, channel=CHANNEL, writer=self.name, batch=self._batch), self._on_dropped)

    def _on_dropped(self, answer: Answer | Error) -> None:
        if isinstance(answer, Error):
            raise Violation("clients are served", f"{self.name} cannot let go of batch {self._batch}: {answer}")
        self._staging_book.dropped += 1
        self._publication = None
        if self._stream.random() < 0.5:
            self._go_on()
