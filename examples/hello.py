"""Send a message, receive it, and know in between that it is safe."""

from start import cluster_url

import alphorn

with cluster_url() as url, alphorn.connect(url) as connection:
    session = connection.session()
    producer = session.producer("queue:greetings")
    receipt = producer.send({"text": "hello"}, properties={"language": "en"})
    print("committed as", receipt.result(timeout=10))  # on two disks from here on

    consumer = session.consumer("queue:greetings")
    message = consumer.receive(timeout=10)
    assert message is not None
    print("received", message.body, message.properties)
