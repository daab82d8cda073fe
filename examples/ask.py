"""Request and reply: who asks waits on a temporary queue that lives as long as its connection."""

from start import cluster_url

import alphorn


def answer(message: alphorn.Message) -> None:
    """Doubles a number for whoever asked."""
    producer.send(2 * message.body, destination=message.reply_to, correlation_id=message.correlation_id)


with cluster_url() as url, alphorn.connect(url) as server, alphorn.connect(url) as client:
    producer = server.session().producer()
    server.session().consumer("queue:double").listen(answer)
    reply = client.session().request("queue:double", 21, timeout=10)
    print("21 doubled is", reply.body)
