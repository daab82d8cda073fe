"""A message that nobody can handle is tried twice, put aside with its history, and brought back when all is well."""

from start import cluster_url

import alphorn

with cluster_url() as url, alphorn.connect(url) as connection:
    connection.destinations.create("queue:fragile-orders", delivery_limit=2, dead_letter="queue:broken-orders")
    session = connection.session(ack="individual")
    producer = session.producer("queue:fragile-orders")
    producer.send("an order that makes the shop fall over")
    producer.flush(timeout=10)

    consumer = session.consumer("queue:fragile-orders")
    for _ in range(2):
        message = consumer.receive(timeout=10)
        assert message is not None
        print("delivery", message.delivery_count, "fails")
        message.reject()

    dead = session.consumer("queue:broken-orders").receive(timeout=10)
    assert dead is not None
    print("put aside:", dead.body)
    dead.reject()  # it stays there
    connection.destinations.redrive("queue:broken-orders")
    message = consumer.receive(timeout=10)
    assert message is not None
    print("brought back, delivery", message.delivery_count)
    message.acknowledge()
