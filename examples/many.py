"""The asyncio API, and many messages at once."""

import asyncio
import time

from start import cluster_url

from alphorn import aio

COUNT = 100_000


async def main(url: str) -> None:
    """Sends and receives at the same time."""
    async with aio.connect(url) as connection:
        consumer = await connection.session().consumer("queue:many", prefetch=10_000)
        producer = await connection.session().producer("queue:many")
        began = time.perf_counter()
        sending = asyncio.create_task(send(producer))
        received = 0
        while received < COUNT:
            messages = await consumer.receive_many(1_000, timeout=10)
            assert messages, f"only {received} came"
            received += len(messages)
        await sending
        print(f"{COUNT} messages there and acknowledged, {COUNT / (time.perf_counter() - began):,.0f} a second")


async def send(producer: aio.Producer) -> None:
    """In batches, all confirmed at the end."""
    for start in range(0, COUNT, 1_000):
        await producer.send_many([{"number": number} for number in range(start, start + 1_000)])
    await producer.flush()


with cluster_url() as url:
    asyncio.run(main(url))
