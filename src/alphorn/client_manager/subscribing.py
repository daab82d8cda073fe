"""Subscriptions of consumers, made in the log that the topic is in; a name in use is not taken from its user.

A name that the move of a topic keeps from its client for now is asked for again and again, `PATIENCE_S` long.
"""

from collections.abc import Callable

from msgspec import structs

from alphorn.client_manager.connection import Consumer
from alphorn.client_manager.desk import Desk
from alphorn.client_manager.moving import Moving
from alphorn.model import link
from alphorn.model.commands import Subscribe
from alphorn.model.errors import Unavailable

PATIENCE_S = 10.0

Answer = Callable[[link.Answered], None]


def subscribe(
    moving: Moving, consumer: Consumer, command: Subscribe, on_answer: Answer, *, is_current: Callable[[], bool]
) -> None:
    """Orders it, for the topic that the consumer is of, wherever that is."""

    def make(number: int) -> Subscribe:
        return structs.replace(command, destination=number)

    moving.request(consumer.place, make, on_answer, is_wanted=is_current)


def claim(
    desk: Desk,
    moving: Moving,
    consumer: Consumer,
    command: Subscribe,
    on_answer: Answer,
    *,
    is_current: Callable[[], bool],
    until: float = 0.0,
) -> None:
    """Subscribes where nobody's active use of the name forbids it, which the primary knows.

    While no primary is there nobody receives, and nobody asks; then the log alone decides. What cannot be had now is
    claimed again, `until` a time.
    """
    channel = desk.channels[consumer.channel]
    until = until or desk.now + PATIENCE_S

    def again() -> None:
        if is_current():
            claim(desk, moving, consumer, command, on_answer, is_current=is_current, until=until)

    def on_outcome(answer: link.Answered) -> None:
        if answer.error == Unavailable.__name__ and desk.now < until:
            desk.later(again)
        else:
            on_answer(answer)

    def go_on() -> None:
        if is_current():
            subscribe(moving, consumer, command, on_outcome, is_current=is_current)

    def on_claimed(answer: link.Answered) -> None:
        if answer.error and answer.home is None:
            on_outcome(answer)
        else:
            go_on()

    request = channel.ask(on_claimed, lost=go_on)
    wanted = link.Claim(request, structs.replace(command, destination=consumer.destination))
    if not desk.ask_primary(consumer.channel, wanted):
        channel.pending.pop(request)
        go_on()
