"""A topic: a durable subscription misses nothing while away, a selector filters, and history can be read again."""

from start import cluster_url

import alphorn

with cluster_url() as url, alphorn.connect(url, client_id="prices-example") as connection:
    connection.destinations.create("topic:prices", retain=3600.0)
    session = connection.session()
    subscriber = session.consumer("topic:prices", subscription="mine", selector="region = 'eu'")
    subscriber.close()  # away, and still subscribed

    producer = session.producer("topic:prices")
    for region, price in (("eu", 10), ("us", 11), ("eu", 12)):
        producer.send({"price": price}, properties={"region": region})
    producer.flush(timeout=10)

    subscriber = session.consumer("topic:prices", subscription="mine", selector="region = 'eu'")
    print("while away:", [message.body["price"] for message in subscriber.receive_many(2, timeout=10)])

    historian = session.consumer("topic:prices", start="earliest")
    history: list[alphorn.Message] = []
    while len(history) < 3 and (more := historian.receive_many(3, timeout=10)):
        history += more
    print("from the beginning:", [message.body["price"] for message in history])
    subscriber.close()
    session.unsubscribe("mine")
