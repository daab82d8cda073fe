"""Who speaks in a frame: the ends of the two conversations that msgpack arrays carry, clients' and the link's."""

import msgspec

from alphorn.model.discretion import shown

# Of values that are lists or batches themselves, in one frame of a client. More is refused before any of it is made: a
# few bytes on the wire become hundreds in memory. Nobody who stays within other limits comes near.
ITEMS_MAX = 100_000
CONSUMERS_MAX = 250_000  # and of consumers with their positions, in one that ends them


class ClientFrame(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A client speaks."""

    def __repr__(self) -> str:
        return shown(self)


class ServerFrame(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A Client Manager speaks."""

    def __repr__(self) -> str:
        return shown(self)


class Asked(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A Client Manager speaks."""

    def __repr__(self) -> str:
        return shown(self)


class Told(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A Message Manager speaks."""

    def __repr__(self) -> str:
        return shown(self)
