"""A Python program as a work process of the cluster: it hears of events, and tells others things.

    with alphorn.cluster.join("alphorn://127.0.0.1:7700", name="worker-1") as process:
        process.events.on("node_down", lambda event: print(event.node, "is down"))
        process.on_message(lambda message: print(message.sender, message.body))
        process.tell("leader", {"ready": True})

What is told here is in memory: acknowledged is what the other process has. What must outlive it goes by a queue.
`alphorn.aio.join_cluster` is the same with `await`.
"""

from alphorn.client.blocking.process import Events, WorkProcess, join
from alphorn.client.calls import Message
from alphorn.model.events import Event

__all__ = ["Event", "Events", "Message", "WorkProcess", "join"]
