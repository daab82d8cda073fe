"""Real message servers on loopback, with a broker at the native door that tells programs the way to them.

They run in the broker's thread. `stop` and `serve` are a server's death and return.
"""

from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import msgspec

from alphorn.io.cluster_file import NodeTable
from alphorn.io.internal_stream import make_ticket, pass_of_program
from alphorn.io.local_cluster import LocalShape, lay_out
from alphorn.model.conversation import Failed
from alphorn.model.errors import Error
from alphorn.model.events import Event
from alphorn.model.process_conversation import AskTicket, TicketAnswer
from alphorn.node.message_server import MessageServerNode
from alphorn.testing.process_bench.measure import free_addresses
from tests.client.broker import Broker, Stream

KEY = bytes(range(32))
PATIENCE_S = 60.0  # generous: only what never comes meets it


class Serving(Broker):
    """`with Serving(directory) as serving: alphorn.cluster.join(serving.url, name="a")`."""

    def __init__(self, directory: Path, *, count: int = 1, is_sealed: bool = False) -> None:
        super().__init__()
        self.servers = free_addresses(count)
        file = lay_out(directory, LocalShape(), host=self.servers[0][1].rpartition(":")[0])
        nodes = tuple(node for node in file.nodes if node.kind != "message_server")
        own = tuple(NodeTable(name=name, kind="message_server", internal=address) for name, address in self.servers)
        self._key = b""
        if is_sealed:
            self._key = KEY
            path = directory / "key"
            path.write_text(KEY.hex())
            path.chmod(0o600)
            file = msgspec.structs.replace(file, cluster_key=str(path))
        self._file = msgspec.structs.replace(file, nodes=(*nodes, *own))
        self.running: dict[str, MessageServerNode] = {}
        self.asked: list[str] = []
        self.refusal: Error | None = None
        self.make_ticket: Callable[[str], bytes] = make_ticket

    def __enter__(self) -> "Serving":
        super().__enter__()
        for name, _ in self.servers:
            self.serve(name)
        return self

    def __exit__(self, *exception: object) -> None:
        for name in list(self.running):
            self.stop(name)
        super().__exit__(*exception)

    def serve(self, name: str) -> None:
        """This message server begins, knowing nothing."""
        self.running[name] = MessageServerNode(self._file, name, founding=False)
        self._run(self.running[name].start())

    def stop(self, name: str) -> None:
        """This one ends, and takes all it knew with it."""
        self._run(self.running.pop(name).stop())

    def on_askticket(self, stream: Stream, frame: AskTicket) -> None:
        self.asked.append(frame.name)
        if self.refusal is not None:
            stream.send(Failed(frame.request, type(self.refusal).__name__, str(self.refusal)))
            return
        ticket = self.make_ticket(frame.name) if self._key else b""
        secret = pass_of_program(self._key, ticket).key if self._key else b""
        stream.send(TicketAnswer(frame.request, list(self.servers), ticket, secret))


class Heard:
    """A function for messages or events, and what it was called with."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[Any] = SimpleQueue()

    def __call__(self, argument: Any) -> None:
        self._queue.put(argument)

    def next(self) -> Any:
        """Waits for what comes next."""
        return self._queue.get(timeout=PATIENCE_S)

    def until(self, is_it: Callable[[Any], bool]) -> Any:
        """Waits for this one, and leaves out what comes before."""
        while not is_it(found := self.next()):
            pass
        return found

    @property
    def is_empty(self) -> bool:
        return self._queue.empty()


def is_about(kind: str, node: str) -> Callable[[Event], bool]:
    """Whether an event is this one."""
    return lambda event: (event.kind, event.node) == (kind, node)
