"""A connection that remembers what it is told."""

from typing import Any

from alphorn.cli import talking
from alphorn.model.errors import InvalidSelector
from alphorn.model.status_pages import lost_channels

ID = "ID:00:1"


class FakeMessage:
    """A message as the client library gives it."""

    def __init__(self, body: object, log: list[object], **fields: object) -> None:
        self.body = body
        self._log = log
        values = dict.fromkeys(talking.FIELDS) | {"id": ID, "destination": "queue:q", "properties": {}, "sequence": 7}
        for name, value in (values | fields).items():
            setattr(self, name, value)

    def acknowledge(self) -> None:
        self._log.append(("acknowledge", self.body))


class FakeCluster:
    """Connection, session, producer, consumer and browser in one; `log` has every call."""

    def __init__(self, bodies: list[object]) -> None:
        self.log: list[object] = []
        self.messages = [FakeMessage(body, self.log) for body in bodies]
        names = ("queue:orders", "queue:films")
        self.state: dict[str, object] = {"destinations": [{"name": name, "channel": "channel-1"} for name in names]}

    def connect(self, url: str, **how: object) -> "FakeCluster":
        self.log.append(("connect", url))
        return self

    def __enter__(self) -> "FakeCluster":
        return self

    def __exit__(self, *error: object) -> None:
        self.log.append("closed")

    def session(self, ack: str = "auto") -> "FakeCluster":
        self.log.append(("session", ack))
        return self

    def close(self) -> None:
        pass

    def status(self, *, destinations_max: int | None = None) -> dict[str, object]:
        self.log.append(("status", destinations_max))
        return self.state | {"lost": lost_channels(self.state)}

    def producer(self, destination: str) -> "FakeCluster":
        self.log.append(("producer", destination))
        return self

    def send(self, body: object, **settings: object) -> "FakeCluster":
        self.log.append(("send", body, settings))
        return self

    def send_many(self, bodies: list[object], **settings: object) -> None:
        self.log.append(("send_many", len(bodies), settings))

    def send_stream(self, readable: Any, **settings: object) -> "FakeCluster":
        pieces = []
        while piece := readable.read(2):
            pieces.append(piece)
        self.log.append(("send_stream", b"".join(pieces), settings))
        return self

    def flush(self) -> None:
        self.log.append("flush")

    def result(self) -> str:
        return ID

    def consumer(self, destination: str, **settings: object) -> "FakeCluster":
        self.log.append(("consumer", destination, settings))
        return self

    def receive_many(self, maximum: int, timeout: float) -> list[FakeMessage]:
        taken, self.messages = self.messages[:maximum], self.messages[maximum:]
        return taken

    def browser(self, destination: str, selector: str | None = None) -> list[FakeMessage]:
        self.log.append(("browser", destination, selector))
        if selector == "wrong":
            raise InvalidSelector("the selector ends too early")
        return self.messages
