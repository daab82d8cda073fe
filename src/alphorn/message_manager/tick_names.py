"""What a `Tick` names of the messages that expire by it: only the primary knows who has them, or may have had them."""

from collections.abc import Mapping
from itertools import islice

from alphorn.message_manager.grace import Grace
from alphorn.message_manager.outlet import Outlet
from alphorn.message_manager.queue import Queue
from alphorn.message_manager.topic import Topic
from alphorn.model.ranges import RangeSet

NAMED_MAX = 10_000  # messages that one Tick counts, and intervals of those that it spares

Names = list[tuple[int, int, list[int]]]  # destination, subscription, positions in flat pairs


def names_of(
    expiring: Mapping[int, RangeSet],
    outlets: Mapping[int, Mapping[int, Outlet]],
    destinations: Mapping[int, Queue | Topic],
    grace: Grace,
) -> tuple[Names, Names]:
    """What consumers may have had of these and have not, and what they have; not more than `NAMED_MAX` of each."""
    held: Names = []
    kept: Names = []
    held_room = kept_room = NAMED_MAX
    for number, positions in expiring.items():
        here = outlets.get(number, {})
        known = {each: (outlet.kept(positions), outlet.had(positions)) for each, outlet in here.items()}
        for subscription, _ in () if grace.is_over else destinations[number].backlogs():
            if subscription not in known:
                newest = grace.newest_of((number, subscription))
                known[subscription] = RangeSet(positions.intersection(0, newest)), RangeSet()
        for subscription, (theirs, had) in known.items():
            if spared := RangeSet(islice(theirs, kept_room)):
                kept.append((number, subscription, spared.flat()))
                kept_room -= spared.intervals
            if counted := RangeSet(had.difference(theirs).take(held_room)):
                held.append((number, subscription, counted.flat()))
                held_room -= len(counted)
    return held, kept
