"""Streams for tests: bytes made as they are read, so that nobody needs to hold them."""

import hashlib

PIECE = 100_000


class Source:
    """So many bytes, no two pieces alike; `at` maps how much was read to something to do before reading on."""

    def __init__(self, size, at=None, piece=PIECE):
        self.left = size
        self.read_so_far = 0
        self.digest = hashlib.sha256()
        self._at = dict(at or {})
        self._piece = piece

    def read(self, size):
        for place in [place for place in self._at if place <= self.read_so_far]:
            self._at.pop(place)()
        data = self.read_so_far.to_bytes(8, "big") * (min(size, self.left, self._piece) // 8 + 1)
        data = data[: min(size, self.left, self._piece)]
        self.left -= len(data)
        self.read_so_far += len(data)
        self.digest.update(data)
        return data


def digest_of(message):
    """Reads a message's body to its end."""
    digest = hashlib.sha256()
    with message.open() as body:
        while data := body.read(PIECE):
            digest.update(data)
    return digest.digest()
