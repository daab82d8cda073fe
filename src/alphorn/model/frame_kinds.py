"""Who speaks in a frame: the ends of the two conversations that msgpack arrays carry, clients' and the link's."""

import msgspec


class ClientFrame(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A client speaks."""


class ServerFrame(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A Client Manager speaks."""


class Asked(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A Client Manager speaks."""


class Told(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A Message Manager speaks."""
