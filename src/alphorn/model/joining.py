"""How a consumer of a pattern receives from one destination that matches: the same for both sides of a connection.

The number of such a consumer follows from the wish and the destination's place. A Client Manager that goes on where
another one died therefore finds what that one had begun, also where the client had not heard of it yet.
"""

import hashlib
from collections.abc import Container

from alphorn.model.conversation import Consume, ConsumePattern
from alphorn.model.destinations import Destination, DestinationKind
from alphorn.model.patterns import subscription_for
from alphorn.model.system import whole_of

JOINED_FROM = 1 << 31  # numbers from here on are of consumers that joined; a client's own never come so far


def number_for(watch: int, place: int, taken: Container[int]) -> int:
    """The number of the consumer at a place; the next one that is not taken, in the rare case that it is."""
    digest = hashlib.blake2b(b"%d %d" % (watch, place), digest_size=4).digest()
    number = JOINED_FROM | int.from_bytes(digest, "big")
    while number in taken:
        number = JOINED_FROM | (number + 1) % JOINED_FROM
    return number


def consume_for(wish: ConsumePattern, number: int, place: int, destination: Destination, *, is_new: bool) -> Consume:
    """The consumer of this number, with what was wished for; what concerns subscriptions is for topics.

    From a destination that came after the wish (`is_new`) it receives from the first message on. A subscription to what
    belongs to the system has its name on each channel: there it is to one topic only.
    """
    if destination.kind is not DestinationKind.TOPIC:
        return Consume(0, wish.session, number, place, wish.prefetch, wish.selector)
    is_marked = wish.subscription and whole_of(wish.pattern) is None
    return Consume(
        request=0,
        session=wish.session,
        consumer=number,
        place=place,
        prefetch=wish.prefetch,
        selector=wish.selector,
        subscription=subscription_for(wish.subscription, destination) if is_marked else wish.subscription,
        is_durable=wish.is_durable,
        is_shared=wish.is_shared,
        no_local=wish.no_local,
        start=0 if is_new else wish.start,
        start_ms=0 if is_new else wish.start_ms,
    )
