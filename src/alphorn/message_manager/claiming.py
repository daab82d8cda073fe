"""Whether a named subscription may be used as somebody wants to: who is active decides, which the log cannot know.

Consumers whose connection is lost do not count. Whoever wants what only they have takes their place, so that a program
that was started again need not wait until its predecessor is given up.
"""

from collections.abc import Callable

from alphorn.message_manager.dispatch import Dispatcher
from alphorn.message_manager.engine import Engine
from alphorn.model.commands import Subscribe, connection_of
from alphorn.model.errors import InvalidDestination, Misuse, Moved
from alphorn.model.link import Answered, Attach, Claim, FindSubscription

IsLost = Callable[[bytes], bool]  # of a connection


def answer_claim(
    engine: Engine, dispatcher: Dispatcher, wanted: Claim | FindSubscription, is_lost: IsLost
) -> tuple[Answered, list[bytes]]:
    """What to say to somebody who wants to use a subscription or to end it, and the lost consumers that make way.

    Raises an `Error` that is the answer.
    """
    if isinstance(wanted, Claim):
        return Answered(wanted.request), claim(engine, dispatcher, wanted.subscribe, is_lost)
    (topic, number), lost = find_unused(engine, dispatcher, wanted.client, wanted.name, is_lost)
    return Answered(wanted.request, topic << 32 | number), lost


def claim(engine: Engine, dispatcher: Dispatcher, wanted: Subscribe, is_lost: IsLost) -> list[bytes]:
    """The lost consumers that make way; raises `Misuse` where active ones forbid this use of a subscription."""
    found = engine.find_claimed(wanted)
    if found is None:
        return []
    topic, known, is_same = found
    users = dispatcher.users(topic, known.number, besides=wanted.consumer)
    lost = [consumer for consumer in users if is_lost(connection_of(consumer))]
    if len(lost) == len(users):
        return lost if not (known.is_shared and is_same) else []
    if not known.is_shared:
        raise Misuse(
            f"the subscription {wanted.name!r} has an active consumer and is not shared; "
            "close that one first, or share the subscription"
        )
    if not is_same:
        raise Misuse(f"others share the subscription {wanted.name!r} with another topic or selector; use theirs")
    return []


def find_unused(
    engine: Engine, dispatcher: Dispatcher, client: str, name: str, is_lost: IsLost
) -> tuple[tuple[int, int], list[bytes]]:
    """Topic and number of a subscription that is to end, and its lost consumers; raises where it cannot end."""
    found = engine.find_subscription(client, name)
    if found is None:
        if (topic := engine.find_taken_along(client, name)) is not None:
            raise Moved(f"the subscription {name!r} is on its way to another channel with {topic}; look for it there")
        raise InvalidDestination(f"there is no subscription named {name!r}")
    users = dispatcher.users(*found)
    if not all(is_lost(connection_of(consumer)) for consumer in users):
        raise Misuse(f"the subscription {name!r} has an active consumer; close it first")
    return found, users


def attach(dispatcher: Dispatcher, client_manager: int, frame: Attach) -> None:
    """A consumer of this Client Manager receives from now on; raises an `Error` where it cannot."""
    dispatcher.attach(
        frame.consumer,
        client_manager=client_manager,
        destination=frame.destination,
        subscription=frame.subscription,
        selector=frame.selector,
        prefetch=frame.prefetch,
        held=frame.held,
    )
