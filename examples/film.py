"""A message of any size: sent from a stream, read as a stream, with small messages beside it."""

import hashlib

from start import cluster_url

import alphorn

SIZE = 50_000_000


class Film:
    """Anything with `read(size)` will do: an open file, a socket's file, or this, which makes its bytes up."""

    def __init__(self) -> None:
        self.left = SIZE
        self.digest = hashlib.sha256()

    def read(self, size: int) -> bytes:
        """The next bytes; nothing at the end."""
        data = self.left.to_bytes(8, "big") * (min(size, self.left) // 8 + 1)
        data = data[: min(size, self.left)]
        self.left -= len(data)
        self.digest.update(data)
        return data


with cluster_url() as url, alphorn.connect(url) as connection:
    session = connection.session(ack="individual")
    film = Film()
    session.producer("queue:film.example").send_stream(film, properties={"name": "film"})

    message = session.consumer("queue:film.example").receive(timeout=10)
    assert message is not None
    digest = hashlib.sha256()
    with message.open() as body:
        while data := body.read(1_000_000):
            digest.update(data)
    assert digest.digest() == film.digest.digest()
    message.acknowledge()
    print(f"{message.properties['name']} of {message.size:,} bytes came as it was sent")
