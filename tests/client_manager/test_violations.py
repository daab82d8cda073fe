"""Whatever a client says in well-formed frames, it ends at most its own connection: others are served, replicas agree.

Goal: no field of no frame can raise anything inside a Client Manager or a Message Manager, nor put something into the
log that an engine raises on, cannot write down or reads differently. Method: clients that say generated frames, with
values at their bounds and beyond, to machines that are all real; afterwards a bystander sends and receives.
"""

import types
import typing
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from alphorn.model.commands import COUNTER_MAX, NOBODY, NUMBER_MAX
from alphorn.model.conversation import (
    AnyClientFrame,
    Close,
    Confirmed,
    Consume,
    Delivered,
    Hello,
    Publish,
    Resolve,
    Resolved,
    Retire,
    Welcome,
)
from alphorn.model.messages import count_of
from tests.client_manager.meeting import Meeting

KINDS = [kind for kind in typing.get_args(AnyClientFrame) if kind is not Close]
LITTLE = st.integers(-1, 5)
BOUNDS = st.sampled_from(
    [bound + off for bound in (1 << 31, NUMBER_MAX, 1 << 40, 1 << 41, COUNTER_MAX) for off in (-1, 0, 1)]
    + [-(1 << 63), (1 << 63) - 1, (1 << 64) - 1]
)
NUMBERS = LITTLE | LITTLE | LITTLE | BOUNDS
PLACES = st.sampled_from([1, 2, (1 << 40) + 1, (1 << 40) + 2])
NAMES = st.sampled_from(
    ["queue:q", "queue:r", "topic:t", "topic:u", "queue:_DMQ", "topic:_AUDIT", "queue:_DMQ@channel-1"]
)
WORDS = {
    "destination": NAMES,
    "channel": st.sampled_from(["channel-0", "channel-1", "none"]),
    "action": st.sampled_from(["create", "delete", "policy", "purge", "redrive", "release", "none"]),
    "pattern": st.sampled_from(["glob:*", "glob:queue:*", "regex:topic:(a|t)+", "regex:(", "none"]),
    "selector": st.sampled_from(["", "", "a = 1", "a LIKE '%b'", "a =", "(" * 3000]),
}
TEXTS = st.sampled_from(["", "name", "other", "\x00", "\N{SNOWMAN}" * 300])
MESSAGE = st.tuples(
    st.just("body"),
    st.sampled_from([None, {"a": 1}, {"a": (1 << 64) - 1}, {"a": float("nan")}]),
    st.sampled_from([4, 0, 9]) | NUMBERS,
    NUMBERS | st.just(1_000_100),
    NUMBERS | st.just(1_000_100),
    st.sampled_from([None, "", "key"]),
)
MESSAGES = st.builds(
    lambda messages, size: msgspec.msgpack.encode([message[:size] for message in messages]),
    st.lists(MESSAGE, min_size=1, max_size=3),
    st.integers(1, 6),
)
NO_MESSAGES = st.sampled_from([b"", b"\x90", b"\x91\xc1", b"\x91" * 3000, b"\xdd\xff\xff\xff\xff", b"x" * 40])
POLICIES = st.fixed_dictionaries(
    {},
    optional={
        "retain_s": st.sampled_from([0.0, 1.0, 1e10, -1.0, float("inf")]),
        "delivery_limit": st.sampled_from([1, (1 << 64) - 1]),
        "redelivery_delay": st.sampled_from([0.5, 1e10]),
        "dead_letter": st.sampled_from(["", "q", "_DMQ", "_AUDIT", "\x00", "temporary.x", "x" * 300]),
        "ttl": st.sampled_from([0.001, 1e10]),
        "max_length": st.sampled_from([1, (1 << 64) - 1]),
        "overflow": st.sampled_from(["block", "reject", "none"]),
        "groups": st.booleans(),
        "last_value": st.booleans(),
        "exclusive": st.booleans(),
        "audit": st.booleans(),
    },
).map(msgspec.msgpack.encode)
POSITIONS = st.lists(NUMBERS, max_size=4) | st.integers(1, 4).map(lambda first: [first, first])


def values_of(kind: type, name: str, hint: Any) -> st.SearchStrategy[Any]:
    """What a field of a frame may be, and a little more."""
    if name == "policy":
        return st.just(b"") | POLICIES | st.sampled_from([b"\xc1", b"\x80"])
    if name == "place":
        return PLACES | PLACES | PLACES | NUMBERS
    if name == "blob":
        return (MESSAGES | MESSAGES | NO_MESSAGES).map(memoryview)
    if name == "publishes":
        return st.lists(frames_of(Publish), max_size=2)
    if hint is int:
        return st.sampled_from([1, 1, 2]) | NUMBERS if name in ("session", "counter", "count") else NUMBERS
    if hint is str:
        return WORDS.get(name, TEXTS) | TEXTS
    if hint is bytes:
        return st.sampled_from([b"", b"short", NOBODY, b"c" * 16, b"p" * 20])
    if hint == list[int]:
        return POSITIONS
    return _values_of_type(hint)


def _values_of_type(hint: Any) -> st.SearchStrategy[Any]:
    if isinstance(hint, types.GenericAlias):
        arguments = typing.get_args(hint)
        if typing.get_origin(hint) is tuple:
            return st.tuples(*map(_values_of_type, arguments))
        if typing.get_origin(hint) is dict:
            return st.dictionaries(NUMBERS, POSITIONS, max_size=2)
        return POSITIONS if hint == list[int] else st.lists(_values_of_type(arguments[0]), max_size=3)
    return NUMBERS if hint is int else st.booleans()


def frames_of(kind: type) -> st.SearchStrategy[Any]:
    """Frames of a kind; most batches say truly how many messages they have."""
    hints = typing.get_type_hints(kind)
    fields = {name: values_of(kind, name, hints[name]) for name in kind.__struct_fields__}  # type: ignore[attr-defined]
    return st.builds(kind, **fields).map(_counted)


def _counted(frame: Any) -> Any:
    is_batch = "count" in frame.__struct_fields__ and bytes(frame.blob[:1]) in (b"\x91", b"\x92", b"\x93")
    if is_batch and frame.count >= 0:
        return msgspec.structs.replace(frame, count=count_of(frame.blob))
    return frame


FRAMES = st.one_of([frames_of(kind) for kind in KINDS])
STEPS = st.lists(
    st.lists(FRAMES, min_size=1, max_size=3)
    | st.sampled_from(["leave", "return", "close", "take over", 0.5, 7.0, 61.0]),
    max_size=30,
)


class Bystander:
    """A client that does nothing wrong, and a queue of its own."""

    def __init__(self, meeting: Meeting) -> None:
        self._meeting = meeting
        self._counter = 0
        self._stream = meeting.connect(1)
        meeting.say(self._stream, Resolve(1, "queue:bystander"))
        [resolved] = [frame for frame in meeting.heard(self._stream) if isinstance(frame, Resolved)]
        self._place = resolved.place
        meeting.say(self._stream, Consume(2, 1, 1, self._place, 100))
        meeting.heard(self._stream)

    def is_served(self) -> bool:
        """Whether what it sends is confirmed, and comes."""
        self._counter += 1
        blob = memoryview(msgspec.msgpack.encode([["body"]]))
        self._meeting.say(self._stream, Publish(1, 1, self._place, self._counter, 1, 0, 1000, blob))
        kinds = {type(frame) for frame in self._meeting.heard(self._stream)}
        return {Confirmed, Delivered} <= kinds and self._stream not in self._meeting.hung


class Stranger:
    """A client that says anything; hung up, it comes again."""

    def __init__(self, meeting: Meeting) -> None:
        self._meeting = meeting
        self._connection = b""
        self._begin()

    def _begin(self, connection: bytes = b"") -> None:
        self.stream = self._meeting.connect(1, 2, connection=connection)
        welcomes = [frame for frame in self._meeting.said.get(self.stream, []) if isinstance(frame, Welcome)]
        self._connection = welcomes[0].connection if welcomes else b""

    def do(self, step: Any) -> None:
        """Speaks, goes or comes back, or lets time pass."""
        if isinstance(step, float):
            self._meeting.pass_time(step)
        elif step == "take over":
            self._meeting.take_over(0)
        elif step == "close":
            self._meeting.say(self.stream, Close())
        elif step in ("leave", "return"):
            self._meeting.close(self.stream)
            self._begin(self._connection if step == "return" else b"")
        else:
            self._meeting.say(self.stream, *step)
        if self.stream in self._meeting.hung:
            self._begin()


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(STEPS)
def test_whatever_a_client_says_others_are_served_and_replicas_agree(steps: list[Any]) -> None:
    meeting = Meeting()
    bystander, stranger = Bystander(meeting), Stranger(meeting)
    for step in steps:
        stranger.do(step)
    assert bystander.is_served()
    meeting.pass_time(6.0)
    assert not any(connection.asked for connection in meeting.manager._desk.connections.values()), "all are answered"
    meeting.check_replicas()
    meeting.close(stranger.stream)
    meeting.pass_time(61.0)
    assert bystander.is_served()
    meeting.check_replicas()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@settings(max_examples=20)
@given(data=st.data())
def test_a_frame_of_any_kind_before_hello_and_after_goodbye_ends_nothing_else(kind: type, data: st.DataObject) -> None:
    frame = data.draw(frames_of(kind))
    meeting = Meeting()
    bystander, early, late = Bystander(meeting), meeting.open(), meeting.connect(1)
    meeting.say(early, frame, frame)
    meeting.say(late, Close(), frame, frame)
    assert meeting.is_sent_away(early) or isinstance(frame, Hello)
    assert meeting.hung[late] == "the client said goodbye"
    assert bystander.is_served()
    meeting.check_replicas()


@settings(max_examples=100)
@given(st.lists(frames_of(Retire), min_size=1, max_size=5))
def test_numbers_that_a_client_retires_are_its_own(retirements: list[Retire]) -> None:
    meeting = Meeting()
    bystander, stranger = Bystander(meeting), Stranger(meeting)
    assert bystander.is_served()
    for retire in retirements:
        stranger.do([retire])
    assert bystander.is_served(), "its producer has the same number"
    meeting.check_replicas()
