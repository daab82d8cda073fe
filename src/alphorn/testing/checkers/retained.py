"""The checker of what queues retain: it is read in the log, each message once, whoever has consumed it."""

from alphorn.message_manager.engine import Engine
from alphorn.message_manager.queue import Queue
from alphorn.message_manager.reading import Reading
from alphorn.model.commands import Entry, decode_entry
from alphorn.model.log_link import Place, Scan, Scanned
from alphorn.testing.cluster_plan import RETAIN_S_WHOLE
from alphorn.testing.rooms import MessageManagerRoom
from alphorn.testing.simulated_channel import SimulatedChannel
from alphorn.testing.simulated_cluster import SimulatedCluster
from alphorn.testing.watch import Violation

ANSWER_BYTES = 200  # so little that reading a queue takes many answers

Message = tuple[bytes, int]  # producer and counter


class RetainedIsRead:
    """What a client knows to be consumed is readable on every replica; in the end readers find each message once.

    A queue that retains for the whole run has everything that was ever confirmed there. One that retains less has
    nothing twice, and nothing that was not sent to it.
    """

    __slots__ = ("_cluster", "messages")
    name = "what a queue retains is read, each message once"

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self.messages = 0  # that were found in the end
        cluster.book.on_acknowledged.append(self._on_acknowledged)

    def _is_whole(self, name: str) -> bool:
        policy = self._cluster.plan.retained.get(name)
        return policy is not None and policy.retain_s == RETAIN_S_WHOLE

    def _on_acknowledged(self, consumer: bytes, positions: list[int]) -> None:
        name = self._cluster.book.sources.get(consumer, "")
        if not self._is_whole(name):
            return
        for room in self._cluster.message_managers:
            queue = _find(room.engine, name)
            for first, last in zip(positions[::2], positions[1::2], strict=True):
                if queue is not None and last < queue.next_position and queue.readable(first, last) != [(first, last)]:
                    raise Violation(self.name, f"{name} of {room.node.name} has let {first} to {last} go")

    def finish(self) -> None:
        """Reads all such queues as a reader does: from any replica, and on from another where one cannot read."""
        for name in self._cluster.plan.retained:
            found = [message for channel in self._cluster.channels for message in _read(channel, name)]
            if len(set(found)) != len(found):
                raise Violation(self.name, f"a reader of {name} gets messages twice")
            book = self._cluster.book
            foreign = [
                each for each in found if each not in book.by_counter or book.by_counter[each].destination != name
            ]
            if foreign:
                raise Violation(self.name, f"a reader of {name} gets {foreign[0]}, which was not sent there")
            self.messages += len(found)
            confirmed = {(sent.producer, sent.counter) for sent in book.confirmed() if sent.destination == name}
            missing = confirmed.difference(found)
            if missing and self._is_whole(name):
                tokens = sorted(book.by_counter[each].token for each in missing)
                raise Violation(
                    self.name, f"{len(missing)} messages of {name} cannot be read, the first is {tokens[0]}"
                )


def _find(engine: Engine, name: str) -> Queue | None:
    for number in engine.numbers.values():
        found = engine.destinations.get(number)
        if isinstance(found, Queue) and str(found.destination) == name:
            return found
    return None


def _read(channel: SimulatedChannel, name: str) -> list[Message]:
    found: list[Message] = []
    queue = _find(channel.message_managers[0].engine, name)
    if queue is None:
        return found
    place: Place = (0, 0, 0)
    end = (channel.message_managers[0].engine.sequence + 1, 0, 0)
    while place < end:
        answers = [_scan(room, queue.number, place, end) for room in channel.message_managers]
        answer = max(answers, key=lambda answer: answer.next)  # what is damaged here another replica has
        if answer.next <= place:
            raise Violation(RetainedIsRead.name, f"nobody on {channel.name} can read {name} at {place}")
        for batch in answer.batches:
            first = batch.counter + batch.index
            found += [(batch.producer, counter) for counter in range(first, first + batch.count)]
        place = answer.next
    return found


def _scan(room: MessageManagerRoom, number: int, place: Place, end: Place) -> Scanned:
    def entry(sequence: int) -> Entry | None:
        payload = room.read(sequence)
        return None if payload is None else decode_entry(payload)

    answer = Reading(entry).answer(room.engine, Scan(1, [number], place, end, ANSWER_BYTES))
    assert isinstance(answer, Scanned)
    return answer
