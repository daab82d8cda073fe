"""Batches of which one server misses the beginning, until another server has answered it.

Interfaces take datagrams of different sizes. So what a server has been sent by a batch's sender, and what it is sent by
another server, may be fragments of different cuts; it goes on from one of the two. That matters only where the group
cannot do without its copy, and a crash of either ends it, so it is tried when all is well, on one server after another.
Nothing else goes wrong then, so no server has a reason to leave the in-sync set: who asks again gets what it misses.
"""

from random import Random

import msgspec

from alphorn.bus.entries import Assignment, InSyncChanged, SystemEntry
from alphorn.bus.frames import DATA_TYPE, REPAIR_TYPE, Data, decode_all
from alphorn.testing.checkers.facts import TYPE_PLACE, Facts
from alphorn.testing.node import SimulatedNode
from alphorn.testing.simulator import join_names
from alphorn.testing.watch import Violation
from alphorn.testing.workload import Batch, Workload, make_payload

DATAGRAM_BYTES = 4000  # as large as any server's
BATCH_BYTES = (9_000, 15_000)
UNANSWERED_S_MAX = 1.0


class TornBatches:
    """A client with large datagrams, and what servers miss of its batches."""

    __slots__ = ("_facts", "_in_sync", "_simulation", "_stream", "_workload", "client")

    def __init__(self, facts: Facts, workload: Workload, *, seed: int) -> None:
        self._facts = facts
        self._simulation = simulation = facts.simulation
        self._in_sync = frozenset.intersection(*(servers for servers, _ in facts.in_sync_rules(facts.last + 1)))
        facts.decided.append(self._on_decided)
        self._workload = workload
        self._stream = Random(f"{seed}/torn batches")
        self.client = client = simulation.add_client("L1")
        client.budget = msgspec.structs.replace(client.budget, datagram_bytes=DATAGRAM_BYTES)
        client.start()

    def tear(self, server: SimulatedNode) -> Batch:
        """The client sends a batch, and a server misses the beginning of it. What the client repairs of that is lost
        too, until another server has repaired some of it.
        """
        stream, client, network = self._stream, self.client, self._simulation.network
        size = stream.randint(*BATCH_BYTES)
        missing = stream.randint(1, size // DATAGRAM_BYTES)
        is_answered = False

        def drops(source: int, target: int, data: bytes) -> bool:
            nonlocal is_answered
            if target != server.index or data[TYPE_PLACE] not in (DATA_TYPE, REPAIR_TYPE):
                return False
            bodies = [frame.body for frame in decode_all(data)]
            torn = [body.fragment for body in bodies if isinstance(body, Data) and body.size == size]
            if source != client.index:
                is_answered = is_answered or bool(torn)
                return False
            return not is_answered and any(fragment < missing for fragment in torn)

        network.add_rule(drops)
        self._simulation.schedule.after(UNANSWERED_S_MAX, network.remove_rule, drops)
        details = f"{server.name} misses {missing} fragments of {size} bytes of {client.name}"
        self._simulation.tell_fault("torn-batch", details)
        return self._workload.order_payload(client, make_payload(self._workload.next_handle, size, stream))

    def _on_decided(
        self, node: SimulatedNode, sequence: int, assignment: Assignment, entry: SystemEntry | None
    ) -> None:
        if not isinstance(entry, InSyncChanged):
            return
        servers = frozenset(self._facts.index_of(number) for number in entry.numbers)
        if lost := self._in_sync - servers:
            names = join_names(self._simulation.nodes[index] for index in sorted(lost))
            raise Violation("a lost datagram costs no copy", f"{node.name} does without {names} from {sequence} on")
        self._in_sync = servers
