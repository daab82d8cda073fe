"""Demonstration traffic: somebody orders, somebody counts the orders, and now and then one line tells how it goes."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable

from alphorn import aio
from alphorn.cli.pipeline import SALES, show_sales

ORDERS = "topic:orders"
PAUSE_S = 0.2
REPORT_S = 5.0
KEPT_S = 3600.0
REGIONS = ("eu", "us", "asia")


async def run_traffic(url: str, say: Callable[[str], None]) -> None:
    """Runs until it is cancelled. What a client sees of a failing node it takes as any client does."""
    async with aio.connect(url, client_id="demonstration") as connection:
        for topic in (ORDERS, SALES):  # kept for a while, so that Spark can read them whenever it starts
            await connection.destinations.create(topic)
            await connection.destinations.policy(topic, retain=KEPT_S)
        tally = _Tally()
        session = connection.session()
        consumer = await session.consumer(ORDERS, subscription="demonstration")
        producer = await connection.session().producer(ORDERS)
        say(f"demonstration: orders go to {ORDERS}; follow them with: alphorn tail {ORDERS} --url {url}")
        async with asyncio.TaskGroup() as group:
            group.create_task(_order(producer))
            group.create_task(_count(consumer, tally))
            group.create_task(_report(tally, say))
            group.create_task(show_sales(url, say))


class _Tally:
    """What came since the last report."""

    def __init__(self) -> None:
        self.regions: Counter[str] = Counter()
        self.seconds: list[float] = []


async def _order(producer: aio.Producer) -> None:
    number = 0
    while True:
        number += 1
        region = random.choice(REGIONS)
        body = {"id": number, "amount": random.randint(1, 500), "sent": time.time()}
        await producer.send(body, properties={"region": region}, key=region)
        await asyncio.sleep(PAUSE_S)


async def _count(consumer: aio.Consumer, tally: _Tally) -> None:
    async for message in consumer:
        tally.regions[str((message.properties or {}).get("region", "?"))] += 1
        tally.seconds.append(time.time() - message.body["sent"])


async def _report(tally: _Tally, say: Callable[[str], None]) -> None:
    while True:
        await asyncio.sleep(REPORT_S)
        seconds, regions = sorted(tally.seconds), tally.regions
        tally.seconds, tally.regions = [], Counter()
        if not seconds:
            say(f"demonstration: no orders in {REPORT_S:.0f} s")
            continue
        spread = ", ".join(f"{region} {count}" for region, count in sorted(regions.items()))
        middle_ms = 1000 * seconds[len(seconds) // 2]
        say(f"demonstration: {len(seconds)} orders in {REPORT_S:.0f} s ({spread}), {middle_ms:.1f} ms on the way")
