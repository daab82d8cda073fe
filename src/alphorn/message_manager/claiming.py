"""Whether a named subscription may be used as somebody wants to: who is active decides, which the log cannot know."""

from alphorn.message_manager.dispatch import Dispatcher
from alphorn.message_manager.engine import Engine
from alphorn.model.commands import Subscribe
from alphorn.model.errors import Misuse


def check_claim(engine: Engine, dispatcher: Dispatcher, wanted: Subscribe) -> None:
    """Raises `Misuse` where the active consumers of a subscription forbid this use of it."""
    found = engine.find_claimed(wanted)
    if found is None:
        return
    topic, known, is_same = found
    if not dispatcher.is_used(topic, known.number, besides=wanted.consumer):
        return
    if not known.is_shared:
        raise Misuse(
            f"the subscription {wanted.name!r} has an active consumer and is not shared; "
            "close that one first, or share the subscription"
        )
    if not is_same:
        raise Misuse(f"others share the subscription {wanted.name!r} with another topic or selector; use theirs")
