"""What programs may choose for sessions, producers, consumers and destinations, checked for both shells."""

import datetime
import math
import numbers
import re
import sys
import time
from typing import Any

import msgspec

from alphorn.client.inbox import AckMode
from alphorn.client.outbox import Parcel
from alphorn.client.packing import (
    check_priority,
    check_properties,
    check_seconds,
    check_text,
    flags_of,
    pack_message,
)
from alphorn.client.url import Target
from alphorn.message_manager.selector import parse as parse_selector
from alphorn.model.conversation import Consume, ConsumePattern
from alphorn.model.destinations import KINDS, Destination, DestinationKind, Policy, parse_destination
from alphorn.model.errors import InvalidDestination, Misuse
from alphorn.model.fitting import Unfit, fit
from alphorn.model.messages import PRIORITY_DEFAULT, Flag, Packed, Streamed
from alphorn.model.patterns import SUBSCRIPTION_CHARACTERS_MAX, Pattern, is_pattern, parse_pattern
from alphorn.model.system import wish_for

PREFETCH_DEFAULT = 1000
PREFETCH_MAX = 1_000_000
TIMEOUT_S_MAX = 1e9  # thirty years: who would wait longer waits for ever, since locks cannot count much further
SEQUENCE_MAX = (1 << 63) - 1  # of a log entry

WHOLE_FORMS = tuple(f"{kind}:" for kind in KINDS)  # how a destination's name begins that says its kind
DestinationLike = str | Destination
Source = DestinationLike | Pattern  # what a consumer receives from
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?(B|KB|MB|GB|TB)", re.IGNORECASE)
_SIZE_UNITS = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}


def check_destination(destination: Any) -> str:
    """The text form of a destination; raises `Misuse` or `InvalidDestination`."""
    if type(destination) is Destination:
        destination.check()
        return str(destination)
    if type(destination) is Pattern or (type(destination) is str and is_pattern(destination)):
        raise Misuse(f"{destination} names many destinations, which only consumers can; name one destination here")
    if type(destination) is not str:
        raise Misuse(
            f"a destination is a str like 'queue:orders', or what session.queue gives, not {type(destination).__name__}"
        )
    return str(parse_destination(destination))


def named(kind: DestinationKind, name: Any) -> Destination:
    """The queue or topic of this name, bare or in its whole form; raises `Misuse` or `InvalidDestination`."""
    if type(name) is not str:
        raise Misuse(f"the name of a destination is a str, not {type(name).__name__}")
    destination = Destination(kind, name)
    if name.startswith(WHOLE_FORMS):
        destination = parse_destination(name)
        if destination.kind is not kind:
            raise InvalidDestination(f"{name} is no {kind.name.lower()}; call session.{destination.kind.name.lower()}")
    destination.check()
    return destination


def check_timeout(timeout: Any, name: str = "timeout") -> float | None:
    """How many seconds to wait; None for ever. Raises `Misuse`.

    What is left until a moment that has passed is less than nothing, and so no time to wait.
    """
    if timeout is None:
        return None
    is_plain = type(timeout) in (float, int)
    if not (is_plain or _is_real(timeout)) or timeout != timeout:
        raise Misuse(f"{name} is {timeout!r}; it is a number of seconds, or None to wait for ever")
    if timeout >= TIMEOUT_S_MAX:
        return None
    return max(0.0, timeout if is_plain else float(timeout))


def _is_real(value: Any) -> bool:
    return type(value) is not bool and isinstance(value, numbers.Real)


def check_patience(timeout: Any, name: str) -> float:
    """As `check_timeout`, with infinity for ever."""
    seconds = check_timeout(timeout, name)
    return math.inf if seconds is None else seconds


def check_maximum(maximum: Any) -> int:
    """How many messages to take at once; raises `Misuse`. Nobody has more than a list can."""
    if type(maximum) is not int or maximum < 1:
        raise Misuse(f"maximum is {maximum!r}; it is an int of 1 or more")
    return min(maximum, sys.maxsize)


def check_sequence(name: str, number: Any) -> int:
    """The number of a log entry; raises `Misuse`."""
    if type(number) is not int or not 0 <= number <= SEQUENCE_MAX:
        raise Misuse(f"{name} is {number!r}; a sequence number is an int from 0 to {SEQUENCE_MAX}")
    return number


def check_channel(channel: Any) -> str:
    """The name of a channel; raises `Misuse`."""
    if not (name := check_text("channel", channel)):
        raise Misuse(f"channel is {channel!r}; name one, as `alphorn status` shows them")
    return name


def choose_identity(target: Target, *, user: Any, password: Any, client_id: Any) -> dict[str, str]:
    """Who connects; what is not given here is as the URL says. Raises `Misuse` that repeats nothing of it."""
    given = {
        "user": target.user if user is None else user,
        "password": target.password if password is None else password,
        "client_id": client_id,
    }
    return {name: check_text(name, value) or "" for name, value in given.items()}


def check_mode(ack: Any, *, transacted: bool) -> AckMode:
    """How a session acknowledges; raises `Misuse`."""
    if ack == AckMode.TRANSACTED.value or ack not in [mode.value for mode in AckMode]:
        raise Misuse(f"ack is {ack!r}; it is 'auto', 'client', 'individual' or 'dups_ok'")
    return AckMode.TRANSACTED if transacted else AckMode(ack)


class Sending(msgspec.Struct, frozen=True, kw_only=True):
    """What a producer says about each of its messages, unless the message says otherwise."""

    is_persistent: bool = True
    priority: int = PRIORITY_DEFAULT
    ttl: float | None = None
    delay: float | None = None
    is_waiting: bool = True  # when blocked, rather than raising

    @property
    def is_plain(self) -> bool:
        """Whether messages need nothing but a body."""
        return self.priority == PRIORITY_DEFAULT and not self.ttl and not self.delay

    @property
    def flags(self) -> int:
        """What holds for every message."""
        return 0 if self.is_persistent else int(Flag.VOLATILE)

    def parcel(
        self,
        place: int,
        body: Any,
        *,
        now_ms: int,
        properties: dict[str, Any] | None,
        priority: int | None,
        ttl: float | None,
        delay: float | None,
        key: str | None,
        type: str | None,
        correlation_id: str | None,
        reply_to: DestinationLike | None,
        content_type: str | None = None,
        stream: Streamed | None = None,
    ) -> Parcel:
        """One message, checked and packed; raises `Misuse` that names what is wrong."""
        ttl = check_seconds("ttl", ttl) if ttl is not None else self.ttl
        delay = check_seconds("delay", delay) if delay is not None else self.delay
        message = Packed(
            body=body,
            properties=check_properties(properties) or None,
            priority=check_priority(priority) if priority is not None else self.priority,
            expiration=now_ms + round(ttl * 1000) if ttl else 0,
            deliver_at=now_ms + round(delay * 1000) if delay else 0,
            key=check_text("key", key),
            type=check_text("type", type),
            correlation_id=check_text("correlation_id", correlation_id),
            reply_to=check_destination(reply_to) if reply_to is not None else None,
            content_type=check_text("content_type", content_type),
            stream=stream,
        )
        return Parcel(place, flags_of(message), 0, pack_message(message))


def choose_sending(*, persistent: bool, priority: Any, ttl: Any, delay: Any, on_block: Any) -> Sending:
    """What a producer says about all its messages; raises `Misuse`."""
    if on_block not in ("wait", "raise"):
        raise Misuse(f"on_block is {on_block!r}; it is 'wait' or 'raise'")
    return Sending(
        is_persistent=bool(persistent),
        priority=check_priority(priority),
        ttl=check_seconds("ttl", ttl),
        delay=check_seconds("delay", delay),
        is_waiting=on_block == "wait",
    )


def choose_consume(
    destination: str,
    *,
    selector: Any,
    no_local: bool,
    prefetch: Any,
    subscription: Any,
    shared: bool,
    durable: bool,
    start: Any,
) -> Consume:
    """The frame that begins to receive, without its numbers; raises `Misuse`."""
    is_queue = parse_destination(destination).kind is DestinationKind.QUEUE
    check_text("selector", selector)
    check_text("subscription", subscription)
    if type(prefetch) is not int or not 1 <= prefetch <= PREFETCH_MAX:
        raise Misuse(f"prefetch is {prefetch!r}; it is an int from 1 to {PREFETCH_MAX}")
    if is_queue and (subscription or shared or no_local or start != "new"):
        raise Misuse(f"{destination} is a queue; subscription, shared, no_local and start are for topics")
    if shared and not subscription:
        raise Misuse("a shared subscription needs a name; give subscription=")
    number, start_ms = _start_of(start)
    return Consume(
        request=0,
        session=0,
        consumer=0,
        place=0,
        prefetch=prefetch,
        selector=selector or "",
        subscription=subscription or "",
        is_durable=bool(subscription and durable),
        is_shared=bool(shared),
        no_local=bool(no_local),
        start=number,
        start_ms=start_ms,
    )


def pattern_of(source: Source) -> Pattern | None:
    """The pattern that a consumer is to receive from; None where it is one destination. Raises `InvalidDestination`.

    What belongs to the system is many destinations, one on each channel.
    """
    if type(source) is str and is_pattern(source):
        return parse_pattern(source)
    return source if type(source) is Pattern else wish_for(parse_destination(check_destination(source)))


def choose_pattern(pattern: Pattern, **choices: Any) -> ConsumePattern:
    """What a consumer of a pattern wishes for; raises `Misuse`.

    The selector is parsed here: where nothing matches the pattern yet, nobody else would look at it.
    """
    pattern.check()
    kind = DestinationKind.QUEUE if pattern.kind is DestinationKind.QUEUE else DestinationKind.TOPIC
    consume = choose_consume(str(Destination(kind, pattern.text)), **choices)
    if consume.selector:
        parse_selector(consume.selector)
    if len(consume.subscription) > SUBSCRIPTION_CHARACTERS_MAX:
        raise Misuse(
            f"a subscription to a pattern has a name of at most {SUBSCRIPTION_CHARACTERS_MAX} characters; "
            f"this one has {len(consume.subscription)}"
        )
    return ConsumePattern(
        request=0,
        session=0,
        watch=0,
        pattern=str(pattern),
        prefetch=consume.prefetch,
        selector=consume.selector,
        subscription=consume.subscription,
        is_durable=consume.is_durable,
        is_shared=consume.is_shared,
        no_local=consume.no_local,
        start=consume.start,
        start_ms=consume.start_ms,
    )


def _start_of(start: Any) -> tuple[int, int]:
    if start == "new":
        return -1, 0
    if start == "earliest":
        return 0, 0
    if type(start) is int:
        return check_sequence("start", start), 0
    if isinstance(start, datetime.datetime):
        return _start_at(start)
    raise Misuse(f"start is {start!r}; it is 'new', 'earliest', a sequence number or a datetime")


def _start_at(moment: datetime.datetime) -> tuple[int, int]:
    """No message is older than 1970, and none that is there is from the future; not all of such have a timestamp."""
    if moment.year >= datetime.MAXYEAR:
        return -1, 0
    start_ms = round(moment.timestamp() * 1000) if moment.year >= 1970 else 0
    if start_ms <= 0:
        return 0, 0
    return -1, 0 if start_ms > time.time() * 1000 else start_ms


def choose_policy(destination: str, policy: dict[str, Any]) -> bytes:
    """A policy as it is sent; raises `Misuse` that names what is wrong.

    `retain` is a time or a size, `dead_letter` a queue in any form or its bare name.
    """
    policy = dict(policy)
    if "retain" in policy:
        name, value = _retain_of(policy.pop("retain"))
        policy[name] = value
    if "dead_letter" in policy:
        policy["dead_letter"] = _dead_letter_of(policy["dead_letter"])
    known = Policy.__struct_fields__
    if unknown := sorted(set(policy) - set(known)):
        raise Misuse(f"a policy has no {', '.join(unknown)}; it has retain, {', '.join(known)}")
    try:
        chosen = fit(policy, Policy)
    except Unfit as error:
        raise Misuse(f"the policy of {destination} does not fit: {error}") from None
    chosen.check(parse_destination(destination))
    return msgspec.msgpack.encode(chosen)


def _retain_of(retain: Any) -> tuple[str, Any]:
    if isinstance(retain, datetime.timedelta):
        return "retain_s", retain.total_seconds()
    if type(retain) in (int, float):
        return "retain_s", retain
    if type(retain) is str and (found := _SIZE.fullmatch(retain.strip())):
        return "retain_bytes", int(float(found[1]) * _SIZE_UNITS[found[2].upper()])
    raise Misuse(f"retain is {retain!r}; it is a number of seconds, a timedelta, or a size like '500 MB'")


def _dead_letter_of(queue: Any) -> Any:
    """The bare name of a queue, as a policy has it."""
    if type(queue) is Destination:
        queue = str(queue)
    if type(queue) is not str:
        return queue
    if queue.startswith("topic:"):
        raise Misuse(f"dead_letter is {queue}; dead messages wait in a queue, so name one like 'queue:broken'")
    return named(DestinationKind.QUEUE, queue).name
