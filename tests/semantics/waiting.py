"""Waiting with a bound, and nothing else: who waits in vain gets a failed test, not a hanging one."""

import threading
import time

WAIT_S = 60.0  # only what hangs meets it
QUIET_S = 0.2  # for what must not come


def until(look, is_so=bool):
    """What a look shows as soon as it is so. Each look asks the cluster, whose state follows what was done to it."""
    deadline = time.monotonic() + WAIT_S
    while not is_so(found := look()):
        assert time.monotonic() < deadline, found
    return found


def send(session, destination, bodies, **fields):
    """Sends and waits until all of it is committed."""
    with session.producer(destination) as producer:
        for body in bodies:
            producer.send(body, **fields)


def take(consumer, count):
    """So many messages, in the order in which they come."""
    messages = []
    while len(messages) < count:
        message = consumer.receive(timeout=WAIT_S)
        assert message is not None, f"only {len(messages)} of {count} messages came"
        messages.append(message)
    return messages


def bodies(messages):
    return [message.body for message in messages]


def is_quiet(consumer):
    """Whether nothing comes."""
    return consumer.receive(timeout=QUIET_S) is None


def drain(session, destination):
    """All that a queue holds, consumed by a consumer that goes away again. What a look shows is waited for."""
    count = len(list(session.browser(destination)))
    with session.consumer(destination) as consumer:
        found = take(consumer, count)
        while (message := consumer.receive(timeout=QUIET_S)) is not None:
            found.append(message)
    return found


class Gathered:
    """What a listener heard."""

    def __init__(self) -> None:
        self.messages = []
        self._changed = threading.Condition()

    def __call__(self, message) -> None:
        with self._changed:
            self.messages.append(message)
            self._changed.notify_all()

    def until(self, count: int) -> list:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.messages) >= count, WAIT_S)
            return list(self.messages)

    def until_heard(self, message) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: message in self.messages, WAIT_S), self.messages
