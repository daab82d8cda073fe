"""Many topics with one consumer: a glob, a regular expression, and topics that do not exist yet."""

from start import cluster_url

import alphorn

with cluster_url() as url, alphorn.connect(url) as connection:
    session = connection.session()
    everything = session.consumer(alphorn.glob("topic:weather.*"))
    mountains = session.consumer(alphorn.regex(r"topic:weather\.(alps|jura)\..+"))

    producer = session.producer()
    for place, sky in (("alps.davos", "snow"), ("jura.chasseral", "fog"), ("lowland.bern", "rain")):
        producer.send(sky, destination=f"topic:weather.{place}")  # the first message creates the topic
    producer.flush(timeout=10)

    for name, consumer, count in (("everything", everything, 3), ("mountains", mountains, 2)):
        found: list[alphorn.Message] = []
        while len(found) < count and (more := consumer.receive_many(count, timeout=10)):
            found += more
        print(f"{name}:", sorted(f"{message.destination} {message.body}" for message in found))
