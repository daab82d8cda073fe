"""What one turn has to say: many small answers to one connection become one frame."""

from alphorn.message_server.machine import Hang, Log, Output, Part, Tell, TellPeer
from alphorn.model.internal import Held, Key, PeerFrame, Release, ServerFrame, Settled, Taken


class MailTurn:
    """Outputs, in order; numbers and copies that are answered are put together at the end of the turn."""

    __slots__ = ("_held", "_outputs", "_released", "_settled", "_taken")

    def __init__(self) -> None:
        self._outputs: list[Output] = []
        self._settled: dict[int, list[int]] = {}
        self._taken: dict[int, list[int]] = {}
        self._held: list[Key] = []
        self._released: list[tuple[bytes, bytes, int]] = []

    def tell(self, connection: int, frame: ServerFrame) -> None:
        """Says this to a process."""
        self._outputs.append(Tell(connection, frame))

    def tell_peer(self, frame: PeerFrame) -> None:
        """Says this to the peer."""
        self._outputs.append(TellPeer(frame))

    def hang(self, connection: int, reason: str) -> None:
        """Closes a connection; what was to be answered there no longer is."""
        self._settled.pop(connection, None)
        self._taken.pop(connection, None)
        self._outputs.append(Hang(connection, reason))

    def part(self, reason: str) -> None:
        """Closes the link to the peer."""
        self._outputs.append(Part(reason))

    def log(self, level: str, event: str, details: str) -> None:
        """A line for the log."""
        self._outputs.append(Log(level, event, details))

    def settled(self, connection: int, number: int) -> None:
        """Everybody has this."""
        self._settled.setdefault(connection, []).append(number)

    def taken(self, connection: int, number: int) -> None:
        """This is safe."""
        self._taken.setdefault(connection, []).append(number)

    def held(self, run: bytes, number: int) -> None:
        """The peer's copy is here."""
        self._held.append((run, number))

    def release(self, recipient: bytes, run: bytes, number: int) -> None:
        """The recipient has it."""
        self._released.append((recipient, run, number))

    def take(self) -> list[Output]:
        """Everything since the last call."""
        outputs, self._outputs = self._outputs, []
        if self._taken:
            outputs += [Tell(connection, Taken(numbers)) for connection, numbers in self._taken.items()]
            self._taken = {}
        if self._settled:
            outputs += [Tell(connection, Settled(numbers)) for connection, numbers in self._settled.items()]
            self._settled = {}
        if self._held:
            outputs.append(TellPeer(Held(self._held)))
            self._held = []
        if self._released:
            outputs.append(TellPeer(Release(self._released)))
            self._released = []
        return outputs
