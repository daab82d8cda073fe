"""Applies `Retire`: producers and sessions that a client has closed are forgotten while its connection goes on.

Nothing new comes of them. What a Client Manager was late with is told from something new by its number alone
(producers.py), so one word for a connection is kept, however many it opens and closes. Transactions stay known as long
as those of a connection that has ended, because whoever brings one to its end may still ask.
"""

from alphorn.message_manager.effects import Effect
from alphorn.message_manager.state import State
from alphorn.model.commands import CONNECTION_BYTES, NOBODY, NUMBER_MAX, USED_MAX, Retire
from alphorn.model.errors import PeerViolation


def retire(state: State, command: Retire, place: int, effects: list[Effect]) -> None:
    """Of a connection's numbers through this one all but those in use are over; an older word changes nothing."""
    connection, through, used = command.connection, command.through, command.used
    if len(connection) != CONNECTION_BYTES or connection == NOBODY:
        raise PeerViolation("only a connection's own producers are closed; nothing was forgotten")
    if not 0 < through <= NUMBER_MAX or len(used) > USED_MAX:
        raise PeerViolation(f"a connection does not use {len(used)} numbers through {through}; nothing was forgotten")
    producers = state.producers
    if not producers.retire(connection, through, used):
        return
    for number, table in state.tables():
        if connection in table.plain:
            state.producers_of(number).drop(connection, producers.is_over)
    for producer in [key for key in state.streams.of(connection) if producers.is_over(key)]:
        state.streams.give_up(producer)
    state.transactions.forget(connection, state.now_ms, producers.is_over)
