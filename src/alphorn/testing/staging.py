"""Jobs that publish in stages, as Spark's sink does: what they stage is seen all together, once, or never.

A job has a name and a note of the batch it is at; both outlive its program, and nothing else does. For each batch it
stages some partitions, sometimes in a second attempt that it does not name, and publishes, on one channel after the
other. What it cannot be sure of it does again, under the same batch and in other attempts: after it died, when its note
is lost, or when a destination was on its way to another channel. It publishes twice, before all is staged, or not at
all; and what it said earlier may be heard once more, long after.
"""

import random
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from alphorn.client.core import State
from alphorn.client.requests import Answer, OnAnswer
from alphorn.client.staging import Share, Staged, Staging, shares_of
from alphorn.model.conversation import AnyClientFrame, Resolve, parts_of
from alphorn.model.errors import Error, Postponed, Unavailable
from alphorn.model.log_conversation import DropStaged, PublishStaged, Stage
from alphorn.model.moving_conversation import Move
from alphorn.testing.book import Book
from alphorn.testing.client_life import ClientLife, Door
from alphorn.testing.model_channels import Tell
from alphorn.testing.streams import SimulatedStreams
from alphorn.testing.watch import Violation

BEGIN_SHARE = 0.4  # of steps in which a job that is at nothing begins
TASK_SHARE = 0.3  # of steps in which the next task begins
MOVE_SHARE = 0.03  # of steps in which somebody wants a destination on another channel,
FREE_SHARE = 0.8  # and of times in which what was staged was let go, so that it can
UNLUCKY_SHARE = 0.75  # of jobs that are ever overtaken,
OVERTAKEN_SHARE = 0.7  # and of their batches that another run began, and whose destinations have moved since
LATE_SHARE = 0.05  # of steps in which something comes that was asked before
SAID_MAX = 6  # requests of each kind that may come once more
PARTITIONS_MAX = 3
ROWS_MAX = 6  # of a destination in a batch
MESSAGES_MAX = 4  # of a part
DIE_SHARE = 0.4  # of publications in which the driver dies between two channels
SPARE_SHARE = 0.3  # of partitions that have an attempt more
HASTY_SHARE = 0.15  # of batches that are published before all is known to be staged
DROP_SHARE = 0.15
AGAIN_SHARE = 0.3  # of publications that are asked for again
FORGET_SHARE = 0.3  # of batches that are done and begun anew
SKIP_SHARE = 0.2  # of batches after which a number is left out
STALE_SHARE = 0.3  # of batches whose words may still be heard during the next ones

BatchName = tuple[str, int]  # writer and batch
Parts = list[tuple[str, int]]  # destination, messages
Make = Callable[[int], AnyClientFrame]
Meanwhile = Callable[["Publication", Callable[[], None]], None]  # does something, and then calls what follows


class Attempt(msgspec.Struct, eq=False):
    """What one task stages."""

    partition: int
    number: int
    parts: Parts
    publication: "Publication | None"  # the one that names it
    channels: dict[int, tuple[int, int]] = {}  # parts and messages, once they are sent
    places: dict[str, int] = {}  # of its destinations
    tokens: dict[str, list[int]] = {}  # by destination, in their order
    is_sent: bool = False
    is_refused: bool = False


class Publication(msgspec.Struct, eq=False):
    """What is published together, by one `PublishStaged` for each channel."""

    attempts: list[Attempt]  # by partition
    is_hasty: bool
    waiting: list[Attempt] = []  # tasks that have not begun, in their order
    is_asked: bool = False
    is_held: bool = False  # until words of an earlier run were heard, or what is to be done meanwhile is over
    meanwhile: Meanwhile | None = None  # done when all is staged and nothing published; what follows publishes
    is_certain: bool = False  # nothing is left that could be a reason to refuse it
    left: list[int] = []  # channels that have not answered yet

    @property
    def channels(self) -> list[int]:
        """Where anything of it is staged."""
        return sorted({channel for attempt in self.attempts for channel in attempt.channels})

    @property
    def homes(self) -> dict[str, int]:
        """On which channels its destinations were found."""
        return {name: parts_of(place)[0] for attempt in self.attempts for name, place in attempt.places.items()}

    @property
    def tokens(self) -> dict[str, list[int]]:
        """By destination, in their order."""
        found: dict[str, list[int]] = {}
        for attempt in self.attempts:
            for destination, tokens in attempt.tokens.items():
                found.setdefault(destination, []).extend(tokens)
        return found

    def shares(self, batch: int) -> dict[int, Share]:
        """What the client library asks of each channel; raises `Unavailable` where it would."""
        staged = [Staged(each.partition, each.number, each.channels, each.places) for each in self.attempts]
        return shares_of(batch, staged)


class StagingBook:
    """What jobs staged, asked for and were told."""

    def __init__(self) -> None:
        self.staged: dict[int, tuple[BatchName, Attempt]] = {}  # by token
        self.batches: dict[BatchName, list[Publication]] = {}
        self.done: set[BatchName] = set()  # a job heard that it is published
        self.refused = 0  # publications that were not staged as they should be
        self.dropped = 0
        self.moves = 0  # that jobs asked for
        self.torn = 0  # publications of which a destination was on two channels
        self.overtaken = 0  # of which all was let go, and a destination moved on, before they were asked for
        self.wanted = 0  # that were wanted elsewhere while all was staged
        self.late = 0  # requests that came once more


class StagingClient(ClientLife):
    """A job, through all its runs."""

    def __init__(
        self,
        name: str,
        *,
        place: int,
        targets: Sequence[str],
        channels: Sequence[str] = (),
        managers: Sequence[Door],
        streams: SimulatedStreams,
        stream: random.Random,
        mishaps: random.Random,
        book: Book,
        staging_book: StagingBook,
        tell: Tell,
    ) -> None:
        super().__init__(name, place=place, managers=managers, streams=streams, stream=stream, tell=tell)
        self._targets = targets
        self.channels = channels  # between which its destinations are moved
        self._mishaps = mishaps
        self._is_unlucky = mishaps.random() < UNLUCKY_SHARE
        self._overtaken = -1  # batch that was or could have been
        self._book = book
        self._staging_book = staging_book
        self._batch = 0
        self._given_up: set[int] = set()  # batches of which something was let go, now or as soon as that is heard
        self._missing: dict[str, int] = {}  # destinations that did not get the batch when the driver died, and where
        self._attempts = 0
        self._said: dict[str, deque[Make]] = {}  # by kind: what may be heard once more

    def stage_whole(self, meanwhile: Meanwhile) -> None:
        """Begins another batch now, in which nothing goes wrong but what is done meanwhile.

        To begin the last one anew would mend what went wrong with that.
        """
        self._go_on()
        while self._publication is None:
            self._stage()
        self._publication.is_hasty, self._publication.meanwhile = False, meanwhile

    def find_unfinished(self) -> str:
        """What is still to be done, in words; nothing when all is well."""
        if self.core.state is not State.OPEN:
            return f"{self.name} is {self.core.state.value}"
        return f"{self.name} is at batch {self._batch}" if self._open or self._publication is not None else ""

    @property
    def _name(self) -> BatchName:
        return self.name, self._batch

    def _begin(self) -> None:
        self._publication: Publication | None = None  # what is staged, or was and is not published
        self._open = 0  # questions

    def ask(self, make: Make, on_answer: OnAnswer) -> None:
        """Asks for something; a later run does not hear the answer."""
        run = self._run

        def answered(answer: Answer | Error) -> None:
            if run == self._run:
                self._open -= 1
                on_answer(answer)

        self._open += 1
        self.core.request(make, answered)

    def _act(self) -> None:
        publication, draw = self._publication, self._stream.random
        if self._said and not self.is_calm and draw() < LATE_SHARE:
            self._say_again()
        self._move_sometimes(MOVE_SHARE, {})
        if publication is None:
            if not self._open and not self.is_calm and draw() < BEGIN_SHARE:
                self._stage()
        elif publication.waiting:
            if draw() < TASK_SHARE:
                self._stage_attempt(publication.waiting.pop(0))
        elif publication.is_hasty and not publication.is_asked:
            if all(attempt.is_sent for attempt in publication.attempts):
                self._publish(publication)
        elif not self._open:
            refused = [attempt for attempt in publication.attempts if attempt.is_refused]
            if publication.meanwhile is not None and not refused and not publication.is_held:
                publication.is_held = True
                self._staging_book.wanted += 1
                publication.meanwhile(publication, partial(self._go_on_publishing, publication))
                return
            if not refused and self._is_overtaken(publication):
                return
            if draw() < (0.5 if refused else 0.0 if self.is_calm else 0.7 if self._missing else DROP_SHARE):
                self._drop(publication)
            elif refused and not publication.is_asked:  # what was asked for may be seen: it stays as it is
                self._stage_again(publication, refused)
            else:
                self._publish(publication)

    def _note(self, kind: str, make: Make) -> Make:
        self._said.setdefault(kind, deque(maxlen=SAID_MAX)).append(make)
        return make

    def _say_again(self) -> None:
        kind = self._stream.choice(sorted(self._said))
        make = self._stream.choice(self._said[kind])
        self._staging_book.late += 1
        self.core.request(make, lambda answer: None)
        if kind == "drop" and self._publication is not None:
            self._move_sometimes(FREE_SHARE, self._publication.homes)

    def _move_sometimes(self, share: float, homes: dict[str, int]) -> None:
        """Somebody wants a destination on another channel than where it is, as far as that is known."""
        draw = self._stream
        if self.channels and not self.is_calm and draw.random() < share:
            destination = draw.choice(sorted(homes) or self._targets)
            others = [name for number, name in enumerate(self.channels) if number != homes.get(destination)]
            channel = draw.choice(others)
            self._tell(self.name, f"wants {destination} on {channel}")
            self.core.request(lambda request: Move(request, destination, channel), self._on_moved)

    def _on_moved(self, answer: Answer | Error) -> None:
        self._staging_book.moves += not isinstance(answer, Error)

    # --- staging ---

    def _stage(self) -> None:
        """Begins a batch, or begins it anew: where its destinations are moved it has the same rows then."""
        draw = self._stream
        rows = random.Random(f"{self.name}/{self._batch}") if self.channels else draw
        parts = [part for name in self._targets for part in self._cut(name, rows.randint(0, ROWS_MAX))]
        if not parts:
            self._go_on()
            return
        draw.shuffle(parts)
        self._publication = made = Publication([], draw.random() < HASTY_SHARE)
        self._staging_book.batches.setdefault(self._name, [])
        partitions = draw.randint(1, PARTITIONS_MAX)
        for partition in range(partitions):
            mine = parts[partition::partitions]
            if draw.random() < SPARE_SHARE:
                made.waiting.append(Attempt(partition, self._next_attempt(), mine, None))
            attempt = Attempt(partition, self._next_attempt(), mine, made)
            made.attempts.append(attempt)
            made.waiting.append(attempt)

    def _cut(self, destination: str, rows: int) -> Parts:
        parts: Parts = []
        while rows:
            count = self._stream.randint(1, min(rows, MESSAGES_MAX))
            parts.append((destination, count))
            rows -= count
        return parts

    def _next_attempt(self) -> int:
        self._attempts += 1
        return self._attempts

    def _stage_again(self, publication: Publication, refused: list[Attempt]) -> None:
        """Tasks whose destinations were on their way are run once more."""
        for attempt in refused:
            attempt.publication = None
            again = Attempt(attempt.partition, self._next_attempt(), attempt.parts, publication)
            publication.attempts[publication.attempts.index(attempt)] = again
            self._stage_attempt(again)

    def _stage_attempt(self, attempt: Attempt) -> None:
        """Looks up where its destinations are, then stages."""
        places: dict[str, int] = {}
        wanted = sorted({destination for destination, _ in attempt.parts})

        def on_place(destination: str, answer: Answer | Error) -> None:
            if isinstance(answer, Error):
                raise Violation("clients are served", f"{self.name} cannot have {destination}: {answer}")
            places[destination] = self.core.remember_place(destination, answer)
            if len(places) == len(wanted):
                self._send(attempt, places)

        for destination in wanted:
            self.ask(partial(Resolve, destination=destination), partial(on_place, destination))
        attempt.is_sent = not wanted

    def _send(self, attempt: Attempt, places: dict[str, int]) -> None:
        staging = Staging(writer=self.name, batch=self._batch, partition=attempt.partition, attempt=attempt.number)
        counter = (self._batch << 32) + 1
        for destination, count in attempt.parts:
            channel, _ = parts_of(places[destination])
            attempt.places[destination] = places[destination]
            parts, messages = attempt.channels.get(channel, (0, 0))
            tokens = [self._book.send(destination, staging.producer, counter + n, self._now) for n in range(count)]
            for token in tokens:
                self._staging_book.staged[token] = (self._name, attempt)
            attempt.tokens.setdefault(destination, []).extend(tokens)
            make = partial(
                Stage,
                place=places[destination],
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
                part=parts,
            )
            self._stage_part(attempt, self._note("stage", make))
            attempt.channels[channel] = (parts + 1, messages + count)
            counter += count
        attempt.is_sent = True

    def _stage_part(self, attempt: Attempt, make: Make) -> None:
        self.ask(make, partial(self._on_staged, attempt, make))

    def _on_staged(self, attempt: Attempt, make: Make, answer: Answer | Error) -> None:
        if isinstance(answer, Postponed):
            self._stage_part(attempt, make)
        elif isinstance(answer, Error):
            if not self.channels or not isinstance(answer, Unavailable):
                raise Violation("clients are served", f"{self.name} cannot stage: {answer}")
            attempt.is_refused = True

    # --- publishing ---

    def _publish(self, publication: Publication) -> None:
        if self._is_overtaken(publication):
            return
        try:
            shares = publication.shares(self._batch)
        except Unavailable:
            self._staging_book.torn += 1
            self._drop(publication)
            return
        if not publication.is_asked:
            publication.is_asked = True
            self._staging_book.batches[self._name].append(publication)
        publication.left = publication.left or list(shares)
        channel, share = publication.left[0], shares[publication.left[0]]
        self._tell(self.name, f"publishes batch {self._batch} on channel {channel} {share.attempts}")
        make = partial(
            PublishStaged,
            channel=channel,
            writer=self.name,
            batch=self._batch,
            attempts=share.attempts,
            destinations=share.destinations,
        )
        self.ask(self._note("publish", make), partial(self._on_published, publication))

    def _is_overtaken(self, publication: Publication) -> bool:
        """Whether a word of an earlier run comes first, and destinations move on that had come since that run.

        What is staged for them is nowhere then, and the channel where they were may have published the batch.
        """
        if self.is_calm or publication.is_asked or self._overtaken == self._batch or not self._is_unlucky:
            return publication.is_held
        homes = publication.homes
        moved = sorted(name for name, home in self._missing.items() if homes.get(name, home) != home)
        if not moved:
            return False
        self._overtaken = self._batch
        if self._mishaps.random() >= OVERTAKEN_SHARE:
            return False
        publication.is_held = True
        self._given_up.add(self._batch)
        home = homes[self._mishaps.choice(moved)]
        names = [name for name in moved if homes[name] == home]
        self._tell(self.name, f"is overtaken at batch {self._batch} by an earlier run, and {', '.join(names)} move on")
        dropped, left = publication.channels, list(names)

        def on_dropped(answer: Answer | Error) -> None:
            dropped.pop()
            for name in names if not dropped else ():
                others = [channel for number, channel in enumerate(self.channels) if number != home]
                self.ask(partial(Move, destination=name, channel=self._mishaps.choice(others)), on_moved)

        def on_moved(answer: Answer | Error) -> None:
            left.pop()
            if not left:
                self._staging_book.overtaken += not isinstance(answer, Error)
                publication.is_held = False
                self._publish(publication)

        for number in publication.channels:
            self.ask(partial(DropStaged, channel=number, writer=self.name, batch=self._batch), on_dropped)
        return True

    def _go_on_publishing(self, publication: Publication) -> None:
        publication.is_held, publication.meanwhile = False, None
        publication.is_certain = True
        self._publish(publication)

    def _on_published(self, publication: Publication, answer: Answer | Error) -> None:
        self._tell(self.name, f"hears {answer}")
        draw = self._stream.random
        if isinstance(answer, Error):
            is_expected = publication.is_hasty or bool(self.channels) or self._batch in self._given_up
            if not is_expected or publication.is_certain or not isinstance(answer, Unavailable):
                raise Violation("clients are served", f"{self.name} cannot publish batch {self._batch}: {answer}")
            self._staging_book.refused += 1
            self._publication = None
            return
        publication.left.pop(0)
        if publication.left:
            if not self.is_calm and draw() < DIE_SHARE:
                left = publication.left
                self._missing = {name: home for name, home in publication.homes.items() if home in left}
                self.crash()
            else:
                self._publish(publication)
            return
        self._staging_book.done.add(self._name)
        if self.is_calm or draw() >= AGAIN_SHARE:
            self._publication = None
            if self.is_calm or draw() >= FORGET_SHARE:
                self._go_on()

    def _go_on(self) -> None:
        self._missing = {}
        if self._stream.random() >= STALE_SHARE:
            self._said.clear()
        self._batch += 2 if self._stream.random() < SKIP_SHARE else 1

    def _drop(self, publication: Publication) -> None:
        self._given_up.add(self._batch)
        self._tell(self.name, f"lets go of batch {self._batch}")
        for channel in publication.channels:
            make = partial(DropStaged, channel=channel, writer=self.name, batch=self._batch)
            self.ask(self._note("drop", make), self._on_dropped)

    def _on_dropped(self, answer: Answer | Error) -> None:
        if isinstance(answer, Error):
            raise Violation("clients are served", f"{self.name} cannot let go of batch {self._batch}: {answer}")
        if not self._open:
            self._staging_book.dropped += 1
            self._publication = None
            if self._stream.random() < (0.1 if self._missing else 0.5):
                self._go_on()
            self._move_sometimes(FREE_SHARE, self._missing)
