"""Applies `Release`: a destination keeps no more what was consolidated elsewhere.

A consolidation reads a destination through a number, folds it into a state of its own, and compares the hash of what it
read with every replica's own (reading.py). Only then it asks for this. What is not consumed is still given out.
"""

from alphorn.message_manager.effects import Effect
from alphorn.message_manager.queue import Queue
from alphorn.message_manager.state import State
from alphorn.model.commands import Release
from alphorn.model.errors import InvalidDestination, Misuse


def release(state: State, command: Release, place: int, effects: list[Effect]) -> None:
    """What arrived through the number is kept no more; again, or for an earlier number, that changes nothing."""
    found = state.find(command.destination)
    if isinstance(found, Queue) and not found.is_retaining:
        raise InvalidDestination(f"{found.destination} keeps nothing; only what a policy with retain keeps is released")
    if command.through >= state.sequence:
        raise Misuse(f"log entry {command.through} is not before this one; release what was read")
    following = found.segments.from_arrival(command.through + 1)
    found.outgrow((found.next_position if following is None else following) - 1)
