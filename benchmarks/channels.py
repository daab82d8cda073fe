"""What another channel costs: the same load on each of 1, 2 and 4 channels, simulated and with real processes.

    python benchmarks/channels.py [--messages 100000] [--seconds 10] [--json]

Growth is linear where a message costs the same however many channels there are: bytes on its bus, processor time of
its Message Managers and of the Client Manager. The simulation has no processor to share: there, messages in the same
virtual time grow with the channels, and frames per message do not.
"""

import argparse
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

import alphorn.testing
from alphorn.client.inbox import AckMode
from alphorn.client_manager.directory import Directory
from alphorn.model.destinations import parse_destination
from alphorn.testing.cluster_plan import ClientPlan, make_cluster_plan
from alphorn.testing.clusters import Cluster
from alphorn.testing.plan import CALM_START_S
from alphorn.testing.programs import Reading
from alphorn.testing.simulated_cluster import SimulatedCluster

CHANNELS = (1, 2, 4)
CLIENTS = 3  # of each channel, in the simulation
BODY = b"x" * 100
BATCH = 1000
TICKS = os.sysconf("SC_CLK_TCK")

Row = dict[str, Any]


def names_on(channel: int, channels: int, count: int) -> list[str]:
    """Queues whose names draw this channel."""
    directory, found, number = Directory(channels), [], 0
    while len(found) < count:
        name = f"queue:grow.{number}"
        if directory.channel_for(parse_destination(name)) == channel:
            found.append(name)
        number += 1
    return found


def simulate(channels: int, seconds: float) -> Row:
    """A cluster without faults in virtual time, with the same clients for each channel."""
    plan = make_cluster_plan(3)
    clients = []
    for channel in range(channels):
        for place, name in enumerate(names_on(channel, channels, CLIENTS)):
            reading = Reading(destination=name, mode=AckMode.AUTO, prefetch=20)
            label = f"C{channel}.{place}"
            client = ClientPlan(name=label, client_id=label, home=3, targets=(name,), readings=(reading,))
            clients.append(client)
    plan = msgspec.structs.replace(plan, channels=channels, clients=tuple(clients), tellers=0)
    cluster = SimulatedCluster(plan)
    for program in cluster.clients:
        program.streams = False  # small messages only
    cluster.found()
    cluster.simulation.run_until(CALM_START_S + seconds)
    messages = len(cluster.book.confirmed())
    datagrams = sum(each.simulation.network.datagrams for each in cluster.channels)
    return {"channels": channels, "messages per s": messages / seconds, "frames per message": datagrams / messages}


def cpu_s(pid: int) -> float:
    """Processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def sent_bytes(running: Cluster) -> int:
    """What all members handed to their buses so far."""
    total = 0
    for name in running.nodes:
        state: Any = running.describe(name)[name]
        buses = state["channels"] if "channels" in state else [state["bus"]]
        for bus in buses:
            sent = bus["transport"]["datagrams"]["sent"]
            total += sum(target["bytes"] for target in sent.values())
    return total


def measure(channels: int, messages: int) -> Row:
    """Real processes: so many messages through one queue of each channel, all at the same time."""
    names = [names_on(channel, channels, 1)[0] for channel in range(channels)]
    with alphorn.testing.cluster(channels=channels) as running, ThreadPoolExecutor(channels) as pool:
        list(pool.map(lambda name: through(running, name, BATCH), names))  # warms up
        before = {name: cpu_s(pid) for name, pid in running.nodes.items()}
        bytes_before = sent_bytes(running)
        list(pool.map(lambda name: through(running, name, messages), names))
        total = messages * channels
        spent = {name: cpu_s(pid) - before[name] for name, pid in running.nodes.items()}
        on_the_bus = sent_bytes(running) - bytes_before
    servers = sum(value for name, value in spent.items() if name.startswith("mm"))
    doors = sum(value for name, value in spent.items() if name.startswith("cm"))
    return {
        "channels": channels,
        "bus bytes per message": on_the_bus / total,
        "Message Managers CPU s per million": servers / total * 1e6,
        "Client Manager CPU s per million": doors / total * 1e6,
    }


def through(running: Cluster, name: str, messages: int) -> None:
    """Sends, receives and acknowledges so many."""
    with running.connect() as connection, connection.session() as session:
        producer, consumer = session.producer(name), session.consumer(name)
        left = messages
        for _ in range(0, messages, BATCH):
            producer.send_many([BODY] * BATCH)
            while left > messages - BATCH and (part := consumer.receive_many(BATCH, 0.0)):
                left -= len(part)
        producer.flush()
        while left:
            left -= len(consumer.receive_many(BATCH, 10.0))


def show(console: Console, title: str, rows: list[Row]) -> None:
    """A table."""
    table = Table(title=title, title_justify="left")
    for column in rows[0]:
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*(f"{value:,.2f}" if isinstance(value, float) else str(value) for value in row.values()))
    console.print(table)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="What another channel costs.")
    parser.add_argument("--messages", type=int, default=100_000, help="for each channel, with real processes")
    parser.add_argument("--seconds", type=float, default=10.0, help="of virtual time")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    simulated = [simulate(channels, options.seconds) for channels in CHANNELS]
    measured = [measure(channels, options.messages) for channels in CHANNELS]
    if options.json:
        print(json.dumps({"simulated": simulated, "measured": measured}, indent=2))
        return
    console = Console()
    show(console, "simulated", simulated)
    show(console, "real processes", measured)


if __name__ == "__main__":
    main()
