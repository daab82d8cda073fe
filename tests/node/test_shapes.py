"""Clusters of all shapes: Client Managers and Message Managers come in numbers of their own."""

import pytest

import alphorn.aio
from tests.io.loops import run
from tests.node.serving import server

WAIT_S = 60.0  # only what hangs meets it
QUEUES = [f"queue:{number}" for number in range(20)]


def doors(url: str) -> list[str]:
    """The URL of each Client Manager."""
    scheme, _, hosts = url.partition("://")
    return [f"{scheme}://{host}" for host in hosts.split(",")]


@pytest.mark.requirement("MM-5", "CM-6")
@pytest.mark.parametrize(
    ("client_managers", "backups", "channels"), [(3, 0, 1), (1, 2, 1), (2, 0, 3)], ids=["3:1", "1:3", "2:3"]
)
def test_any_number_of_client_managers_serves_any_number_of_message_managers(
    tmp_path, client_managers, backups, channels
):
    async def test():
        shape = {"client_managers": client_managers, "backups": backups, "channels": channels}
        async with server(tmp_path, **shape) as url:
            assert len(doors(url)) == client_managers
            async with alphorn.aio.connect(url) as connection:
                producer = await (await connection.session()).producer()
                for queue in QUEUES[:4]:
                    for number in range(client_managers):
                        await (await producer.send(number, destination=queue)).result()
            found = []
            for door in doors(url):
                async with alphorn.aio.connect(door) as connection:
                    session = await connection.session()
                    for queue in QUEUES[:4]:
                        consumer = await session.consumer(queue, prefetch=1)
                        found.append((await consumer.receive(timeout=WAIT_S)).body)
                        await consumer.close()
            assert found == [number for number in range(client_managers) for _ in range(4)]

    run(test)


@pytest.mark.requirement("MM-6")
def test_each_primary_stores_what_belongs_to_its_channel_and_nothing_else(tmp_path):
    async def test():
        async with server(tmp_path, client_managers=1, backups=0, channels=2) as url:
            async with alphorn.aio.connect(url) as connection:
                producer = await (await connection.session()).producer()
                for queue in QUEUES:
                    await (await producer.send("body", destination=queue)).result()
                status = await connection.status()
            stored = {known["name"]: known for known in status["destinations"] if known["name"] in QUEUES}
            assert sorted(known["name"] for known in status["destinations"] if known["name"] in QUEUES) == sorted(
                QUEUES
            )
            assert all(known["depth"] == 1 for known in stored.values())
            channels = [known["channel"] for known in stored.values()]
            assert len(set(channels)) == 2
            assert min(map(channels.count, channels)) >= len(QUEUES) // 4, "they are spread over both"

    run(test)
