"""A destination is still on its way to a channel when that is drained, because whoever carries it stands still.

It happens when all is quiet: a channel that has much to move away is not drained so soon.
"""

from functools import partial
from random import Random
from typing import TYPE_CHECKING

from alphorn.model.destinations import parse_destination
from alphorn.model.moving_conversation import Drain, Move
from alphorn.testing.client_manager_room import ClientManagerRoom
from alphorn.testing.simulated_channel import SimulatedChannel

if TYPE_CHECKING:
    from alphorn.testing.simulated_cluster import SimulatedCluster

LOOK_S = 0.001
COMING_S_MAX = 1.0  # until it is expected; by then it cannot be moved, or has come between two looks
FROZEN_S = 1.0  # so long whoever carries it stands still: less than would have it taken for failed


def arrive_late(cluster: "SimulatedCluster") -> None:
    """A destination is to go to an open channel, which is drained as soon as that expects it."""
    draw = Random(f"{cluster.plan.seed}/late arrival")
    channel = draw.choice(cluster.channels[1:])
    homes = cluster.homes()
    away = [name for name in cluster.plan.movable if homes.get(name, [channel.number]) != [channel.number]]
    if away:
        name = draw.choice(away)
        cluster.clients[0].ask(
            partial(Move, destination=name, channel=channel.name), cluster.drains.awaited(cluster.on_moved)
        )
        _look(cluster, channel, name, cluster.simulation.now + COMING_S_MAX)


def _look(cluster: "SimulatedCluster", channel: SimulatedChannel, name: str, until: float) -> None:
    schedule = cluster.simulation.schedule
    carrier = next((room for room in cluster.client_managers if room.carries), None)
    if carrier is not None and channel.engines()[0].moves.is_coming(parse_destination(name)):
        _drain(cluster, channel, carrier)
    elif schedule.now < until:
        schedule.after(LOOK_S, _look, cluster, channel, name, until)


def _drain(cluster: "SimulatedCluster", channel: SimulatedChannel, carrier: ClientManagerRoom) -> None:
    carrier.freeze()
    cluster.moves["late"] += 1
    cluster.simulation.tell_fault("late-arrival", f"{carrier.name} stands still while {channel.name} is drained")
    cluster.simulation.schedule.after(FROZEN_S, carrier.thaw)
    asker = next((client for client in cluster.clients if client.served_by != carrier.name), cluster.clients[0])
    on_answer = cluster.drains.awaited(cluster.drains.drained(channel.number))
    asker.ask(partial(Drain, channel=channel.name), on_answer)
